"""The scans of memories (TGN, JODIE) give what their updates give, event by event."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.models import JODIE, TGN, DynamicGNN, Events, Level, can_scan
from neutronstream.models.kernels import elementary
from neutronstream.models.kernels.memory import in_batches
from neutronstream.models.kernels.transposes import add_turned, turn
from neutronstream.models.time_encoding import TimeEncoding
from neutronstream.parallel import Replay
from neutronstream.parallel.fused import FusedExecutor
from neutronstream.stream import EventLog

from ..data import SIX, real_log
from ..naive import random_log
from ..parallel.runs import run
from ..uncompiled import run_uncompiled
from .hostile import HOSTILE

MODELS: dict[str, Callable[[EventLog, int], DynamicGNN]] = {
    "tgn gru": lambda log, width: TGN(width, log.kinds),
    "tgn rnn": lambda log, width: TGN(width, log.kinds, memory="rnn", embedding="identity"),
    "jodie": lambda log, width: JODIE(width, log.kinds),
    "jodie shared": lambda log, width: JODIE(width, log.kinds, shared=True),
}

LOGS = {name: HOSTILE[name] for name in ("only loops", "one event", "late nodes")} | {
    "ties and a hub": random_log(4, 60, 12, ties=1.0, hub=0.9),
    "kinds and initial links": random_log(1, 80, 8, kinds=("a", "b"), loops=0.4, num_initial=6),
}


@pytest.mark.parametrize("log", LOGS.values(), ids=list(LOGS))
@pytest.mark.parametrize("name", MODELS)
def test_the_scan_equals_one_event_at_a_time(name: str, log: EventLog) -> None:
    def new() -> DynamicGNN:
        return MODELS[name](log, 6)

    right, ours = (
        run(log, new, executor, size=50, num_candidates=3, learning_rate=0.01)
        for executor in ("sequential", "fused")
    )
    ours.assert_near(right, 1e-12)


@pytest.mark.parametrize("name", ["kinds and initial links", "late nodes"])
def test_frequencies_have_the_gradient_that_they_have_event_by_event(name: str) -> None:
    log = LOGS[name]

    def new() -> DynamicGNN:
        return TGN(6, log.kinds, frequencies="learned", time_width=3, embedding="identity")

    right, ours = (run(log, new, executor, size=50) for executor in ("sequential", "fused"))
    ours.assert_near(right, 1e-12)
    assert right.values["grad 0 time.weight"].any()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["64", "32"]
)
@pytest.mark.parametrize("name", SIX)
@pytest.mark.parametrize("kind", ["tgn gru", "jodie"])
def test_on_real_logs_the_scan_equals_levels(
    kind: str, name: str, dtype: torch.dtype, bound: float
) -> None:
    log = real_log(name, 400)

    def new() -> DynamicGNN:
        return MODELS[kind](log, 16)

    levels, ours = (run(log, new, kind, dtype=dtype) for kind in ("levels", "fused"))
    ours.assert_near(levels, bound)


@pytest.mark.parametrize("name", MODELS)
def test_any_cut_of_the_stream_gives_the_same_bits(name: str) -> None:
    log = real_log("uci", 200)

    def new() -> DynamicGNN:
        return MODELS[name](log, 10)

    runs = [run(log, new, "fused", dtype=torch.float32, size=size) for size in (200, 64, 7, 1)]
    states = [key for key in runs[0].values if key.startswith("state")]
    assert states
    for key in states:
        assert all(torch.equal(runs[0].values[key], other.values[key]) for other in runs[1:]), key


def test_what_no_gradient_is_wanted_of_is_the_same() -> None:
    log = LOGS["late nodes"]

    def states(grad: bool) -> dict[str, Tensor]:
        def new() -> DynamicGNN:
            model = TGN(6, log.kinds)
            model.cell.requires_grad_(grad)
            model.time.requires_grad_(grad)
            return model

        return run(log, new, "fused").values

    with_gradient, without = states(True), states(False)
    assert torch.equal(with_gradient["state memory"], without["state memory"])
    assert with_gradient["grad 0 cell.weight_hh"].any()
    assert not without["grad 0 cell.weight_hh"].any()


def batches_of(ends: Any, num_base: int) -> list[list[int]]:
    """The events whose ends read these rows (n, 2), batch by batch."""
    n = len(ends)
    order, starts = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    writes, head = np.arange(num_base, num_base + 2 * n), np.full(num_base + 2 * n, -1)
    count = in_batches(np.array(ends), writes, head, order, starts)
    return [part.tolist() for part in np.split(order, starts[1:count])]


def test_events_that_read_nothing_of_one_another_stand_together() -> None:
    # (a, b), (b, c), (d, d), (c, d)
    assert batches_of([[0, 1], [5, 2], [3, 3], [7, 9]], 4) == [[0, 2], [1], [3]]


def test_what_can_wait_fills_the_batches_of_a_chain() -> None:
    # the first seven are apart, the others hang on the last of them, one on another
    ends = [[2 * i, 2 * i + 1] for i in range(7)] + [[27, 26], [29, 28]]
    assert batches_of(ends, 14) == [[6, 0, 1, 2], [7, 3, 4, 5], [8]]


@pytest.mark.parametrize("seed", range(8))
def test_batches_hold_every_event_once_after_what_it_reads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, nodes = 120, int(rng.choice([2, 5, 30, 300]))
    last, ends = np.arange(nodes), np.empty((n, 2), np.int64)
    writer: dict[int, int] = {}
    for event in range(n):
        pair = rng.integers(0, nodes, 2)
        ends[event] = last[pair]
        last[pair] = nodes + 2 * event + np.arange(2)
        writer |= {nodes + 2 * event: event, nodes + 2 * event + 1: event}
    batch_of = np.full(n, -1)
    for place, events in enumerate(batches_of(ends, nodes)):
        assert events and (batch_of[events] == -1).all()
        batch_of[events] = place
    assert (batch_of >= 0).all()
    for event, rows in enumerate(ends.tolist()):
        for row in rows:
            assert row < nodes or batch_of[writer[row]] < batch_of[event]


class Telling(TGN):
    """Tells something else, in which there is something to learn."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.volume = nn.Parameter(torch.ones(2, 1))

    def encode(self, events: Events) -> dict[str, Tensor]:
        return {"told": self.volume * super().encode(events)["told"].square()}


