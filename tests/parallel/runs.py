"""Runs of one model over one log, to be compared between executors and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from neutronstream.models import DynamicGNN
from neutronstream.parallel import EXECUTORS, Replay
from neutronstream.parallel.ranks import Comm
from neutronstream.stream import EventLog

from ..devices import chosen


@dataclass(frozen=True, slots=True)
class Run:
    """All that two runs must agree on, by name; gradients are those of each segment."""

    values: dict[str, Tensor]

    def difference(self, other: Run) -> dict[str, float]:
        """By name, the greatest absolute difference over the greatest absolute value."""
        assert self.values.keys() == other.values.keys()
        found = {}
        for name, mine in self.values.items():
            theirs = other.values[name]
            assert mine.shape == theirs.shape, name
            if mine.numel():
                scale = mine.abs().max().item() or 1.0
                found[name] = (mine - theirs).abs().max().item() / scale
        return found

    def worst(self, other: Run) -> tuple[float, str]:
        """The greatest of `difference`, and where it is."""
        return max((value, name) for name, value in self.difference(other).items())

    def assert_near(self, other: Run, bound: float) -> None:
        """Each difference is at most `bound` of the greatest entry of `other`, or of 1 if less."""
        assert self.values.keys() == other.values.keys()
        for key, value in other.values.items():
            if value.numel():
                difference = (value - self.values[key]).abs().max()
                assert difference <= bound * max(1.0, float(value.abs().max())), key

    def equals(self, other: Run) -> bool:
        """Whether all bits are the same."""
        pairs = ((v, other.values[name]) for name, v in self.values.items())
        return self.values.keys() == other.values.keys() and all(torch.equal(*p) for p in pairs)


def run(
    log: EventLog,
    new_model: Callable[[], DynamicGNN],
    executor: str,
    *,
    dtype: torch.dtype = torch.float64,
    size: int = 200,
    num_candidates: int | None = None,
    learning_rate: float = 0.0,
    seed: int = 0,
    check: bool = False,
    comm: Comm | None = None,
) -> Run:
    """Train over the log once, with one gradient step for every `size` events.

    The state of the model's weights is a function of `seed`.  It runs on the device of the test,
    and gives all values on the CPU.
    """
    device = chosen()
    if executor == "fused" and device != "cpu":
        pytest.skip("fused scans are for CPUs")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = new_model().to(device, dtype)
    replay = Replay(
        *(log, model),
        seed=seed,
        dtype=dtype,
        device=device,
        check=check,
        consistency="batch" if executor == "batch" else "exact",
        comm=comm,
    )
    engine = EXECUTORS[executor](replay)
    losses, scores, values = [], [], {}
    for start in range(0, len(log), size):
        stop = min(len(log), start + size)
        segment = replay.resolve(start, stop, num_candidates=num_candidates)
        model.zero_grad()
        outcome = engine.run(engine.prepare(segment))
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        engine.add_up_gradients()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:  # a single event reaches no weight of the update
                parameter.grad = torch.zeros_like(parameter)
            values[f"grad {start} {name}"] = parameter.grad.cpu().clone()
        with torch.no_grad():  # by hand: torch.optim takes seconds to import in every process
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(learning_rate * parameter.grad)
        model.constrain()
        outcome.commit()
        losses.append(outcome.losses.detach().cpu())
        if outcome.scores is not None:
            others = torch.from_numpy(segment.ranked_valid)
            valid = torch.cat([torch.ones(stop - start, 1, dtype=torch.bool), others], dim=1)
            scores.append(outcome.scores.detach().cpu()[valid])
    for name in replay.state.names:
        values[f"state {name}"] = replay.state[name].cpu().clone()
    values["losses"] = torch.cat(losses)
    if scores:
        values["scores"] = torch.cat(scores)
    values |= {f"weight {name}": p.detach().cpu().clone() for name, p in model.named_parameters()}
    return Run(values)
