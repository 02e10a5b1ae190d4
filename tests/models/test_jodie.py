"""JODIE is what its equations say, with either decoder, from the states before every event."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neutronstream.models.jodie import JODIE
from neutronstream.models.time_encoding import Drift
from neutronstream.parallel import Replay
from neutronstream.stream import EventLog

from .memories import LOGS
from .naive_jodie import NaiveJODIE
from .twins import (
    assert_every_parameter_learns,
    assert_gradients_are_slopes,
    assert_levels_equal,
    assert_near,
    assert_scored_alike,
    replayed,
    strong,
    weights_of,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "link": {"num_negatives": 2},
    "link, shared": {"shared": True},
    "distance": {"decoder": "distance"},
    "distance, shared": {
        **{"decoder": "distance", "shared": True, "static_width": 4},
        **{"lambda_src": 0.5, "lambda_dst": 0.2},
    },
}


def new_model(log: EventLog, width: int = 6, **options: Any) -> Callable[[], JODIE]:
    features = log.events.features
    count = 0 if features is None else features.shape[1]
    return lambda: JODIE(width, log.kinds, num_features=count, **options)


def naive(log: EventLog, model: JODIE, replay: Replay) -> NaiveJODIE:
    codes = None
    if "static" in replay.state.names:
        codes = replay.state["static"].double().numpy().copy()
    return NaiveJODIE(
        *(log, weights_of(model), model.tables["state"], codes, model.lambdas),
        num_negatives=model.num_negatives,
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["64", "32"]
)
def test_the_model_is_that_of_the_equations(
    name: str, options: str, dtype: torch.dtype, bound: float
) -> None:
    log = LOGS[name]
    model = strong(new_model(log, **OPTIONS[options]), dtype)
    assert isinstance(model, JODIE)
    replay, segment, outcome = replayed(log, model)
    slow = naive(log, model, replay)
    assert_scored_alike(segment, outcome, slow, bound)
    outcome.commit()
    state = [slow.state(node) for node in range(log.num_nodes)]
    assert_near(replay.state["state"], state, bound)
    if slow.codes is not None:
        assert_near(replay.state["static"], slow.codes, 0.0)


@pytest.mark.parametrize("name", LOGS)
def test_gradients_are_the_slopes_of_the_slow_model(name: str) -> None:
    log = LOGS[name].head(40)
    model = strong(new_model(log))
    assert isinstance(model, JODIE)
    replay, _, outcome = replayed(log, model)
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert_gradients_are_slopes(model, lambda: naive(log, model, replay))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
def test_levels_equal_one_event_at_a_time(name: str, options: str) -> None:
    log = LOGS[name].head(100)
    assert_levels_equal(log, new_model(log, **OPTIONS[options]), size=60, num_candidates=3)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
def test_every_parameter_learns(name: str, options: str) -> None:
    log = LOGS[name].head(60)
    model = new_model(log, **OPTIONS[options])().double()
    assert_every_parameter_learns(log, model)


def test_a_state_of_one_number_can_be_followed_by_hand() -> None:
    """Sources become tanh(1/4 + u + 2 i), destinations tanh(1/2 + u - i + d), from zero."""
    log = EventLog.from_arrays(["a", "b"], ["b", "a"], [0, 100])
    model = JODIE(1).double()
    with torch.no_grad():
        for cell, weight, bias in zip(
            model.cells, ([1.0, 2.0, 0.0], [-1.0, 1.0, 1.0]), (0.25, 0.5), strict=True
        ):
            assert isinstance(cell, nn.Linear)
            cell.weight.copy_(torch.tensor([weight]))  # own, the other's, d
            cell.bias.fill_(bias)
    replay, _, outcome = replayed(log, model)
    outcome.commit()
    a, b = math.tanh(0.25), math.tanh(0.5)
    b_next = math.tanh(0.25 + b + 2 * a)
    a_next = math.tanh(0.5 - a + b + math.log(101) / 10)
    assert a_next == pytest.approx(0.827045, abs=1e-6)
    assert replay.state["state"].flatten().tolist() == pytest.approx([a_next, b_next], abs=1e-12)


def test_a_state_drifts_with_the_logarithm_of_its_rest() -> None:
    drift = Drift(2)
    with torch.no_grad():
        drift.weight.copy_(torch.tensor([0.5, -2.0]))
    state = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    idle = torch.tensor([0.0, math.e - 1.0], dtype=torch.float64)
    torch.testing.assert_close(drift(state, idle), torch.tensor([[1.0, 3.0], [1.5, -3.0]]))


def test_the_published_decoder_measures_what_it_expected_of_the_destination() -> None:
    """It expects the last partner of the source again; a new source expects nothing, 0."""
    log = EventLog.from_arrays(["a", "a", "c"], ["b", "b", "b"], [0, 1, 2])
    model = JODIE(2, decoder="distance", static_width=4).double()
    with torch.no_grad():
        model.predictor.bias.zero_()
        model.predictor.weight.copy_(torch.eye(6).repeat(1, 2))
        model.predictor.weight[:, :6] = 0.0  # nothing of the source itself
    replay, _, outcome = replayed(log, model)
    assert outcome.scores is not None
    code = replay.state["static"][1] / 2  # of b
    first = code.norm().item()  # the states are still zero
    assert -outcome.scores[0, 0].item() == pytest.approx(first)
    assert -outcome.scores[1, 0].item() == pytest.approx(0.0, abs=1e-9)
    assert -outcome.scores[2, 0].item() == pytest.approx(math.hypot(1.0, first))  # b has length 1


def test_lambdas_hold_states_back() -> None:
    """With nothing to predict the loss is what the states move, each from zero to length 1."""
    log = EventLog.from_arrays(["a", "c"], ["b", "d"], [0, 1])
    losses = []
    for weights in ((0.0, 0.0), (2.0, 0.5)):
        model = JODIE(
            3, decoder="distance", static_width=1, lambda_src=weights[0], lambda_dst=weights[1]
        ).double()
        with torch.no_grad():
            model.predictor.weight.zero_()
            model.predictor.bias.zero_()
        losses.append(replayed(log, model)[2].losses.detach())
    torch.testing.assert_close(losses[1] - losses[0], torch.full((2,), 2.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "`width` must be at least 1: got 0"),
        ({"static_width": 0}, "`static_width` must be at least 1: got 0"),
        ({"num_features": -1}, "`num_features` must be at least 0: got -1"),
        ({"lambda_dst": -0.5}, "`lambda_dst` must be at least 0: got -0.5"),
        ({"decoder": "dot"}, "`decoder` must be 'link' or 'distance': got 'dot'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JODIE(**options)


def test_a_log_without_the_features_that_were_promised_is_refused() -> None:
    with pytest.raises(ValueError, match="that of the log: got 2, but its events have 0"):
        replayed(LOGS["uci"].head(5), JODIE(4, num_features=2).double())
