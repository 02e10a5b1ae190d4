"""TGN once more, one event after the other in plain Python, from the equations of the paper.

Memories are numpy vectors in a dictionary, a node's past is a list of its events, and nothing is
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
class NaiveTGN:
    """`weights` by the names of the model's parameters and buffers."""

    log: EventLog
    weights: dict[str, Float64]
    width: int
    embedding: str = "attention"
    time_from: str = "query"
    k: int = 10
    heads: int = 2
    num_negatives: int = 1
    memory: dict[int, Float64] = field(default_factory=dict)
    past: dict[int, list[int]] = field(default_factory=dict)  # events of a node, oldest first
    known: set[int] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None:
        """All events of the log, each scored from the memories before it; then it changes them."""
        log, events = self.log, self.log.events
        sampler = NegativeSampler(events.src, events.dst, seed=SEED, initial=log.initial)
        if log.initial is not None:
            self.known |= {*log.initial.src.tolist(), *log.initial.dst.tolist()}
        for i in range(len(log)):
            u, v = int(events.src[i]), int(events.dst[i])
            place, avoid = np.array([i]), np.array([[u, v]])
            nodes, valid = sampler.sample("dst", place, self.num_negatives, avoid)
            others = [int(n) for n, ok in zip(nodes[0], valid[0], strict=True) if ok]
            loss = math.log1p(math.exp(-self.logit(i, u, v)))
            for other in others:
                loss += math.log1p(math.exp(self.logit(i, u, other))) / len(others)
            self.losses.append(loss)
            if candidates is not None:
                self.scores.append([self.logit(i, u, other) for other in [v, *candidates[i]]])
            new_u, new_v = self.renewed(i, u, v), self.renewed(i, v, u)
            self.memory[u] = new_u
            self.memory[v] = new_v
            for node in {u, v}:
                self.past.setdefault(node, []).append(i)
            self.known |= {u, v}

    def state(self, node: int) -> Float64:
        return self.memory.get(node, np.zeros(self.width))

    def gap(self, i: int, node: int) -> float:
        """Seconds since the node's last event; a new one waits since the first of the log."""
        times = self.log.events.time
        return float(times[i] - times[self.past[node][-1] if self.past.get(node) else 0])

    def phi(self, seconds: float) -> Float64:
        weights = self.weights
        rate = weights["time.base"] * weights.get("time.weight", 1.0)
        result: Float64 = np.cos(rate * seconds + weights["time.bias"])
        return result

    def event(self, i: int) -> list[Float64]:
        """One-hot of the kind if there are several, then the features."""
        events, parts = self.log.events, []
        if len(self.log.kinds) > 1:
            parts.append(np.eye(len(self.log.kinds))[int(events.kind[i])])
        if events.features is not None:
            parts.append(events.features[i].astype(np.float64))
        return parts

    def renewed(self, i: int, own: int, other: int) -> Float64:
        """The memory of `own` after event `i` with `other`."""
        w, s = self.weights, self.state(own)
        message = np.concatenate([s, self.state(other), *self.event(i), self.phi(self.gap(i, own))])
        a = w["cell.weight_ih"] @ message + w["cell.bias_ih"]
        b = w["cell.weight_hh"] @ s + w["cell.bias_hh"]
        result: Float64
        if len(a) == self.width:
            result = np.tanh(a + b)
            return result
        (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3), np.split(b, 3)
        r, z = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
        result = (1 - z) * np.tanh(a_n + r * b_n) + z * s
        return result

    def embedded(self, i: int, node: int) -> Float64:
        """z of the node as of event `i`."""
        w, s = self.weights, self.state(node)
        if self.embedding == "identity":
            return s
        if self.embedding == "time":
            last = self.past[node][-1] if self.past.get(node) else -1
            idle = (i - last) * 2.0 / max(1, len(self.known))
            drifted: Float64 = s * (1 + math.log1p(idle) * w["drift.weight"])
            return drifted
        near = []  # (memory, edge) of each of the last k events
        for j in self.past.get(node, [])[-self.k :]:
            ends = int(self.log.events.src[j]), int(self.log.events.dst[j])
            other = ends[1] if ends[0] == node else ends[0]
            elapsed = float(self.log.events.time[i] - self.log.events.time[j])
            if self.time_from == "neighbor":
                elapsed -= self.gap(i, other)
            edge = np.concatenate([self.phi(elapsed), *self.event(j)])
            near.append((self.state(other), edge))
        result: Float64
        if self.embedding == "sum":
            total = np.zeros(self.width)
            for memory, edge in near:
                read = np.concatenate([memory, edge])
                total += w["sum.near.weight"] @ read + w["sum.near.bias"]
            both = np.concatenate([s, np.maximum(total, 0.0)])
            result = w["sum.both.weight"] @ both + w["sum.both.bias"]
            return result
        w = {name.removeprefix("attention."): value for name, value in w.items()}
        result = w["skip.weight"] @ s + w["skip.bias"]
        head = self.width // self.heads
        for h in range(self.heads if near else 0):
            rows = slice(h * head, (h + 1) * head)
            query = w["query.weight"][rows] @ s + w["query.bias"][rows]
            rates, values = [], []
            for memory, edge in near:
                extra = w["edge.weight"][rows] @ edge
                key = w["key.weight"][rows] @ memory + extra
                rates.append(math.exp(float(query @ key) / math.sqrt(head)))
                values.append(w["value.weight"][rows] @ memory + w["value.bias"][rows] + extra)
            for rate, value in zip(rates, values, strict=True):
                result[rows] += rate / sum(rates) * value
        return result

    def logit(self, i: int, src: int, dst: int) -> float:
        w = self.weights
        hidden = w["source.weight"] @ self.embedded(i, src) + w["source.bias"]
        hidden = hidden + w["destination.weight"] @ self.embedded(i, dst) + w["destination.bias"]
        return float(w["final.weight"][0] @ np.maximum(hidden, 0.0) + w["final.bias"][0])


def sigmoid(x: Float64) -> Float64:
    result: Float64 = 1.0 / (1.0 + np.exp(-x))
    return result
