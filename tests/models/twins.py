"""A model's run over a whole log in one segment, to be compared with its slow twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pytest
import torch
from torch import Tensor

from neutronstream.models import Chain, DynamicGNN
from neutronstream.parallel import EXECUTORS, Outcome, Replay, Segment
from neutronstream.stream import EventLog, Float64

from ..parallel.runs import run

SEED = 0


def strong(new_model: Callable[[], DynamicGNN], dtype: torch.dtype = torch.float64) -> DynamicGNN:
    """A model whose weights are far enough from zero that every term counts."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = new_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


def replayed(
    log: EventLog, model: DynamicGNN, executor: str = "levels"
) -> tuple[Replay, Segment, Outcome]:
    """One segment of the whole log, run but not committed, with four candidates an event."""
    replay = Replay(log, model, seed=SEED, dtype=next(model.parameters()).dtype)
    segment = replay.resolve(0, len(log), num_candidates=4)
    engine = EXECUTORS[executor](replay)
    return replay, segment, engine.run(engine.prepare(segment))


def chain_of(log: EventLog, model: DynamicGNN, stop: int) -> Chain:
    """The updates of the first events, from the states and links that stand before any event."""
    replay = Replay(log, model, dtype=next(model.parameters()).dtype)
    engine = EXECUTORS["fused"](replay)
    segment = replay.resolve(0, stop)
    plan = engine.prepare(segment)
    if model.link_tables:
        engine.touch_links(segment.neighbors.link)
    base = {name: replay.state.read(name, plan.base) for name in model.tables}
    links = {name: replay.state[name].numpy()[:, 0] for name in model.link_tables}
    encoded = model.encode(segment.events)
    chain: Chain = replace(plan.work, base=base, encoded=encoded, links=links)
    return chain


def weights_of(model: DynamicGNN) -> dict[str, Float64]:
    """Parameters and buffers by name, as float64."""
    return {name: value.double().numpy().copy() for name, value in model.state_dict().items()}


def assert_near(ours: Tensor, right: object, bound: float) -> None:
    """The greatest difference is at most `bound` of the greatest value, or of 1 if it is less."""
    expected = torch.as_tensor(np.asarray(right), dtype=torch.float64)
    found = ours.detach().double()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= bound * max(1.0, float(expected.abs().max()))


class Naive(Protocol):
    """A slow twin: weights by the names of parameters, and what its one run gives."""

    weights: dict[str, Float64]
    losses: list[float]
    scores: list[list[float]]

    def run(self, candidates: Sequence[Sequence[int]] | None = None) -> None: ...


def assert_scored_alike(segment: Segment, outcome: Outcome, twin: Naive, bound: float) -> None:
    """The `twin`, run here, has the losses and, of every real node, the scores of an outcome."""
    shown = segment.candidates
    twin.run([row[ok].tolist() for row, ok in zip(shown.node, shown.valid, strict=True)])
    assert_near(outcome.losses, twin.losses, bound)
    assert outcome.scores is not None
    real = np.concatenate([np.ones((len(segment), 1), bool), shown.valid], axis=1)
    expected = [score for scores in twin.scores for score in scores]
    assert_near(outcome.scores[torch.from_numpy(real)], expected, bound)


def assert_gradients_are_slopes(
    model: DynamicGNN, twin: Callable[[], Naive], *, step: float = 1e-5, bound: float = 1e-6
) -> None:
    """The gradient of the sum of losses is how those of a new `twin` change with its weights.

    It may be apart by `bound`, and by ten times that share of the slope.
    """
    rng = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        way = rng.normal(size=parameter.shape)
        sums = []
        for moving in (step, -step):
            moved = twin()
            moved.weights[name] = moved.weights[name] + moving * way
            moved.run()
            sums.append(sum(moved.losses))
        slope = (sums[0] - sums[1]) / (2 * step)
        ours = float((parameter.grad * torch.from_numpy(way)).sum())
        assert ours == pytest.approx(slope, rel=10 * bound, abs=bound), name


def assert_levels_equal(
    log: EventLog, new_model: Callable[[], DynamicGNN], *, size: int, num_candidates: int
) -> None:
    """Both exact executors agree: 1e-12 in float64, over steps, and 1e-6 in float32."""
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        first, second = (
            run(
                *(log, new_model, executor),
                dtype=dtype,
                size=size,
                num_candidates=num_candidates,
                learning_rate=1e-3 if dtype == torch.float64 else 0.0,
            )
            for executor in ("levels", "sequential")
        )
        first.assert_near(second, bound)


def assert_every_parameter_learns(
    log: EventLog, model: DynamicGNN, executor: str = "levels"
) -> None:
    """Each parameter has a gradient over the log as one segment, and a step moves it."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    _, _, outcome = replayed(log, model, executor)
    outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).any(), name
    torch.optim.Adam(model.parameters(), lr=0.01).step()
    model.constrain()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def assert_stale_differs(
    log: EventLog, new_model: Callable[[], DynamicGNN], table: str, *, size: int
) -> None:
    """Losses of stale batches are finite, but the states in `table` are not the exact ones."""
    states = []
    for consistency, executor in (("exact", "levels"), ("batch", "batch")):
        replay = Replay(log, new_model(), dtype=torch.float64, consistency=consistency)  # type: ignore[arg-type]
        engine = EXECUTORS[executor](replay)
        for start in range(0, len(log), size):
            outcome = engine.run(engine.prepare(replay.resolve(start, start + size)))
            assert torch.isfinite(outcome.losses).all()
            outcome.commit()
        states.append(replay.state[table])
    assert not torch.equal(*states)
