"""LDG's scan gives what its updates give.

Updates have a slow twin of their own; here they are the reference.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import nn

from neutronstream.models.kernels.ldg import TIED, choose
from neutronstream.models.kernels.perceptron import activate, by_activation
from neutronstream.models.kernels.tiles import Floats, add_outer, add_rows, set_outer, set_rows
from neutronstream.models.ldg import LDG, Perceptron
from neutronstream.stream import EventLog

from ..data import SIX, real_log
from ..naive import random_log
from ..parallel.runs import run
from ..uncompiled import run_uncompiled
from .hostile import HOSTILE
from .twins import chain_of, strong

COMPILED = "NUMBA_DISABLE_JIT" not in os.environ
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6}

KINDS = "loops, kinds and initial links"
LOGS = HOSTILE | {KINDS: random_log(*(1, 80, 12), loops=0.3, kinds=("talk", "AE"), num_initial=14)}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "one relation": {"num_relations": 1, "kl_weight": 0.5, "num_sampled": 1},
    "three, soft": {"num_relations": 3, "hard": False, "temperature": 0.8, "num_sampled": 5},
    "dense": {"num_relations": 2, "sparse": False, "num_sampled": 3},
    "drift": {"drift": True},
}


def strong_model(
    log: EventLog, dtype: torch.dtype = torch.float64, width: int = 6, **options: Any
) -> Callable[[], LDG]:
    def new() -> LDG:
        model = strong(lambda: LDG(width, log.kinds, **options), dtype)
        assert isinstance(model, LDG)
        model.constrain()
        return model

    return new


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, "default") for name in LOGS),
        *((KINDS, options) for options in OPTIONS),
    ],
)
def test_the_scan_equals_updates_one_by_one(name: str, options: str) -> None:
    log = LOGS[name]
    new = strong_model(log, **OPTIONS[options])
    right, ours = (
        run(log, new, executor, size=33, num_candidates=3, learning_rate=0.01)
        for executor in ("sequential", "fused")
    )
    assert any(key.startswith("grad") and value.any() for key, value in ours.values.items())
    ours.assert_near(right, 1e-12)


@pytest.mark.parametrize("dtype", BOUNDS, ids=["64", "32"])
@pytest.mark.parametrize("name", SIX)
def test_on_real_logs_the_scan_equals_levels(name: str, dtype: torch.dtype) -> None:
    log = real_log(name, 100)
    levels, ours = (
        run(log, lambda: LDG(64, log.kinds), executor, dtype=dtype, num_candidates=4)
        for executor in ("levels", "fused")
    )
    tables = {"state embedding", "state relation0", "state relation1", "losses", "scores"}
    assert tables < levels.values.keys()
    ours.assert_near(levels, BOUNDS[dtype])


@pytest.mark.parametrize("width", [7, 64])
def test_any_cut_gives_the_same_bits(width: int) -> None:
    log = real_log("uci", 150)
    new = strong_model(log, torch.float32, width)
    runs = [run(log, new, "fused", dtype=torch.float32, size=size) for size in (150, 64, 7, 1)]
    for key in ("state embedding", "state relation0", "state relation1"):
        assert all(torch.equal(runs[0].values[key], other.values[key]) for other in runs[1:]), key


def test_without_gradient_states_and_links_are_the_same_bits() -> None:
    log = LOGS[KINDS]
    model = strong_model(log, torch.float32, 9)()
    chains = [chain_of(log, model, 60) for _ in range(2)]
    kept = model.scan(chains[0])
    with torch.no_grad():
        bare = model.scan(chains[1])
    states = kept.states["embedding"], bare.states["embedding"]
    assert states[0].requires_grad and not states[1].requires_grad
    assert torch.equal(*states)
    assert kept.penalty is not None and bare.penalty is not None
    assert torch.equal(kept.penalty, bare.penalty)
    for name in model.link_tables:
        assert np.array_equal(chains[0].links[name], chains[1].links[name])
        assert (chains[0].links[name] != 0).any()


def test_a_graph_can_be_gone_through_twice() -> None:
    log = LOGS["a hub"]
    model = strong_model(log)()
    total = model.scan(chain_of(log, model, 30)).states["embedding"].square().sum()
    first, second = (
        torch.autograd.grad(total, model.f2.second.weight, retain_graph=True)[0] for _ in range(2)
    )
    assert torch.equal(first, second) and (first != 0).any()


def test_without_events_the_states_are_those_before() -> None:
    log = LOGS["a hub"]
    model = strong_model(log)()
    chain = chain_of(log, model, 0)
    scanned = model.scan(chain)
    assert torch.equal(scanned.states["embedding"], chain.base["embedding"])
    assert scanned.penalty is not None and scanned.penalty.shape == (0,)
    scanned.states["embedding"].sum().backward()  # type: ignore[no-untyped-call]
    assert model.f3.first.weight.grad is not None and not model.f3.first.weight.grad.any()


def test_states_that_nobody_holds_are_gone() -> None:
    log = LOGS["a hub"]
    model = strong_model(log)()
    states = model.scan(chain_of(log, model, 30)).states["embedding"]
    gone = weakref.ref(states)
    del states
    gc.collect()
    assert gone() is None


def test_equal_messages_share_a_gradient_as_levels_do() -> None:
    log = LOGS["ties"]

    def new() -> LDG:
        model = strong_model(log, width=4)()
        with torch.no_grad():
            model.neighbor.weight.zero_()  # all messages are the bias: only weights differ
        return model

    right, ours = (run(log, new, executor, size=60) for executor in ("levels", "fused"))
    assert (ours.values["grad 0 neighbor.weight"] != 0).any()
    ours.assert_near(right, 1e-12)


def test_the_greatest_related_message_is_chosen_with_its_place() -> None:
    message = np.array(
        [[1.0, 5.0, 2.0, -1.0], [3.0, 0.0, 2.0, -1.0], [9.0] * 4, [3.0, 4.0, 1.0, 0]]
    )
    neighbors, weight = np.array([3, 2, 0, 1]), np.array([1.0, 0.0, 1.0, 1.0])
    best, heard, chosen = np.empty(4), np.empty(4), np.empty(4, np.int32)
    choose(message, neighbors, weight, best, chosen, heard)
    assert best.tolist() == [3.0, 5.0, 2.0, 0.0]
    assert (chosen & ~TIED).tolist() == [0, 2, 2, 0]
    assert (chosen & TIED != 0).tolist() == [True, False, True, False]
    np.testing.assert_allclose(heard, 1.0 / (1.0 + np.exp(-best)), rtol=1e-14)
    choose(message, neighbors, np.zeros(4), best, chosen, heard)
    assert chosen.tolist() == [-1] * 4 and heard.tolist() == [0.0] * 4


@njit()
def rows_of(weight: Floats, x: Floats, y: Floats, rows: int) -> None:
    add_rows(weight, x, y, rows)


@njit()
def outer_of(x: Floats, d: Floats, total: Floats, rows: int) -> None:
    add_outer(x, d, total, rows)


@njit()
def rows_anew(weight: Floats, x: Floats, y: Floats, rows: int) -> None:
    set_rows(weight, x, y, rows)


@njit()
def outer_anew(x: Floats, d: Floats, total: Floats, rows: int) -> None:
    set_outer(x, d, total, rows)


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 3), (1, 1), (5, 7), (64, 64), (20, 103)])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1e-4), (np.float64, 1e-13)])
def test_a_row_of_a_product_has_the_same_bits_among_any_others(
    dtype: type[np.floating[Any]], bound: float, inputs: int, outputs: int
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(inputs, outputs)).astype(dtype)
    x, before = (rng.normal(size=(11, size)).astype(dtype) for size in (inputs, outputs))
    everything = before.copy()
    rows_of(weight, x, everything, 11)
    np.testing.assert_allclose(everything, before + x @ weight, rtol=0.0, atol=bound)
    for count in range(11):
        kept = rng.permutation(11)[: count + 1]
        y = before[kept]
        rows_of(weight, x[kept], y, count)
        assert not COMPILED or np.array_equal(y[:count], everything[kept[:count]])
        assert np.array_equal(y[count:], before[kept[count:]])
    total = np.zeros((inputs, outputs), dtype)
    outer_of(x, before, total, 8)
    np.testing.assert_allclose(total, x[:8].T @ before[:8], rtol=0.0, atol=bound)
    # in place of what stood there, the same sums
    anew, alone = before.copy(), np.zeros_like(before)
    rows_anew(weight, x, anew, 8)
    rows_of(weight, x, alone, 8)
    assert np.array_equal(anew[:8], alone[:8]) and np.array_equal(anew[8:], before[8:])
    other = np.full_like(total, 7.0)
    outer_anew(x, before, other, 8)
    assert np.array_equal(other, total)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elu_and_its_slope_are_those_of_torch(dtype: type[np.floating[Any]]) -> None:
    values = np.concatenate([-np.logspace(-30, 4, 97), [0.0], np.logspace(-30, 4, 97)])
    x = torch.from_numpy(values.astype(dtype)).requires_grad_()
    right = nn.functional.elu(x)
    right.sum().backward()  # type: ignore[no-untyped-call]
    rows, slope = x.detach().clone().numpy()[None], np.ones((1, len(x)), dtype)
    activate(rows, 1)
    by_activation(rows, slope, 1)
    epsilon = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(rows[0], right.detach().numpy(), rtol=4 * epsilon)
    assert x.grad is not None
    np.testing.assert_allclose(slope[0], x.grad.numpy(), atol=2 * epsilon)


def test_other_layers_and_hooks_are_not_scanned() -> None:
    """A layer that is not what it was would be left out without a word."""
    log = LOGS["two nodes"]
    model = LDG(4, log.kinds)
    replaced = LDG(4, log.kinds)
    replaced.f1 = nn.Sequential(Perceptron(4, 4), nn.Tanh())  # type: ignore[assignment]
    wider = LDG(4, log.kinds)
    wider.f3.norm = nn.LayerNorm(4, eps=1e-3)
    assert model.scans
    assert not replaced.scans
    assert not wider.scans


@pytest.mark.skipif(not COMPILED, reason="this is the run without compilation")
def test_the_loops_are_right_without_compilation() -> None:
    kept = "(one_by_one and (event or nodes)) or without_events or product or elu or greatest"
    assert "passed" in run_uncompiled(__file__, "-k", kept)
