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
        sides = seen.new_tensor([1.0, 2.0])[:, None]
        near = torch.where(level.mask, level.neighbors["total"].squeeze(-1), 0.0)
        total = level.ends["total"].squeeze(-1) + self.weight * torch.tanh((near + seen).sum(-1))
        seen = seen + torch.where(level.links.partner, sides, 0.0) * (1 + level.kind[:, None, None])
        side = seen.new_tensor([0.1, 0.2])
        return Written({"total": (total + side).unsqueeze(-1)}, {"seen": seen})

    def loss(
        self, events: Events, src: Nodes, dst: Nodes, other_src: Nodes, other_dst: Nodes
    ) -> Tensor:
        return (self.weight * src.states["total"] - dst.states["total"]).square().sum((1, 2))

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.states["total"] * dst.states["total"]).sum(-1)


class Attentive(DynamicGNN):
    """The default loss, a message, and embeddings of the recent neighbours of scored nodes."""

    def __init__(self, width: int = 5, k: int = 3) -> None:
        super().__init__()
        self.tables, self.derived = {"memory": width}, {"key": 4}
        self.num_negatives = 3
        self.kinds = nn.Embedding(1, 1)
        self.first = nn.Parameter(torch.randn(width))
        self.reads = Reads(("memory",), scored=("memory",), around=("memory", "key"), k=k)
        self.cell = nn.GRUCell(width + 1, width)
        self.key = nn.Linear(width, 4)
        self.query = nn.Linear(width, 4)

    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"gap": torch.log1p(events.gap).to(self.first.dtype).unsqueeze(-1)}

    def derive(self, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"key": torch.tanh(self.key(states["memory"]))}

    def message(self, level: Level) -> Tensor:
        other = level.ends["memory"].flip(1) + self.first + self.kinds.weight.sum()
        return torch.cat([other, level.encoded["gap"]], dim=-1)

    def renew(self, states: Mapping[str, Tensor], message: Tensor) -> dict[str, Tensor]:
        return {"memory": self.cell(message, states["memory"])}

    def embed(self, events: Events, nodes: Nodes) -> Tensor:
        around = nodes.around
        assert around is not None
        query = self.query(nodes.states["memory"])[:, :, None]  # (n, m, 1, 4)
        heat = (query * around.states["key"]).sum(-1) - torch.log1p(around.gap).to(query.dtype)
        heat = heat + around.is_src + 0.1 * torch.log1p(around.idle_gap).to(query.dtype)
        weight = torch.where(around.mask, torch.sigmoid(heat), 0.0)
        return nodes.states["memory"] + (weight[..., None] * around.states["memory"]).sum(2)

    def score(self, events: Events, src: Nodes, dst: Nodes) -> Tensor:
        return (src.embedding * dst.embedding).sum(-1)


class Spread(GruMemory):
    """Writes to its neighbours too: the source's first, then the destination's, which see that."""

    writes = "neighbors"

    def __init__(self, width: int = 4, k: int = 3) -> None:
        super().__init__(width)
        self.tables = {"memory": width, "heard": 1}
        self.fill = {"memory": "normal", "heard": "zeros"}
        self.reads = Reads(("memory", "heard"), (), ("memory",), "recent", k)
        self.tell = nn.Linear(width, width)

    def update(self, level: Level) -> Written:
        members, near = level.members, level.near
        assert members is not None and near is not None
        memory, heard = members.states["memory"], members.states["heard"]
        n, p, width = memory.shape
        for side in range(2):
            at = members.ends[:, side, None]  # (n, 1)
            own = memory.gather(1, at[..., None].expand(-1, -1, width))
            message = torch.cat([own.squeeze(1), level.encoded["message"][:, side]], dim=-1)
            after = self.cell(message, own.squeeze(1) + self.first)
            memory = memory.scatter(1, at[..., None].expand(-1, -1, width), after[:, None])
            weight = torch.where(level.mask[:, side], 1 / (1 + near.gap[:, side]), 0.0)
            weight = weight * (1 + near.is_src[:, side])
            told = memory.new_zeros(n, p)
            told = told.scatter_add(1, members.neighbors[:, side], weight.to(memory.dtype))
            memory = memory + told[..., None] * torch.tanh(self.tell(after))[:, None]
            heard = heard + told[..., None]
        return Written({"memory": memory, "heard": heard})


class Drawn(GruMemory):
    """Reads nodes drawn at random and noise, and adds to the loss from within the update."""

    def __init__(self, width: int = 4, num_sampled: int = 5) -> None:
        super().__init__(width)
        self.reads = Reads(
            ("memory",),
            scored=("memory",),
            sampled=("memory",),
            num_sampled=num_sampled,
            noise=2,
        )
        self.context = nn.Linear(width, width)

    def update(self, level: Level) -> Written:
        mask, noise = level.sampled_mask, level.noise
        assert mask is not None and noise is not None
        drawn = torch.where(mask[..., None], self.context(level.sampled["memory"]), 0.0).mean(1)
        memory = super().update(level).states["memory"] + drawn[:, None]
        memory = memory + noise.to(memory.dtype)[..., None] / 10
        return Written({"memory": torch.tanh(memory)}, penalty=drawn.square().mean(-1))
