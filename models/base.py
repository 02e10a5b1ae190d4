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
from torch import Tensor, nn

from ..stream import Bool, EventBatch
from .views import Events, Level, Nodes, Written


@dataclass(frozen=True, slots=True)
class Reads:
    """Which tables an event reads, and of whom, before it updates its two ends."""

    ends: tuple[str, ...] = ()  # of source and destination
    neighbors: tuple[str, ...] = ()  # of the neighbours of both
    scored: tuple[str, ...] = ()  # of the nodes that are scored
    neighborhood: Literal["none", "links", "recent"] = "none"  # which neighbours
    k: int = 0  # how many, for "recent"


class DynamicGNN(nn.Module, ABC):
    """Base class of event-driven models.

    `tables` are the states kept for each node, name to width; their first value is the fill named
    in `fill`.  `derived` are functions of a node's state that are computed once per version of it
    (projections that many readers share); `link_tables` hold one number for each link of a node,
    without gradient.
    """

    tables: Mapping[str, int]
    derived: Mapping[str, int] = MappingProxyType({})
    link_tables: tuple[str, ...] = ()
    fill: Mapping[str, Literal["zeros", "normal"]] = MappingProxyType({})
    reads: Reads
    num_negatives: int = 5  # corrupted destinations and sources a training event
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

    def derive(self, states: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The `derived` tables, each (..., width), of states (..., width)."""
        return {}

    @abstractmethod
    def update(self, level: Level) -> Written:
        """The states after a level of independent events, from the states before it."""

    @abstractmethod
    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        """The loss of each event, (n,), from the states before it.

        `src` and `dst` hold the event's own ends, (n, 1); `other_src` and `other_dst`
        `num_negatives` corrupted ends, none of which is an end of the event.
        """

    @abstractmethod
    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        """How likely each of `dst` (n, m) is the next partner of `src` (n, 1), on any scale."""

    @torch.no_grad()
    def constrain(self) -> None:
        """Bring parameters back into their bounds; called after each optimiser step."""

    def check(self) -> None:
        """Refuse what cannot be exact, and reads that name nothing.

        Raises:
            ValueError: if a layer mixes the events of a batch, or `reads` does not fit the tables.
        """
        known, reads = {*self.tables, *self.derived}, self.reads
        for field in ("ends", "neighbors", "scored"):
            if unknown := sorted(set(getattr(reads, field)) - known):
                raise ValueError(
                    f"`reads.{field}` must name tables or derived ones of {sorted(known)}: "
                    f"got {unknown[0]!r}"
                )
        if reads.neighborhood == "recent" and reads.k < 1:
            raise ValueError(f"`reads.k` must say how many recent neighbours: got {reads.k}")
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
