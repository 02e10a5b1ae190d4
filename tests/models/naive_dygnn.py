"""DyGNN once more, one event after the other in plain Python, from the equations of the paper.

States are numpy vectors in dictionaries, the past of a node is a list of its events, and nothing is
shared with the package but the log and its negative sampler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neutronstream.storage import NegativeSampler
from neutronstream.stream import EventLog, Float64

SEED = 0


@dataclass
class NaiveDyGNN:
    """`weights` by the names of the model's parameters; `states` by table, one vector a node."""

    log: EventLog
    weights: dict[str, Float64]
    states: dict[str, list[Float64]]
    num_negatives: int = 5
    k: int = 20
    decay: float = 2.0
    seconds: float = 1.0  # in a tick of the log
    past: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None:
        """All events of the log, each scored from the states before it; then it changes them."""
        events = self.log.events
        sampler = NegativeSampler(events.src, events.dst, seed=SEED, initial=self.log.initial)
        for i in range(len(self.log)):
            u, v = int(events.src[i]), int(events.dst[i])
            place, avoid = np.array([i]), np.array([[u, v]])
            terms = [math.log1p(math.exp(-self.score(u, v)))]
            nodes, valid = sampler.sample("dst", place, self.num_negatives, avoid)
            for other, ok in zip(nodes[0].tolist(), valid[0], strict=True):
                if ok:
                    terms.append(math.log1p(math.exp(self.score(u, other))))
            nodes, valid = sampler.sample("src", place, self.num_negatives, avoid)
            for other, ok in zip(nodes[0].tolist(), valid[0], strict=True):
                if ok:
                    terms.append(math.log1p(math.exp(self.score(other, v))))
            self.losses.append(sum(terms) / len(terms))
            if candidates is not None:
                self.scores.append([self.score(u, other) for other in [v, *candidates[i]]])
            self.event(u, v, int(events.time[i]))

    def score(self, a: int, b: int) -> float:
        z = self.states["embedding"]
        return float(
            (self.weights["as_head.weight"] @ z[a]) @ (self.weights["as_tail.weight"] @ z[b])
        )

    def event(self, u: int, v: int, now: int) -> None:
        """Interact, update, merge, propagate from both ends; then it is past."""
        z, width = self.states["embedding"], len(self.states["embedding"][u])
        both = np.concatenate([z[u], z[v]])
        told = np.tanh(self.weights["interact.weight"] @ both + self.weights["interact.bias"])
        e_u, e_v = told[:width], told[width:]
        waits = [self.wait(u, now), self.wait(v, now)]
        self.step(u, "head", 0, e_u, self.fade(waits[0]))
        self.step(v, "tail", 1, e_v, self.fade(waits[1]))
        self.merge(u)
        self.merge(v)
        for end, e, name in ((u, e_u, "transfer_src"), (v, e_v, "transfer_dst")):
            news = self.weights[f"{name}.weight"] @ e + self.weights[f"{name}.bias"]
            self.tell(end, "head", news[:width], now)
            self.tell(end, "tail", news[width:], now)
        if u == v:
            self.past.setdefault(u, []).append((u, now, "both"))
        else:
            self.past.setdefault(u, []).append((v, now, "tail"))
            self.past.setdefault(v, []).append((u, now, "head"))

    def wait(self, node: int, now: int) -> float:
        """Seconds since the last event of the node, or else since the first of the log."""
        past = self.past.get(node)
        since = past[-1][1] if past else int(self.log.events.time[0])
        return (now - since) * self.seconds

    def fade(self, wait: float) -> float:
        return 1.0 / math.log(math.e + self.decay * (wait / 3600.0))

    def step(self, node: int, role: str, index: int, x: Float64, g: float) -> None:
        """The time LSTM of one role."""
        cells, hiddens = self.states[f"cell_{role}"], self.states[f"hidden_{role}"]
        weights, width = self.weights, len(x)
        short = np.tanh(
            cells[node] @ weights["cells.short"][index] + weights["cells.short_bias"][index, 0]
        )
        adjusted = (cells[node] - short) + g * short
        gates = np.concatenate([x, hiddens[node]]) @ weights["cells.gates"][index]
        gates = gates + weights["cells.gates_bias"][index, 0]
        enter, keep, show, new = (gates[j * width : (j + 1) * width] for j in range(4))
        cells[node] = sigmoid(keep) * adjusted + sigmoid(enter) * np.tanh(new)
        hiddens[node] = sigmoid(show) * np.tanh(cells[node])

    def merge(self, node: int) -> None:
        hidden = np.concatenate(
            [self.states["hidden_head"][node], self.states["hidden_tail"][node]]
        )
        self.states["embedding"][node] = np.tanh(
            self.weights["merge.weight"] @ hidden + self.weights["merge.bias"]
        )

    def tell(self, end: int, role: str, news: Float64, now: int) -> None:
        """What the end propagates to its neighbours in one role, all weighed before any is told."""
        z = self.states["embedding"]
        last: dict[int, int] = {}
        for other, time, as_what in self.past.get(end, [])[-self.k :]:
            if as_what in (role, "both"):
                last[other] = time  # the newest comes last
        powers = {}
        for other in last:
            powers[other] = math.exp(float(z[other] @ self.weights["attention.weight"] @ z[end]))
        total = sum(powers.values())
        for other, time in last.items():
            share = powers[other] / total * self.fade((now - time) * self.seconds)
            cell = self.states[f"cell_{role}"][other] + share * news
            self.states[f"cell_{role}"][other] = cell
            self.states[f"hidden_{role}"][other] = np.tanh(cell)
        for other in last:
            self.merge(other)


def sigmoid(x: Float64) -> Float64:
    result: Float64 = 1.0 / (1.0 + np.exp(-x))
    return result
