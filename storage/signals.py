"""Signals on a graph as snapshots: past values of each node go in, a later one is to be found.

Invariant: a snapshot's graph and features are those of its step and earlier ones; only its target
lies later.  Scales are measured on the first steps alone, those that are learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .snapshot import Float32, Snapshot
from .sparse import Float64, SparseMatrix

Edges: TypeAlias = npt.NDArray[Any] | Sequence[npt.ArrayLike]
"""An array or list of all steps, or a list of such: one each, or a single one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values made to have mean 0 and deviation 1, after `log(1 + value)` if `log`."""

    mean: float
    deviation: float
    log: bool = False

    @staticmethod
    def of(values: npt.NDArray[Any], steps: int, *, log: bool = False) -> Scale:
        """What the first `steps` of values (T, V) give; one scale for all nodes.

        Raises:
            ValueError: if there is no step, or a value is at most -1 where logarithms are taken.
        """
        if not 1 <= steps <= len(values):
            raise ValueError(f"`steps` must be from 1 to {len(values)}: got {steps}")
        if log and not (values > -1).all():
            raise ValueError(f"`log` needs values above -1: the least is {values.min()}")
        known = np.asarray(values[:steps], np.float64)
        known = np.log1p(known) if log else known
        return Scale(float(known.mean()), float(known.std()) or 1.0, log)

    def apply(self, values: npt.NDArray[Any]) -> Float32:
        """The values in this scale, float32."""
        raw = np.log1p(values.astype(np.float64)) if self.log else values.astype(np.float64)
        with np.errstate(over="ignore"):  # far from those it was measured on: infinite
            scaled: Float32 = ((raw - self.mean) / self.deviation).astype(np.float32)
        return scaled

    def undo(self, scaled: npt.NDArray[Any]) -> Float64:
        """The values that `apply` was given; infinite where they are too large."""
        raw = scaled.astype(np.float64) * self.deviation + self.mean
        with np.errstate(over="ignore"):
            values: Float64 = np.expm1(raw) if self.log else raw
        return values


def signal_snapshots(
    src: Edges,
    dst: Edges | None,
    weight: Edges | None,
    values: npt.ArrayLike,
    *,
    extra: npt.ArrayLike | None = None,
    lags: int = 4,
    horizon: int = 1,
) -> list[Snapshot]:
    """A snapshot for each step that has `lags` values up to it and a value `horizon` later.

    `values` are (T, V).  `src`, `dst` and `weight` are arrays or lists of the edges of all steps,
    or lists of such, one a step or a single one.  Where `dst` is None, `src` has both: it is an
    `edge_index` (2, E), or a list of such.  The features are the last `lags` values, oldest first,
    then those of `extra` (T, V, F) at the step; the target is the value `horizon` steps later.
    The `start` of a snapshot is its step, its `stop` the next.

    Raises:
        ValueError: if the shapes disagree, a value is not finite in float32, or no step is left.

    >>> one, two = signal_snapshots([0], [1], None, [[1, 5], [2, 6], [3, 7]], lags=1)
    >>> one.features.tolist(), one.target.tolist(), (two.start, two.stop)
    ([[1.0], [5.0]], [2.0, 6.0], (1, 2))
    """
    series = np.asarray(values)
    if series.ndim != 2:
        raise ValueError(f"`values` must be (steps, nodes): got {series.shape}")
    steps, num_nodes = series.shape
    if lags < 1 or horizon < 1:
        raise ValueError(f"`lags` and `horizon` must be at least 1: got {lags} and {horizon}")
    if steps < lags + horizon:
        raise ValueError(
            f"{lags} lags and a horizon of {horizon} need {lags + horizon} steps: got {steps}"
        )
    more = np.empty((steps, num_nodes, 0)) if extra is None else np.asarray(extra)
    if more.ndim != 3 or more.shape[:2] != series.shape:
        raise ValueError(f"`extra` must be ({steps}, {num_nodes}, width): got {more.shape}")
    series, more = in_float32("values", series), in_float32("extra", more)
    if dst is None:
        src, dst = _ends(src)
    matrices = _matrices(src, dst, weight, steps, num_nodes)
    found = []
    for step in range(lags - 1, steps - horizon):
        past = series[step + 1 - lags : step + 1].T  # (V, lags)
        features = np.concatenate((past, more[step]), axis=1)
        adjacency = matrices[step if len(matrices) > 1 else 0]
        found.append(
            Snapshot(
                *(adjacency, features, series[step + horizon], None),
                *(step, step + 1, step, step + 1),
            )
        )
    return found


def in_float32(name: str, values: npt.NDArray[Any]) -> Float32:
    """The values (T, V) or (T, V, F) as float32.

    Raises:
        ValueError: if one is not finite, or too large; it says of which step and node.
    """
    with np.errstate(over="ignore"):
        found: Float32 = values.astype(np.float32)
    if not np.isfinite(found).all():
        at = tuple(int(place[0]) for place in np.nonzero(~np.isfinite(found)))
        most = np.finfo(np.float32).max
        raise ValueError(
            f"`{name}` must be finite and at most {most:.1e} in size, as float32: step {at[0]} has "
            f"{values[at]:g} of node {at[1]}"
        )
    return found


def _matrices(
    src: Edges, dst: Edges, weight: Edges | None, steps: int, num_nodes: int
) -> list[SparseMatrix]:
    """One for all steps, or one each."""
    src, dst = _listed(src), _listed(dst)
    weights: Sequence[npt.ArrayLike | None] = (
        [None] * len(src) if weight is None else _listed(weight)
    )
    if not len(src) == len(dst) == len(weights) or len(src) not in (1, steps):
        raise ValueError(
            f"`src`, `dst` and `weight` must hold one array for all steps, or {steps}: got "
            f"{len(src)}, {len(dst)} and {len(weights)}"
        )
    lists = zip(src, dst, weights, strict=True)
    return [SparseMatrix.from_edges(a, b, num_nodes, w) for a, b, w in lists]


def _ends(edges: Edges) -> tuple[Sequence[npt.ArrayLike], Sequence[npt.ArrayLike]]:
    """Sources and targets of an (2, E) edge index, or of a list of such, one a step."""
    single = np.ndim(edges[0]) == 1 if len(edges) else False
    found = [np.asarray(given) for given in ([edges] if single else edges)]
    for place, pair in enumerate(found):
        if pair.ndim != 2 or len(pair) != 2:
            raise ValueError(
                "`src` without `dst` must be an edge index (2, edges), or a list of one a step: "
                f"got {pair.shape} at place {place}"
            )
    return [pair[0] for pair in found], [pair[1] for pair in found]


def _listed(edges: Edges) -> Sequence[npt.ArrayLike]:
    is_single = not len(edges) or np.ndim(edges[0]) == 0
    return [np.asarray(edges)] if is_single else list(edges)
