"""Is a stale TGN the one of torch_geometric: the same memories and scores from the same weights?

The peer is built of torch_geometric's own classes (`TGNMemory` with `IdentityMessage`,
`LastAggregator`, GRU and time encoder, `LastNeighborLoader`, `TransformerConv`), driven here as its
example trains them, without dropout.  It lends its weights, as it starts them, to `TGN`; both then
learn from the same batches and negatives with an optimiser each, and after every batch all
memories, and the scores of the true and corrupted pairs, are compared.

Made equal first:

- times start at zero, as the peer's do, and are strictly increasing: of equal times the peer's
  aggregator takes any, `TGN` the last;
- the peer wants messages of at least one column and gets zeros;
- without torch_scatter the peer's aggregator hands a node that was told nothing the message of
  another node, which `Last` puts right; it renews such a node with zeros all the same, so that the
  biases of its GRU are zero and stay so;
- the peer's loader, given a batch, does not keep the latest ten events of a node that has more in
  it; it is given one event at a time;
- weights that no event reaches get a gradient of zero, for Adam to count the same steps.

One thing cannot be made equal.  The peer learns the frequencies themselves, and a step of 1e-4
turns the phase of a gap of a million seconds by a hundred radians: a rounding error grows a
hundredfold a step, and no two programs would agree for long.  While it learns, time is therefore
counted in events; in float32, where a phase of a thousand radians has few digits left, frequencies
also start a thousand times slower.  Seconds are compared with weights that stand still.

    python benchmarks/peer_equality.py [--batches N]

Answer (2026-11-30, torch_geometric 2.8.1 without torch_scatter, 20 batches of 200 events of uci):
yes.  Learning, the greatest difference is 4e-14 in memories and 1e-14 in scores in float64, 5e-7
and 4e-7 in float32; in seconds, without learning, 7e-16 and 2e-16.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import finish  # type: ignore  # beside this file
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv
from torch_geometric.nn.models.tgn import (
    IdentityMessage,
    LastAggregator,
    LastNeighborLoader,
    TGNMemory,
)

from neutronstream.datasets import load
from neutronstream.models.tgn import TGN
from neutronstream.parallel import BatchExecutor, Replay
from neutronstream.stream import EventLog

BATCH, WIDTH, NEIGHBORS, HEADS, SEED = 200, 100, 10, 2, 0


class Last(LastAggregator):  # type: ignore[misc]
    """The last message of each node, zeros where there is none (with torch_scatter or without)."""

    def forward(self, msg: Tensor, index: Tensor, t: Tensor, dim_size: int) -> Tensor:
        told = torch.zeros(dim_size, 1, dtype=torch.bool)
        told[index] = True
        return torch.where(told, super().forward(msg, index, t, dim_size), 0.0)


class Peer(nn.Module):
    """TGN of torch_geometric's classes over nodes that are numbered from 0."""

    def __init__(self, num_nodes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        message = IdentityMessage(1, WIDTH, WIDTH)
        self.memory = TGNMemory(num_nodes, 1, WIDTH, WIDTH, message, Last())
        self.attention = TransformerConv(WIDTH, WIDTH // HEADS, heads=HEADS, edge_dim=WIDTH + 1)
        self.source, self.destination = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.final = nn.Linear(WIDTH, 1)
        for bias in (self.memory.gru.bias_ih, self.memory.gru.bias_hh):
            nn.init.zeros_(bias).requires_grad_(False)
        self.to(dtype)
        self.memory.reset_state()  # the store of messages takes the number type too
        self.near = LastNeighborLoader(num_nodes, size=NEIGHBORS)
        self.row = torch.empty(num_nodes, dtype=torch.long)
        self.times = torch.empty(0, dtype=torch.long)

    def forward(self, src: Tensor, dst: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (n,) of the true pairs and of those with `other` destinations."""
        nodes, edges, event = self.near(torch.cat([src, dst, other]).unique())  # type: ignore[no-untyped-call]
        self.row[nodes] = torch.arange(len(nodes))
        memory, last = self.memory(nodes)
        elapsed = self.memory.time_enc((last[edges[0]] - self.times[event]).to(self.dtype))
        known = torch.cat([elapsed, torch.zeros_like(elapsed[:, :1])], dim=1)
        z = self.attention(memory, edges, known)
        true, wrong = (
            self.final(torch.relu(self.source(z[self.row[src]]) + self.destination(z[of])))
            for of in (self.row[dst], self.row[other])
        )
        return true.squeeze(1), wrong.squeeze(1)

    def learn(self, src: Tensor, dst: Tensor, time: Tensor) -> None:
        """Take in the events of a batch, after it was scored."""
        raw = torch.zeros(len(src), 1, dtype=self.dtype)
        self.memory.update_state(src, dst, time, raw)
        for event in range(len(src)):  # one by one: see above
            self.near.insert(src[event : event + 1], dst[event : event + 1])
        self.times = torch.cat([self.times, time])


def pairs(peer: Peer, model: TGN) -> list[tuple[Tensor, Tensor]]:
    """The weights of `model` beside those of the peer.

    The peer's column of the empty message and the bias of its key, which changes nothing, are left
    out.
    """
    assert model.attention is not None and model.time.weight is not None
    attention, time, gru = peer.attention, peer.memory.time_enc.lin, peer.memory.gru
    told = 2 * WIDTH  # the column of the message, between memories and time
    found = [
        (model.time.weight, time.weight[:, 0]),
        (model.time.bias, time.bias),
        (
            model.cell.weight_ih,
            torch.cat([gru.weight_ih[:, :told], gru.weight_ih[:, told + 1 :]], 1),
        ),
        (model.cell.weight_hh, gru.weight_hh),
        (model.cell.bias_ih, gru.bias_ih),
        (model.cell.bias_hh, gru.bias_hh),
        (model.attention.key.weight, attention.lin_key.weight),
        (model.attention.edge.weight, attention.lin_edge.weight[:, :WIDTH]),
    ]
    for mine, theirs in (
        (model.attention.query, attention.lin_query),
        (model.attention.value, attention.lin_value),
        (model.attention.skip, attention.lin_skip),
        (model.source, peer.source),
        (model.destination, peer.destination),
        (model.final, peer.final),
    ):
        found += [(mine.weight, theirs.weight), (mine.bias, theirs.bias)]
    return [(mine_, theirs_.detach()) for mine_, theirs_ in found]


def lend(peer: Peer, model: TGN) -> None:
    """Copy the weights of the peer."""
    with torch.no_grad():
        model.time.base.fill_(1.0)  # the peer learns the frequencies themselves
        for mine, theirs in pairs(peer, model):
            mine.copy_(theirs)
    for bias in (model.cell.bias_ih, model.cell.bias_hh):
        bias.requires_grad_(False)


@dataclass(frozen=True, slots=True)
class Difference:
    """Greatest absolute differences over all batches, and what is compared at the end."""

    memory: float
    score: float
    weight: float  # at the end
    largest_memory: float
    learned: float  # how far the farthest weight has moved
    loss: float  # of the last batch


def measure(
    log: EventLog, dtype: torch.dtype, slower: float = 1.0, learning_rate: float = 1e-4
) -> Difference:
    """Both over all whole batches of a log; frequencies start `slower` times slower."""
    torch.manual_seed(SEED)
    peer = Peer(log.num_nodes, dtype)
    with torch.no_grad():
        peer.memory.time_enc.lin.weight.div_(slower)
    options: dict[str, Any] = {"time_from": "neighbor", "frequencies": "learned"}
    model = TGN(WIDTH, k=NEIGHBORS, heads=HEADS, **options).to(dtype)
    lend(peer, model)
    first = [mine.detach().clone() for mine, _ in pairs(peer, model)]
    replay = Replay(log, model, seed=SEED, dtype=dtype, consistency="batch")
    executor = BatchExecutor(replay)
    weights = [[p for p in each.parameters() if p.requires_grad] for each in (peer, model)]
    optimisers = [torch.optim.Adam(each, lr=learning_rate) for each in weights]
    events, memory, score = log.events, 0.0, 0.0
    for start in range(0, len(log) - BATCH + 1, BATCH):
        span = slice(start, start + BATCH)
        src, dst, time = (torch.from_numpy(c[span]) for c in (events.src, events.dst, events.time))
        ends, positions = torch.stack([src, dst], dim=1).numpy(), np.arange(start, start + BATCH)
        drawn, valid = replay.sampler.sample("dst", positions, 1, ends)
        segment = replay.resolve(start, start + BATCH, pairs=(ends[:, :1], drawn))
        other, real = torch.from_numpy(drawn[:, 0]), torch.from_numpy(valid[:, 0])

        true, wrong = peer(src, dst, other)
        peer.learn(src, dst, time)
        loss = F.softplus(-true).mean() + torch.where(real, F.softplus(wrong), 0.0).mean()
        outcome = executor.run(executor.prepare(segment))
        for own, optimiser, total in zip(
            weights, optimisers, (loss, outcome.losses.mean()), strict=True
        ):
            for weight in own:  # not None, or Adam would count fewer steps where nothing is learned
                weight.grad = torch.zeros_like(weight)
            total.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        peer.memory.detach()
        outcome.commit()

        assert outcome.pair_scores is not None
        theirs = torch.stack([true, wrong], dim=1).detach()
        apart = (outcome.pair_scores - theirs).abs()
        score = max(score, apart[:, 0].max().item(), apart[real, 1].max().item())
        memory = max(memory, (replay.state["memory"] - peer.memory.memory).abs().max().item())
    last = [(mine.detach(), theirs) for mine, theirs in pairs(peer, model)]
    return Difference(
        memory=memory,
        score=score,
        weight=max((a - b).abs().max().item() for a, b in last),
        largest_memory=replay.state["memory"].abs().max().item(),
        learned=max((a - b).abs().max().item() for (a, _), b in zip(last, first, strict=True)),
        loss=loss.item(),
    )


def retimed(log: EventLog, in_events: bool) -> EventLog:
    """The log with strictly increasing times from 0: seconds, or the number of each event."""
    place = np.arange(len(log))
    seconds = log.events.time - log.events.time[0]
    time = place if in_events else place + np.maximum.accumulate(seconds - place)
    return EventLog.from_arrays(log.events.src, log.events.dst, time, name=log.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    log = load("uci", limit=given.batches * BATCH)
    result: dict[str, Any] = {"batches": given.batches}
    for name, in_events, *how in (
        ("learning, float64", True, torch.float64),
        ("learning, float32", True, torch.float32, 1e3),
        ("standing still, float64, seconds", False, torch.float64, 1.0, 0.0),
    ):
        found = measure(retimed(log, in_events), *how)
        result[name] = {key: getattr(found, key) for key in Difference.__slots__}
        print(f"{name}:  " + "  ".join(f"{k} {v:.3g}" for k, v in result[name].items()), flush=True)
    finish(result, SEED)


if __name__ == "__main__":
    main()
