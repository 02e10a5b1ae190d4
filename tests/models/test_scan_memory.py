"""The scans of memories (TGN, JODIE) give what their updates give, event by event."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.models import JODIE, TGN, DynamicGNN, Level, can_scan
from neutronstream.models.kernels import elementary
from neutronstream.models.kernels.linear import add_product, add_products
from neutronstream.models.kernels.memory import by_level
from neutronstream.stream import EventLog

from ..data import SIX, real_log
from ..naive import random_log
from ..parallel.runs import run
from ..uncompiled import run_uncompiled

MODELS: dict[str, Callable[[EventLog, int], DynamicGNN]] = {
    "tgn gru": lambda log, width: TGN(width, log.kinds),
    "tgn rnn": lambda log, width: TGN(width, log.kinds, memory="rnn", embedding="identity"),
    "jodie": lambda log, width: JODIE(width, log.kinds),
    "jodie shared": lambda log, width: JODIE(width, log.kinds, shared=True),
}

HOSTILE = {
    "ties and a hub": random_log(4, 60, 12, ties=1.0, hub=0.9),
    "only loops": random_log(6, 30, 5, loops=1.0),
    "kinds and initial links": random_log(1, 80, 8, kinds=("a", "b"), loops=0.4, num_initial=6),
    "one event": random_log(9, 1, 5),
    "late nodes": random_log(10, 60, 300, hub=0.0),
}


@pytest.mark.parametrize("log", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("name", MODELS)
def test_the_scan_equals_one_event_at_a_time(name: str, log: EventLog) -> None:
    def new() -> DynamicGNN:
        return MODELS[name](log, 6)

    right, ours = (
        run(log, new, executor, size=50, num_candidates=3, learning_rate=0.01)
        for executor in ("sequential", "fused")
    )
    ours.assert_near(right, 1e-12)


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
    log = HOSTILE["late nodes"]

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


def test_events_that_read_nothing_of_one_another_stand_together() -> None:
    ends = np.array([[0, 1], [5, 2], [3, 3], [7, 9]])  # (a, b), (b, c), (d, d), (c, d)
    order, starts = np.empty(4, np.int64), np.empty(5, np.int64)
    writes, depth = np.arange(4, 12), np.zeros(12, np.int64)
    assert by_level(ends, writes, depth, order, starts) == 3
    assert order.tolist() == [0, 2, 1, 3]
    assert starts[:4].tolist() == [0, 2, 3, 4]


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
    log = HOSTILE["late nodes"]
    right, ours = (run(log, lambda: Louder(6), kind) for kind in ("sequential", "auto"))
    ours.assert_near(right, 1e-12)
    with pytest.raises(ValueError, match="Louder has no fused scan"):
        run(log, lambda: Louder(6), "fused")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_has_the_same_product_alone_and_beside_another(dtype: Any) -> None:
    draw = np.random.default_rng(0)
    for inputs, outputs in ((1, 1), (5, 3), (64, 64), (101, 33)):
        weight = draw.normal(size=(inputs, outputs)).astype(dtype)
        rows = draw.normal(size=(2, inputs)).astype(dtype)
        together, alone = np.ones((2, outputs), dtype), np.ones((2, outputs), dtype)
        add_products(weight, rows, together)
        for row in range(2):
            add_product(weight, rows[row], alone[row])
        assert np.array_equal(together, alone)
        right = 1.0 + rows.astype(np.float64) @ weight.astype(np.float64)
        assert np.abs(together - right).max() <= 50 * inputs * np.finfo(dtype).eps


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
