"""Links as what stages are trained for: which pairs come in the next snapshot.

Each of a pair's two owners scores it with what it has at hand: its own node's output at this stage,
and the other node's row as it came before the stage, which is a constant.  Both halves count 1/2,
also where one rank owns both ends, so that the loss of the links is that of any number of ranks.
Negatives keep the source and take another destination, of which the row must be at hand, too:
no row moves for them, and so they depend on who owns which node, and the loss with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ....storage.counter import uniform
from ....storage.sparse import Float64, holds
from ....stream import Int64
from .gate import Gate
from .goals import Goal, Lesson, View, count_all
from .part import USES, LocalGraph, Pairs, Part, Use
from .settings import LazySettings, Negatives
from .stages import Drop

TURNS = 8  # of drawing anew where what was drawn is no negative; then there is none


class PairHead(nn.Module):
    """Scores of pairs, from one end's output (., width) and the other's row (., constant)."""

    def __init__(self, width: int, constant: int) -> None:
        super().__init__()
        self.source, self.target = nn.Linear(width, width), nn.Linear(width, width)
        self.from_source = nn.Linear(constant, width)
        self.from_target = nn.Linear(constant, width)
        self.bias = nn.Parameter(torch.zeros(1))

    def match(self, output: Tensor, constant: Tensor) -> Tensor:
        """(m, width) each, as the `Linear`s made them -> (m,)."""
        return (output * constant).sum(1) / math.sqrt(output.shape[1]) + self.bias


@dataclass(frozen=True, eq=False, slots=True)
class Halves:
    """The pairs of which this rank owns one and the same end."""

    of_source: bool  # whether the own end is the source
    src: Int64  # (m,) nodes
    dst: Int64  # (m,)
    own: Int64  # (m,) place of the own end among own rows
    other: Int64  # (m,) place of the other end among own and halo rows


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """Pairs with their negatives: k destinations for each of m halves."""

    half: Halves
    place: Int64  # (m, k) among own and halo rows
    weight: Float64  # (m, k) 0: none was found


class Links(Goal):
    """Mean cross-entropy of links and of as many negatives each as `per_link` says.

    With negatives `local` a destination is drawn evenly from those that this rank knows to have
    been one and has at hand; one that makes a pair of the time, or is the source, is drawn anew.
    With `global` it is drawn from all nodes, whoever owns them; what is not at hand, or no
    negative, is left out, and the others weigh as many times more as there are more nodes than ones
    at hand.  So a pair that is used on many ranks is used on one, and fewer are.  Either is a
    function of (seed, stage, round, pair, end) and of what is at hand.
    """

    def __init__(self, part: Part, graph: LocalGraph, gate: Gate, settings: LazySettings) -> None:
        if settings.payload != "raw+hidden" or settings.kind == "mlp":
            raise ValueError(
                "links need the rows of both ends in every stage, so `payload` must be raw+hidden "
                f"and `kind` not mlp: got {settings.payload!r} and {settings.kind!r}"
            )
        assert part.pairs is not None
        self.part, self.settings, self.num_own = part, settings, graph.num_own
        self.num_rows = part.ownership.num_nodes
        self.width = self.num_rows // part.snapshots  # nodes of a snapshot
        self.number = np.full(self.num_rows, -1, np.int64)  # place of a node's row
        self.number[graph.nodes] = np.arange(len(graph.nodes))
        self._keys = np.unique(part.pairs.src * self.num_rows + part.pairs.dst)
        self._pools = {end: _Pool.of(self, part.pairs, own_only=not end) for end in (True, False)}
        self.halves = {use: self._of(use) for use in USES}
        train, val, test = count_all(gate, self.count(), "links")
        self.sizes = train // 2, val // 2, test // 2  # of links, whose halves were counted

    def count(self) -> tuple[int, int, int]:
        """Halves by use."""
        train, val, test = (sum(len(half.src) for half in self.halves[use]) for use in USES)
        return train, val, test

    def lesson(self, view: View) -> Lesson:
        """The training links."""
        return _LinkLesson(self, view)

    def judge(self, view: View, use: Use) -> tuple[float, float]:
        """The share of its `local` negatives that a link is scored above (ties half), added up."""
        right, wrong = 0.0, 0.0
        drawn = [self.draw(half, f"negatives {use}", "local") for half in self.halves[use]]
        with torch.no_grad():
            scores = self.scores(view, drawn)
        for (link, others), one in zip(scores, drawn, strict=True):
            weight = torch.from_numpy(one.weight).to(link.dtype)
            above = (link[:, None] > others).double() + 0.5 * (link[:, None] == others).double()
            total = weight.double().sum(1)
            share = (above * weight).sum(1) / total.clamp(min=1e-300)
            right += 0.5 * float(torch.where(total > 0, share, 0.5).sum())
            wrong += float(self._sum(link, others, weight))
        return right, wrong

    def draw(self, half: Halves, name: str, negatives: Negatives | None = None) -> Drawn:
        """Negatives of links, as the settings want them if nothing else is said."""
        settings, pool, count = self.settings, self._pools[half.of_source], self.settings.per_link
        step = half.src // max(self.width, 1)
        found = np.zeros((len(step), count), np.int64)
        weight = np.zeros((len(step), count))
        key = half.src * self.num_rows + half.dst
        is_local = (negatives or settings.negatives) == "local"
        size = pool.sizes[step]
        for turn in range(TURNS if is_local else 1):
            rows = np.flatnonzero((weight == 0).any(1) & (size > 0))
            if not len(rows):
                break
            end = "source" if half.of_source else "target"
            drawn = uniform(settings.seed, f"{name} {end} {turn}", key[rows], count)
            if is_local:
                at = pool.starts[step[rows], None] + (drawn * size[rows, None]).astype(np.int64)
                nodes, fits = pool.nodes[at], np.ones(drawn.shape, bool)
            else:
                nodes = step[rows, None] * self.width + (drawn * self.width).astype(np.int64)
                fits = holds(pool.nodes, nodes)
            src = half.src[rows, None]
            fits &= (nodes != src) & ~holds(self._keys, src * self.num_rows + nodes)
            new = fits & (weight[rows] == 0)
            heavy = np.ones(len(rows)) if is_local else self.width / size[rows]
            found[rows] = np.where(new, self.number[nodes], found[rows])
            weight[rows] = np.where(new, heavy[:, None], weight[rows])
        return Drawn(half, found, weight)

    def scores(
        self, view: View, drawn: Sequence[Drawn], drop: Drop | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Of links (m,) and of their negatives (m, k), which are 0 where there is none."""
        head, rows = view.module.head, view.rows
        assert isinstance(head, PairHead)
        needed = [one.half.own for one in drawn]
        needed += [one.place[one.weight > 0] for one in drawn if not one.half.of_source]
        own = np.unique(np.concatenate(needed))  # (u,) own rows whose outputs are needed
        output = view.module.hidden(view.inputs.take(own), drop)  # (u, width)
        found = []
        for one in drawn:
            half = one.half
            mine, far = (
                (head.source, head.from_target)
                if half.of_source
                else (head.target, head.from_source)
            )
            outputs = mine(output)
            near = outputs[torch.from_numpy(np.searchsorted(own, half.own))]  # (m, width)
            other = _projected(far, rows, half.other)  # (m, width)
            at, column = np.nonzero(one.weight)
            place, row = one.place[at, column], torch.from_numpy(at)
            if half.of_source:
                each = head.match(near[row], _projected(far, rows, place))
            else:
                each = head.match(
                    outputs[torch.from_numpy(np.searchsorted(own, place))], other[row]
                )
            others = each.new_zeros(one.weight.shape)
            others = others.index_put((row, torch.from_numpy(column)), each)
            found.append((head.match(near, other), others))
        return found

    def loss(self, view: View, drawn: Sequence[Drawn], drop: Drop | None) -> Tensor:
        """This rank's part of the mean over all ranks' training links."""
        scores = self.scores(view, drawn, drop)
        parts = [
            self._sum(link, others, torch.from_numpy(one.weight).to(link.dtype))
            for (link, others), one in zip(scores, drawn, strict=True)
        ]
        return torch.stack(parts).sum() / self.sizes[0]

    def score(self, view: View, src: Int64, dst: Int64) -> Tensor:
        """(m,) of any pairs of which this rank owns an end and has the other's row: the mean of
        what their two ends say, or what one says if the other end's owner is another rank.

        Raises:
            ValueError: if of a pair neither is so.
        """
        total, times = torch.zeros(len(src), dtype=self.settings.dtype), np.zeros(len(src))
        for of_source, near, far in ((True, src, dst), (False, dst, src)):
            can = (self.number[near] >= 0) & (self.number[near] < self.num_own)
            can &= self.number[far] >= 0
            which = np.flatnonzero(can)
            ends = self.number[near[which]], self.number[far[which]]
            half = Halves(of_source, src[which], dst[which], *ends)
            none = np.zeros((len(which), 0), np.int64), np.zeros((len(which), 0))
            with torch.no_grad():
                ((found, _),) = self.scores(view, [Drawn(half, *none)])
            total[torch.from_numpy(which)] += found
            times[which] += 1
        if (times == 0).any():
            bad = int(np.flatnonzero(times == 0)[0])
            raise ValueError(
                f"pair {bad}, {src[bad]} to {dst[bad]}, must have an own end and the other at "
                f"hand on rank {self.part.rank}: ask the rank that owns one, or on one rank"
            )
        return total / torch.from_numpy(times).to(total.dtype)

    def _sum(self, link: Tensor, others: Tensor, weight: Tensor) -> Tensor:
        total = functional.softplus(-link).sum() + (functional.softplus(others) * weight).sum()
        return 0.5 * total / (1 + self.settings.per_link)

    def _of(self, use: Use) -> tuple[Halves, Halves]:
        pairs, owner = self.part.pairs, self.part.ownership.owner
        assert pairs is not None
        src, dst = (end[pairs.use == USES.index(use)] for end in (pairs.src, pairs.dst))
        found = []
        for of_source, near, far in ((True, src, dst), (False, dst, src)):
            mine = np.flatnonzero(owner[near] == self.part.rank)
            ends = self.number[near[mine]], self.number[far[mine]]
            found.append(Halves(of_source, src[mine], dst[mine], *ends))
        return found[0], found[1]


