"""Plans of which rows travel together: pure data, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ....storage.sparse import SparseMatrix
from ....stream import Bool, Int64
from ...spans import parts
from ..ownership import Ownership
from .roles import Roles

Rows: TypeAlias = slice | Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that leave a rank together."""

    rank: int  # that transforms them
    rows: Rows  # among the rows of that rank
    nodes: Rows  # the same among all nodes
    count: int
    tag: int


def plan_pieces(ownership: Ownership, roles: Roles, count: int, first_tag: int = 0) -> list[Piece]:
    """Each transforming rank's rows in `count` runs, the ranks by turns.

    >>> [(p.rank, p.nodes) for p in plan_pieces(Roles.of(3, 2).rows(5), Roles.of(3, 2), 2)]
    [(0, slice(0, 2, None)), (1, slice(3, 4, None)), (0, slice(2, 3, None)), (1, slice(4, 5, None))]
    """
    cuts = {rank: _bounds(ownership.sizes[rank], count) for rank in roles.transform}
    first = {rank: sum(ownership.sizes[:rank]) for rank in roles.transform}
    pieces: list[Piece] = []
    for turn in range(count):
        for rank in roles.transform:
            start, stop = cuts[rank][turn : turn + 2]
            nodes = slice(first[rank] + start, first[rank] + stop)
            tag = first_tag + len(pieces)
            pieces.append(Piece(rank, slice(start, stop), nodes, stop - start, tag))
    return pieces


def pieces_of(rank: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Those that a rank transforms."""
    return [piece for piece in pieces if piece.rank == rank]


@dataclass(frozen=True, slots=True)
class SubGraph:
    """Nodes that are propagated together, after those of earlier ones."""

    pieces: list[Piece]
    nodes: Int64  # as the pieces bring them


def plan_subgraphs(ownership: Ownership, roles: Roles, group: Int64) -> list[SubGraph]:
    """The sub-graphs in turn; `group` (V,) says in which each node is."""
    found: list[SubGraph] = []
    for number in range(int(group.max(initial=0)) + 1):
        pieces: list[Piece] = []
        for rank in roles.transform:
            rows = np.flatnonzero(group[ownership.rows[rank]] == number)
            nodes = torch.from_numpy(ownership.rows[rank][rows])
            tag = number * len(roles.transform) + len(pieces)
            pieces.append(Piece(rank, torch.from_numpy(rows), nodes, len(rows), tag))
        found.append(SubGraph(pieces, np.concatenate([np.asarray(p.nodes) for p in pieces])))
    return found


def without_later(matrix: SparseMatrix, group: Int64) -> tuple[SparseMatrix, Bool]:
    """The matrix without edges from a later sub-graph, and which edges (nnz,) are kept.

    Their sources are not transformed yet when they are wanted: NeutronTask's dependency management
    (PVLDB 18(6), Algorithm 1), which makes every epoch an approximation of its own.  The weights of
    the others stay what they are.
    """
    kept = group[matrix.indices] <= group[matrix.row_of]
    counts = np.bincount(matrix.row_of[kept], minlength=matrix.num_rows)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    bare = SparseMatrix(matrix.num_columns, indptr, matrix.indices[kept], matrix.weight[kept])
    return bare, kept


def assign(
    num_nodes: int, num_chunks: int, num_subgraphs: int, random: np.random.Generator
) -> Int64:
    """(V,) the sub-graph of each node: even runs of nodes, shuffled and dealt out.

    >>> assign(6, 3, 3, np.random.default_rng(0)).tolist()
    [1, 1, 2, 2, 0, 0]
    """
    place = np.empty(num_chunks, np.int64)
    place[random.permutation(num_chunks)] = np.arange(num_chunks)
    chunk = np.repeat(np.arange(num_chunks), parts(num_nodes, num_chunks))
    return place[chunk] * num_subgraphs // num_chunks


def _bounds(length: int, count: int) -> Sequence[int]:
    return [0, *np.cumsum(parts(length, count)).tolist()]
