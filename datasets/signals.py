"""Named signals: graphs whose nodes have a value a step.

The files are not part of the package: `NEUTRONSTREAM_DATA` names the folder that holds
`signals/NAME_edges.parquet` (src, dst, weight and, where the graph changes, t) and
`signals/NAME_nodes.parquet` (t, node, y and what else a node has).  They are the sets of PyTorch
Geometric Temporal (Rozemberczki et al., CIKM 2021).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..stream import LogError
from ..stream.errors import did_you_mean
from ..stream.events import Float32, Float64, Int64
from .registry import DEFAULT_FOLDER, VARIABLE


@dataclass(frozen=True, slots=True)
class Signal:
    """A graph, fixed or one a step, and a value of each node at each step."""

    name: str
    src: tuple[Int64, ...]  # of the edges: T arrays, or one for all steps
    dst: tuple[Int64, ...]
    weight: tuple[Float64, ...]
    values: Float32  # (T, V)
    features: Float32 | None = None  # (T, V, F)
    what: str = ""
    is_count: bool = False  # values are numbers of things, best seen as log(1 + value)

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return len(self.values)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are; those without an edge count."""
        return int(self.values.shape[1])

    @property
    def is_fixed(self) -> bool:
        """Whether the graph is the same at all steps."""
        return len(self.src) == 1


# name: what the values are, whether they count something
_KNOWN: dict[str, tuple[str, bool]] = {
    "chickenpox": ("weekly cases in 20 Hungarian counties, standardised", False),
    "england_covid": ("daily cases in 129 regions of England, edges are journeys", True),
    "montevideo_bus": ("hourly boardings at 675 bus stops of Montevideo", True),
    "pedalme_london": ("weekly deliveries in 15 areas of London, standardised", False),
    "twitter_tennis_rg17": ("hourly mentions of 1000 accounts, Roland-Garros 2017", True),
    "twitter_tennis_uo17": ("hourly mentions of 1000 accounts, US Open 2017", True),
}


def signal_names() -> list[str]:
    """The names of the known signals, sorted."""
    return sorted(_KNOWN)


def load_signal(name: str) -> Signal:
    """The signal of that name.

    Raises:
        ValueError: if there is no signal of that name; it names the closest.
        LogError: if a file is not there, or lacks a value of a node at a step.
    """
    if name not in _KNOWN:
        all_names = f"known are {', '.join(signal_names())}"
        hint = did_you_mean(name, _KNOWN, most=3, otherwise=all_names)
        raise ValueError(f"`{name}` is no signal: {hint}")
    folder = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER) / "signals"
    tables = []
    for part in ("edges", "nodes"):
        path = folder / f"{name}_{part}.parquet"
        if not path.is_file():
            raise LogError(f"{path} is not there: set {VARIABLE} to the folder that holds signals/")
        tables.append(pq.read_table(path))
    edges, nodes = tables
    values, features = _values(nodes, f"{folder / name}_nodes.parquet")
    what, is_count = _KNOWN[name]
    return Signal(name, *_edges(edges, len(values)), values, features, what, is_count)


def _values(table: pa.Table, path: str) -> tuple[Float32, Float32 | None]:
    """(T, V) and (T, V, F) of rows in any order."""
    step, node = (table[column].to_numpy() for column in ("t", "node"))
    steps, num_nodes = (int(column.max(initial=-1)) + 1 for column in (step, node))
    place = step * num_nodes + node
    if len(np.unique(place)) != len(place) or len(place) != steps * num_nodes:
        raise LogError(
            f"{path} must have a row for each of {num_nodes} nodes at each of {steps} steps: got "
            f"{len(place)}"
        )
    names = ["y", *sorted(column for column in table.column_names if column.startswith("f"))]
    whole = np.empty((steps * num_nodes, len(names)), np.float32)
    for column, name in enumerate(names):
        whole[place, column] = table[name].to_numpy()
    shape = steps, num_nodes, len(names) - 1
    features = np.ascontiguousarray(whole[:, 1:]).reshape(shape) if len(names) > 1 else None
    return np.ascontiguousarray(whole[:, 0]).reshape(shape[:2]), features


def _edges(
    table: pa.Table, steps: int
) -> tuple[tuple[Int64, ...], tuple[Int64, ...], tuple[Float64, ...]]:
    src, dst = (table[column].to_numpy().astype(np.int64) for column in ("src", "dst"))
    weight = table["weight"].to_numpy().astype(np.float64)
    if "t" not in table.column_names:
        return (src,), (dst,), (weight,)
    step = table["t"].to_numpy()
    order = np.argsort(step, kind="stable")
    cuts = np.searchsorted(step[order], np.arange(1, steps))
    src, dst, weight = (np.split(column[order], cuts) for column in (src, dst, weight))
    return tuple(src), tuple(dst), tuple(weight)
