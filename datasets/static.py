"""Static graphs: published graphs whose nodes have classes, from npz files without pickles.

The files are not part of the package: `NEUTRONSTREAM_DATA` names the folder that holds
`static/NAME.npz` (`edges` (2, E), `y`, the features as CSR, masks where the source has them).
Edges stand as the source lists them; a label of -1 is one that the source does not give.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..stream import Bool, Int64, LogError
from ..stream.errors import did_you_mean
from .registry import DEFAULT_FOLDER, VARIABLE

Float32: TypeAlias = npt.NDArray[np.float32]

GRAPHS = (
    "chameleon_heterophilous",
    "chameleon_musae",
    "citeseer",
    "cora",
    "facebook_page",
    "lastfm_asia",
    "pubmed",
    "squirrel_musae",
)


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of which most entries are 0 (CSR)."""

    num_columns: int
    indptr: Int64  # (rows + 1,)
    indices: Int64  # (nnz,)
    values: Float32  # (nnz,)

    def dense(self) -> Float32:
        """(rows, columns) written out."""
        rows = len(self.indptr) - 1
        out = np.zeros((rows, self.num_columns), np.float32)
        out[np.repeat(np.arange(rows), np.diff(self.indptr)), self.indices] = self.values
        return out

    def unit_rows(self) -> SparseRows:
        """Each row divided by its sum, if that is not 0."""
        row_of = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        total = np.bincount(row_of, weights=self.values, minlength=len(self.indptr) - 1)
        total[total == 0] = 1
        values = (self.values / total[row_of]).astype(np.float32)
        return SparseRows(self.num_columns, self.indptr, self.indices, values)


@dataclass(frozen=True, eq=False)
class StaticGraph:
    """A graph of V nodes with classes."""

    name: str
    num_nodes: int
    num_classes: int
    src: Int64  # (E,)
    dst: Int64  # (E,)
    labels: Int64  # (V,) -1: not known
    sparse_features: SparseRows | None = None  # of V rows
    train: Bool | None = None  # (V,) the masks, where the source has them
    val: Bool | None = None
    test: Bool | None = None

    @cached_property
    def features(self) -> Float32 | None:
        """(V, F) dense, made when it is first asked for (424 MB for facebook_page)."""
        return None if self.sparse_features is None else self.sparse_features.dense()

    @cached_property
    def both_ways(self) -> tuple[Int64, Int64]:
        """Sources and targets of each edge in both directions, once, and without loops."""
        src, dst = np.concatenate((self.src, self.dst)), np.concatenate((self.dst, self.src))
        key = np.unique((dst * self.num_nodes + src)[src != dst])
        return key % self.num_nodes, key // self.num_nodes


def graph_names() -> list[str]:
    """The names of the known static graphs, sorted."""
    return list(GRAPHS)


def load_graph(name: str, *, split: int = 0) -> StaticGraph:
    """A static graph by name; `split` chooses among the masks of a source that has several.

    Raises:
        ValueError: if there is no graph of that name (it names the closest), or no such split.
        LogError: if the folder or the file is not there.
    """
    if name not in GRAPHS:
        hint = did_you_mean(name, GRAPHS, most=3, otherwise=f"known are {', '.join(GRAPHS)}")
        raise ValueError(f"`{name}` is no static graph: {hint}")
    folder = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
    path = folder / "static" / f"{name}.npz"
    if not folder.is_dir():
        raise LogError(
            f"static graphs are looked for in `{folder}`, which is no folder: set {VARIABLE} to "
            "the folder that holds static/"
        )
    if not path.is_file():
        there = sorted(file.stem for file in path.parent.glob("*.npz"))
        raise LogError(f"{path} is not there; the folder has {', '.join(there) or 'no graphs'}")
    with np.load(path, allow_pickle=False) as file:
        parts = {key: file[key] for key in file.files}
    labels = parts["y"].astype(np.int64)
    src, dst = parts["edges"].astype(np.int64)
    features = None
    if "x_data" in parts:
        columns = int(parts["x_shape"][1])
        indptr, indices = (parts[f"x_{what}"].astype(np.int64) for what in ("indptr", "indices"))
        features = SparseRows(columns, indptr, indices, parts["x_data"].astype(np.float32))
    masks = {part: _mask(parts, part, split, name) for part in ("train", "val", "test")}
    classes = int(labels.max()) + 1
    return StaticGraph(name, len(labels), classes, src, dst, labels, features, **masks)


def _mask(parts: dict[str, Any], part: str, split: int, name: str) -> Bool | None:
    """(V,) a mask of the split that was asked for; None where the source has none."""
    masks = parts.get(f"{part}_masks", parts.get(f"{part}_mask"))
    if masks is None:
        return None
    masks = np.atleast_2d(masks)
    if not 0 <= split < len(masks):
        raise ValueError(f"`split` must be from 0 to {len(masks) - 1} for {name}: got {split}")
    found: Bool = masks[split].astype(bool)
    return found


def random_split(
    labels: Int64,
    *,
    per_class: int | None = None,
    train: int | float | None = None,
    val: int | float = 0.1,
    test: int | float | None = None,
    seed: int = 0,
) -> tuple[Bool, Bool, Bool]:
    """Masks of disjoint random nodes with a label to train on, to choose by and to test on.

    `per_class` is how many nodes of each class are trained on, or `train` how many of all.  A
    whole number counts nodes, a fraction is a share of the nodes with a label; without `test` all
    that are left are tested on.

    Raises:
        ValueError: unless one of `per_class` and `train` is given, or if there are too few nodes.

    >>> [int(mask.sum()) for mask in random_split(np.arange(100) % 4, per_class=5, val=0.3)]
    [20, 30, 50]
    """
    if (per_class is None) == (train is None):
        raise ValueError(
            f"give either `per_class` or `train`: got per_class={per_class}, train={train}"
        )
    random = np.random.default_rng(seed)
    order = random.permutation(np.flatnonzero(labels >= 0))
    counted = len(order)
    if per_class is not None:
        sizes = np.bincount(labels[order])
        few = np.flatnonzero((sizes < per_class) & (sizes > 0))
        if len(few):
            raise ValueError(
                f"`per_class` must not exceed any class: got {per_class}, but class {few[0]} has "
                f"{sizes[few[0]]} nodes"
            )
        chosen = [order[labels[order] == kind][:per_class] for kind in range(len(sizes))]
        first = np.concatenate(chosen) if chosen else order[:0]
        order = np.concatenate((first, order[~np.isin(order, first)]))
        ends = [len(first)]
    else:
        assert train is not None
        ends = [_count("train", train, counted)]
    ends.append(ends[0] + _count("val", val, counted))
    ends.append(counted if test is None else ends[1] + _count("test", test, counted))
    if ends[1] > counted or ends[2] > counted:
        raise ValueError(
            f"the parts must not exceed {counted} nodes with a label: got {ends[0]} to train on, "
            f"{ends[1] - ends[0]} to choose by and {max(ends[2] - ends[1], 0)} to test on"
        )
    masks = np.zeros((3, len(labels)), bool)
    for mask, start, stop in zip(masks, [0, *ends[:2]], ends, strict=True):
        mask[order[start:stop]] = True
    return masks[0], masks[1], masks[2]


def _count(name: str, given: int | float, whole: int) -> int:
    """How many of the whole a number or a share is."""
    if given < 0 or (isinstance(given, float) and given > 1):
        raise ValueError(f"`{name}` must be a number of nodes or a share up to 1: got {given}")
    return round(given * whole) if isinstance(given, float) else given
