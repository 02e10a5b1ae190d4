"""What a rank has of a graph, and the boundary over which it touches the others.

Invariant: a rank has its own nodes' features, labels and masks and the edges that touch them,
nothing else; who owns which node is a rule that all know.  An edge, and a link that is asked for,
is known to the owners of both of its ends, so that each side finds the boundary by itself and can
check what the other asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ....storage.snapshot import Snapshot
from ....storage.sparse import Float64, SparseMatrix
from ....stream import Bool, Int64
from ..ownership import Ownership

Masks = Sequence[Bool]
"""Of the nodes to train on, to choose by and to test on: three times (V,)."""


Use = Literal["train", "val", "test"]
"""To learn from, to choose weights by, or to be tested on."""

USES: tuple[Use, ...] = get_args(Use)


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Links that are asked for, of those that touch own nodes, and what is known beside them."""

    src: Int64  # (m,)
    dst: Int64  # (m,)
    use: Int64  # (m,) place in `USES`
    known: Int64  # (q,) ascending; nodes that this rank knows to have been a destination by then


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a rank: n nodes with F features, of C classes or with links that are asked."""

    rank: int
    ownership: Ownership
    src: Int64  # (e,) edges to own nodes, from any
    dst: Int64  # (e,)
    weight: Float64  # (e,)
    away_src: Int64  # (o,) edges from own nodes to those of others
    away_dst: Int64  # (o,)
    features: npt.NDArray[Any]  # (n, F)
    labels: Int64  # (n,)
    train: Bool  # (n,)
    val: Bool  # (n,)
    test: Bool  # (n,)
    num_classes: int
    snapshots: int = 1  # of a window; node v of the s-th is row s V + v
    pairs: Pairs | None = None  # what is asked, if it is links and not classes

    @staticmethod
    def of(snapshot: Snapshot, masks: Masks, ownership: Ownership, rank: int) -> Part:
        """A rank's part of a whole graph; for a graph that one process has read.

        Raises:
            ValueError: if the snapshot has no features or targets, or a mask not a value a node.
        """
        if snapshot.features is None or snapshot.target is None:
            raise ValueError("the snapshot must have `features` and a `target` to learn")
        for mask in masks:
            if len(mask) != snapshot.num_nodes:
                raise ValueError(
                    f"`masks` must have a value for each of {snapshot.num_nodes} nodes: "
                    f"got {len(mask)}"
                )
        own, matrix = ownership.rows[rank], snapshot.adjacency
        src, dst = matrix.indices.astype(np.int64), matrix.row_of
        here = ownership.owner == rank
        comes, goes = here[dst], here[src] & ~here[dst]
        train, val, test = (np.asarray(mask, bool)[own] for mask in masks)
        return Part(
            *(rank, ownership, src[comes], dst[comes], matrix.weight[comes]),
            *(src[goes], dst[goes], snapshot.features[own], snapshot.target[own].astype(np.int64)),
            *(train, val, test, int(snapshot.target.max(initial=0)) + 1),
        )

    @staticmethod
    def of_window(parts: Sequence[Part]) -> Part:
        """The same rank's parts of consecutive snapshots as one, so that all of them are trained
        together: node v of the s-th snapshot is node s V + v, and no edge joins two snapshots."""
        if not parts:
            raise ValueError("`parts` must hold at least one snapshot")
        first, width = parts[0], parts[0].ownership.num_nodes
        steps = [place * width for place in range(len(parts))]
        rows = (
            np.concatenate([own + step for step in steps]).astype(np.int64)
            for own in first.ownership.rows
        )

        def joined(name: str, *, move: bool = False) -> Any:
            arrays = [getattr(part, name) for part in parts]
            if move:
                arrays = [array + step for array, step in zip(arrays, steps, strict=True)]
            return np.concatenate(arrays)

        return Part(
            *(first.rank, Ownership(tuple(rows))),
            *(joined("src", move=True), joined("dst", move=True), joined("weight")),
            *(joined("away_src", move=True), joined("away_dst", move=True), joined("features")),
            *(joined("labels"), joined("train"), joined("val"), joined("test")),
            max(part.num_classes for part in parts),
            len(parts),
            _joined_pairs([part.pairs for part in parts], steps),
        )

    @staticmethod
    def of_links(
        snapshot: Snapshot,
        pairs: tuple[Int64, Int64],
        use: Use,
        known: Int64,
        ownership: Ownership,
        rank: int,
    ) -> Part:
        """A rank's part of a snapshot, and of the links `(src, dst)` that are asked for in it.

        `known` are the nodes that this rank knows to have been a destination, ascending.

        Raises:
            ValueError: if the snapshot has no features.
        """
        if snapshot.features is None:
            raise ValueError("the snapshot must have `features` to learn from")
        nobody = np.zeros(snapshot.num_nodes, bool)
        bare = Part.of(
            Snapshot(snapshot.adjacency, snapshot.features, np.zeros(len(nobody), np.int64)),
            *([nobody] * 3, ownership, rank),
        )
        here = ownership.owner == rank
        src, dst = (np.asarray(end, np.int64) for end in pairs)
        touching = here[src] | here[dst]
        src, dst = src[touching], dst[touching]
        asked = Pairs(src, dst, np.full(len(src), USES.index(use)), known)
        return replace(bare, num_classes=0, pairs=asked)

    @property
    def own(self) -> Int64:
        """(n,) the nodes, ascending."""
        return self.ownership.rows[self.rank]

    @cached_property
    def boundary(self) -> Boundary:
        """What this rank gives to and takes from the others."""
        return Boundary.of(self)


@dataclass(frozen=True, eq=False)
class Boundary:
    """The rows that cross: g are given, h are taken; a row goes to a rank once."""

    halo: Int64  # (h,) others' nodes with an edge to own ones, by (owner, node)
    received: list[int]  # of these, how many each rank has
    given: Int64  # (g,) places of own rows, rank by rank that needs them, ascending
    sent: list[int]  # of these, how many go to each rank

    @staticmethod
    def of(part: Part) -> Boundary:
        """From the edges that the part knows."""
        owner, size = part.ownership.owner, part.ownership.size
        taken, given, to = [part.src], [part.away_src], [part.away_dst]
        if part.pairs is not None:  # each end's owner needs the other end's row
            for near, far in (
                (part.pairs.src, part.pairs.dst),
                (part.pairs.dst, part.pairs.src),
            ):
                cut = (owner[near] == part.rank) & (owner[far] != part.rank)
                taken.append(far[cut])
                given.append(near[cut])
                to.append(far[cut])
        wanted = np.concatenate(taken)
        halo = np.unique(wanted[owner[wanted] != part.rank])
        halo = halo[np.argsort(owner[halo], kind="stable")]
        pairs = np.unique(
            owner[np.concatenate(to)] * part.ownership.num_nodes + np.concatenate(given)
        )  # (g,) to which rank, which node
        width = max(part.ownership.num_nodes, 1)
        return Boundary(
            halo,
            np.bincount(owner[halo], minlength=size).tolist(),
            part.ownership.place[pairs % width],
            np.bincount(pairs // width, minlength=size).tolist(),
        )

    def given_to(self, rank: int) -> Int64:
        """Places of own rows that go to a rank."""
        start = sum(self.sent[:rank])
        return self.given[start : start + self.sent[rank]]


def _joined_pairs(pairs: Sequence[Pairs | None], steps: Sequence[int]) -> Pairs | None:
    if all(one is None for one in pairs):
        return None
    if any(one is None for one in pairs):
        raise ValueError("`parts` must all ask for links, or none of them")
    moved = {
        name: [getattr(one, name) + step for one, step in zip(pairs, steps, strict=True)]
        for name in ("src", "dst", "known")
    }
    use = np.concatenate([one.use for one in pairs if one is not None])
    ends = np.concatenate(moved["src"]), np.concatenate(moved["dst"])
    return Pairs(*ends, use, np.concatenate(moved["known"]))


class LocalGraph:
    """The in-edges of a rank's nodes as matrices: n rows, columns own nodes and then the halo."""

    def __init__(self, part: Part, halo_degree: Float64) -> None:
        boundary = part.boundary
        self.num_own = len(part.own)
        self.nodes = np.concatenate((part.own, boundary.halo))  # (n + h,)
        self._degree = np.concatenate((degrees(part), halo_degree))
        number = np.full(part.ownership.num_nodes, -1, np.int64)
        number[self.nodes] = np.arange(len(self.nodes))
        self._edges = number[part.src], number[part.dst], part.weight

    @cached_property
    def mean(self) -> SparseMatrix:
        """Rows sum to 1, or are empty."""
        return self._matrix(*self._edges).normalised("mean")

    @cached_property
    def looped(self) -> SparseMatrix:
        """Weights 1 and a self loop at every node, for attention."""
        src, dst, _ = self._with_loops()
        whole = self._matrix(src, dst, np.ones(len(src)))
        return SparseMatrix(
            whole.num_columns, whole.indptr, whole.indices, np.ones(whole.num_edges)
        )

    @cached_property
    def gcn(self) -> SparseMatrix:
        """Divided by the roots of both ends' degrees in the whole graph (Kipf and Welling 2017)."""
        scale = np.zeros(len(self._degree))
        np.power(self._degree, -0.5, where=self._degree > 0, out=scale)
        src, dst, weight = self._with_loops()
        return self._matrix(src, dst, scale[dst] * weight * scale[src])

    def _with_loops(self) -> tuple[Int64, Int64, Float64]:
        src, dst, weight = self._edges
        bare = np.setdiff1d(np.arange(self.num_own), src[src == dst])
        ends = (np.concatenate((given, bare)) for given in (src, dst))
        return *ends, np.concatenate((weight, np.ones(len(bare))))  # type: ignore[return-value]

    def _matrix(self, src: Int64, dst: Int64, weight: Float64) -> SparseMatrix:
        whole = SparseMatrix.from_edges(src, dst, len(self.nodes), weight)
        return whole.take_rows(np.arange(self.num_own))


def degrees(part: Part) -> Float64:
    """(n,) weights of the in-edges of own nodes, with a self loop of 1 where there is none."""
    place = part.ownership.place[part.dst]
    found = np.bincount(place, weights=part.weight, minlength=len(part.own)).astype(np.float64)
    bare = np.ones(len(part.own))
    bare[place[part.src == part.dst]] = 0
    return found + bare
