"""`fit`: test, then train, window by window, from an event log to a report.

    predict the events that the window adds        states and weights as the last window left them
    go back to the state at the window's start     exactly: graph, states, links
    train on the window, segment by segment        one optimiser step a segment, `epochs` times
    remember the state where the next one starts   in the last epoch

Invariant: everything that a later window sees is a function of (log, config, seed), so a run that
is killed and resumed equals one that never was, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..models import MODELS, DynamicGNN
from ..parallel import EXECUTORS, Executor, Replay
from ..storage import Mark
from ..stream import EventLog, Window
from . import runs
from .config import TrainConfig
from .evaluate import Evaluation
from .keeper import Keeper
from .report import to_plain, write_report
from .summary import make_report
from .windows import windows_of


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


class Trainer:
    """One run: model, store, optimiser and evaluation, moved forward a window at a time."""

    def __init__(self, log: EventLog, config: TrainConfig) -> None:
        if config.model not in MODELS:
            raise ValueError(f"`model` must be one of {sorted(MODELS)}: got {config.model!r}")
        self.log = log
        self.config = config
        self.dtype = getattr(torch, config.dtype)
        self.model: DynamicGNN = MODELS[config.model](
            config.width, log.kinds, num_negatives=config.negatives, intensity=config.intensity
        ).to(config.device, self.dtype)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        self.replay = Replay(
            log,
            self.model,
            seed=config.seed,
            dtype=self.dtype,
            device=config.device,
            check=config.check,
        )
        self.executor: Executor[Any] = EXECUTORS[config.executor](self.replay)
        self.evaluation = Evaluation(log, config)
        self.done = Progress()
        self.carry: Mark = self.replay.state.snapshot()  # the state at the next window's start

    def predict(self, window: Window, position: int) -> dict[str, Any]:
        """Score the events of `window.test` before they are learned, then go back to `carry`.

        The state is that before `position`, which is not after the first of them.
        """
        began = time.perf_counter()
        test = window.test
        with torch.no_grad():
            for start, stop in segments(position, test.start, self.config.batch_size):
                segment = self.replay.resolve(start, stop)  # scored before: only to get there
                self.executor.run(self.executor.prepare(segment)).commit()
            for start, stop in segments(test.start, test.stop, self.config.batch_size):
                segment = self.replay.resolve(start, stop, num_candidates=self.config.candidates)
                outcome = self.executor.run(self.executor.prepare(segment))
                scores = outcome.scores
                if scores is None:  # nothing to rank against: one node, or the first event alone
                    scores = outcome.losses.new_zeros(len(segment), 1)
                self.evaluation.update(segment, scores, outcome.losses)
                outcome.commit()
        self.replay.state.undo(self.carry)
        self.done.stop = max(self.done.stop, test.stop)
        self.done.predict_seconds += time.perf_counter() - began
        figures = self.evaluation.close_window() | {"seconds": time.perf_counter() - began}
        return to_plain(figures)  # type: ignore[no-any-return]

    def train(self, window: Window, next_start: int | None) -> dict[str, Any]:
        """Train on the window from the state at its start; set `carry` where the next begins."""
        began = time.perf_counter()
        state, config = self.replay.state, self.config
        cut = window.stop if next_start is None else next_start
        spans = [
            *segments(window.start, cut, config.batch_size),
            *segments(cut, window.stop, config.batch_size),
        ]
        kept: dict[int, Any] = {}  # segments prepared in the first epoch, for those that follow
        carry = self.carry if cut == window.start else None
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
                    levels += self._count_levels(plan)
                    if not last:
                        kept[start] = plan
                total += self._step(plan, window) * (stop - start)
                if last and stop == cut and carry is None:
                    carry = state.snapshot()
        assert carry is not None
        if carry is not self.carry:
            state.forget(self.carry)
            self.carry = carry
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

    def _count_levels(self, plan: Any) -> int:
        """How many levels a prepared segment has; their widths go into the histogram."""
        widths, counts = np.unique(self.executor.widths(plan), return_counts=True)
        for width, count in zip(widths.tolist(), counts.tolist(), strict=True):
            self.done.widths[width] = self.done.widths.get(width, 0) + count
        return int(counts.sum())

    def _step(self, plan: Any, window: Window) -> float:
        """One optimiser step; the mean loss of the segment before it."""
        self.optimiser.zero_grad(set_to_none=True)
        outcome = self.executor.run(plan)
        loss = outcome.losses.mean()
        value = float(loss.detach())
        if not np.isfinite(value):
            raise ValueError(
                f"the loss became {value} in window [{window.start}, {window.stop}): "
                f"try a smaller `learning_rate` than {self.config.learning_rate}"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        for weight in self.model.parameters():
            if weight.grad is None:  # Adam skips None but moves on at 0: executors differ in which
                weight.grad = torch.zeros_like(weight)
        if self.config.clip:
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.config.clip)
        self.optimiser.step()
        self.model.constrain()
        outcome.commit()
        return value


def fit(
    log: EventLog,
    config: TrainConfig,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """The report of a run: every event predicted before it is learned, window by window.

    With a `folder`, config.toml, checkpoints and at the end the report are written there; `resume`
    goes on from the newest checkpoint in it, or starts if there is none, and `force` replaces the
    run in it, once log and configuration are known to be valid.  `reading` says how the log was
    read, in JSON's types: reading.json keeps it for who resumes.  `progress` is called after each
    window with its figures, `done_events` and `total_events`.

    Raises:
        ValueError: if the log is empty, the configuration does not fit it or this machine, the
            loss diverges, or the folder holds a run (without `resume` or `force`) or is in use.
        CheckpointError: if the folder's checkpoint or report is damaged, or from another log or
            config.
        OSError: if a file cannot be written, for instance on a full disk; it is named.
    """
    if not len(log):
        raise ValueError("the log holds no event: there is nothing to train on")
    if resume and force:
        raise ValueError("`resume` goes on with a run and `force` replaces it: give one of them")
    if folder is not None and not str(folder):
        raise ValueError("`folder` must name a folder, or be None to write nothing: got ''")
    runs.check_device(config.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            where = None if folder is None else Path(folder)
            return _fit(log, config, where, resume, force, reading, progress)
    finally:
        torch.set_num_threads(threads)


def _fit(
    log: EventLog,
    config: TrainConfig,
    folder: Path | None,
    resume: bool,
    force: bool,
    reading: Mapping[str, Any] | None,
    progress: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    began = time.perf_counter()
    windows = list(windows_of(log, config))
    if folder is not None and resume and runs.is_finished(folder):
        return runs.finished_report(folder, log, config)
    trainer = Trainer(log, config)
    with ExitStack() as stack:
        keeper = None
        if folder is not None:  # all is valid: from here on the folder is changed
            stack.enter_context(runs.locked(folder))
            keeper = Keeper(folder, log, config)
            if resume:
                keeper.restore(trainer)
            elif force:
                runs.clear(folder)
            else:
                runs.check_is_free(folder)
            keeper.begin(reading)
        report = _move(trainer, windows, keeper, began, progress)
        if folder is not None:
            write_report(folder, report)
    return report


def _move(
    trainer: Trainer,
    windows: list[Window],
    keeper: Keeper | None,
    began: float,
    progress: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """The report of a trainer that went through the windows which it had not done."""
    done = trainer.done
    before = done.seconds
    total = sum(len(window.train) for window in windows)
    if not done.pending:
        done.pending = trainer.predict(windows[0], windows[0].start)
    for index in range(done.window, len(windows)):
        window, last = windows[index], index + 1 == len(windows)
        predicted = done.pending
        trained = trainer.train(window, None if last else windows[index + 1].start)
        if not last:
            done.pending = trainer.predict(windows[index + 1], window.stop)
        done.window = index + 1
        done.seconds = before + time.perf_counter() - began
        done.windows.append(
            {"start": window.start, "stop": window.stop, "test_start": window.test_start}
            | predicted
            | trained
            | {"seconds": predicted["seconds"] + trained["seconds"]}
        )
        if keeper is not None:
            keeper.save(trainer, force=last)
        if progress is not None:
            finished = sum(len(w.train) for w in windows[: index + 1])
            progress(done.windows[-1] | {"done_events": finished, "total_events": total})
    return make_report(trainer)


def segments(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Half-open spans of at most `size` events.

    >>> list(segments(3, 8, 2))
    [(3, 5), (5, 7), (7, 8)]
    """
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
