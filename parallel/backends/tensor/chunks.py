"""The plan of a pipelined product: destinations in runs, each source row sent once.

The rows of A are cut into runs; before run j only those of its sources travel that no earlier run
has asked for, so that the exchange of run j + 1 can go on while run j is multiplied (NeutronTP,
PVLDB 18(2), Algorithm 1).  The way back is the same plan of the transpose, so that chunks change no
bit of a gradient; the paper instead reuses the forward plan and takes its runs in reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....storage.sparse import SparseMatrix
from ....stream import Int64
from .split import Layout, Part


@dataclass(frozen=True, eq=False)
class Chunk:
    """A run of destinations."""

    first: int
    last: int  # rows [first, last), as all rows stand
    matrix: SparseMatrix  # these rows
    arrive: Part  # sources that no earlier run has had
    leave: Part  # its destinations


@dataclass(frozen=True, eq=False)
class Route:
    """How one product with a matrix goes, run by run; all rows stand as the layout has them."""

    matrix: SparseMatrix
    chunks: tuple[Chunk, ...]


def plan_route(matrix: SparseMatrix, layout: Layout) -> Route:
    """The plan for the runs of the layout; the last brings nodes that are nobody's source."""
    turned = layout.renumbered(matrix)
    ends = list(layout.ends)
    if len(ends) == 2:
        return Route(turned, (Chunk(0, ends[1], turned, layout.whole, layout.whole),))
    chunks = [
        Chunk(
            first,
            last,
            rows_of(turned, first, last),
            layout.part(new),
            layout.part(np.arange(first, last)),
        )
        for (first, last), new in zip(pairwise(ends), new_sources(matrix, ends), strict=True)
    ]
    return Route(turned, tuple(chunks))


def cut_rows(matrix: SparseMatrix, count: int) -> list[int]:
    """(count + 1,) ends of runs of rows of nearly the same work; runs may be empty.

    A row counts as its entries and as many again as a row has on average.
    """
    mean = matrix.num_edges / max(matrix.num_rows, 1)
    work = matrix.indptr + mean * np.arange(matrix.num_rows + 1)
    ends = np.searchsorted(work, np.linspace(0, work[-1], count + 1)).tolist()
    return [0, *ends[1:-1], matrix.num_rows]


def new_sources(matrix: SparseMatrix, ends: list[int]) -> list[Int64]:
    """For each run its sources that no earlier one has; the last has those of none as well."""
    first_run = np.full(matrix.num_columns, max(len(ends) - 2, 0))
    run_of = np.repeat(np.arange(len(ends) - 1), np.diff(matrix.indptr[ends]))  # (nnz,)
    np.minimum.at(first_run, matrix.indices, run_of)
    return [np.flatnonzero(first_run == run) for run in range(len(ends) - 1)]


def rows_of(matrix: SparseMatrix, first: int, last: int) -> SparseMatrix:
    """Rows [first, last), without a copy of their entries."""
    start, stop = matrix.indptr[first], matrix.indptr[last]
    indptr = matrix.indptr[first : last + 1] - start
    return SparseMatrix(
        matrix.num_columns, indptr, matrix.indices[start:stop], matrix.weight[start:stop]
    )