class _LinkLesson(Lesson):
    def __init__(self, goal: Links, view: View) -> None:
        self.goal, self.view = goal, view
        self.share = goal.count()[0] / (2 * goal.sizes[0])

    def loss(self, turn: int) -> Tensor:
        """With negatives of this round."""
        goal, view = self.goal, self.view
        name = f"negatives {view.stage} {turn}"
        drawn = [goal.draw(half, name) for half in goal.halves["train"]]
        return goal.loss(view, drawn, goal.drop_of(view.stage, turn))


@dataclass(frozen=True, eq=False, slots=True)
class _Pool:
    """The destinations to draw from, snapshot by snapshot."""

    nodes: Int64  # (q,) ascending
    starts: Int64  # (S,)
    sizes: Int64  # (S,)

    @staticmethod
    def of(links: Links, pairs: Pairs, *, own_only: bool) -> _Pool:
        place = links.number[pairs.known]
        nodes = pairs.known[(place >= 0) & ((place < links.num_own) | (not own_only))]
        borders = np.arange(links.part.snapshots + 1) * links.width
        ends = np.searchsorted(nodes, borders)
        return _Pool(nodes, ends[:-1], np.diff(ends))


def _projected(linear: nn.Module, rows: Tensor, place: Int64) -> Tensor:
    """What a `Linear` makes of some rows, each worked out once: (m, width)."""
    some, back = np.unique(place, return_inverse=True)
    found: Tensor = linear(rows[torch.from_numpy(some)])[torch.from_numpy(back)]
    return found
