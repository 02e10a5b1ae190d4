"""TGN as its peers train it: torch_geometric's classes and TGM's, driven over one of our logs.

Widths, neighbours, batches, negatives and optimiser are those of torch_geometric's TGN example:
memory, time and embedding 100 wide, 10 neighbours, two heads, one negative, Adam at 1e-4.  Dropout
is off, as ours has none.  Each peer has `step(start, stop)`: forward, backward and optimiser step
on these events, their sampling included.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from neutronstream.stream import EventLog

WIDTH, NEIGHBORS = 100, 10


class Peer(Protocol):
    """Something that trains on events `[start, stop)`."""

    def step(self, start: int, stop: int) -> None:
        """Learn these events."""


class LinkDecoder(nn.Module):
    """A logit of a pair: both ends mapped, added, and mapped to one number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_src, self.of_dst = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        logit: Tensor = self.last(torch.relu(self.of_src(src) + self.of_dst(dst)))
        return logit


def columns(log: EventLog) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, destinations and times from 0, int64."""
    time = torch.from_numpy(log.events.time - log.events.time[0])
    return torch.from_numpy(log.events.src.copy()), torch.from_numpy(log.events.dst.copy()), time


class PyGTGN:
    """torch_geometric: TGNMemory, LastNeighborLoader and TransformerConv."""

    def __init__(self, log: EventLog, seed: int = 0) -> None:
        from torch_geometric.nn import TGNMemory, TransformerConv
        from torch_geometric.nn.models.tgn import (
            IdentityMessage,
            LastAggregator,
            LastNeighborLoader,
        )

        torch.manual_seed(seed)
        self.src, self.dst, self.time = columns(log)
        self.message = torch.zeros(len(log), 1)  # there are no features: one column of zeros
        self.memory = TGNMemory(
            log.num_nodes,
            *(1, WIDTH, WIDTH),
            message_module=IdentityMessage(1, WIDTH, WIDTH),
            aggregator_module=LastAggregator(),
        )
        self.attention = TransformerConv(
            WIDTH, WIDTH // 2, heads=2, dropout=0.0, edge_dim=1 + WIDTH
        )
        self.decoder = LinkDecoder(WIDTH)
        self.loader = LastNeighborLoader(log.num_nodes, size=NEIGHBORS)
        layers = nn.ModuleList([self.memory, self.attention, self.decoder])
        self.optimiser = torch.optim.Adam(layers.parameters(), lr=1e-4, fused=True)
        self.place = torch.empty(log.num_nodes, dtype=torch.long)
        self.generator = np.random.default_rng(seed)

    def step(self, start: int, stop: int) -> None:
        span = slice(start, stop)
        src, dst, time, message = (
            self.src[span],
            self.dst[span],
            self.time[span],
            self.message[span],
        )
        drawn = self.generator.integers(0, len(self.place), len(src))
        negative = torch.from_numpy(drawn)
        self.optimiser.zero_grad()
        nodes, edges, events = self.loader(torch.cat([src, dst, negative]).unique())  # type: ignore[no-untyped-call]
        self.place[nodes] = torch.arange(len(nodes))
        z, last = self.memory(nodes)
        passed = (last[edges[0]] - self.time[events]).to(z.dtype)
        known = torch.cat([self.memory.time_enc(passed), self.message[events]], dim=-1)
        z = self.attention(z, edges, known)
        ends, others = z[self.place[src]], z[self.place[negative]]
        right, wrong = self.decoder(ends, z[self.place[dst]]), self.decoder(ends, others)
        loss = nn.functional.softplus(-right).mean() + nn.functional.softplus(wrong).mean()
        self.memory.update_state(src, dst, time, message)
        self.loader.insert(src, dst)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.memory.detach()


class TGMTGN:
    """TGM (`tgm-lib`): its memory, attention, recency sampler, deduplication and negatives."""

    def __init__(self, log: EventLog, seed: int = 0) -> None:
        from tgm import DGraph
        from tgm.constants import PADDED_NODE_ID
        from tgm.data import DGData
        from tgm.hooks import (
            DeduplicationHook,
            HookManager,
            NegativeEdgeSamplerHook,
            RecencyNeighborHook,
        )
        from tgm.nn.encoder.tgn import (
            GraphAttentionEmbedding,
            IdentityMessage,
            LastAggregator,
            TGNMemory,
        )

        torch.manual_seed(seed)
        src, dst, time = columns(log)
        self.padding = PADDED_NODE_ID
        data = DGData.from_raw(
            time, torch.stack([src, dst], dim=1).int(), edge_x=torch.zeros(len(log), 1)
        )
        self.graph = DGraph(data)
        self.hooks = HookManager(keys=["train"])
        self.hooks.register("train", NegativeEdgeSamplerHook(0, log.num_nodes))
        self.hooks.register(
            "train",
            RecencyNeighborHook(
                log.num_nodes,
                [NEIGHBORS],
                ["edge_src", "edge_dst", "neg"],
                ["edge_time", "edge_time", "neg_time"],
            ),
        )
        self.hooks.register("train", DeduplicationHook())
        self.hooks.set_active_hooks("train")
        self.memory = TGNMemory(
            log.num_nodes, 1, WIDTH, WIDTH, IdentityMessage(1, WIDTH, WIDTH), LastAggregator()
        )
        self.attention = GraphAttentionEmbedding(WIDTH, WIDTH, 1, self.memory.time_enc)
        self.attention.conv.dropout = 0.0
        self.decoder = LinkDecoder(WIDTH)
        layers = nn.ModuleList([self.memory, self.attention, self.decoder])
        self.optimiser = torch.optim.Adam(layers.parameters(), lr=1e-4, fused=True)

    def step(self, start: int, stop: int) -> None:
        part = self.graph.slice_events(start, stop)
        batch: Any = self.hooks.execute_active_hooks(part, part.materialize())
        self.optimiser.zero_grad()
        nodes = batch.unique_nids
        near = batch.nbr_nids[0]  # (seeds, neighbours)
        mask = near != self.padding
        place = batch.global_to_local
        seeds = place(batch.seed_nids[0])[:, None].expand_as(near)[mask]
        edges = torch.stack([place(near[mask]), seeds]).long()
        z, last = self.memory(nodes.long())
        z = self.attention(z, last, edges, batch.nbr_edge_time[0][mask], batch.nbr_edge_x[0][mask])
        ends = z[place(batch.edge_src).long()]
        right = self.decoder(ends, z[place(batch.edge_dst).long()])
        wrong = self.decoder(ends, z[place(batch.neg).long()])
        loss = nn.functional.softplus(-right).mean() + nn.functional.softplus(wrong).mean()
        src, dst = batch.edge_src.long(), batch.edge_dst.long()
        self.memory.update_state(src, dst, batch.edge_time, batch.edge_x)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.memory.detach()
