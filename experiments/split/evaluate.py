"""The model and EdgeBank on the parts of a split: the same events against the same negative pairs.

A part is scored in four to six ways: all its events (transductive) or those with a node that was
not trained on (inductive), against one negative pair of each strategy.  Invariant: pairs and
baselines are functions of log and settings; only the model's own scores come from outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...stream import Bool, EventBatch, EventLog, Float64, Int64
from ..baselines import EdgeBank, default_window
from ..config import TrainConfig
from ..metrics import BinaryMetric, average_precision
from .pairs import STRATEGIES, Pairs, draw_pairs, last_seen
from .parts import Split

SETTINGS = ("transductive", "inductive")


class SplitEvaluation:
    """The negative pairs of the parts "val" and "test", and what is found against them."""

    def __init__(self, log: EventLog, split: Split, config: TrainConfig) -> None:
        self.log = log
        self.split = split
        self.model = config.model
        self.batch_size = config.batch_size
        self.seed = config.split_seed
        self.windows: dict[str, int] = {}  # of EdgeBank, in ticks
        self._sets: dict[str, list[tuple[Int64, Pairs]]] = {}  # of each part, a setting each
        for part, (start, stop) in split.spans.items():
            self.windows[part] = (
                default_window(log.events.time[:start], config.test_ratio)
                if config.edgebank_window is None
                else config.edgebank_window
            )
            new = np.flatnonzero(split.inductive[start:stop])
            among_all = self._draw(log.events, np.arange(start, stop), start, part, 0)
            among_new = self._draw(log[start:stop][new], np.arange(len(new)), 0, part, 1)
            self._sets[part] = [(np.arange(stop - start), among_all), (new, among_new)]

    def _draw(
        self, history: EventBatch, positions: Int64, seen: int, part: str, setting: int
    ) -> Pairs:
        return draw_pairs(
            history,
            positions,
            seen=seen,
            batch_size=self.batch_size,
            seed=self.seed,
            name=f"{part} {SETTINGS[setting]}",
        )

    def pairs(self, part: str, *, quick: bool = False) -> tuple[Int64, Int64]:
        """Sources and destinations (n, q) to be scored beside the events of `part`.

        They stand setting by setting and strategy by strategy; an event without a pair of its own
        in a column has itself there.  `quick` gives the first column alone, of `quick_ap`.
        """
        start, stop = self.split.spans[part]
        events = self.log[start:stop]
        columns = []
        for rows, pairs in self._sets[part]:
            if len(rows):
                src, dst = (np.repeat(end[:, None], 3, axis=1) for end in (events.src, events.dst))
                src[rows] = np.where(pairs.valid, pairs.src, src[rows])
                dst[rows] = np.where(pairs.valid, pairs.dst, dst[rows])
                columns.append((src, dst))
        src, dst = (np.concatenate(ends, axis=1) for ends in zip(*columns, strict=True))
        return (src[:, :1], dst[:, :1]) if quick else (src, dst)

    def quick_ap(self, part: str, scores: Float64) -> float:
        """AP of `scores` (n, 1 + q) of all events against random pairs; own pair, then `pairs`."""
        valid = self._sets[part][0][1].valid[:, :1]
        metric = BinaryMetric()
        metric.update(scores[:, 0], scores[:, 1:2], valid)
        return metric.value()["ap"]

    def table(self, part: str, scores: Float64) -> dict[str, dict[str, dict[str, Any]]]:
        """The figures of `part` by scorer and by name, such as "test_inductive_random".

        `scores` (n, 1 + q) are the model's of each event's own pair, then of its `pairs`.
        """
        given = {self.model: scores, **self._banks(part)}
        table: dict[str, dict[str, dict[str, Any]]] = {}
        for scorer, values in given.items():
            table[scorer] = {}
            for number, (rows, pairs) in enumerate(self._sets[part]):
                for column, strategy in enumerate(STRATEGIES):
                    other = values[:, 1 + 3 * number + column] if len(rows) else values[:, 0]
                    table[scorer][f"{part}_{SETTINGS[number]}_{strategy}"] = pair_figures(
                        values[rows, 0], other[rows], pairs.valid[:, column], self.batch_size
                    )
        return table

    def _banks(self, part: str) -> dict[str, Float64]:
        """Scores (n, 1 + q) of EdgeBank, without and with a window.

        It knows the events before each; the stale ones those before its batch, as DyGLib has it.
        """
        start, stop = self.split.spans[part]
        events, time = self.log[start:stop], self.log.events.time
        pairs = zip((events.src, events.dst), self.pairs(part), strict=True)
        src, dst = (np.concatenate([own[:, None], other], axis=1) for own, other in pairs)
        exact = np.arange(start, stop)
        stale = exact - (exact - start) % self.batch_size
        banks = {}
        for suffix, before in (("", exact), ("_stale", stale)):
            last = last_seen(self.log.events, src, dst, np.broadcast_to(before[:, None], src.shape))
            waited = time[before][:, None] - time[np.maximum(last, 0)]
            banks[f"{EdgeBank.name}{suffix}"] = last >= 0
            banks[f"edgebank_window{suffix}"] = (last >= 0) & (waited <= self.windows[part])
        return {name: known.astype(np.float64) for name, known in banks.items()}


def pair_figures(own: Float64, other: Float64, valid: Bool, batch_size: int) -> dict[str, Any]:
    """`ap` and `auc` of all events, the mean AP of batches, and how many `events` were scored.

    Scores are (n,), of each event's own pair and of one that did not happen; None where there is
    nothing to score.

    Raises:
        ValueError: if a score that counts is NaN.
    """
    metric = BinaryMetric()
    metric.update(own, other[:, None], valid[:, None])
    if not metric.events:
        return {"ap": None, "auc": None, "ap_batch_mean": None, "events": 0}
    batches = []
    for start in range(0, len(own), batch_size):
        rows = start + np.flatnonzero(valid[start : start + batch_size])
        if len(rows):
            batches.append(average_precision(own[rows], other[rows]))
    value = metric.value()
    return {
        "ap": value["ap"],
        "auc": value["auc"],
        "ap_batch_mean": float(np.mean(batches)),
        "events": metric.events,
    }
