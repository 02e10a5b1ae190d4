"""Who computes which rows, who hands which to whom, and what an epoch of that costs.

Invariant: for each layer a rank takes rows in and gives a prefix of them back: its own nodes first,
then the copies of remote ones that the layers above need.  So a model needs not know of copies, and
what a rank computes for a copy is what the owner computes for the node.  Gradients need no message
for copies: each copy's gradient is a part of the whole, and parameters' gradients are summed over
the ranks anyway.  The formulas are a reconstruction (NeutronHeter's text is not open).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np

from ....storage.sparse import Float64, SparseMatrix
from ....stream import Int64
from ..halo import wanted
from ..ownership import Ownership
from .resources import Resources

Rows: TypeAlias = tuple[Int64, ...]  # for each rank its nodes

FIELDS = ("taken", "given", "remote", "via")  # of a stage, as it is sent


@dataclass(frozen=True)
class Load:
    """A model, as far as time goes: the widths d_0 .. d_L of its rows, and bytes a number."""

    widths: tuple[int, ...]
    itemsize: int = 4

    @property
    def hops(self) -> int:
        """How many layers there are."""
        return len(self.widths) - 1

    def node_work(self, hop: int) -> int:
        """Operations a row that a layer takes in: its product with the weights, and two back."""
        return 3 * 2 * self.widths[hop] * self.widths[hop + 1]

    def edge_work(self, hop: int) -> int:
        """Operations an edge that a layer aggregates: there with A and back with its transpose."""
        return 2 * 2 * self.widths[hop + 1]

    def row_bytes(self, hop: int) -> int:
        """Of a row that is handed over in a layer, one way; the weights come first."""
        return self.widths[hop + 1] * self.itemsize


@dataclass(frozen=True, eq=False)
class Stage:
    """One layer: rows in, remote rows fetched, rows out."""

    taken: Rows  # a rank's rows, own nodes first
    given: Rows  # a prefix of these
    remote: Rows  # the rows that a rank fetches, ascending
    via: Rows  # for each of them the rank that hands it over: its owner, or a relay
    ownership: Ownership

    @cached_property
    def first(self) -> Rows:
        """For each rank what it gets from owners: for itself, or to hand on; by owner and node."""
        owner, found = self.ownership.owner, []
        for rank in range(len(self.taken)):
            own = self.remote[rank][self.via[rank] == owner[self.remote[rank]]]
            onward = [
                nodes[(via == rank) & (owner[nodes] != rank)]
                for nodes, via in zip(self.remote, self.via, strict=True)
            ]
            nodes = np.unique(np.concatenate((own, *onward)))
            found.append(nodes[np.argsort(owner[nodes], kind="stable")])
        return tuple(found)

    @cached_property
    def second(self) -> tuple[Rows, Rows]:
        """For each rank what it gets from relays, by relay and node; and these relays."""
        nodes_of, relays_of = [], []
        for nodes, via in zip(self.remote, self.via, strict=True):
            late = via != self.ownership.owner[nodes]
            order = np.argsort(via[late], kind="stable")
            nodes_of.append(nodes[late][order])
            relays_of.append(via[late][order])
        return tuple(nodes_of), tuple(relays_of)

    @cached_property
    def rows(self) -> tuple[Int64, Int64]:
        """Twice (N, N): how many rows each rank gives each other, as owner and as relay."""
        owner, size = self.ownership.owner, len(self.taken)
        first = [np.bincount(owner[nodes], minlength=size) for nodes in self.first]
        second = [np.bincount(relays, minlength=size) for relays in self.second[1]]
        return np.stack(first, 1).astype(np.int64), np.stack(second, 1).astype(np.int64)

    @property
    def num_rows(self) -> int:
        """How many rows are handed over, by owners and relays."""
        return sum(int(rows.sum()) for rows in self.rows)


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a model's layers, and `plain` for all other calls, which copies nothing."""

    stages: tuple[Stage, ...]
    plain: Stage

    @property
    def ownership(self) -> Ownership:
        """Whose every node is."""
        return self.plain.ownership

    @property
    def copies(self) -> int:
        """How many rows are computed by others than their owners, over all layers."""
        taken = sum(len(rows) for stage in self.stages for rows in stage.taken)
        return taken - len(self.stages) * self.ownership.num_nodes

    def planned_bytes(self, widths: Sequence[int], itemsize: int = 4) -> int:
        """What exchanges of these widths, one a layer, move there and back, over all ranks."""
        rows = [stage.num_rows for stage in self.stages]
        return 2 * itemsize * sum(n * width for n, width in zip(rows, widths, strict=True))

    def to_bytes(self) -> bytes:
        """The plan as it is sent to other ranks."""
        arrays: dict[str, Any] = {"owner": self.ownership.owner}
        for number, stage in enumerate((*self.stages, self.plain)):
            for name in FIELDS:
                for rank, values in enumerate(getattr(stage, name)):
                    arrays[f"{number} {name} {rank}"] = values
        file = BytesIO()
        np.savez(file, size=len(self.plain.taken), stages=len(self.stages) + 1, **arrays)
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """The same plan again."""
        with np.load(BytesIO(data), allow_pickle=False) as found:
            size, count = int(found["size"]), int(found["stages"])
            ownership = Ownership.of(found["owner"], size)
            stages = [
                Stage(
                    **{
                        name: tuple(found[f"{number} {name} {rank}"] for rank in range(size))
                        for name in FIELDS
                    },
                    ownership=ownership,
                )
                for number in range(count)
            ]
        return Plan(tuple(stages[:-1]), stages[-1])


