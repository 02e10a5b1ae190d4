"""The model and the baselines, scored on the same events against the same candidates.

Invariant: a baseline scores an event from the events strictly before it, exactly like the model;
every event is scored once, whatever windows overlap it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..parallel import Segment
from ..stream import EventLog, Float64
from .baselines import Baseline, EdgeBank, Popularity, RecentPartner, default_window
from .config import TrainConfig
from .metrics import LinkMetrics
from .report import PARTS
from .times import TimeEvaluation


class Evaluation:
    """Metrics of a run: of the window that is being predicted, of all events, of the last half."""

    def __init__(self, log: EventLog, config: TrainConfig) -> None:
        self.log = log
        self.model = config.model
        memory = config.edgebank_window
        self.memory = default_window(log.events.time) if memory is None else memory
        self.baselines: dict[str, Baseline] = {
            EdgeBank.name: EdgeBank(),
            "edgebank_window": EdgeBank(self.memory),
            Popularity.name: Popularity(),
            RecentPartner.name: RecentPartner(),
        }
        self.names = (self.model, *self.baselines)
        self.metrics = {part: {name: LinkMetrics() for name in self.names} for part in PARTS}
        self.losses = dict.fromkeys(PARTS, 0.0)
        self.events = dict.fromkeys(PARTS, 0)
        self.times = TimeEvaluation(log, config.model)  # of models that expect times
        self._open_window()

    def _open_window(self) -> None:
        self.window = {name: LinkMetrics() for name in self.names}
        self.window_loss = 0.0
        self.window_events = 0

    def update(self, segment: Segment, scores: Tensor, losses: Tensor) -> None:
        """Add the events of a segment: `scores` (n, 1 + m), own first; `losses` (n,)."""
        batch = self.log[segment.start : segment.stop]
        valid = segment.ranked_valid
        candidates = np.concatenate([batch.dst[:, None], segment.ranked], axis=1)
        loss = losses.detach().cpu().double().numpy()
        late = np.arange(segment.start, segment.stop) >= len(self.log) // 2
        given: dict[str, Float64] = {self.model: scores.cpu().double().numpy()}
        for name, baseline in self.baselines.items():
            given[name] = baseline.score_and_learn(batch, candidates)
        for name, values in given.items():
            own, others = values[:, 0], values[:, 1:]
            self.window[name].update(own, others, valid)
            if late.any():
                self.metrics["last_half"][name].update(own[late], others[late], valid[late])
        self.window_loss += float(loss.sum())
        self.window_events += len(batch)
        self.losses["last_half"] += float(loss[late].sum())
        self.events["last_half"] += int(late.sum())

    def close_window(self) -> dict[str, Any]:
        """The figures of the events since the last call: those of the model, and `baselines`."""
        values = {name: metric.value() for name, metric in self.window.items()}
        events = self.window_events
        figures: dict[str, Any] = {
            "loss": self.window_loss / events if events else None,
            **values[self.model],
            "events": events,
            "baselines": {
                name: {key: values[name][key] for key in ("ap", "auc", "mrr")}
                for name in self.baselines
            },
            **self.times.close_window(),
        }
        for name, metric in self.window.items():
            self.metrics["overall"][name].merge(metric)
        self.losses["overall"] += self.window_loss
        self.events["overall"] += events
        self._open_window()
        return figures

    def value(self) -> dict[str, Any]:
        """The table of the report: scorer, part of the stream, metric."""
        table: dict[str, Any] = {}
        for name in self.names:
            table[name] = {part: self.metrics[part][name].value() for part in PARTS}
        for part in PARTS:
            events = self.events[part]
            table[self.model][part]["loss"] = self.losses[part] / events if events else None
        return table

    @property
    def unscored(self) -> int:
        """Events that had no negative to be compared with."""
        return self.metrics["overall"][self.model].unscored

    def to_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, between two windows."""
        kept = {
            f"{part}/{name}/{key}": torch.from_numpy(np.ascontiguousarray(array))
            for part in PARTS
            for name in self.names
            for key, array in self.metrics[part][name].to_arrays().items()
        }
        kept["losses"] = torch.tensor([self.losses[part] for part in PARTS], dtype=torch.float64)
        kept["events"] = torch.tensor([self.events[part] for part in PARTS])
        kept |= {f"times/{name}": tensor for name, tensor in self.times.to_tensors().items()}
        return kept

    def from_tensors(self, kept: Mapping[str, Tensor], stop: int) -> None:
        """Go on from what `to_tensors` gave after the events before `stop` were scored."""
        for part in PARTS:
            for name in self.names:
                prefix = f"{part}/{name}/"
                arrays = {
                    key.removeprefix(prefix): value.numpy()
                    for key, value in kept.items()
                    if key.startswith(prefix)
                }
                self.metrics[part][name] = LinkMetrics.from_arrays(arrays)
        self.losses = dict(zip(PARTS, kept["losses"].tolist(), strict=True))
        self.events = dict(zip(PARTS, kept["events"].tolist(), strict=True))
        self.times.from_tensors(
            {k.removeprefix("times/"): v for k, v in kept.items() if k.startswith("times/")}
        )
        for baseline in self.baselines.values():
            baseline.learn(self.log[0:stop])
