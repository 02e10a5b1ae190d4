"""JODIE once more, one event after the other in plain Python, from the equations of the paper.

States are numpy vectors in a list, and nothing is shared with the package but the log, its negative
sampler and the static codes.
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
class NaiveJODIE:
    """`weights` by the names of the model's parameters; `codes` one vector a node, if any."""

    log: EventLog
    weights: dict[str, Float64]
    width: int
    codes: Float64 | None = None
    lambdas: tuple[float, float] = (1.0, 1.0)
    num_negatives: int = 1
    states: dict[int, Float64] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)  # a node's last event, partner
    known: set[int] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None:
        """All events of the log, each scored from the states before it; then it changes them."""
        log, events = self.log, self.log.events
        sampler = NegativeSampler(events.src, events.dst, seed=SEED, initial=log.initial)
        if log.initial is not None:
            self.known |= {*log.initial.src.tolist(), *log.initial.dst.tolist()}
        for i in range(len(log)):
            u, v = int(events.src[i]), int(events.dst[i])
            new_u, new_v = self.renewed(i, u, v, 0), self.renewed(i, v, u, 1)
            if self.codes is None:
                place, avoid = np.array([i]), np.array([[u, v]])
                nodes, valid = sampler.sample("dst", place, self.num_negatives, avoid)
                others = [int(n) for n, ok in zip(nodes[0], valid[0], strict=True) if ok]
                loss = math.log1p(math.exp(-self.score(i, u, v)))
                for other in others:
                    loss += math.log1p(math.exp(self.score(i, u, other))) / len(others)
            else:
                loss = self.score(i, u, v) ** 2
                loss += self.lambdas[0] * float(((new_u - self.state(u)) ** 2).sum())
                loss += self.lambdas[1] * float(((new_v - self.state(v)) ** 2).sum())
            self.losses.append(loss)
            if candidates is not None:
                self.scores.append([self.score(i, u, other) for other in [v, *candidates[i]]])
            self.states[u] = new_u
            self.states[v] = new_v
            self.last[u], self.last[v] = (i, v), (i, u)
            self.known |= {u, v}

    def state(self, node: int) -> Float64:
        return self.states.get(node, np.zeros(self.width))

    def renewed(self, i: int, own: int, other: int, side: int) -> Float64:
        """The state of `own` after event `i` with `other`, in which it is the source at side 0."""
        events, log = self.log.events, self.log
        told = []
        if len(log.kinds) > 1:
            told.append(np.eye(len(log.kinds))[int(events.kind[i])])
        if events.features is not None:
            told.append(events.features[i].astype(np.float64))
        since = self.last[own][0] if own in self.last else 0
        told.append(np.array([math.log1p(float(events.time[i] - events.time[since])) / 10]))
        read = np.concatenate([self.state(own), self.state(other), *told])
        cell = f"cells.{side}" if f"cells.{side}.weight" in self.weights else "cells.0"
        new: Float64 = np.tanh(self.weights[f"{cell}.weight"] @ read + self.weights[f"{cell}.bias"])
        return new if self.codes is None else new / np.linalg.norm(new)

    def projected(self, i: int, node: int) -> Float64:
        last = self.last[node][0] if node in self.last else -1
        idle = (i - last) * 2.0 / max(1, len(self.known))
        result: Float64 = self.state(node) * (1 + math.log1p(idle) * self.weights["drift.weight"])
        return result

    def code(self, node: int) -> Float64:
        assert self.codes is not None
        result: Float64 = self.codes[node] / math.sqrt(len(self.codes[node]))
        return result

    def score(self, i: int, src: int, dst: int) -> float:
        w = self.weights
        if self.codes is None:
            hidden = w["source.weight"] @ self.projected(i, src) + w["source.bias"]
            hidden = hidden + w["destination.weight"] @ self.projected(i, dst)
            hidden = np.maximum(hidden + w["destination.bias"], 0.0)
            return float(w["final.weight"][0] @ hidden + w["final.bias"][0])
        parts = [self.projected(i, src), self.code(src)]
        if src in self.last:
            partner = self.last[src][1]
            parts += [self.state(partner), self.code(partner)]
        else:
            parts += [np.zeros_like(part) for part in parts]
        expected = w["predictor.weight"] @ np.concatenate(parts) + w["predictor.bias"]
        found = np.concatenate([self.state(dst), self.code(dst)])
        return -float(np.linalg.norm(expected - found))
