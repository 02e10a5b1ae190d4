"""DyGNN's scan gives what its updates give, event by event, and its gradient is that of the states.

Updates have a slow twin of their own; here they are the reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from neutronstream.models import DyGNN
from neutronstream.stream import EventLog

from ..data import SIX, real_log, span_of
from ..parallel.runs import run
from ..uncompiled import run_uncompiled
from .hostile import HOSTILE
from .twins import chain_of, strong

COMPILED = "NUMBA_DISABLE_JIT" not in os.environ


def new_model(log: EventLog, width: int = 6, **options: Any) -> Callable[[], DyGNN]:
    return lambda: DyGNN(width, log.kinds, **options)


def strong_model(
    log: EventLog, dtype: torch.dtype, width: int = 6, **options: Any
) -> Callable[[], DyGNN]:
    def new() -> DyGNN:
        model = strong(new_model(log, width, **options), dtype)
        assert isinstance(model, DyGNN)
        return model

    return new


@pytest.mark.parametrize("name", HOSTILE)
def test_the_scan_equals_updates_one_by_one(name: str) -> None:
    log = HOSTILE[name]
    new = strong_model(log, torch.float64, k=6)
    right, ours = (
        run(log, new, executor, size=50, num_candidates=3, learning_rate=0.01)
        for executor in ("sequential", "fused")
    )
    worst, where = right.worst(ours)
    assert worst <= 1e-12, where


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["64", "32"]
)
@pytest.mark.parametrize("name", SIX)
def test_on_real_logs_the_scan_equals_levels(name: str, dtype: torch.dtype, bound: float) -> None:
    log = span_of(real_log("dnc"), 4950, 5100) if name == "dnc" else real_log(name, 150)
    levels, ours = (
        run(log, new_model(log, 16), executor, dtype=dtype, size=100)
        for executor in ("levels", "fused")
    )
    ours.assert_near(levels, bound)


def test_any_cut_gives_the_same_bits() -> None:
    log = real_log("uci", 150)
    runs = [
        run(log, strong_model(log, torch.float32, 10), "fused", dtype=torch.float32, size=size)
        for size in (150, 64, 7, 1)
    ]
    for key in (f"state {name}" for name in DyGNN().tables):
        assert all(torch.equal(runs[0].values[key], other.values[key]) for other in runs[1:]), key


def test_every_state_leads_back_to_the_weights() -> None:
    """All five tables, also where no score reads them: slopes by central differences."""
    log = HOSTILE["loops and initial links"]
    model = strong_model(log, torch.float64, 3, k=4)()
    chain = chain_of(log, model, 40 if COMPILED else 10)
    generator = torch.Generator().manual_seed(0)
    pulls: dict[str, Tensor] = {}

    def value() -> Tensor:
        states = model.scan(chain).states
        for name, table in states.items():
            if name not in pulls:
                pulls[name] = torch.randn(table.shape, generator=generator, dtype=table.dtype)
        parts = [(table * pulls[name]).sum() for name, table in states.items()]
        return torch.stack(parts).sum()

    value().backward()  # type: ignore[no-untyped-call]
    read = [n for n, _ in model.named_parameters() if not n.startswith("as_")]
    for name in read:
        parameter = model.get_parameter(name)
        way = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        with torch.no_grad():
            sums = []
            for step in (1e-5, -2e-5):
                parameter.add_(step * way)
                sums.append(value().item())
            parameter.add_(1e-5 * way)
        assert parameter.grad is not None
        slope = (sums[0] - sums[1]) / 2e-5
        assert (parameter.grad * way).sum().item() == pytest.approx(slope, rel=1e-6), name


def test_a_graph_can_be_gone_through_twice() -> None:
    log = HOSTILE["a hub"]
    model = strong_model(log, torch.float64)()
    total = model.scan(chain_of(log, model, 30)).states["embedding"].square().sum()
    first, second = (
        torch.autograd.grad(total, model.merge.weight, retain_graph=True)[0] for _ in range(2)
    )
    assert torch.equal(first, second) and (first != 0).any()


def test_without_events_the_states_are_those_before() -> None:
    log = HOSTILE["a hub"]
    model = new_model(log)()
    chain = chain_of(log, model, 0)
    for name, table in model.scan(chain).states.items():
        assert torch.equal(table, chain.base[name])


@pytest.mark.skipif(not COMPILED, reason="this is the run without compilation")
def test_the_loops_are_right_without_compilation() -> None:
    said = run_uncompiled(f"{__file__}::test_every_state_leads_back_to_the_weights")
    assert "1 passed" in said
