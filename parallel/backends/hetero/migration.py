"""Rows that cross slow links are computed where they are needed, or come another way.

For a link j -> i and a node u of j whose row i needs at some layer there are two options.  Copy
(option L): i computes the row itself.  At layer 0 that takes the node's features, which are kept,
and a row of a product; above that the rows of u's in-neighbours too, some of which i has anyway.
Relay (option F): the row crosses once, or a faster link, to a rank that hands it on.  Links are
gone through from the slowest on, candidates by what they gain for what they cost, and what would
make the busiest rank busier is not done.  That is a reconstruction of NeutronHeter's "adaptive
communication migration"; of the paper only the abstract is open.
"""

from __future__ import annotations

import numpy as np

from ....storage.sparse import Float64, SparseMatrix
from ....stream import Bool, Int64
from ..ownership import Ownership
from .plan import Load, Plan, Rows, Stage, plain_stage, stage_of, times
from .resources import Resources

SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.03)  # of the candidates that are tried together
STEEP = 8  # the power by which busy times count when they are added


def make_plan(
    matrix: SparseMatrix,
    ownership: Ownership,
    resources: Resources,
    load: Load,
    *,
    layers: int,
    copies: bool = True,
    relays: bool = True,
) -> Plan:
    """The stages of so many layers, with what is worth it migrated; pure.

    `layers` is `load.hops`, or 0 for a model that is not known: then the one stage has relays only.
    `matrix` has self loops.  The planned busy time of the busiest never grows by a migration.
    """
    state = _Copies(matrix, ownership, resources, load)
    if copies and layers:
        state.migrate()
    stages = [state.stage(hop) for hop in range(layers)]
    plain = plain_stage(matrix, ownership)
    if relays:
        if layers:
            stages = relayed(stages, resources, load, state.work)
        else:
            plain = relayed([plain], resources, load, state.work)[0]
    return Plan(tuple(stages), plain)


def better(new: Float64, old: Float64) -> bool:
    """Whether the busiest is not busier, and the sum of the times' powers is smaller."""
    largest = old.max()
    if largest <= 0 or new.max() > largest:
        return False
    return bool(((new / largest) ** STEEP).sum() < ((old / largest) ** STEEP).sum() * (1 - 1e-9))


