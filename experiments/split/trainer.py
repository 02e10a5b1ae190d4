"""One run on a chronological split: epochs over the training part, early stopping, one test.

    train       the training events alone, from the state at the log's start, a step a segment
    validate    with the weights held, the events from `val_start` on, from the states that the
                epoch left; or, to "replay", from those that these weights give to the whole log
    test        the same with weights and states of the best validation, to the end; once

Invariant: nothing that happens after `val_start` reaches training, and nothing after `test_start`
the choice of weights; between two epochs only weights, optimiser and what was done are carried on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...parallel import Comm, Executor
from ...stream import EventLog, Float64
from ..config import TrainConfig
from ..keeper import Keeper, below, moments_of, set_moments, under
from ..learn import NewModel, count_levels, make_executor, make_model, make_optimiser, step
from ..report import to_plain
from ..trainer import segments
from .carry import carry_states
from .evaluate import SplitEvaluation
from .parts import split_log, training_log

Tell = Callable[[int], None]
"""Called with how many more events were gone through."""


@dataclass
class Epochs:
    """What a run has done so far; all of it goes into a checkpoint."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None  # place in `epochs`
    seconds: float = 0.0
    train_events: int = 0
    train_seconds: float = 0.0
    predict_events: int = 0
    predict_seconds: float = 0.0
    widths: dict[int, int] = field(default_factory=dict)  # level width -> levels
    stage_seconds: dict[str, float] = field(default_factory=dict)


