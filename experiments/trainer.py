"""One run moved forward a window at a time: predict what it adds, go back, train on it.

Invariant: between two windows, `carry` marks the state at the next one's start, and the state is
there; so whatever was predicted or trained beyond it leaves no trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..parallel import Comm, Executor
from ..storage import Mark
from ..stream import EventLog, Window
from .config import TrainConfig
from .evaluate import Evaluation
from .keeper import below, moments_of, set_moments, under
from .learn import NewModel, count_levels, make_executor, make_model, make_optimiser, step
from .report import to_plain


@dataclass
class Progress:
    """What a run has done so far; all of it goes into a checkpoint."""

    window: int = 0  # windows trained
    stop: int = 0  # events predicted
    seconds: float = 0.0
    train_events: int = 0
    train_seconds: float = 0.0
    predict_seconds: float = 0.0
    windows: list[dict[str, Any]] = field(default_factory=list)
    pending: dict[str, Any] = field(default_factory=dict)  # the prediction of the next window
    widths: dict[int, int] = field(default_factory=dict)  # level width -> levels
    stage_seconds: dict[str, float] = field(default_factory=dict)


class Trainer:
    """One run: model, store, optimiser and evaluation, moved forward a window at a time."""

    def __init__(
        self,
        log: EventLog,
        config: TrainConfig,
        model: NewModel | None = None,
        comm: Comm | None = None,
    ) -> None:
        self.log = log
        self.config = config
        self.model = make_model(log, config, model)
        self.optimiser = make_optimiser(self.model, config)
        self.executor: Executor[Any] = make_executor(log, self.model, config, comm)
        self.replay = self.executor.replay
        self.evaluation = Evaluation(log, config)
        self.done = Progress()
        self.carry: Mark = self.replay.state.snapshot()  # the state at the next window's start

    def predict(self, window: Window, position: int) -> dict[str, Any]:
        """Score the events of `window.test` before they are learned, then go back to `carry`.

        The state is that before `position`, which is not after the first of them.
        """
        began = time.perf_counter()
        test = window.test
        self.model.eval()
        with torch.no_grad():
            for start, stop in segments(position, test.start, self.config.batch_size):
                segment = self.replay.resolve(start, stop, score=False)  # only to get there
                self.executor.run(self.executor.prepare(segment)).commit()
            for start, stop in segments(test.start, test.stop, self.config.batch_size):
                segment = self.replay.resolve(start, stop, num_candidates=self.config.candidates)
                outcome = self.executor.run(self.executor.prepare(segment))
                scores = outcome.scores
                if scores is None:  # nothing to rank against: one node, or the first event alone
                    scores = outcome.losses.new_zeros(len(segment), 1)
                self.replay.stages.enter("measure")
                if self.replay.comm.rank == 0:
                    self.evaluation.update(segment, scores, outcome.losses)
                    self.evaluation.times.update(segment.start, outcome.expected)
                self.replay.stages.enter("commit")
                outcome.commit()
        self.replay.state.undo(self.carry)
        self.done.stage_seconds = self.replay.stages.take(self.done.stage_seconds)
        self.done.stop = max(self.done.stop, test.stop)
        self.done.predict_seconds += time.perf_counter() - began
        seconds = {"seconds": time.perf_counter() - began}
        if self.replay.comm.rank:
            return seconds  # the first rank knows the rest
        return to_plain(self.evaluation.close_window() | seconds)  # type: ignore[no-any-return]

    def train(self, window: Window, next_start: int | None) -> dict[str, Any]:
        """Train on the window from the state at its start; set `carry` where the next begins."""
        began = time.perf_counter()
        state, config = self.replay.state, self.config
        self.model.train()
        cut = window.stop if next_start is None else next_start
        spans = [
            *segments(window.start, cut, config.batch_size),
            *segments(cut, window.stop, config.batch_size),
        ]
        kept: dict[int, Any] = {}  # segments prepared in the first epoch, for those that follow
        carry = self.carry if cut == window.start else None
        where = f"window [{window.start}, {window.stop})"
        total, levels = 0.0, 0
        for epoch in range(config.epochs):
            if epoch:
                state.undo(self.carry)
            last = epoch == config.epochs - 1
            total = 0.0
            for start, stop in spans:
                plan = kept.get(start)
                if plan is None:
                    plan = self.executor.prepare(self.replay.resolve(start, stop))
                    levels += count_levels(self.executor, plan, self.done.widths)
                    if not last:
                        kept[start] = plan
                loss = step(self.executor, plan, self.optimiser, config, where)
                total += loss * (stop - start)
                if last and stop == cut and carry is None:
                    carry = state.snapshot()
        assert carry is not None
        if carry is not self.carry:
            state.forget(self.carry)
            self.carry = carry
        self.done.stage_seconds = self.replay.stages.take(self.done.stage_seconds)
        seconds = time.perf_counter() - began
        events = (window.stop - window.start) * config.epochs
        self.done.train_events += events
        self.done.train_seconds += seconds
        return {
            "train_loss": total / (window.stop - window.start),
            "level_width": (window.stop - window.start) / levels,
            "train_events_per_second": events / seconds,
            "seconds": seconds,
        }

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a later window sees."""
        tensors = under("model", self.model.state_dict())
        tensors |= under("state", self.replay.state.to_arrays())
        tensors |= under("evaluation", self.evaluation.to_tensors())
        tensors |= under("optimiser", moments_of(self.optimiser))
        position = self.replay.graph.position
        return tensors, {"position": position, "progress": to_plain(asdict(self.done))}

    def from_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from what `to_checkpoint` gave."""
        self.model.load_state_dict(below("model", tensors))
        set_moments(self.optimiser, below("optimiser", tensors))
        self.replay.apply(meta["position"])
        self.replay.state.from_arrays(below("state", tensors))
        self.carry = self.replay.state.snapshot()
        self.done = Progress(**meta["progress"])
        self.done.widths = {int(width): count for width, count in self.done.widths.items()}
        self.evaluation.from_tensors(below("evaluation", tensors), self.done.stop)


def segments(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Half-open spans of at most `size` events.

    >>> list(segments(3, 8, 2))
    [(3, 5), (5, 7), (7, 8)]
    """
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