class _Copies:
    """Which rows each rank takes in at each layer, and the price of that, kept up to date."""

    def __init__(
        self, matrix: SparseMatrix, ownership: Ownership, resources: Resources, load: Load
    ) -> None:
        self.matrix, self.ownership = matrix, ownership
        self.resources, self.load = resources, load
        size, num_nodes, hops = resources.size, matrix.num_rows, load.hops
        self.taken = np.zeros((hops + 1, size, num_nodes), bool)  # the last: what comes out
        self.needed = np.zeros((hops, size, num_nodes), bool)
        for rank, rows in enumerate(ownership.rows):
            self.taken[:, rank, rows] = True
            self.needed[:, rank, matrix.take_rows(rows).indices] = True
        self.rows = np.zeros((hops, size, size))
        self.work = np.zeros(size)
        for rank in range(size):
            self.rows[:, :, rank] = self._rows_of(self.taken[:, rank], self.needed[:, rank])
            self.work[rank] = self._work_of(self.taken[:, rank])
        self.slow = np.zeros((size, size), bool)
        for pair in resources.slow_links():
            self.slow[pair] = True

    def migrate(self) -> None:
        """Takes copies while they are worth it, layer by layer and link by link."""
        for hop in range(self.load.hops):
            for giver, rank in self.resources.slow_links():
                self._migrate(hop, giver, rank)

    def stage(self, hop: int) -> Stage:
        """What has been decided for a layer, without relays."""
        return stage_of(self.matrix, self.ownership, self._ordered(hop), self._ordered(hop + 1))

    def _ordered(self, hop: int) -> Rows:
        """Own nodes, then copies: those first that are needed by more layers."""
        found = []
        for rank, own in enumerate(self.ownership.rows):
            parts, before = [own], self.taken[-1, rank]
            for level in range(self.load.hops - 1, hop - 1, -1):
                parts.append(np.flatnonzero(self.taken[level, rank] & ~before))
                before = self.taken[level, rank]
            found.append(np.concatenate(parts))
        return tuple(found)

    def _migrate(self, hop: int, giver: int, rank: int) -> None:
        fetched = self.needed[hop, rank] & ~self.taken[hop, rank]
        nodes = np.flatnonzero(fetched & (self.ownership.owner == giver))
        nodes = nodes[np.argsort(self._cost(hop, rank, nodes), kind="stable")]
        busy = self.busy(self.work, self.rows)
        best: tuple[Float64, Bool, Bool, Float64, float] | None = None
        for share in SHARES:
            some = nodes[: int(np.ceil(share * len(nodes)))]
            for caches in (True, False) if hop and len(some) else (False,):
                taken, needed = self._with(hop, rank, some, caches)
                rows, work = self.rows.copy(), self.work.copy()
                rows[:, :, rank] = self._rows_of(taken, needed)
                work[rank] = self._work_of(taken)
                fits = self._memory_of(taken, rank) <= self.resources.memory[rank]
                if not fits or self._slow_bytes(rows) > self._slow_bytes(self.rows):
                    continue
                found = self.busy(work, rows)
                if better(found, busy if best is None else best[0]):
                    best = found, taken, needed, rows, float(work[rank])
        if best is not None:
            _, self.taken[:, rank], self.needed[:, rank], self.rows, self.work[rank] = best

    def _cost(self, hop: int, rank: int, nodes: Int64) -> Float64:
        """Operations that each copy takes; only their order counts."""
        if hop == 0 or not len(nodes):
            return np.zeros(len(nodes))
        inputs = self.matrix.take_rows(nodes)
        missing = ~self.needed[hop - 1, rank][inputs.indices]
        count = np.bincount(inputs.row_of[missing], minlength=len(nodes))
        own = inputs.degree * self.load.edge_work(hop - 1)
        return np.asarray(own + count * self.load.node_work(hop - 1), np.float64)

    def _with(self, hop: int, rank: int, nodes: Int64, caches: bool) -> tuple[Bool, Bool]:
        """What the rank takes and needs with copies of these nodes from layer 0 to `hop`.

        With `caches` their inputs that would cross slow links are kept as features.
        """
        taken, needed = self.taken[:, rank].copy(), self.needed[:, rank].copy()
        taken[: hop + 1, nodes] = True
        if hop:
            needed[:hop, self.matrix.take_rows(nodes).indices] = True
        if caches:
            far = self.slow[:, rank][self.ownership.owner]
            taken[0] |= needed[0] & far
        return taken, needed

    def _rows_of(self, taken: Bool, needed: Bool) -> Float64:
        """(layers, N) rows that come from each rank."""
        owner, size = self.ownership.owner, self.resources.size
        fetched = needed & ~taken[:-1]
        rows = [np.bincount(owner[there], minlength=size) for there in fetched]
        return np.stack(rows).astype(np.float64)

    def _work_of(self, taken: Bool) -> float:
        work = 0
        for hop in range(self.load.hops):
            work += int(self.matrix.degree[taken[hop + 1]].sum()) * self.load.edge_work(hop)
            work += int(taken[hop].sum()) * self.load.node_work(hop)
        return float(work)

    def _memory_of(self, taken: Bool, rank: int) -> float:
        """Bytes of copies: features and what each layer keeps for the way back."""
        own = len(self.ownership.rows[rank])
        widths = self.load.widths[:-1]
        copies = [int(level.sum()) - own for level in taken[:-1]]
        return float(self.load.itemsize * np.dot(copies, widths))

    def _slow_bytes(self, rows: Float64) -> float:
        sizes = [self.load.row_bytes(hop) for hop in range(self.load.hops)]
        return float(np.tensordot(sizes, rows, 1)[self.slow].sum())

    def busy(self, work: Float64, rows: Float64) -> Float64:
        """(N,) seconds an epoch."""
        messages = (rows > 0).sum(0).astype(np.float64)
        return times(work, rows, messages, self.load, self.resources)


def relayed(stages: list[Stage], resources: Resources, load: Load, work: Float64) -> list[Stage]:
    """The stages with relays where a rank in between makes it faster."""
    state = _Relays(stages, resources, load, work)
    for giver, rank in resources.slow_links():
        for hop in range(len(stages)):
            state.migrate(hop, giver, rank)
    return [state.stage(hop) for hop in range(len(stages))]