class SplitTrainer:
    """One run: model, optimiser, a replay to learn on and one to score with."""

    def __init__(
        self,
        log: EventLog,
        config: TrainConfig,
        model: NewModel | None = None,
        comm: Comm | None = None,
    ) -> None:
        self.log = log
        self.config = config
        self.split = split_log(log, config.val_ratio, config.test_ratio, seed=config.split_seed)
        kept, nodes = training_log(log, self.split)
        self.model = make_model(log, config, model)
        self.optimiser = make_optimiser(self.model, config)
        self.nodes = nodes  # of the training log
        self.learning: Executor[Any] = make_executor(kept, self.model, config, comm)
        self.scoring: Executor[Any] = make_executor(log, self.model, config, comm)
        for name in self.model.tables:  # a node starts with the same state in both
            first = self.scoring.state.read(name, nodes)
            self.learning.state.write(name, np.arange(len(nodes)), first)
        self._starts = {e: e.state.snapshot() for e in (self.learning, self.scoring)}
        self.evaluation = SplitEvaluation(log, self.split, config)
        self.best: dict[str, Tensor] = {}  # the weights that validated best
        self.left: dict[str, Tensor] = {}  # the states that their epoch left, unless "replay"
        self.done = Epochs()

    @property
    def is_trained(self) -> bool:
        """Whether no epoch is left, or validation has been no better for `patience` of them."""
        count = len(self.done.epochs)
        waited = 0 if self.done.best is None else count - 1 - self.done.best
        return count >= self.config.epochs or waited >= self.config.patience

    @property
    def scored_from(self) -> int:
        """Where the replay that scores begins: 0, or where training ended."""
        return 0 if self.config.evaluate_from == "replay" else self.split.val_start

    def events_left(self) -> int:
        """How many events will be gone through, if no epoch is saved by early stopping."""
        left = 0 if self.is_trained else self.config.epochs - len(self.done.epochs)
        trained = len(self.learning.replay.log)
        first = self.scored_from
        return left * (trained + self.split.test_start - first) + len(self.log) - first

    def run_epoch(self, tell: Tell) -> dict[str, Any]:
        """Train for an epoch, validate, and remember the weights if they are the best so far."""
        done, number = self.done, len(self.done.epochs)
        began = time.perf_counter()
        loss = self._train(number, tell)
        trained = time.perf_counter()
        left = {} if self.config.evaluate_from == "replay" else self.learning.state.to_arrays()
        scores = self._score({"val": self.evaluation.pairs("val", quick=True)}, left, tell)["val"]
        ap = self.evaluation.quick_ap("val", scores)
        ended = time.perf_counter()
        if done.best is None or ap > done.epochs[done.best]["val_ap"]:
            done.best = number
            self.best = {name: w.detach().clone() for name, w in self.model.state_dict().items()}
            self.left = left
        events = len(self.learning.replay.log)
        done.train_events += events
        done.train_seconds += trained - began
        done.predict_events += self.split.test_start - self.scored_from
        done.predict_seconds += ended - trained
        figures = {
            "epoch": number + 1,
            "train_loss": loss,
            "val_ap": ap,
            "is_best": done.best == number,
            "train_events_per_second": events / (trained - began),
            "seconds": ended - began,
        }
        done.epochs.append(to_plain(figures))
        return done.epochs[-1]

    def _train(self, number: int, tell: Tell) -> float:
        """One pass over the training events; their mean loss, each before its step."""
        executor, replay = self.learning, self.learning.replay
        executor.state.undo(self._starts[executor])
        replay.seed = self.config.seed + (number << 40)  # other noise in each epoch
        # in the loss (stream 0) any node of the part may stand, one at rest too, as in a test, and
        # others in each epoch: with those known by then alone validation gets worse from epoch to
        # epoch (uci: JODIE 0.81 to 0.69)
        replay.sampler.offsets[0] = (1 + number) * len(replay.log)
        self.model.train()
        total = 0.0
        for start, stop in segments(0, len(replay.log), self.config.batch_size):
            plan = executor.prepare(replay.resolve(start, stop))
            if not number:
                count_levels(executor, plan, self.done.widths)
            loss = step(executor, plan, self.optimiser, self.config, f"epoch {number + 1}")
            total += loss * (stop - start)
            tell(stop - start)
        self.done.stage_seconds = replay.stages.take(self.done.stage_seconds)
        return total / len(replay.log)

    @torch.no_grad()
    def _score(
        self, parts: Mapping[str, Any], left: Mapping[str, Tensor], tell: Tell
    ) -> dict[str, Float64]:
        """Scores (n, 1 + q) of the own pairs and the given ones of `parts`.

        From the states that training `left`; where there are none, the log is replayed.
        """
        executor, replay, size = self.scoring, self.scoring.replay, self.config.batch_size
        executor.state.undo(self._starts[executor])
        self.model.eval()
        val_start, trained = self.split.val_start, np.flatnonzero(self.split.trained)
        if left:
            carry_states(left, self.learning.replay, replay, self.nodes, trained, val_start)
        for start, stop in segments(self.scored_from, val_start, size):  # only to get there
            executor.run(executor.prepare(replay.resolve(start, stop, score=False))).commit()
            tell(stop - start)
        found: dict[str, Float64] = {}
        for part, (src, dst) in parts.items():
            first, last = self.split.spans[part]
            found[part] = np.empty((last - first, 1 + src.shape[1]))
            for start, stop in segments(first, last, size):
                rows = slice(start - first, stop - first)
                segment = replay.resolve(start, stop, pairs=(src[rows], dst[rows]))
                outcome = executor.run(executor.prepare(segment))
                assert outcome.pair_scores is not None
                found[part][rows] = outcome.pair_scores.cpu().double().numpy()
                outcome.commit()
                tell(stop - start)
        self.done.stage_seconds = replay.stages.take(self.done.stage_seconds)
        return found

    def test(self, tell: Tell) -> dict[str, Any]:
        """The table of the report: scorer, then part of the log with setting and strategy."""
        began = time.perf_counter()
        self.model.load_state_dict(self.best)
        pairs = {part: self.evaluation.pairs(part) for part in self.split.spans}
        scores = self._score(pairs, self.left, tell)
        self.done.predict_events += len(self.log) - self.scored_from
        self.done.predict_seconds += time.perf_counter() - began
        table: dict[str, Any] = {}
        for part in ("test", "val"):
            for scorer, figures in self.evaluation.table(part, scores[part]).items():
                table[scorer] = table.get(scorer, {}) | figures
        return table

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a later epoch sees: each starts from the state at the log's start."""
        tensors = under("model", self.model.state_dict()) | under("best", self.best)
        tensors |= under("left", self.left) | under("optimiser", moments_of(self.optimiser))
        return tensors, {"progress": to_plain(asdict(self.done))}

    def from_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from what `to_checkpoint` gave."""
        self.model.load_state_dict(below("model", tensors))
        self.best, self.left = below("best", tensors), below("left", tensors)
        set_moments(self.optimiser, below("optimiser", tensors))
        self.done = Epochs(**meta["progress"])
        self.done.widths = {int(width): count for width, count in self.done.widths.items()}


def run_epochs(
    trainer: SplitTrainer,
    keeper: Keeper | None,
    progress: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """The figures of the test, after all epochs that `trainer` had not done."""
    began, before = time.perf_counter(), trainer.done.seconds
    gone, latest = 0, dict[str, Any]()

    def tell(events: int) -> None:
        nonlocal gone
        gone += events
        if progress is not None:
            progress({**latest, "done_events": gone, "total_events": total})

    total = trainer.events_left()
    while not trainer.is_trained:
        figures = trainer.run_epoch(tell)
        trainer.done.seconds = before + time.perf_counter() - began
        if keeper is not None:
            keeper.save(trainer, force=trainer.is_trained)
        total = gone + trainer.events_left()
        latest = {"epoch": figures["epoch"], "loss": figures["train_loss"], "ap": figures["val_ap"]}
        if progress is not None:
            progress({**figures, **latest, "done_events": gone, "total_events": total})
    table = trainer.test(tell)
    trainer.done.seconds = before + time.perf_counter() - began
    return table
