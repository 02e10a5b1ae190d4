"""LDG once more, one event after the other in plain Python, from its equations.

States are numpy vectors in a list, S is a dictionary from (node, neighbour) to one number for each
relation, and nothing is shared with the package but the log, its negative sampler and, given as
they are, the random numbers of each event and the nodes drawn as its context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neutronstream.storage import NegativeSampler
from neutronstream.stream import EventLog, Float64

SEED = 0

Draw = tuple[Float64, Float64]
"""S of (source, destination) and of (destination, source)."""


@dataclass
class NaiveLDG:
    """`weights` by the names of the model's parameters, `z` one vector a node."""

    log: EventLog
    weights: dict[str, Float64]
    z: list[Float64]
    context: Sequence[Sequence[int]]  # of each event, without its ends
    noise: Float64  # (n, 2 classes) in (0, 1)
    prior: tuple[float, ...]  # of "no edge" first, if there is that class
    sparse: bool = True
    hard: bool = True
    temperature: float = 0.5
    kl_weight: float = 1.0
    num_negatives: int = 5
    given: Sequence[Draw] | None = None  # what to keep of each event, if not its own draw
    relations: dict[tuple[int, int], Float64] = field(default_factory=dict)
    neighbors: dict[int, list[int]] = field(default_factory=dict)
    drawn: list[Draw] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scores: list[list[float]] = field(default_factory=list)

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None:
        """All events of the log, each scored from the states before it; then it changes them."""
        log, events = self.log, self.log.events
        sampler = NegativeSampler(events.src, events.dst, seed=SEED, initial=log.initial)
        known: set[int] = set()
        start = np.array(self.prior[1:] if self.sparse else self.prior)
        if log.initial is not None:
            for a, b in zip(log.initial.src.tolist(), log.initial.dst.tolist(), strict=True):
                self.connect(a, b)
                self.relations[a, b] = self.relations[b, a] = start
                known |= {a, b}
        last_time: dict[int, int] = {}
        last_place: dict[int, int] = {}
        for i in range(len(log)):
            u, v, now = int(events.src[i]), int(events.dst[i]), int(events.time[i])
            kind = int(events.kind[i])
            place, avoid = np.array([i]), np.array([[u, v]])
            gaps = 2.0 / max(1, len(known))

            def idle(node: int, i: int = i, gaps: float = gaps) -> float:
                return gaps * (i - last_place.get(node, -1))

            loss = -math.log(self.intensity(kind, u, v, idle) + 1e-10)
            for end, role in ((u, "dst"), (v, "src")):
                nodes, valid = sampler.sample(role, place, self.num_negatives, avoid)  # type: ignore[arg-type]
                others = [int(n) for n, ok in zip(nodes[0], valid[0], strict=True) if ok]
                total = sum(
                    self.intensity(each, end, other, idle)
                    for other in others
                    for each in range(len(log.kinds))
                )
                loss += total / max(1, len(others))
            if candidates is not None:
                scores = []
                for other in [v, *candidates[i]]:
                    density = self.intensity(kind, u, other, idle)
                    score = math.log(density + 1e-10)
                    if "drift.weight" not in self.weights:
                        score -= density * min(idle(u), idle(other))
                    scores.append(score)
                self.scores.append(scores)
            fresh, divergence = self.draw(i, u, v)
            self.drawn.append(fresh)
            self.divergences.append(divergence)
            self.losses.append(loss + self.kl_weight * divergence)
            self.connect(u, v)
            first = int(events.time[0])
            new_u = self.updated(u, v, fresh[1], now - last_time.get(u, first))
            new_v = self.updated(v, u, fresh[0], now - last_time.get(v, first))
            kept = fresh if self.given is None else self.given[i]
            self.relations[u, v] = kept[0]
            self.relations[v, u] = kept[1]  # of a self loop this one stands
            self.z[u] = new_u
            self.z[v] = new_v
            last_time[u] = last_time[v] = now
            last_place[u] = last_place[v] = i
            known |= {u, v}

    def draw(self, event: int, u: int, v: int) -> tuple[Draw, float]:
        """S of both directions, and the mean of their divergences from the prior."""
        h = {i: self.perceptron("f1", self.z[i]) for i in {u, v, *self.context[event]}}
        edges, nodes = [], []
        for own, other in ((u, v), (v, u)):
            context = [other, *self.context[event]]
            heard = [self.perceptron("f2", np.concatenate([h[own], h[j]])) for j in context]
            edges.append(heard[0])
            nodes.append(self.perceptron("f3", np.sum(heard, axis=0) / len(heard)))
        classes = len(self.prior)
        drawn, divergence = [], 0.0
        for side in (0, 1):
            told = np.concatenate([nodes[side], nodes[1 - side], edges[side]])
            last = self.perceptron("f4", told, norm=False)
            logits = self.weights["relation.weight"] @ last + self.weights["relation.bias"]
            for p, q in zip(softmax(logits), self.prior, strict=True):
                divergence += 0.5 * float(p) * math.log(p / q)
            uniform = self.noise[event, side * classes : (side + 1) * classes]
            gumbel = np.array([-math.log(-math.log(x)) for x in uniform])
            share = softmax((logits + gumbel) / self.temperature)
            if self.hard:
                share = np.eye(classes)[int(np.argmax(share))]
            drawn.append(share[1:] if self.sparse else share)
        return (drawn[0], drawn[1]), divergence

    def perceptron(self, name: str, x: Float64, *, norm: bool = True) -> Float64:
        """Two layers with ELU; then mean 0, variance 1 over the entries, scaled and shifted."""
        weights = self.weights
        for layer in ("first", "second"):
            x = elu(weights[f"{name}.{layer}.weight"] @ x + weights[f"{name}.{layer}.bias"])
        if norm:
            x = (x - x.mean()) / math.sqrt(float(x.var()) + 1e-5)
            x = x * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]
        return x

    def updated(self, node: int, other: int, fresh: Float64, gap: int) -> Float64:
        """Equation 4 of DyRep: `node` after an event with `other` that drew `fresh` for its row."""
        weights = self.weights
        heard = []
        for relation in range(len(self.prior) - self.sparse):
            row = {i: 0.0 for i in self.neighbors[other]}
            for i in row:
                row[i] = float(fresh[relation] if i == node else self.relations[other, i][relation])
            total = sum(row.values()) + 1e-7
            row = {i: value / total for i, value in row.items() if value > 1e-7}
            power = {i: math.exp(value) for i, value in row.items()}
            greatest = np.zeros(len(self.z[node]))
            for i, value in power.items():
                q = value / (sum(power.values()) + 1e-7)
                message = q * (weights["neighbor.weight"] @ self.z[i] + weights["neighbor.bias"])
                greatest = np.maximum(greatest, sigmoid(message))
            heard.append(greatest)
        days, rest = divmod(gap, 86_400)
        hours, rest = divmod(rest, 3_600)
        minutes, seconds = divmod(rest, 60)
        elapsed = np.array([days / 50, hours / 7, minutes / 15, seconds / 15])
        return sigmoid(
            weights["structure.weight"] @ np.concatenate(heard)
            + weights["structure.bias"]
            + weights["recurrence.weight"] @ self.z[node]
            + weights["elapsed.weight"] @ elapsed
        )

    def intensity(self, kind: int, a: int, b: int, idle: Callable[[int], float]) -> float:
        """psi log(1 + exp(g / psi)), g the mean of both orders of the ends.

        With a drift in the weights, states are first moved by the time for which they were `idle`.
        """
        omega, between = self.weights["omega.weight"][kind], self.weights["interaction"][kind]
        g = float(self.weights["omega.bias"][kind])
        z = {node: self.z[node] for node in (a, b)}
        if "drift.weight" in self.weights:
            drift = self.weights["drift.weight"]
            z = {n: state * (1.0 + math.log(1.0 + idle(n)) * drift) for n, state in z.items()}
        for first, second in ((a, b), (b, a)):
            g += 0.5 * float(omega @ np.concatenate([z[first], z[second]]))
            g += 0.5 * float((z[first] - 0.5) @ between @ (z[second] - 0.5))
        psi = float(self.weights["psi"][kind])
        return psi * math.log1p(math.exp(min(75.0, max(-75.0, g / psi))))

    def connect(self, a: int, b: int) -> None:
        """Link two nodes, once."""
        for node, other in ((a, b), (b, a)):
            near = self.neighbors.setdefault(node, [])
            if other not in near:
                near.append(other)


def softmax(x: Float64) -> Float64:
    power = np.exp(x - x.max())
    result: Float64 = power / power.sum()
    return result


def elu(x: Float64) -> Float64:
    result: Float64 = np.where(x > 0, x, np.exp(np.minimum(x, 0.0)) - 1.0)
    return result


def sigmoid(x: Float64) -> Float64:
    result: Float64 = 1.0 / (1.0 + np.exp(-x))
    return result