class _Relays:
    """Who hands each remote row to each rank, and the price of that, kept up to date."""

    def __init__(
        self, stages: list[Stage], resources: Resources, load: Load, work: Float64
    ) -> None:
        self.stages, self.resources, self.load, self.work = stages, resources, load, work
        self.owner = stages[0].ownership.owner
        shape = len(stages), resources.size, len(self.owner)
        self.via = np.full(shape, -1, np.int16)  # who hands it over; -1: not needed
        self.taken = np.zeros(shape, bool)
        self.first = np.zeros(shape, bool)  # the rank gets it from its owner
        self.onward = np.zeros(shape, bool)  # the rank hands it on
        for hop, stage in enumerate(stages):
            for rank, nodes in enumerate(stage.remote):
                self.via[hop, rank, nodes] = self.owner[nodes]
                self.first[hop, rank, nodes] = True
                self.taken[hop, rank, stage.taken[rank]] = True
        legs = np.array([stage.rows for stage in stages], np.float64)
        self.legs = legs.swapaxes(0, 1)  # (2, layers, N, N) rows from owners, and from relays

    def stage(self, hop: int) -> Stage:
        """What has been decided for a layer."""
        old = self.stages[hop]
        via = tuple(
            self.via[hop, rank, nodes].astype(np.int64) for rank, nodes in enumerate(old.remote)
        )
        return Stage(old.taken, old.given, old.remote, via, old.ownership)

    def migrate(self, hop: int, giver: int, rank: int) -> None:
        """Sends rows of `giver` to `rank` by others, as many as is good."""
        nodes, relay = self._candidates(hop, giver, rank)
        best: tuple[Float64, Float64, int] | None = None
        busy = self._busy(self.legs)
        for share in SHARES if len(nodes) else ():
            count = int(np.ceil(share * len(nodes)))
            legs = self._with(hop, giver, rank, nodes[:count], relay[:count])
            found = self._busy(legs)
            if better(found, busy if best is None else best[0]):
                best = found, legs, count
        if best is not None:
            _, self.legs, count = best
            nodes, relay = nodes[:count], relay[:count]
            self.via[hop, rank, nodes] = relay
            self.first[hop, rank, nodes] = False
            self.first[hop, relay, nodes] = self.onward[hop, relay, nodes] = True

    def _with(self, hop: int, giver: int, rank: int, nodes: Int64, relay: Int64) -> Float64:
        """The legs if these rows come from these relays."""
        legs, size = self.legs.copy(), self.resources.size
        fed = ~self.first[hop, relay, nodes]  # relays that must get the row for this
        legs[0, hop, giver, rank] -= len(nodes)
        legs[0, hop, giver] += np.bincount(relay[fed], minlength=size)
        legs[1, hop, :, rank] += np.bincount(relay, minlength=size)
        return legs

    def _candidates(self, hop: int, giver: int, rank: int) -> tuple[Int64, Int64]:
        """Rows for which another way is shorter, those that gain most first, and the relays."""
        via, onward, pace = self.via[hop], self.onward[hop], self.resources.pace
        # what is needed from its owner, and not handed on to others from here
        nodes = np.flatnonzero(self.first[hop, rank] & (self.owner == giver) & ~onward[rank])
        least, relay = np.full(len(nodes), pace[giver, rank]), np.full(len(nodes), -1)
        for other in range(self.resources.size):
            if other in (giver, rank):
                continue
            gets, hands = via[other, nodes] == giver, onward[other, nodes]
            cost = pace[other, rank] + np.where(gets | hands, 0, pace[giver, other])
            free = ~self.taken[hop, other, nodes] & ((via[other, nodes] < 0) | gets)
            if pace[giver, other] > pace[giver, rank] / 2:  # two that are equally far off: in turns
                free &= ~gets | hands | (_turn(nodes, other) > _turn(nodes, rank))
            wins = free & (cost < least * (1 - 1e-9))
            least[wins], relay[wins] = cost[wins], other
        found = np.flatnonzero(relay >= 0)
        found = found[np.argsort(least[found], kind="stable")]
        return nodes[found], relay[found]

    def _busy(self, legs: Float64) -> Float64:
        messages = (legs > 0).sum((0, 1)).astype(np.float64)
        return times(self.work, legs.sum(0), messages, self.load, self.resources)


def _turn(nodes: Int64, rank: int) -> Int64:
    """A number of each node and rank; of ranks that could relay for one another the higher does."""
    return (nodes + 1) * (2 * rank + 3) * 40_503 % 65_537