def link_bytes(stages: Sequence[Stage], load: Load) -> Float64:
    """(N, N) bytes from each rank to each other an epoch, gradients too."""
    size = len(stages[0].taken) if stages else 0
    there = np.zeros((size, size))
    for hop, stage in enumerate(stages):
        there += sum(stage.rows) * float(load.row_bytes(hop))
    return np.asarray(there + there.T, np.float64)


def busy_times(stages: Sequence[Stage], load: Load, resources: Resources, degree: Int64) -> Float64:
    """(N,) seconds of each rank an epoch: comp_i + comm_i, nothing overlaps.

    comp_i = sum over layers of (edges of `given` x edge_work + rows of `taken` x node_work) / P_i;
    comm_i = sum over the other ranks of rows given and taken x bytes / W, and a latency a message.
    Gradients double that and giving while taking halves it, where as much is given as is taken.
    """
    work = np.zeros(resources.size)
    rows = np.zeros((load.hops, resources.size, resources.size))
    messages = np.zeros((resources.size, resources.size))
    for hop, stage in enumerate(stages):
        edges = np.array([degree[given].sum() for given in stage.given])
        taken = np.array([len(nodes) for nodes in stage.taken])
        work += edges * load.edge_work(hop) + taken * load.node_work(hop)
        rows[hop] = sum(stage.rows)
        messages += sum((leg > 0).astype(np.float64) for leg in stage.rows)
    return times(work, rows, messages, load, resources)


def times(
    work: Float64,  # (N,) operations
    rows: Float64,  # (layers, N, N) handed over
    messages: Float64,  # (N, N) one way
    load: Load,
    resources: Resources,
) -> Float64:
    """(N,) seconds; see `busy_times`."""
    sizes = np.array([load.row_bytes(hop) for hop in range(len(rows))])
    there = np.tensordot(sizes, rows, 1) if len(rows) else np.zeros(messages.shape)  # (N, N)
    pair = (there + there.T) * resources.pace
    pair += (messages + messages.T) * (resources.latency + resources.latency.T)
    return np.asarray(work / resources.speed + pair.sum(1), np.float64)


def plain_stage(matrix: SparseMatrix, ownership: Ownership) -> Stage:
    """Own rows in and out, every remote row from its owner."""
    return stage_of(matrix, ownership, ownership.rows, ownership.rows)


def stage_of(matrix: SparseMatrix, ownership: Ownership, taken: Rows, given: Rows) -> Stage:
    """The stage without relays."""
    remote = wanted(matrix, given, taken)
    via = tuple(ownership.owner[nodes] for nodes in remote)
    return Stage(taken, given, remote, via, ownership)
