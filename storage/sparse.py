"""Sparse matrices of a graph: row v holds the in-edges of node v, so `A x` sends along the edges.

Invariant: within a row the columns ascend and none stands twice, so that a matrix has one form and
its hash tells whether two ranks hold the same.  Weights are float64 here; they are handed out in
the precision that the tensors have.  A directed graph's matrix is not its own transpose: both are
at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..stream.events import Bool, Int64

Int32: TypeAlias = npt.NDArray[np.int32]
Float64: TypeAlias = npt.NDArray[np.float64]
Normalisation = Literal["sum", "mean", "gcn", "loops", "chebyshev"]

NORMALISATIONS: tuple[Normalisation, ...] = ("sum", "mean", "gcn", "loops", "chebyshev")
"""What `SparseMatrix.normalised` knows: see there."""


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix by rows (CSR); int32 columns."""

    num_columns: int
    indptr: Int64  # (rows + 1,) row v is indptr[v]:indptr[v + 1]
    indices: Int32  # (nnz,) columns, ascending within a row
    weight: Float64  # (nnz,)

    @staticmethod
    def from_edges(
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        num_nodes: int,
        weight: npt.ArrayLike | None = None,
    ) -> SparseMatrix:
        """The matrix A: A[v, u] is the sum of the weights of the edges u -> v, 1 each by default.

        Raises:
            ValueError: if the arrays differ in length, a node is not in `[0, num_nodes)`, or a
                weight is not finite.

        >>> SparseMatrix.from_edges([0, 0, 2], [1, 1, 0], 3).dense().tolist()
        [[0.0, 0.0, 1.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        source, target = (np.asarray(given, np.int64).reshape(-1) for given in (src, dst))
        values = np.ones(len(source)) if weight is None else np.asarray(weight, np.float64)
        if not len(source) == len(target) == len(values):
            raise ValueError(
                f"`src`, `dst` and `weight` must be of one length: got {len(source)}, "
                f"{len(target)} and {len(values)}"
            )
        for name, nodes in (("src", source), ("dst", target)):
            wrong = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
            if len(wrong):
                at = int(wrong[0])
                raise ValueError(
                    f"`{name}` must be nodes from 0 to {num_nodes - 1}: edge {at} has {nodes[at]}"
                )
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"`weight` must be finite: edge {at} has {values[at]}")
        key, place = np.unique(target * max(num_nodes, 1) + source, return_inverse=True)
        total = np.bincount(place, weights=values, minlength=len(key)).astype(np.float64)
        return _of_keys(key, total, num_nodes, num_nodes)

    @property
    def num_rows(self) -> int:
        """How many rows there are; empty ones count."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """How many entries are stored."""
        return len(self.indices)

    @cached_property
    def degree(self) -> Int64:
        """(rows,) entries of each row."""
        return np.diff(self.indptr)

    @cached_property
    def row_of(self) -> Int64:
        """(nnz,) the row of each entry."""
        return np.repeat(np.arange(self.num_rows), self.degree)

    @cached_property
    def version(self) -> str:
        """16 hex digits that differ, nearly surely, if anything in the matrix does."""
        digest = blake2b(digest_size=8)
        digest.update(np.array([self.num_rows, self.num_columns]).tobytes())
        for part in (self.indptr, self.indices, self.weight):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()

    @cached_property
    def _back(self) -> tuple[SparseMatrix, Int64]:
        order = np.argsort(self.indices, kind="stable")  # rows ascend within a column
        counts = np.bincount(self.indices, minlength=self.num_columns)
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        rows = self.row_of[order].astype(np.int32)
        return SparseMatrix(self.num_rows, indptr, rows, self.weight[order]), order

    @property
    def transposed(self) -> SparseMatrix:
        """The transpose, made once."""
        return self._back[0]

    @property
    def transposed_edge(self) -> Int64:
        """(nnz,) for each entry of the transpose, which entry it is here."""
        return self._back[1]

    def both_ways(self) -> SparseMatrix:
        """A + A^T of a square matrix, in which a loop counts once.

        >>> SparseMatrix.from_edges([0, 1], [1, 1], 2).both_ways().dense().tolist()
        [[0.0, 1.0], [1.0, 1.0]]
        """
        ends = (
            np.concatenate((self.indices, self.row_of)),
            np.concatenate((self.row_of, self.indices)),
        )
        back = np.where(self.indices == self.row_of, 0.0, self.weight)
        weight = np.concatenate((self.weight, back))
        return SparseMatrix.from_edges(*ends, self.num_columns, weight)

    def weights(self, dtype: Any) -> npt.NDArray[Any]:
        """(nnz,) the weights in a precision, rounded once and kept.

        Raises:
            ValueError: if one is too large for it.
        """
        kept = self.__dict__.setdefault("_rounded", {})
        name = np.dtype(dtype).name
        if name not in kept:
            with np.errstate(over="ignore"):
                found = self.weight.astype(dtype)
            if not np.isfinite(found).all():
                most = np.abs(self.weight).max()
                raise ValueError(f"weights must be numbers that {name} holds: got {most:g}")
            kept[name] = found
        rounded: npt.NDArray[Any] = kept[name]
        return rounded

    def dense(self) -> Float64:
        """(rows, columns) the matrix written out; for small ones."""
        out = np.zeros((self.num_rows, self.num_columns))
        out[self.row_of, self.indices] = self.weight
        return out

    def take_rows(self, rows: npt.ArrayLike) -> SparseMatrix:
        """Some rows, in the order given; the columns stay."""
        wanted = np.asarray(rows, np.int64)
        size = self.degree[wanted]
        indptr = np.concatenate(([0], np.cumsum(size))).astype(np.int64)
        at = np.repeat(self.indptr[wanted] - indptr[:-1], size) + np.arange(indptr[-1])
        return SparseMatrix(self.num_columns, indptr, self.indices[at], self.weight[at])

    def take_columns(self, columns: npt.ArrayLike) -> SparseMatrix:
        """Some columns, numbered anew in the order given; entries of others are dropped."""
        wanted = np.asarray(columns, np.int64)
        number = np.full(self.num_columns, -1, np.int64)
        number[wanted] = np.arange(len(wanted))
        new = number[self.indices]
        kept = np.flatnonzero(new >= 0)
        kept = kept[np.lexsort((new[kept], self.row_of[kept]))]
        counts = np.bincount(self.row_of[kept], minlength=self.num_rows)
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return SparseMatrix(len(wanted), indptr, new[kept].astype(np.int32), self.weight[kept])

    def normalised(self, how: Normalisation) -> SparseMatrix:
        """A square matrix as layers want it, made once.

        `sum`: as it is.  `mean`: each row divided by its sum; empty rows stay empty.  `gcn`: with
        self loops of weight 1 where there are none, divided by the roots of both ends' in-degrees
        (Kipf and Welling 2017; directed as torch_geometric's `gcn_norm`).  `loops`: weights 1, self
        loops added (attention).  `chebyshev`: `2 L / 2 - I` for the symmetric Laplacian L, which is
        minus the adjacency without loops, divided by the roots of both ends' out-degrees
        (Defferrard et al. 2016; directed as torch_geometric's `ChebConv` with `lambda_max` 2).

        Raises:
            ValueError: if `how` is none of these, or a sum of weights that it divides by, or takes
                the root of, is negative; `sum` and `loops` take any weights.
        """
        if how not in NORMALISATIONS:
            raise ValueError(f"`how` must be one of {', '.join(NORMALISATIONS)}: got {how!r}")
        kept = self.__dict__.setdefault("_normalised", {})
        if how not in kept:
            kept[how] = self._normalise(how)
        found: SparseMatrix = kept[how]
        return found

    def _normalise(self, how: Normalisation) -> SparseMatrix:
        if how == "sum":
            return self
        if how == "mean":
            return self._scaled(self._inverse(1.0, how), np.ones(self.num_columns))
        if how == "chebyshev":
            bare = self._keep(self.row_of != self.indices)
            scale = bare.transposed._inverse(0.5, how)
            return bare._scaled(-scale, scale)
        looped = self._looped(keep=how == "gcn")
        if how == "loops":
            ones = np.ones(looped.num_edges)
            return SparseMatrix(looped.num_columns, looped.indptr, looped.indices, ones)
        scale = looped._inverse(0.5, how)
        return looped._scaled(scale, scale)

    def _keep(self, kept: Bool) -> SparseMatrix:
        counts = np.bincount(self.row_of[kept], minlength=self.num_rows)
        indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return SparseMatrix(self.num_columns, indptr, self.indices[kept], self.weight[kept])

    def _looped(self, *, keep: bool) -> SparseMatrix:
        """With a self loop at every node; those that are there keep their weight if wanted."""
        there = self.row_of == self.indices
        base = self if keep else self._keep(~there)
        has = np.zeros(self.num_rows, bool)
        if keep:
            has[self.row_of[there]] = True
        new = np.flatnonzero(~has)
        key = np.concatenate(
            (base.row_of * base.num_columns + base.indices, new * (base.num_columns + 1))
        )
        order = np.argsort(key, kind="stable")
        weight = np.concatenate((base.weight, np.ones(len(new))))[order]
        return _of_keys(key[order], weight, base.num_rows, base.num_columns)

    def _inverse(self, power: float, how: Normalisation) -> Float64:
        """(rows,) `sum of the row ** -power`, and 0 where a row is empty, or all weights are 0."""
        total = np.bincount(self.row_of, weights=self.weight, minlength=self.num_rows)
        is_signed = np.bincount(self.row_of, weights=self.weight < 0, minlength=self.num_rows) > 0
        wrong = np.flatnonzero(is_signed & (total <= 0))
        if len(wrong):
            which = "leave" if how == "chebyshev" else "come to"
            raise ValueError(
                f"the normalisation `{how}` cannot take negative weights that outweigh the others: "
                f"those of the edges that {which} node {wrong[0]} sum to {total[wrong[0]]:g}; give "
                "weights that are not negative, or take gat, which does not look at them"
            )
        out = np.zeros(len(total))
        np.power(total, -power, where=total > 0, out=out)
        return out

    def _scaled(self, by_row: Float64, by_column: Float64) -> SparseMatrix:
        weight = by_row[self.row_of] * self.weight * by_column[self.indices]
        return SparseMatrix(self.num_columns, self.indptr, self.indices, weight)


def _of_keys(key: Int64, weight: Float64, num_rows: int, num_columns: int) -> SparseMatrix:
    """The matrix whose entries stand at `row * num_columns + column`, ascending."""
    width = max(num_columns, 1)
    counts = np.bincount(key // width, minlength=num_rows)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return SparseMatrix(num_columns, indptr, (key % width).astype(np.int32), weight)


def holds(ascending: Int64, key: Int64) -> Bool:
    """Which keys stand in an ascending array."""
    if not len(ascending):
        return np.zeros(key.shape, bool)
    place = np.minimum(np.searchsorted(ascending, key), len(ascending) - 1)
    found: Bool = ascending[place] == key
    return found
