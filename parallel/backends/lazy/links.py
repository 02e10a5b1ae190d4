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
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ....storage.counter import uniform
from ....storage.snapshot import Snapshot
from ....storage.sparse import Float64, SparseMatrix, holds
from ....stream import Int64
from ..ownership import Ownership
from .gate import Gate
from .goals import Goal, Lesson
from .part import USES, LocalGraph, Pairs, Part, Use
from .settings import LazySettings, Negatives
from .stages import Drop, Inputs, Stage

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
    """Negatives: k destinations for each of m halves."""

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
        train, val, test = (n // 2 for n in gate.counts(torch.tensor(self.count())).tolist())
        if not train or not val:
            raise ValueError(
                f"some links must be trained on, and some chosen by: got {train} and {val}"
            )
        self.sizes = train, val, test

    def count(self) -> tuple[int, int, int]:
        """Halves by use."""
        train, val, test = (sum(len(half.src) for half in self.halves[use]) for use in USES)
        return train, val, test

    def lesson(self, stage: int, module: Stage, inputs: Inputs, rows: Tensor) -> Lesson:
        """The training links."""
        return _LinkLesson(self, stage, module, inputs, rows)

    def judge(self, module: Stage, inputs: Inputs, rows: Tensor, use: Use) -> tuple[float, float]:
        """The share of its `local` negatives that a link is scored above (ties half), added up."""
        right, wrong = 0.0, 0.0
        drawn = [self.draw(half, f"negatives {use}", "local") for half in self.halves[use]]
        with torch.no_grad():
            scores = self.scores(module, inputs, rows, self.halves[use], drawn)
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
        return Drawn(found, weight)

    def scores(
        self,
        module: Stage,
        inputs: Inputs,
        rows: Tensor,
        halves: Sequence[Halves],
        drawn: Sequence[Drawn],
        drop: Drop | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Of links (m,) and of their negatives (m, k), which are 0 where there is none."""
        head = module.head
        assert isinstance(head, PairHead)
        needed = [half.own for half in halves]
        needed += [
            d.place[d.weight > 0] for h, d in zip(halves, drawn, strict=True) if not h.of_source
        ]
        own = np.unique(np.concatenate(needed))  # (u,) own rows whose outputs are needed
        output = module.hidden(inputs.take(own), drop)  # (u, width)
        found = []
        for half, one in zip(halves, drawn, strict=True):
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

    def loss(
        self,
        module: Stage,
        inputs: Inputs,
        rows: Tensor,
        halves: Sequence[Halves],
        drawn: Sequence[Drawn],
        drop: Drop | None,
    ) -> Tensor:
        """This rank's part of the mean over all ranks' training links."""
        scores = self.scores(module, inputs, rows, halves, drawn, drop)
        parts = [
            self._sum(link, others, torch.from_numpy(one.weight).to(link.dtype))
            for (link, others), one in zip(scores, drawn, strict=True)
        ]
        return torch.stack(parts).sum() / self.sizes[0]

    def score(self, module: Stage, inputs: Inputs, rows: Tensor, src: Int64, dst: Int64) -> Tensor:
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
            nothing = Drawn(np.zeros((len(which), 0), np.int64), np.zeros((len(which), 0)))
            with torch.no_grad():
                ((found, _),) = self.scores(module, inputs, rows, [half], [nothing])
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
    def __init__(
        self, goal: Links, stage: int, module: Stage, inputs: Inputs, rows: Tensor
    ) -> None:
        self.goal, self.stage, self.module = goal, stage, module
        self.inputs, self.rows = inputs, rows
        self.share = goal.count()[0] / (2 * goal.sizes[0])

    def loss(self, turn: int) -> Tensor:
        """With negatives of this round."""
        goal, halves = self.goal, self.goal.halves["train"]
        drawn = [goal.draw(half, f"negatives {self.stage} {turn}") for half in halves]
        drop = goal.drop_of(self.stage, turn)
        return goal.loss(self.module, self.inputs, self.rows, halves, drawn, drop)


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


def link_parts(
    snapshots: Sequence[Snapshot],
    ownership: Ownership,
    rank: int,
    *,
    val_ratio: float = 0.15,
    test_ratio: float = 0.15,
    undirected: bool = False,
) -> list[Part]:
    """A rank's parts of all snapshots but the last, each with the links of the one after it.

    The first steps are to train on, the next to choose by, the last to test on.  A link whose
    destination was none before is not asked for: negatives are known ones, so that being new would
    give the answer away.  With `undirected` messages go along the edges both ways.

    Raises:
        ValueError: if there are fewer than four snapshots, if they overlap, or one has no features.
    """
    count = len(snapshots) - 1
    if count < 3:
        raise ValueError(
            "`snapshots` must be at least 4, since a step to train on, one to choose by and one to "
            f"test on are each followed by another: got {len(snapshots)}"
        )
    val, test = (max(1, round(count * ratio)) for ratio in (val_ratio, test_ratio))
    if val + test >= count:
        raise ValueError(
            f"`val_ratio` and `test_ratio` must leave a step of {count} to train on: got "
            f"{val_ratio} and {test_ratio}"
        )
    here = ownership.owner == rank
    known = heard = np.zeros(0, np.int64)  # destinations so far: all, and those this rank knows of
    parts = []
    for step in range(count):
        now, after = snapshots[step], snapshots[step + 1]
        if after.start < now.stop:
            raise ValueError(
                f"snapshot {step + 1} must not hold events of snapshot {step}, or its links are "
                "known: cut the log without `window` and `cumulative`"
            )
        src, dst = now.adjacency.indices.astype(np.int64), now.adjacency.row_of
        known = np.union1d(known, dst)
        heard = np.union1d(heard, dst[here[src] | here[dst]])
        src, dst = after.adjacency.indices.astype(np.int64), after.adjacency.row_of
        asked = holds(known, dst)
        src, dst = src[asked], dst[asked]
        told = np.union1d(heard, dst[here[src] | here[dst]])
        use = USES[(step >= count - val - test) + (step >= count - test)]
        seen = _both_ways(now) if undirected else now
        parts.append(Part.of_links(seen, (src, dst), use, told, ownership, rank))
    return parts


def _both_ways(snapshot: Snapshot) -> Snapshot:
    a = snapshot.adjacency
    ends = np.concatenate((a.indices, a.row_of)), np.concatenate((a.row_of, a.indices))
    weight = np.concatenate((a.weight, a.weight))
    return replace(snapshot, adjacency=SparseMatrix.from_edges(*ends, a.num_columns, weight))
