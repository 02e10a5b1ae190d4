"""Runs of a model over a small log, what they give, and how two of them are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...models import DynamicGNN
from ...stream import EventLog
from ..batch import BatchExecutor
from ..executor import Executor, Outcome
from ..levels import LevelExecutor
from ..replay import Replay
from ..segment import Consistency
from ..sequential import SequentialExecutor

EXACT: dict[str, type[Executor[Any]]] = {"levels": LevelExecutor, "sequential": SequentialExecutor}

_KNOWN = "what is asked for beside an event may not use what only the event itself tells: "
LEAKS = {
    "the destination": _KNOWN + "`events.gap[:, 1]` is the true destination's, take `dst.gap`",
    "the source": _KNOWN + "`events.gap[:, 0]` is the true source's, take `src.gap`",
    "the weight": _KNOWN + "`events.weight` is known afterwards, use it in `encode` and `update`",
    "the features": _KNOWN + "`events.features` are known afterwards, use them in `encode`",
    "the rest": "`encode`, `embed`, `loss` and `score` may use of a batch the event's own row "
    "only, and nothing that was kept from another call",
}
"""What to change where a change of this in an event is seen at the event itself."""


class Trial:
    """One run of a model over a log from its start."""

    def __init__(
        self, model: DynamicGNN, log: EventLog, executor: str, dtype: torch.dtype, device: str
    ) -> None:
        consistency: Consistency = "batch" if executor == "batch" else "exact"
        self.model, self.log = model, log
        self.replay = Replay(
            log, model, seed=1, dtype=dtype, device=device, consistency=consistency
        )
        engine = BatchExecutor if executor == "batch" else EXACT[executor]
        self.engine: Executor[Any] = engine(self.replay)

    def spans(self, size: int, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Segments of at most `size` events."""
        end = len(self.log) if stop is None else stop
        return [(first, min(first + size, end)) for first in range(start, end, size)]

    def step(
        self, start: int, stop: int, *, candidates: int | None, rate: float | None = None
    ) -> Outcome:
        """Run one segment and commit it; with a `rate` learn from it."""
        segment = self.replay.resolve(start, stop, num_candidates=candidates)
        outcome = self.engine.run(self.engine.prepare(segment))
        if rate is not None:
            backward(outcome.losses, self.model)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        scale = parameter.grad.abs().amax().clamp(min=1.0)
                        parameter.sub_(parameter.grad / scale, alpha=rate)
            self.model.constrain()
        outcome.commit()
        return outcome

    def run(
        self, size: int, *, rate: float = 0.0, start: int = 0, stop: int | None = None
    ) -> dict[str, Tensor]:
        """Everything that two runs must agree on, by name."""
        losses, scores, values = [], [], {}
        learns = torch.is_grad_enabled()
        for first, last in self.spans(size, start, stop):
            outcome = self.step(first, last, candidates=3, rate=rate if learns else None)
            losses.append(outcome.losses.detach())
            if outcome.scores is not None:
                scores.append(outcome.scores.detach())
            for name, parameter in self.model.named_parameters() if learns else ():
                gradient = parameter.grad
                if gradient is not None:
                    values[f"gradient of `{name}`, events {first} to {last - 1}"] = gradient.clone()
        values = {"losses": torch.cat(losses), "scores": torch.cat(scores)} | values
        for name in self.model.tables:
            values[f"states of `{name}`"] = self.replay.state[name].clone()
        for name in self.model.link_tables:
            values[f"links of `{name}`"] = self.replay.state[name].clone()
        for name, parameter in self.model.named_parameters():
            values[f"values of `{name}`"] = parameter.detach().clone()
        return {name: value.cpu() for name, value in values.items()}

    def predict(self, asked: Asked) -> Predicted:
        """What is predicted over the whole log as one segment."""
        n = len(self.log)
        valid = np.ones(asked.candidates.shape, bool)
        segment = self.replay.resolve(0, n, candidates=(asked.candidates, valid), pairs=asked.pairs)
        outcome = self.engine.run(self.engine.prepare(segment))
        assert outcome.scores is not None and outcome.pair_scores is not None
        asked_pairs = outcome.pair_scores[:, -asked.pairs[0].shape[1] :]
        return Predicted(outcome.losses, outcome.scores, asked_pairs)


@dataclass(frozen=True, slots=True)
class Asked:
    """Nodes whose scores are asked for beside every event, whatever the event is."""

    pairs: tuple[np.ndarray, np.ndarray]  # sources and destinations, (n, q)
    candidates: np.ndarray  # (n, m) destinations for the event's own source

    def head(self, length: int) -> Asked:
        """The same for fewer events."""
        src, dst = self.pairs
        return Asked((src[:length], dst[:length]), self.candidates[:length])


@dataclass(frozen=True, slots=True)
class Predicted:
    """Losses (n,), scores (n, 1 + m) of candidates and (n, q) of pairs."""

    losses: Tensor
    scores: Tensor
    pairs: Tensor

    @property
    def scale(self) -> float:
        """The largest of them, or 1."""
        return max(1.0, *(float(t.abs().max()) for t in (self.losses, self.scores, self.pairs)))

    def leak(self, other: Predicted, i: int, what: str, bound: float) -> tuple[str, str] | None:
        """What differs from the predictions of a log in which event `i`, or the rest, is another.

        A word for the cause comes first.
        """
        own = i + (what == "the rest")  # of the event itself another thing is asked
        asked = i + (what not in ("the source", "the kind"))
        pairs = i + (what != "the kind")
        parts = {
            "loss": (self.losses[:own], other.losses[:own]),
            "score": (self.scores[:own], other.scores[:own]),
            "score of a candidate": (self.scores[:asked, 1:], other.scores[:asked, 1:]),
            "score of a pair": (self.pairs[:pairs], other.pairs[:pairs]),
        }
        for name, (before, after) in parts.items():
            wrong = ~((before - after).abs() <= bound)
            if wrong.any():
                at = int(torch.nonzero(wrong)[0, 0])
                how = f"changing {what} of event {i}"
                if what == "the rest":
                    how = f"leaving out what comes after event {i}"
                sees_later = at < i or what == "the rest"
                cure = LEAKS["the rest" if sees_later else what]
                return (
                    "the rest" if sees_later else what,
                    f"{how} changes the {name} at event {at}, which must not know of it: {cure}",
                )
        return None


def compare(
    first: dict[str, Tensor], second: dict[str, Tensor], bound: float, where: str
) -> tuple[float, list[str]]:
    """The greatest difference of two runs, and where it is if it is more than the bound.

    Differences are parts of the largest entry, or of 1.
    """
    worst = 0.0
    findings: list[str] = []
    for name in first | second:  # no gradient is one of zeros
        a, b = first.get(name), second.get(name)
        a = torch.zeros_like(b) if a is None and b is not None else a
        b = torch.zeros_like(a) if b is None and a is not None else b
        assert a is not None and b is not None
        if not a.numel():
            continue
        scale = max(1.0, float(b.abs().max()))
        apart = torch.where(torch.isnan(a) & torch.isnan(b), 0.0, (a - b).abs() / scale)
        if not float(apart.max()) <= worst:
            worst = float(apart.max())
        if not findings and not worst <= bound:
            at = int(torch.nonzero(~(apart <= bound))[0, 0])
            place = {"losses": f" at event {at}", "scores": f" at event {at}"}.get(name, "")
            findings.append(f"{where}: {name} differ{place} by {worst:.1e}, {bound:.0e} is allowed")
    return worst, findings


def backward(losses: Tensor, model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)
    if losses.requires_grad and len(losses):
        losses.mean().backward()  # type: ignore[no-untyped-call]
