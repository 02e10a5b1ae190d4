"""Backend `hetero`, NeutronHeter-style: nodes by the speed of workers and links, copies and relays.

After NeutronHeter (Proc. ACM Manag. Data 3(4), doi 10.1145/3749175), of which only the abstract is
open: the tree of resources, the mapping from the top down and the migration of communication from
slow links to local computation or fast links are the paper's ideas, all formulas and thresholds a
reconstruction.  Results are exact: a copy is computed from the same rows by the same operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ....storage.snapshot import Snapshot
from ....storage.sparse import Normalisation, SparseMatrix
from ....stream import Int64
from ...ranks import ALONE, Comm
from ..halo import PURPOSE
from ..ownership import Ownership
from ..partition import from_first, union
from ..propagator import Propagator, exchange_rows
from ..sparse import attend_to_all, multiply
from .mapping import map_nodes
from .migration import make_plan
from .plan import Load, Plan, Stage
from .resources import Resources, measure
from .simulate import profile

RELAYED = "relayed rows"
HIDDEN = 32  # the width that is planned for where no widths are given


@dataclass(frozen=True, eq=False)
class Leg:
    """One exchange, seen from a rank."""

    given: Tensor  # which of the rows at hand go out, rank by rank
    sent: list[int]
    received: list[int]


@dataclass(frozen=True, eq=False)
class Route:
    """A stage, seen from a rank: what it gets from owners, then what relays hand on."""

    first: Leg
    second: Leg | None  # none if nobody relays anything
    columns: Int64  # the nodes whose rows are then at hand
    rows: Int64  # those that come out
    taken: int  # how many rows come in

    @staticmethod
    def of(stage: Stage, rank: int) -> Route:
        """Pure; the routes of all ranks fit together."""
        owner, place = stage.ownership.owner, stage.ownership.place
        nodes, relays = stage.second
        given = [place[rows[owner[rows] == rank]] for rows in stage.first]
        first = _leg(given, owner[stage.first[rank]])
        at = np.zeros(stage.ownership.num_nodes, np.int64)
        at[stage.first[rank]] = np.arange(len(stage.first[rank]))
        handed = [at[rows[by == rank]] for rows, by in zip(nodes, relays, strict=True)]
        second = _leg(handed, relays[rank]) if any(map(len, nodes)) else None
        columns = np.concatenate((stage.taken[rank], stage.first[rank], nodes[rank]))
        return Route(first, second, columns, stage.given[rank], len(stage.taken[rank]))

    def exchange(self, comm: Comm, x: Tensor) -> Tensor:
        """x with the remote rows below it: (taken, d) -> (columns, d)."""
        legs = [x]
        for leg, purpose in ((self.first, PURPOSE), (self.second, RELAYED)):
            if leg is not None:
                rows = exchange_rows(comm, legs[-1], leg.given, leg.sent, leg.received, purpose)
                legs.append(rows)
        return torch.cat(legs)


def _leg(given: list[Int64], source: Int64) -> Leg:
    """With the ranks that the rows which come in are from."""
    received = np.bincount(source, minlength=len(given)).tolist()
    sent = [len(rows) for rows in given]
    return Leg(torch.from_numpy(np.concatenate(given)), sent, received)


class HeteroPropagator(Propagator):
    """Own nodes, copies of remote rows where that is faster, and relays past slow links.

    Copies need to know the model: without `widths` (d_0 .. d_L, as the model has them) there are
    none.  With them a model must have just these layers and number them by `hop`, as `GCN`, `SAGE`
    and `GAT` do.
    """

    name = "hetero"

    def __init__(
        self,
        ownership: Ownership,
        comm: Comm = ALONE,
        *,
        resources: Resources,
        widths: Sequence[int] = (),
        copies: bool = True,
        relays: bool = True,
    ) -> None:
        super().__init__(ownership, comm)
        if resources.size != comm.size:
            raise ValueError(
                f"`resources` must be those of {comm.size} ranks: got {resources.size} workers"
            )
        self.resources = resources
        self.widths = tuple(widths)
        self._migrates = copies, relays
        self._plans: dict[str, Plan] = {}
        self._inputs: dict[str, Tensor] = {}
        self._routes: dict[tuple[str, int], Route] = {}
        self._matrices: dict[tuple[str, str, int], SparseMatrix] = {}

    @classmethod
    def of(
        cls,
        snapshots: Sequence[Snapshot],
        comm: Comm = ALONE,
        *,
        resources: Resources | str | None = None,
        widths: Sequence[int] = (),
        **options: Any,
    ) -> Self:
        """Nodes are mapped by the first rank, on all snapshots' edges together.

        `resources` are measured by default, which takes a second; a name is one of `PROFILES`,
        whose first workers are taken.

        Raises:
            ImportError: if pymetis is missing.
        """
        if isinstance(resources, str):
            resources = profile(resources).first(comm.size)
        if resources is None:
            resources = measure(comm)
        first = None
        if comm.rank == 0:
            matrix = union(snapshots).normalised("loops")
            first = map_nodes(matrix, resources, _load(snapshots[0], widths)).ownership
        owners = from_first(comm, first)
        return cls(owners, comm, resources=resources, widths=widths, **options)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Who computes and hands over what; made by the first rank when first asked for."""
        self.check(snapshot)
        version = snapshot.adjacency.version
        if version not in self._plans:
            data = None
            if self.comm.rank == 0:
                copies, relays = self._migrates
                data = make_plan(
                    snapshot.matrix("loops"),
                    self.ownership,
                    self.resources,
                    _load(snapshot, self.widths),
                    layers=max(len(self.widths) - 1, 0),
                    copies=copies,
                    relays=relays,
                ).to_bytes()
            self._plans[version] = Plan.from_bytes(self.comm.broadcast_bytes(data, "plan"))
        return self._plans[version]

    def inputs(self, snapshot: Snapshot) -> Tensor:
        """The features of the rows that layer 0 takes, copies' below; every rank has them all."""
        plan = self.plan(snapshot)
        if not plan.stages or snapshot.features is None:
            return super().inputs(snapshot)
        if snapshot.version not in self._inputs:
            rows = plan.stages[0].taken[self.comm.rank]
            self._inputs[snapshot.version] = torch.from_numpy(snapshot.features[rows])
        return self._inputs[snapshot.version]

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (rows of layer `hop`, d) -> (rows of layer hop + 1, d); own rows in the end."""
        route, matrix = self._local(snapshot, how, hop, len(x))
        return multiply(matrix, route.exchange(self.comm, x))

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention, with rows as in `apply`: (taken, h, d) -> (given, h, d)."""
        route, matrix = self._local(snapshot, "loops", hop, len(z))
        given, exchange = receiver[: len(route.rows)], partial(route.exchange, self.comm)
        return attend_to_all(matrix, z, given, sender, exchange)

    def _local(
        self, snapshot: Snapshot, how: Normalisation, hop: int, length: int
    ) -> tuple[Route, SparseMatrix]:
        """The way of a layer, and its rows x its columns of the matrix."""
        plan = self.plan(snapshot)
        layer = hop if hop < len(plan.stages) else -1
        version = snapshot.adjacency.version
        if (version, layer) not in self._routes:
            stage = plan.stages[layer] if layer >= 0 else plan.plain
            self._routes[version, layer] = Route.of(stage, self.comm.rank)
        route = self._routes[version, layer]
        if length != route.taken:
            raise ValueError(
                f"layer {hop} takes {route.taken} rows here, copies among them: got {length}; "
                "leave `widths` out for models that do not number their layers by `hop`"
            )
        if (version, how, layer) not in self._matrices:
            local = snapshot.matrix(how).take_rows(route.rows).take_columns(route.columns)
            self._matrices[version, how, layer] = local
        return route, self._matrices[version, how, layer]


def _load(snapshot: Snapshot, widths: Sequence[int]) -> Load:
    """The model's, or one layer of middling width."""
    if widths:
        return Load(tuple(widths))
    features = 1 if snapshot.features is None else snapshot.features.shape[1]
    return Load((features, HIDDEN))
