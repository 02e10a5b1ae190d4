"""DyRep once more, one event after the other in plain Python, from the equations of the paper.

States are numpy vectors in a list, attention is a dictionary from (node, neighbour), and nothing is
shared with the package but the log and its negative sampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neutronstream.storage import NegativeSampler
from neutronstream.stream import EventLog, Float64

SEED = 0


@dataclass
class NaiveDyRep:
    """`weights` by the names of the model's parameters, `z` one vector a node."""

    log: EventLog
    weights: dict[str, Float64]
    z: list[Float64]
    num_negatives: int = 5
    association: tuple[str, ...] = ("AE",)
    rates: Sequence[float] | None = None  # intensities for the attention, if not to be computed
    attention: dict[tuple[int, int], float] = field(default_factory=dict)
    neighbors: dict[int, list[int]] = field(default_factory=dict)
    used_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None:
        """All events of the log, each scored from the states before it; then it changes them."""
        log, events = self.log, self.log.events
        sampler = NegativeSampler(events.src, events.dst, seed=SEED, initial=log.initial)
        known: set[int] = set()
        if log.initial is not None:
            for a, b in zip(log.initial.src.tolist(), log.initial.dst.tolist(), strict=True):
                self.connect(a, b)
                known |= {a, b}
            for a, near in self.neighbors.items():
                for b in near:
                    self.attention[a, b] = 1.0 / len(near)
        last_time: dict[int, int] = {}
        last_place: dict[int, int] = {}
        links_all = not set(log.kinds) & set(self.association)
        for i in range(len(log)):
            u, v, now = int(events.src[i]), int(events.dst[i]), int(events.time[i])
            kind = int(events.kind[i])
            place, avoid = np.array([i]), np.array([[u, v]])
            gaps = 2.0 / max(1, len(known))

            def idle(node: int, i: int = i, gaps: float = gaps) -> float:
                return gaps * (i - last_place.get(node, -1))

            rate = self.intensity(kind, u, v)
            loss = -math.log(self.intensity(kind, u, v, idle) + 1e-10)
            for end, role in ((u, "dst"), (v, "src")):
                nodes, valid = sampler.sample(role, place, self.num_negatives, avoid)  # type: ignore[arg-type]
                others = [int(n) for n, ok in zip(nodes[0], valid[0], strict=True) if ok]
                total = 0.0
                for other in others:
                    for each in range(len(log.kinds)):
                        total += self.intensity(each, end, other, idle)
                loss += total / max(1, len(others))
            self.losses.append(loss)
            if candidates is not None:
                scores = []
                for other in [v, *candidates[i]]:
                    density = self.intensity(kind, u, other, idle)
                    score = math.log(density + 1e-10)
                    if "drift.weight" not in self.weights:
                        score -= density * min(idle(u), idle(other))
                    scores.append(score)
                self.scores.append(scores)
            first = int(events.time[0])
            new_u = self.updated(u, v, now - last_time.get(u, first))
            new_v = self.updated(v, u, now - last_time.get(v, first))
            makes_link = links_all or log.kinds[kind] in self.association
            self.attend(i, u, v, rate, makes_link)
            self.z[u], self.z[v] = new_u, new_v
            last_time[u] = last_time[v] = now
            last_place[u] = last_place[v] = i
            known |= {u, v}

    def intensity(
        self, kind: int, a: int, b: int, idle: Callable[[int], float] | None = None
    ) -> float:
        """Equations 1 and 2: psi log(1 + exp(g / psi)), g the mean of both orders of the ends.

        With a drift in the weights, states are first moved by the time for which they were `idle`.
        """
        omega = self.weights["omega.weight"][kind]
        g = float(self.weights["omega.bias"][kind])
        z = {node: self.z[node] for node in (a, b)}
        if idle is not None and "drift.weight" in self.weights:
            drift = self.weights["drift.weight"]
            z = {n: state * (1.0 + math.log(1.0 + idle(n)) * drift) for n, state in z.items()}
        for first, second in ((a, b), (b, a)):
            g += 0.5 * float(omega @ np.concatenate([z[first], z[second]]))
            if "interaction" in self.weights:
                between = self.weights["interaction"][kind]
                g += 0.5 * float((z[first] - 0.5) @ between @ (z[second] - 0.5))
        psi = float(self.weights["psi"][kind])
        return psi * math.log1p(math.exp(min(75.0, max(-75.0, g / psi))))

    def updated(self, node: int, other: int, gap: int) -> Float64:
        """Equation 4: the state of `node` after an event with `other`, `gap` seconds later."""
        weights, width = self.weights, len(self.z[node])
        near = self.neighbors.get(other, [])
        exps = [math.exp(self.attention[other, i]) for i in near]
        structure = np.zeros(width)
        for share, i in zip(exps, near, strict=True):
            q = share / (sum(exps) + 1e-7)
            message = q * (weights["neighbor.weight"] @ self.z[i] + weights["neighbor.bias"])
            structure = np.maximum(structure, sigmoid(message))
        days, rest = divmod(gap, 86_400)
        hours, rest = divmod(rest, 3_600)
        minutes, seconds = divmod(rest, 60)
        elapsed = np.array([days / 50, hours / 7, minutes / 15, seconds / 15])
        return sigmoid(
            weights["structure.weight"] @ structure
            + weights["structure.bias"]
            + weights["recurrence.weight"] @ self.z[node]
            + weights["elapsed.weight"] @ elapsed
        )

    def attend(self, event: int, u: int, v: int, rate: float, makes_link: bool) -> None:
        """Algorithm 1: the rows of both ends, if they are linked after the event."""
        if self.rates is not None:
            rate = self.rates[event]
        self.used_rates.append(rate)
        before = {node: len(self.neighbors.get(node, [])) for node in (u, v)}
        is_new = makes_link and v not in self.neighbors.get(u, [])
        if is_new:
            self.connect(u, v)
        if v not in self.neighbors.get(u, []):
            return
        for node, other in {(u, v), (v, u)}:
            share = 1.0 / len(self.neighbors[node])
            row = {i: self.attention.get((node, i), 0.0) for i in self.neighbors[node]}
            if is_new and before[node]:
                for i in row:
                    row[i] -= 1.0 / before[node] - share
            row[other] = share + rate
            total = sum(row.values()) + 1e-7
            for i, value in row.items():
                self.attention[node, i] = value / total

    def connect(self, a: int, b: int) -> None:
        """Link two nodes, once."""
        for node, other in ((a, b), (b, a)):
            near = self.neighbors.setdefault(node, [])
            if other not in near:
                near.append(other)


def sigmoid(x: Float64) -> Float64:
    result: Float64 = 1.0 / (1.0 + np.exp(-x))
    return result
