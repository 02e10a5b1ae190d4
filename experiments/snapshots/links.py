"""Which links come next: the distinct pairs of the next period, ranked among pairs that are none.

A pair is asked for if its destination was one before: as its negatives were, too, a model that
found out who is new would know the answer.  They keep the source and take a destination that was
one before, is not the source, and makes no pair of the next period.  Invariant: they are a function
of (seed, position of the pair, epoch or part), so they are the same on any ranks.  Whoever owns the
destination of a pair scores it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...parallel.backends import Propagator
from ...storage import uniform
from ...storage.sparse import holds
from ...stream import Bool, Float64, Int64
from ..metrics import LinkMetrics
from .config import SnapshotConfig
from .data import SnapshotData
from .tasks import Outputs, Task

ROUNDS = 8  # of drawing anew where a pair was met; what is left then is no negative


class Pairs(nn.Module):
    """Scores of pairs from the rows of their ends."""

    def __init__(self, width: int, decoder: str) -> None:
        super().__init__()
        self.source = nn.Linear(width, width)
        self.target = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(1))
        self.last = nn.Linear(width, 1, bias=False) if decoder == "mlp" else None

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(m, width) each, as the two `Linear`s made them -> (m,)."""
        found: Tensor
        if self.last is not None:
            found = self.last(torch.relu(source + target))[:, 0] + self.bias
        else:
            found = (source * target).sum(1) / math.sqrt(source.shape[1]) + self.bias
        return found


