"""Small models that are not DyRep: what a user of the API might write."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neutronstream.models import DynamicGNN, Events, Level, Nodes, Reads, Written


class GruMemory(DynamicGNN):
    """A memory that a GRU updates with the other end's memory; no neighbours at all."""

    def __init__(self, width: int = 5, num_kinds: int = 1) -> None:
        super().__init__()
        self.tables = {"memory": width}
        self.reads = Reads(ends=("memory",), scored=("memory",))
        self.num_negatives = 3
        self.cell = nn.GRUCell(width + 2, width)
        self.kinds = nn.Embedding(num_kinds, 1)
        self.first = nn.Parameter(torch.randn(width))

    def encode(self, events: Events) -> dict[str, Tensor]:
        gap = torch.log1p(events.gap).to(self.first.dtype).unsqueeze(-1)  # (n, 2, 1)
        kind = self.kinds(events.kind)[:, None].expand(-1, 2, 1)
        return {"message": torch.cat([gap, kind], dim=-1)}

    def update(self, level: Level) -> Written:
        memory = level.ends["memory"] + self.first
        message = torch.cat([memory.flip(1), level.encoded["message"]], dim=-1)  # (n, 2, width + 2)
        n, _, width = memory.shape
        after = self.cell(message.reshape(2 * n, -1), memory.reshape(2 * n, width))
        return Written({"memory": after.view(n, 2, width)})

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        loss = F.softplus(-self.score(events, src, dst)).squeeze(1)
        for wrong, others in (
            (self.score(events, src, other_dst), other_dst),
            (self.score(events, dst, other_src), other_src),
        ):
            loss = loss + torch.where(others.valid, F.softplus(wrong), 0.0).sum(1)
        return loss

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        both = (src.states["memory"] + self.first) * (dst.states["memory"] + self.first)
        return both.sum(-1) - torch.log1p(dst.gap).to(both.dtype) / 10  # (n, m)


class RecentMean(GruMemory):
    """The same with two tables and the mean of keys, derived from memory, of recent neighbours."""

    def __init__(self, width: int = 5, k: int = 3) -> None:
        super().__init__(width)
        self.tables = {"memory": width, "count": 1}
        self.derived = {"key": 4}
        self.fill = {"memory": "normal", "count": "zeros"}
        self.reads = Reads(("memory", "count"), ("key", "count"), ("memory",), "recent", k)
        self.key = nn.Linear(width, 4)
        self.near = nn.Linear(5, width)

    def derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"key": torch.tanh(self.key(states["memory"]))}

    def update(self, level: Level) -> Written:
        near = torch.cat([level.neighbors["key"], level.neighbors["count"]], dim=-1)
        near = near.masked_fill(~level.mask.unsqueeze(-1), 0.0).sum(2)  # (n, 2, 5)
        near = near / level.mask.sum(2).clamp(min=1).unsqueeze(-1)
        memory = level.ends["memory"]
        after = (
            torch.tanh(memory.flip(1) + self.near(near)) + super().update(level).states["memory"]
        )
        return Written({"memory": after / 2, "count": level.ends["count"] + 1})


class Counter(DynamicGNN):
    """Counts on links, other ones for source and destination; nothing is symmetric."""

    link_tables = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.tables = {"total": 1}
        self.reads = Reads(("total",), ("total",), ("total",), "links")
        self.num_negatives = 1
        self.weight = nn.Parameter(torch.tensor(0.5))

    def update(self, level: Level) -> Written:
        assert level.links is not None
        seen = level.links.values["seen"] * 0.9  # (n, 2, k)
        sides = torch.tensor([1.0, 2.0], dtype=seen.dtype)[:, None]
        near = torch.where(level.mask, level.neighbors["total"].squeeze(-1), 0.0)
        total = level.ends["total"].squeeze(-1) + self.weight * torch.tanh((near + seen).sum(-1))
        seen = seen + torch.where(level.links.partner, sides, 0.0) * (1 + level.kind[:, None, None])
        side = torch.tensor([0.1, 0.2], dtype=seen.dtype)
        return Written({"total": (total + side).unsqueeze(-1)}, {"seen": seen})

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        return (self.weight * src.states["total"] - dst.states["total"]).square().sum((1, 2))

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.states["total"] * dst.states["total"]).sum(-1)
