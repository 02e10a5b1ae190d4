"""DyRep's scan gives what its updates give, and its losses what their views give.

Updates have a slow twin of their own; here they are the reference.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from neutronstream.models import Chain, DyRep, Events, Level, Links, Nodes
from neutronstream.models.kernels.dyrep import (
    GROUP,
    TIED,
    Floats,
    Int32,
    Lists,
    choose,
    greatest,
    listen,
)
from neutronstream.models.kernels.links import EPSILON
from neutronstream.models.pairs import Pairs
from neutronstream.stream import EventLog

from ..data import SIX, real_log
from ..naive import random_log
from ..parallel.runs import run
from ..uncompiled import run_uncompiled
from .hostile import HOSTILE
from .twins import assert_near, chain_of, strong

Heard = tuple[Floats, Int32, Floats, int, int]
COMPILED = "NUMBA_DISABLE_JIT" not in os.environ
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6}

LOGS = HOSTILE | {"two kinds": random_log(2, 100, 8, kinds=("talk", "association"), num_initial=6)}


def new_model(log: EventLog, width: int = 6, **options: Any) -> Callable[[], DyRep]:
    return lambda: DyRep(width, log.kinds, **options)


def strong_model(
    log: EventLog, dtype: torch.dtype, width: int = 6, **options: Any
) -> Callable[[], DyRep]:
    def new() -> DyRep:
        model = strong(new_model(log, width, **options), dtype)
        assert isinstance(model, DyRep)
        model.constrain()
        return model

    return new


@pytest.mark.parametrize("drift", [False, True], ids=["still", "drift"])
@pytest.mark.parametrize("intensity", ["linear", "bilinear"])
@pytest.mark.parametrize("name", LOGS)
def test_the_scan_equals_updates_one_by_one(name: str, intensity: str, drift: bool) -> None:
    log = LOGS[name]
    new = strong_model(log, torch.float64, intensity=intensity, drift=drift)
    right, ours = (
        run(log, new, executor, size=50, num_candidates=3, learning_rate=0.01)
        for executor in ("sequential", "fused")
    )
    worst, where = right.worst(ours)
    assert worst <= 1e-12, where


@pytest.mark.parametrize("dtype", BOUNDS, ids=["64", "32"])
@pytest.mark.parametrize("name", SIX)
def test_on_real_logs_the_scan_equals_levels(name: str, dtype: torch.dtype) -> None:
    log = real_log(name, 200)
    levels, ours = (
        run(log, new_model(log, 64), executor, dtype=dtype, num_candidates=4)
        for executor in ("levels", "fused")
    )
    assert {"state embedding", "state attention", "losses", "scores"} < levels.values.keys()
    ours.assert_near(levels, BOUNDS[dtype])


@pytest.mark.parametrize("width", [7, 64])
def test_any_cut_gives_the_same_bits(width: int) -> None:
    log = real_log("social_evolution", 150)
    new = new_model(log, width, intensity="bilinear")
    runs = [run(log, new, "fused", dtype=torch.float32, size=size) for size in (150, 64, 7, 1)]
    for key in ("state embedding", "state attention"):
        assert all(torch.equal(runs[0].values[key], other.values[key]) for other in runs[1:]), key


def update_one_by_one(chain: Chain, model: DyRep) -> tuple[Tensor, Tensor]:
    """What a scan gives, by `update`: the states of all rows, and the attention after."""
    rows = list(chain.base["embedding"].unbind(0))
    rows += [rows[0]] * (chain.num_rows - len(rows))
    attention = torch.from_numpy(chain.links["attention"].copy())
    for i in range(len(chain)):
        spans = [range(*chain.indptr[j : j + 2].tolist()) for j in (2 * i, 2 * i + 1)]
        k = max(map(len, spans))
        read = torch.stack([rows[row] for row in chain.ends[i]])[None]
        near, link = torch.zeros(1, 2, k, read.shape[-1], dtype=read.dtype), torch.zeros(1, 2, k)
        before, after, partner = (torch.zeros(1, 2, k, dtype=torch.bool) for _ in range(3))
        for side, span in enumerate(spans):
            for c, j in enumerate(span):
                near[0, side, c] = rows[chain.neighbors[j]]
                link[0, side, c] = chain.link[j]
                before[0, side, c], after[0, side, c] = bool(chain.before[j]), True
                partner[0, side, c] = bool(chain.partner[j])
        level = Level(
            *(torch.from_numpy(chain.kind[i : i + 1]), {}, {"embedding": read}),
            *(model.derive({"embedding": near}), before),
            Links({"attention": attention[link.long()]}, after, partner),
        )
        level = replace(level, encoded={n: v[i : i + 1] for n, v in chain.encoded.items()})
        written = model.update(level)
        for side in range(2):  # of a self loop the destination's values stand
            rows[chain.writes[2 * i + side]] = written.states["embedding"][0, side]
            stands = after[0, side]
            at = link[0, side, stands].long()
            attention[at] = written.links["attention"][0, side, stands]
    return torch.stack(rows), attention


@pytest.mark.parametrize("name", ["two kinds", "loops and initial links"])
def test_every_row_equals_that_of_updates_and_so_does_its_gradient(name: str) -> None:
    """All rows, also where no loss reads them."""
    model = strong_model(LOGS[name], torch.float64, 3)()
    chains = [chain_of(LOGS[name], model, 40) for _ in range(2)]
    right, attention = update_one_by_one(chains[0], model)
    ours = model.scan(chains[1]).states["embedding"]
    assert_near(ours, right.detach(), 1e-12)
    assert_near(torch.from_numpy(chains[1].links["attention"]), attention, 1e-12)
    pull = torch.randn(right.shape, generator=torch.Generator().manual_seed(0), dtype=right.dtype)
    layers = (model.structure, model.recurrence, model.elapsed, model.neighbor)
    learned = [p for layer in layers for p in layer.parameters()]
    found = (torch.autograd.grad((states * pull).sum(), learned) for states in (ours, right))
    for mine, other in zip(*found, strict=True):
        assert_near(mine, other, 1e-12)
        assert (other != 0).any()


def test_a_graph_can_be_gone_through_twice() -> None:
    log = LOGS["a hub"]
    model = strong_model(log, torch.float64)()
    total = model.scan(chain_of(log, model, 30)).states["embedding"].square().sum()
    first, second = (
        torch.autograd.grad(total, model.neighbor.weight, retain_graph=True)[0] for _ in range(2)
    )
    assert torch.equal(first, second) and (first != 0).any()


def test_without_gradient_states_and_links_are_the_same_bits() -> None:
    log = LOGS["loops and initial links"]
    model = strong_model(log, torch.float32, 9)()
    chains = [chain_of(log, model, 60) for _ in range(2)]
    kept = model.scan(chains[0]).states["embedding"]
    with torch.no_grad():
        bare = model.scan(chains[1]).states["embedding"]
    assert kept.requires_grad and not bare.requires_grad
    assert torch.equal(kept, bare)
    assert np.array_equal(chains[0].links["attention"], chains[1].links["attention"])
    assert (chains[0].links["attention"] != 0).any()


def test_without_events_the_states_are_those_before() -> None:
    log = LOGS["a hub"]
    model = new_model(log)()
    chain = chain_of(log, model, 0)
    assert torch.equal(model.scan(chain).states["embedding"], chain.base["embedding"])


def test_states_that_nobody_holds_are_gone() -> None:
    log = LOGS["a hub"]
    states = new_model(log)().scan(chain_of(log, new_model(log)(), 30)).states["embedding"]
    gone = weakref.ref(states)
    del states
    gc.collect()
    assert gone() is None


def heard_of(values: Sequence[Sequence[float]], before: Sequence[bool]) -> Heard:
    """What `greatest` is given of messages (k, width) whose attention is even."""
    count, rows = len(values), np.arange(len(values))
    stands = np.array(before)
    lists = Lists(np.array([0, count]), rows, stands, np.zeros(count, bool), rows)
    heard, share = np.zeros(count + GROUP, np.int32), np.full(count + GROUP, np.nan)
    found = listen(np.zeros(count), lists, rows, 0, count, np.empty(count), heard, share)
    assert found == stands.sum()
    np.testing.assert_allclose(share[:found], 1 / (found + EPSILON), rtol=1e-15)
    return np.array(values) / share[:1], heard, share, 0, found


@pytest.mark.parametrize("length", range(1, 10))
def test_the_greatest_message_is_found_with_its_place(length: int) -> None:
    values = np.random.default_rng(length).normal(size=(length, 5))
    before = [True] * length
    before[length // 2] = length == 1
    given = heard_of(values.tolist(), before)
    best, again, chosen = np.empty(5), np.empty(5), np.zeros(5, np.int32)
    choose(*given, best, chosen)
    greatest(*given, again)
    stands = values[before]
    np.testing.assert_allclose(best, stands.max(0), rtol=1e-15)
    assert best.tolist() == again.tolist()
    assert chosen.tolist() == stands.argmax(0).tolist()


def test_equal_messages_are_told_from_single_ones() -> None:
    given = heard_of(
        [[1.0, 5.0, 2.0], [3.0, 0.0, 2.0], [3.0, 1.0, 2.0], [9.0, 9.0, 9.0], [3.0, 4.0, 1.0]],
        [True, True, True, False, True],
    )
    best, chosen = np.empty(3), np.zeros(3, np.int32)
    choose(*given, best, chosen)
    np.testing.assert_allclose(best, [3.0, 5.0, 2.0], rtol=1e-15)
    assert (chosen & TIED != 0).tolist() == [True, False, True]
    assert (chosen & ~TIED).tolist() == [1, 0, 0]


def test_messages_that_are_not_numbers_lead_to_no_place_outside() -> None:
    model = new_model(LOGS["a hub"])()
    with torch.no_grad():
        model.neighbor.weight.fill_(torch.nan)
    chain = chain_of(LOGS["a hub"], model, 30)
    model.scan(chain).states["embedding"].sum().backward()  # type: ignore[no-untyped-call]
    assert model.structure.bias.grad is not None


@pytest.mark.parametrize("name", ["two kinds", "loops and initial links"])
def test_equal_messages_share_a_gradient_as_levels_do(name: str) -> None:
    log = LOGS[name]  # one in which messages of equal weight are heard

    def new() -> DyRep:
        model = strong_model(log, torch.float64, 4)()
        with torch.no_grad():
            model.neighbor.weight.zero_()  # every message is the bias
        return model

    right, ours = (run(log, new, executor, size=60) for executor in ("levels", "fused"))
    assert (ours.values["grad 0 neighbor.weight"] != 0).any()
    worst, where = right.worst(ours)
    assert worst <= 1e-12, where


@pytest.mark.parametrize("drift", [False, True], ids=["still", "drift"])
@pytest.mark.parametrize("intensity", ["linear", "bilinear"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=["64", "32"])
def test_losses_of_rows_are_those_of_views(
    dtype: torch.dtype, intensity: Literal["linear", "bilinear"], drift: bool
) -> None:
    kinds, n, m, num_base, num_rows, width = ("a", "b", "c"), 20, 4, 15, 40, 9
    model = strong(
        lambda: DyRep(width, kinds, intensity=intensity, drift=drift, num_negatives=m), dtype
    )
    assert isinstance(model, DyRep)
    model.constrain()
    if model.drift is not None:
        torch.nn.init.normal_(model.drift.weight, generator=torch.Generator().manual_seed(1))
    rng = np.random.default_rng(0)
    table = torch.from_numpy(rng.random((num_rows, width))).to(dtype).requires_grad_()
    kind, rows = rng.integers(0, 3, n), rng.integers(0, num_rows, (n, 2 + 2 * m))
    valid = rng.random((n, 2 * m)) < 0.7
    valid[:3] = False
    idle = rng.exponential(2.0, (n, 2 + 2 * m))
    other_src, other_dst = (slice(2, 2 + m), valid[:, :m]), (slice(2 + m, None), valid[:, m:])
    pairs = Pairs(
        num_base,
        kind,
        rows[:, :2],
        rows[:, other_src[0]],
        other_src[1],
        rows[:, other_dst[0]],
        other_dst[1],
        idle,
    )
    ours = model.losses_of(pairs, {"embedding": table})
    spans = (slice(0, 1), slice(1, 2), other_src[0], other_dst[0])
    real = np.concatenate([np.ones((n, 2), bool), valid], axis=1)
    gap = torch.ones(n, 2 + 2 * m)
    events = Events(torch.from_numpy(kind), gap[:, :2].double())
    views = [
        Nodes(
            {"embedding": table[torch.from_numpy(rows[:, span])]},
            gap[:, span],
            torch.from_numpy(idle[:, span]),
            torch.from_numpy(real[:, span]),
        )
        for span in spans
    ]
    views = [replace(view, embedded=model.embed(events, view)) for view in views]
    right = model.loss(events, *views)
    expected = model.expected_idle(events, views[0], views[1])
    assert ours.expected is not None
    # an exponential of g / psi makes the rounding of it relative
    torch.testing.assert_close(ours.expected, expected.detach(), rtol=30 * BOUNDS[dtype], atol=0.0)
    pull = torch.from_numpy(rng.normal(size=n) / n).to(dtype)
    told = ("omega.weight", "omega.bias", "psi", "interaction", "drift.weight")
    learned = [p for name, p in model.named_parameters() if name in told]
    assert len(learned) == 3 + (intensity == "bilinear") + drift
    found = [
        [losses.detach(), *torch.autograd.grad((losses * pull).sum(), [table, *learned])]
        for losses in (ours.losses, right)
    ]
    for mine, other in zip(*found, strict=True):
        if other.shape == table.shape:
            assert drift or not mine[:num_base].any()  # nothing asks for that of rows before
            mine, other = mine[num_base:], other[num_base:]
        bound = BOUNDS[dtype] * max(1.0, float(other.abs().max()))
        assert (mine - other).abs().max() <= bound


@pytest.mark.skipif(not COMPILED, reason="this is the run without compilation")
def test_the_loops_are_right_without_compilation() -> None:
    kept = "(every_row and loops) or (one_by_one and event) or (of_views and 64) or greatest"
    assert "passed" in run_uncompiled(__file__, "-k", kept)
