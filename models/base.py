"""The API with which a dynamic GNN is defined.

A model says what an event reads (`reads`), what state it keeps (`tables`), how a level of
independent events is updated (`update`), and how states become losses and scores.  It never asks
for a rank, a window or the log: executors do the rest, so that every parallel run equals one event
at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..stream import Bool, EventBatch
from .chain import Chain, Scanned
from .pairs import Pairs, Priced
from .views import Events, Level, Nodes, Written


@dataclass(frozen=True, slots=True)
class Reads:
    """Which tables an event reads, and of whom, before it updates the nodes that it writes."""

    ends: tuple[str, ...] = ()  # of source and destination
    neighbors: tuple[str, ...] = ()  # of the neighbours of both
    scored: tuple[str, ...] = ()  # of the nodes that are scored
    neighborhood: Literal["none", "links", "recent"] = "none"  # which neighbours an update reads
    k: int = 0  # how many, for "recent" and for `around`
    around: tuple[str, ...] = ()  # of the `k` most recent neighbours of the nodes that are scored
    sampled: tuple[str, ...] = ()  # of known nodes drawn at random for each update
    num_sampled: int = 0  # how many of them; all that are known where there are no more
    noise: int = 0  # uniform random numbers for each update


class DynamicGNN(nn.Module, ABC):
    """Base class of event-driven models.

    `tables` are the states kept for each node, name to width; their first value is the fill named
    in `fill`.  `derived` are functions of a node's state that are computed once per version of it
    (projections that many readers share); `link_tables` hold one number for each link of a node,
    without gradient.

    A model says how states change with `update`, or with `message` and `renew`; how they become
    embeddings with `embed`; and how likely a pair is with `score`.  The rest has defaults.
    """

    tables: Mapping[str, int]
    derived: Mapping[str, int] = MappingProxyType({})
    link_tables: tuple[str, ...] = ()
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({})
    reads: Reads
    writes: Literal["ends", "neighbors"] = "ends"  # "neighbors": the ends and their neighbours
    num_negatives: int = 1  # corrupted destinations (and sources) of a training event
    corrupts: Literal["dst", "both"] = "dst"  # whether sources are corrupted too
    aggregation: Literal["last", "mean"] = "last"  # of the messages of one stale batch
    timeless: bool = False  # `embed` reads of times only `around.gap - around.idle_gap`, if any
    default_name: ClassVar[str] = "model"

    def makes_link(self, batch: EventBatch, kinds: Sequence[str]) -> Bool | None:
        """Which events of `batch` link their ends; None if all do."""
        return None

    def first_links(self, degree: Tensor) -> Mapping[str, Tensor]:
        """Values (r,) of links that stand before the first event; their node has `degree` (r,)."""
        return {name: torch.zeros(len(degree)) for name in self.link_tables}

    def encode(self, events: Events) -> Mapping[str, Tensor]:
        """What is computed from the events alone, each (n, ...): once for a whole segment."""
        return {}

    def encode_chain(self, events: Events) -> Mapping[str, Tensor]:
        """What `scan` finds as `encoded`, each (n, ...): unless overridden, what `encode` gives."""
        return self.encode(events)

    def derive(self, states: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The `derived` tables, each (..., width), of states (..., width)."""
        return {}

    def message(self, level: Level) -> Tensor:
        """What each end of an event is told, (n, 2, width)."""
        raise NotImplementedError

    def renew(self, states: Mapping[str, Tensor], message: Tensor) -> Mapping[str, Tensor]:
        """The states (r, width) of nodes after a `message` (r, width), from those before."""
        raise NotImplementedError

    def update(self, level: Level) -> Written:
        """The states after a level of independent events, from the states before it.

        Unless overridden, every end takes its `message` into its states by `renew`.
        """
        message = self.message(level)
        before = {name: level.ends[name].flatten(0, 1) for name in self.tables}  # (2 n, width)
        after = self.renew(before, message.flatten(0, 1))
        return Written({name: s.view(*message.shape[:2], -1) for name, s in after.items()})

    @property
    def scans(self) -> bool:
        """Whether `scan` serves a model with these options."""
        return False

    def scan(self, chain: Chain) -> Scanned:
        """All updates of a segment in one pass: what `update` makes of it event by event.

        It is used in place of `update` on a CPU if `scans` says so, and no class below the one that
        defines it overrides what it may stand for.
        """
        raise NotImplementedError

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        """What `score` and `loss` find as `nodes.embedding`, (n, m, width); the first state read.

        `events` are those that the nodes stand beside.  A model is `timeless` if the result
        depends on the node alone, and not on that event nor on the time since others: a stale batch
        then embeds each of its nodes once, and `loss` finds no `around` in them.
        """
        return nodes.states[self.reads.scored[0]]

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """The loss of each event, (n,), from the states before it.

        `src` and `dst` hold the event's own ends, (n, 1); `other_dst` `num_negatives` corrupted
        destinations and `other_src` as many sources (none unless `corrupts` is "both"), none of
        which is an end of the event.  Unless overridden: binary cross-entropy of `score`, the mean
        over the corrupted destinations added to that of the true one.
        """
        wrong = F.softplus(self.score(events, src, other_dst))
        count = other_dst.valid.sum(1).clamp(min=1)
        wrong = torch.where(other_dst.valid, wrong, 0.0).sum(1) / count
        return F.softplus(-self.score(events, src, dst)).squeeze(1) + wrong

    def losses_of(self, pairs: Pairs, states: Mapping[str, Tensor]) -> Priced | None:
        """`loss` and `expected_idle` of pairs whose states stand in the rows of tables.

        It is used in place of these two after a scan; with None they are shown views instead.
        """
        return None

    @abstractmethod
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """How likely each of `dst` (n, m) is the next partner of `src` (n, 1), on any scale.

        For the default `loss`: a logit.
        """

    def expected_idle(self, events: Events, src: Nodes, dst: Nodes) -> Tensor | None:
        """When the event is expected, (n,): time since the last event of either end, in mean gaps.

        None for a model that does not predict times.
        """
        return None

    @torch.no_grad()
    def constrain(self) -> None:
        """Bring parameters back into their bounds; called after each optimiser step."""

    def check(self) -> None:
        """Refuse what cannot be exact, and reads that name nothing.

        Raises:
            ValueError: if a layer mixes the events of a batch, or `reads` does not fit the tables.
        """
        known, reads = {*self.tables, *self.derived}, self.reads
        for field in ("ends", "neighbors", "scored", "around", "sampled"):
            if unknown := sorted(set(getattr(reads, field)) - known):
                raise ValueError(
                    f"`reads.{field}` must name tables or derived ones of {sorted(known)}: "
                    f"got {unknown[0]!r}"
                )
        if (reads.neighborhood == "recent" or reads.around) and reads.k < 1:
            raise ValueError(f"`reads.k` must say how many recent neighbours: got {reads.k}")
        if reads.sampled and reads.num_sampled < 1:
            raise ValueError(
                f"`reads.num_sampled` must say how many nodes are drawn: got {reads.num_sampled}"
            )
        own = type(self)
        if own.update is DynamicGNN.update and (
            own.message is DynamicGNN.message or own.renew is DynamicGNN.renew
        ):
            raise ValueError(
                f"{own.__name__} must define `update`, or both `message` and `renew`: it does not"
            )
        if self.aggregation == "mean" and own.update is not DynamicGNN.update:
            raise ValueError(
                "`aggregation` 'mean' is of messages: define `message` and `renew`, not `update`"
            )
        if self.writes == "neighbors":
            if reads.neighborhood == "none":
                raise ValueError(
                    "`reads.neighborhood` must be 'links' or 'recent' for a model that writes "
                    "neighbours: got 'none'"
                )
            if reads.neighbors or self.link_tables:
                raise ValueError(
                    "a model that writes neighbours reads the tables in `reads.ends` of all its "
                    "members: leave `reads.neighbors` and `link_tables` empty"
                )
        if reads.neighborhood == "none" and reads.neighbors:
            raise ValueError(
                "`reads.neighborhood` must be 'links' or 'recent' for a model that reads "
                f"{reads.neighbors[0]!r} of neighbours: got 'none'"
            )
        if self.link_tables and reads.neighborhood != "links":
            raise ValueError(
                "`reads.neighborhood` must be 'links' for a model with `link_tables`: "
                f"got {reads.neighborhood!r}"
            )
        for name, module in self.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"`{name}` is a {type(module).__name__}, which mixes the events of a level "
                    "(and fails on a level of one event), so that no parallel run can equal one "
                    "event at a time: use LayerNorm"
                )


_APART = frozenset(
    {
        "__init__",
        "encode",
        "embed",
        "loss",
        "score",
        "expected_idle",
        "losses_of",
        "constrain",
        "scans",
    }
)
"""Methods that a scan does not stand for."""


def can_scan(model: DynamicGNN) -> bool:
    """Whether `model.scan` equals `model.update`, as far as can be known.

    A class that changes another's update keeps its scan, which knows nothing of the change; then,
    as for layers that are not what they were or have hooks, updates are called one by one.
    """
    if not model.scans:
        return False
    for found in type(model).__mro__:
        own = {name for name, value in vars(found).items() if callable(value)}
        if "scan" in own:
            break
        if own - _APART:
            return False
    return not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def can_price(model: DynamicGNN) -> bool:
    """Whether `model.losses_of` equals what it stands for: no class has only some of that anew."""
    for found in type(model).__mro__:
        if {"embed", "loss", "expected_idle", "losses_of"} & set(vars(found)):
            return "losses_of" in vars(found)
    return False