class OwnTime(TimeEncoding):
    """A code of its own."""

    def forward(self, seconds: Tensor) -> Tensor:
        return super().forward(seconds).square()


def with_own_time(log: EventLog) -> DynamicGNN:
    model = TGN(6, log.kinds)
    model.time = OwnTime(6)
    return model


@pytest.mark.parametrize("memory", ["gru", "rnn"])
@pytest.mark.parametrize("name", ["ties and a hub", "kinds and initial links"])
def test_what_a_model_tells_of_its_own_is_told_by_the_scan(name: str, memory: Any) -> None:
    log = LOGS[name]

    def new() -> DynamicGNN:
        return Telling(6, log.kinds, memory=memory)

    assert can_scan(new())
    right, ours = (run(log, new, kind, size=30) for kind in ("sequential", "fused"))
    ours.assert_near(right, 1e-12)
    assert ours.values["grad 0 volume"].all()


def test_a_code_of_time_of_its_own_is_told_by_the_scan() -> None:
    log = LOGS["late nodes"]
    right, ours = (run(log, lambda: with_own_time(log), kind) for kind in ("sequential", "fused"))
    ours.assert_near(right, 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_scan_can_be_gone_back_through_twice_and_leaves_what_it_is_given(name: str) -> None:
    log = LOGS["ties and a hub"]
    model = MODELS[name](log, 6).double()
    replay = Replay(log, model, dtype=torch.float64)
    engine = FusedExecutor(replay)
    plan = engine.prepare(replay.resolve(0, len(log)))
    chain = replace(plan.work, base=engine.base(plan), encoded=engine.encoded(plan))
    (states,) = model.scan(chain).states.values()
    before, given = states.detach().clone(), torch.randn_like(states)
    kept = given.clone()
    wanted = [p for n, p in model.named_parameters() if n.startswith(("cell", "time"))]
    first, second = (
        torch.autograd.grad(states, wanted, given, retain_graph=True, allow_unused=True)
        for _ in range(2)
    )
    one, ones = states.sum(), torch.ones_like(states)  # whose gradient is one number, or many
    of_sum = torch.autograd.grad(one, wanted, retain_graph=True, allow_unused=True)
    of_ones = torch.autograd.grad(states, wanted, ones, allow_unused=True)
    for pair in (*zip(first, second, strict=True), *zip(of_sum, of_ones, strict=True)):
        assert pair[0] is pair[1] is None or torch.equal(*pair)
    assert any(each is not None and each.any() for each in first)
    assert torch.equal(given, kept) and torch.equal(states, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_is_turned_in_blocks_and_in_what_is_left(dtype: Any) -> None:
    from numba import njit

    @njit
    def both(source: Any, target: Any, total: Any) -> None:
        turn(source, target)
        add_turned(source, total)

    draw = np.random.default_rng(0)
    for rows, columns in ((1, 1), (8, 8), (7, 17), (16, 3), (33, 24), (300, 101), (0, 5), (5, 0)):
        wide = draw.normal(size=(rows, columns + 3)).astype(dtype)
        source = wide[:, 1 : columns + 1]
        found = np.full((2, columns + 2, rows + 5), 7, dtype)
        slow = found.copy()
        both(source, *found)
        turn(source, slow[0])
        add_turned(source, slow[1])
        assert np.array_equal(found, slow)
        assert np.array_equal(slow[0, :columns, :rows], source.T)
        assert np.array_equal(slow[1, :columns, :rows], 7 + source.T)
        assert (slow[:, columns:] == 7).all() and (slow[:, :, rows:] == 7).all()


class Louder(TGN):
    """Changes what an update does, and keeps the scan of its base."""

    def message(self, level: Level) -> Tensor:
        return 2.0 * super().message(level)


class OtherScore(TGN):
    """Changes nothing that a scan stands for."""

    def score(self, *given: Any) -> Tensor:
        return 2.0 * super().score(*given)


class OwnLinear(nn.Linear):
    """A layer that may do anything."""


def test_a_model_that_changes_its_update_is_not_scanned() -> None:
    assert can_scan(TGN(4)) and can_scan(OtherScore(4)) and can_scan(JODIE(4))
    assert not can_scan(Louder(4))
    assert not can_scan(JODIE(4, decoder="distance"))
    other = JODIE(4)
    other.cells[0] = OwnLinear(9, 4)
    assert not can_scan(other)
    watched = TGN(4)
    watched.cell.register_forward_hook(lambda *given: None)
    assert not can_scan(watched)


def test_with_auto_a_changed_update_is_called() -> None:
    log = LOGS["late nodes"]
    right, ours = (run(log, lambda: Louder(6), kind) for kind in ("sequential", "auto"))
    ours.assert_near(right, 1e-12)
    with pytest.raises(ValueError, match="Louder has no fused scan"):
        run(log, lambda: Louder(6), "fused")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions_are_right_to_the_last_places(dtype: Any) -> None:
    from numba import njit

    @njit(error_model="numpy")
    def apply(x: Any, out: Any) -> None:
        for i in range(len(x)):
            out[0, i] = elementary.exponential(x[i])
            out[1, i] = elementary.sigmoid(x[i])
            out[2, i] = elementary.hyperbolic_tangent(x[i])

    x = np.concatenate([np.linspace(-86, 87, 20_001), [-1e4, 1e4, 0.0]]).astype(dtype)
    out = np.empty((3, len(x)), dtype)
    apply(x, out)
    wide = x.astype(np.longdouble)
    eps = np.finfo(dtype).eps
    inside = np.abs(wide) < 87
    right = np.exp(wide[inside])
    assert (np.abs(out[0, inside] - right) / right).max() <= 4 * eps
    assert np.abs(out[1] - 1 / (1 + np.exp(-np.clip(wide, -700, 700)))).max() <= 4 * eps
    assert np.abs(out[2] - np.tanh(wide)).max() <= 4 * eps
    assert np.isfinite(out).all()
    compiled = out.copy()
    nothing = np.full(3, np.nan, dtype)
    apply(nothing, out)
    assert np.isnan(out[:, :3]).all()
    for function, row in zip(
        (elementary.exponential, elementary.sigmoid, elementary.hyperbolic_tangent),
        compiled,
        strict=True,
    ):
        slow = np.array([function(value) for value in x[::50]])
        assert slow.dtype == dtype
        assert np.allclose(slow, row[::50], rtol=8 * eps, atol=4 * eps)


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="this is that run")
def test_the_scan_is_the_same_without_compilation() -> None:
    run_uncompiled(__file__, "-k", "equals_one_event and (only and loops or one and event)")