class Links(Task):
    """The distinct pairs of the next period: AP, AUC, MRR."""

    metric = "ap"
    higher = True
    words = (
        "each distinct pair of the next period whose destination was one before, against others of "
        "which that is true, without the period's own pairs; AP and AUC against one of them"
    )

    undefined = "no pair has a destination that was one before, and negatives to be ranked among"

    def __init__(self, data: SnapshotData, config: SnapshotConfig, propagator: Propagator) -> None:
        super().__init__(data, config, propagator)
        self._offsets = np.cumsum([0, *map(len, data.pairs)])
        num_nodes = data.num_nodes
        first = np.full(num_nodes, len(data.pairs))
        for period in reversed(range(len(data.pairs))):
            first[data.pairs[period] % num_nodes] = period
        self._first = first  # (V,) the first period with the node as a destination
        self._pool = np.argsort(first, kind="stable")
        self._sizes = np.searchsorted(first[self._pool], np.arange(len(data.pairs)), side="right")
        self._asked = lru_cache(maxsize=256)(self._ask)

    def head(self, width: int) -> nn.Module:
        """See `Pairs`."""
        return Pairs(width, self.config.decoder)

    def candidates(self, step: int, draw: str, count: int) -> tuple[Int64, Int64, Bool]:
        """Sources (n,), destinations (n, 1 + count), the true one first, and which count."""
        num_nodes, pairs = self.data.num_nodes, self.data.pairs[step + 1]
        known = np.flatnonzero(self._first[pairs % num_nodes] <= step)
        src, dst = pairs[known] // num_nodes, pairs[known] % num_nodes
        positions = self._offsets[step + 1] + known
        size = int(self._sizes[step])
        found = np.zeros((len(known), count), np.int64)
        valid = np.zeros((len(known), count), bool)
        for turn in range(ROUNDS if size else 0):
            rows = np.flatnonzero(~valid.all(axis=1))
            if not len(rows):
                break
            drawn = uniform(self.config.seed, f"{draw} {turn}", positions[rows], count)
            nodes = self._pool[(drawn * size).astype(np.int64)]
            key = src[rows, None] * num_nodes + nodes
            fits = ~holds(pairs, key) & (nodes != src[rows, None])
            new = fits & ~valid[rows]
            found[rows] = np.where(new, nodes, found[rows])
            valid[rows] |= new
        whole = np.concatenate((dst[:, None], found), axis=1)
        return src, whole, np.concatenate((np.ones((len(known), 1), bool), valid), axis=1)

    def loss(self, head: nn.Module, rows: Tensor, step: int, epoch: int) -> tuple[Tensor, int]:
        """The sum of binary cross-entropies of this rank's pairs, and how many there are."""
        src, dst, valid = self.candidates(step, f"train {epoch}", self.config.negatives)
        label = np.zeros(dst.shape)
        label[:, 0] = 1
        ends = np.broadcast_to(src[:, None], dst.shape)[valid], dst[valid]
        mine = self._mine(ends[1])
        scores = self._score(head, rows, ends[0][mine], ends[1][mine])
        wanted = torch.from_numpy(label[valid][mine]).to(scores.dtype)
        found = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")
        return found, int(valid.sum())

    def answer(self, head: nn.Module, rows: Tensor, step: int, part: str) -> Float64:
        """(n, 1 + candidates) the scores; those that do not count are 0."""
        src, dst, valid = self._asked(step, part)
        ends = np.broadcast_to(src[:, None], dst.shape)[valid], dst[valid]
        owner = self.propagator.ownership.owner[ends[1]]
        mine = self._mine(ends[1])
        own = self._score(head, rows, ends[0][mine], ends[1][mine]).detach().double()
        comm = self.propagator.comm
        sizes = np.bincount(owner, minlength=comm.size).tolist()
        stacked = comm.all_gather_rows(own, sizes, "results").numpy()
        flat = np.empty(len(stacked))
        flat[np.argsort(owner, kind="stable")] = stacked
        scores = np.zeros(dst.shape)
        scores[valid] = flat
        return scores

    def measure(self, outputs: Outputs, part: str) -> dict[str, float]:
        """AP, AUC, MRR, hits@10 and MAR with ties at their average; see `LinkMetrics`.

        `unscored` are pairs with a new destination, and those without a negative.
        """
        metrics, pairs = LinkMetrics(), 0
        for step in sorted(outputs):
            scores, (_, _, valid) = outputs[step], self._asked(step, part)
            metrics.update(scores[:, 0], scores[:, 1:], valid[:, 1:])
            pairs += len(self.data.pairs[step + 1])
        found = metrics.value()
        return found | {"answers": found.pop("events"), "unscored": pairs - metrics.events}

    def baselines(self, part: str) -> dict[str, dict[str, float]]:
        """Scores from the pairs of earlier periods.

        `persistence`: a pair of the last period.  `edgebank`: of any.  `popularity`: how many pairs
        the destination had.
        """
        steps, pairs, num_nodes = getattr(self.data, part), self.data.pairs, self.data.num_nodes
        known: dict[str, dict[int, Float64]] = {}
        seen = np.unique(np.concatenate(pairs[: steps.start + 1]))
        popular = np.bincount(np.concatenate(pairs[: steps.start]) % num_nodes, minlength=num_nodes)
        for step in steps:
            seen = np.union1d(seen, pairs[step])
            popular = popular + np.bincount(pairs[step] % num_nodes, minlength=num_nodes)
            src, dst, _ = self._asked(step, part)
            key = src[:, None] * num_nodes + dst
            for name, scores in (
                ("persistence", holds(pairs[step], key)),
                ("edgebank", holds(seen, key)),
                ("popularity", popular[dst]),
            ):
                known.setdefault(name, {})[step] = scores.astype(np.float64)
        return {name: self.measure(outputs, part) for name, outputs in known.items()}

    def _ask(self, step: int, part: str) -> tuple[Int64, Int64, Bool]:
        return self.candidates(step, part, self.config.candidates)

    def _mine(self, dst: Int64) -> Bool:
        """Which of these destinations are this rank's."""
        mine: Bool = self.propagator.ownership.owner[dst] == self.propagator.comm.rank
        return mine

    def _score(self, head: nn.Module, rows: Tensor, src: Int64, dst: Int64) -> Tensor:
        """(m,) scores of pairs whose destinations are this rank's."""
        assert isinstance(head, Pairs)
        source = self.propagator.fetch(head.source(rows), src)
        own = torch.from_numpy(self.propagator.ownership.place[dst])
        found: Tensor = head(source, head.target(rows)[own])
        return found
