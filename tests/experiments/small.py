"""Small runs of `fit`, with what happened inside: who was predicted, trained and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from neutronstream.experiments import TrainConfig
from neutronstream.experiments import fit as module
from neutronstream.experiments.evaluate import Evaluation
from neutronstream.experiments.fit import fit
from neutronstream.experiments.trainer import Trainer, segments
from neutronstream.experiments.windows import windows_of
from neutronstream.parallel import Segment
from neutronstream.stream import EventLog, Float64, Window

WINDOWS: dict[str, dict[str, Any]] = {
    "fixed": {"size": 60, "stride": 20},
    "tumbling": {"window": "tumbling", "size": 50},
    "adaptive": {"window": "adaptive", "down": 20, "up": 60, "rate": 0.5},
    "growing": {"window": "growing", "size": 80, "stride": 60},
    "duration": {"size": "2d", "stride": "1d"},
}
"""One of each way to move a window, for logs of a few hundred events."""


def settings(**given: Any) -> TrainConfig:
    """A configuration of a small model, with what is `given`."""
    return TrainConfig(**({"width": 8, "candidates": 5, "batch_size": 25} | given))


def hourly_log(num_events: int = 240, num_nodes: int = 25, seed: int = 0) -> EventLog:
    """A random log with an event about every hour, with ties, self loops and two kinds."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, num_events))
    time = np.sort(rng.integers(0, max(num_events // 2, 1), num_events)) * 3600
    kind = rng.choice(["call", "mail"], num_events).tolist()
    return EventLog.from_arrays(src, dst, time, kind=kind)


@dataclass
class Recording:
    """What a run did, in order."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)  # (predict or train, span)
    scores: dict[int, Float64] = field(default_factory=dict)  # of each event, its own first
    valid: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


def record(log: EventLog, config: TrainConfig, folder: Path | None = None) -> Recording:
    """A run of `fit` whose trainer and evaluation also note what they are given."""
    found = Recording()
    trainers: list[Trainer] = []

    class Noted(Evaluation):
        def update(self, segment: Segment, scores: Tensor, losses: Tensor) -> None:
            found.steps.append(("predict", segment.start, segment.stop))
            for row, position in enumerate(range(segment.start, segment.stop)):
                assert position not in found.scores, f"event {position} was predicted twice"
                found.scores[position] = scores[row].double().numpy().copy()
                found.valid[position] = segment.candidates.valid[row]
                found.losses[position] = float(losses[row])
            super().update(segment, scores, losses)

    class Watched(Trainer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            trainers.append(self)

        def train(self, window: Window, next_start: int | None) -> dict[str, Any]:
            found.steps.append(("train", window.start, window.stop))
            return super().train(window, next_start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neutronstream.experiments.trainer.Evaluation", Noted)
        patch.setattr(module, "Trainer", Watched)
        found.report = fit(log, config, folder)
    found.states = trainers[0].replay.state.to_arrays()
    found.weights = {name: w.clone() for name, w in trainers[0].model.state_dict().items()}
    return found


def plain_pass(log: EventLog, config: TrainConfig, cuts: list[tuple[int, int]]) -> Recording:
    """One pass over the log without windows and without training, segment by segment."""
    found = Recording()
    torch.manual_seed(config.seed)
    trainer = Trainer(log, config)
    with torch.no_grad():
        for start, stop in cuts:
            segment = trainer.replay.resolve(start, stop, num_candidates=config.candidates)
            outcome = trainer.executor.run(trainer.executor.prepare(segment))
            assert outcome.scores is not None
            for row, position in enumerate(range(start, stop)):
                found.scores[position] = outcome.scores[row].double().numpy().copy()
            outcome.commit()
    found.states = trainer.replay.state.to_arrays()
    return found


def path_of(log: EventLog, config: TrainConfig) -> list[tuple[int, int]]:
    """The segments that lead from window to window: up to where the next one starts."""
    windows = list(windows_of(log, config))
    starts = [*(window.start for window in windows[1:]), windows[-1].stop]
    spans = zip(windows, starts, strict=True)
    return [cut for w, stop in spans for cut in segments(w.start, stop, config.batch_size)]


def untimed(value: Any) -> Any:
    """A report without what the clock decides."""
    if isinstance(value, dict):
        timed = ("seconds", "stage_seconds")
        kept = {k: v for k, v in value.items() if k not in timed and not k.endswith("_per_second")}
        return {key: untimed(item) for key, item in kept.items()}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def numbers(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of a report by their path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, item in items for k, v in numbers(item, f"{path}/{name}").items()}
    return {path: value}


def assert_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Two sets of tensors are equal bit for bit."""
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name
