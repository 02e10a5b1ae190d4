"""Levels give what one event at a time gives: losses, scores, states, links and gradients.

DyRep's states and links are the same bits; for the rest the bound is 1e-6 in float32 and 1e-12 in
float64, of the greatest value of each tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from neutronstream.models import DynamicGNN, DyRep
from neutronstream.parallel import LevelExecutor, Replay, pieces, scoring
from neutronstream.stream import EventLog

from ..data import real_log
from ..models.small import Attentive, Counter, Drawn, GruMemory, RecentMean, Spread
from ..naive import random_log
from .runs import Run, run

BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}


def both(
    log: EventLog, new_model: Callable[[], DynamicGNN], *, learning_rate: float = 0.0,
    dtype: torch.dtype = torch.float64, size: int = 200, num_candidates: int | None = None,
) -> tuple[Run, Run]:  # fmt: skip
    """The run by levels, and the one event by event."""
    first, second = (
        run(
            *(log, new_model, executor),
            dtype=dtype,
            size=size,
            num_candidates=num_candidates,
            learning_rate=learning_rate,
        )
        for executor in ("levels", "sequential")
    )
    return first, second


def assert_same(runs: tuple[Run, Run], bound: float) -> None:
    worst, where = runs[1].worst(runs[0])
    assert worst <= bound, f"{where} differs by {worst:.2e}"


STATES = {"state embedding", "state attention"}
REAL = {"uci": 400, "social_evolution": 300, "github": 300}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_levels_equal_one_event_at_a_time_on_real_logs(name: str, dtype: torch.dtype) -> None:
    log = real_log(name, REAL[name])
    runs = both(log, lambda: DyRep(16, log.kinds), dtype=dtype, num_candidates=4)
    assert_same(runs, BOUNDS[dtype])


@pytest.mark.parametrize("intensity", ["linear", "bilinear"])
@pytest.mark.parametrize("name", REAL)
def test_in_float32_at_full_width_states_are_the_same_bits(name: str, intensity: str) -> None:
    """Gradients are sums in another order: 1e-6 of their greatest value, or of 1 if it is less."""
    log = real_log(name, REAL[name])

    def new_model() -> DynamicGNN:
        return DyRep(64, log.kinds, intensity=intensity)  # type: ignore[arg-type]

    first, second = both(log, new_model, dtype=torch.float32)
    assert first.values.keys() >= STATES
    for key, value in second.values.items():
        difference = (value - first.values[key]).abs().max()
        if key in STATES:
            assert difference == 0.0
        assert difference <= 1e-6 * max(1.0, float(value.abs().max())), key


@pytest.mark.parametrize("size", [1, 7, 50, 333])
@pytest.mark.parametrize("width", [7, 16, 64])
def test_without_learning_states_do_not_depend_on_the_size_of_a_segment(
    width: int, size: int
) -> None:
    log = real_log("social_evolution", 400)

    def states(size: int) -> dict[str, torch.Tensor]:
        done = run(
            *(log, lambda: DyRep(width, log.kinds), "levels"), dtype=torch.float32, size=size
        )
        return {key: done.values[key] for key in STATES}

    whole = states(400)
    assert all(torch.equal(whole[key], value) for key, value in states(size).items())


@pytest.mark.parametrize("name", REAL)
def test_they_stay_equal_over_optimiser_steps(name: str) -> None:
    log = real_log(name, 300)

    def new_model() -> DynamicGNN:
        return DyRep(8, log.kinds, intensity="bilinear")

    runs = both(log, new_model, size=60, learning_rate=0.01, num_candidates=0)
    assert_same(runs, 1e-12)
    still = run(log, new_model, "levels", size=60)
    assert all(
        not torch.equal(still.values[name], value)
        for name, value in runs[0].values.items()
        if name.startswith("weight")
    )


STREAMS = {
    "ties": random_log(1, 80, 12, ties=1.0, loops=0.0, hub=0.0),
    "self loops": random_log(2, 80, 9, loops=0.5),
    "only self loops": random_log(3, 40, 5, loops=1.0),
    "a hub": random_log(4, 80, 30, hub=0.9),
    "one node": random_log(5, 20, 1),
    "two nodes": random_log(6, 30, 2),
    "one event": random_log(7, 1, 5),
    "two kinds": random_log(8, 80, 12, kinds=("AE", "talk")),
    "initial links": random_log(9, 80, 12, num_initial=30),
    "kinds and links": random_log(10, 80, 12, kinds=("talk", "AE"), num_initial=30),
    "a large sparse one": random_log(11, 100, 300, hub=0.0),
}


@pytest.mark.parametrize(
    ("name", "intensity"), [*((name, "linear") for name in STREAMS), ("two kinds", "bilinear")]
)
def test_levels_equal_one_event_at_a_time_on_random_streams(name: str, intensity: str) -> None:
    log = STREAMS[name]
    runs = both(
        log,
        lambda: DyRep(6, log.kinds, num_negatives=2, intensity=intensity),  # type: ignore[arg-type]
        size=50,
        num_candidates=3,
        learning_rate=0.01,
    )
    assert_same(runs, 1e-12)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_the_size_of_a_segment_does_not_matter_to_exactness(size: int) -> None:
    log = random_log(12, 60, 10, kinds=("AE", "talk"), num_initial=8)
    assert_same(both(log, lambda: DyRep(6, log.kinds), size=size, learning_rate=0.01), 1e-12)


@pytest.mark.parametrize("executor", ["levels", "sequential"])
def test_segments_do_not_change_losses_and_states_while_weights_stand_still(executor: str) -> None:
    log = random_log(13, 90, 10, kinds=("AE", "talk"), num_initial=8)
    runs = [run(log, lambda: DyRep(6, log.kinds), executor, size=n) for n in (1, 7, 200)]
    for other in runs[1:]:
        for name in ("losses", "state embedding", "state attention"):
            torch.testing.assert_close(
                runs[0].values[name], other.values[name], rtol=1e-12, atol=1e-12
            )


OTHERS = [GruMemory, RecentMean, Attentive, Spread, Drawn]


@pytest.mark.parametrize("new_model", OTHERS)
@pytest.mark.parametrize("name", STREAMS)
def test_other_models_are_exact_too(name: str, new_model: Callable[..., DynamicGNN]) -> None:
    log = STREAMS[name]
    factory = (lambda: GruMemory(5, len(log.kinds))) if new_model is GruMemory else new_model
    if new_model is not GruMemory and len(log.kinds) > 1:
        log = random_log(14, 80, 12)
    assert_same(both(log, factory, size=40, num_candidates=3, learning_rate=0.01), 1e-12)


@pytest.mark.parametrize("name", STREAMS)
def test_values_on_links_are_exact_for_sides_that_differ(name: str) -> None:
    runs = both(STREAMS[name], Counter, size=40, learning_rate=0.01)
    assert_same(runs, 1e-12)
    assert runs[0].values["state seen"][0] == 0  # the padding row


def test_of_a_self_loop_the_values_of_the_destination_stand() -> None:
    log = EventLog.from_arrays(["a"], ["a"], [1])
    for executor in ("levels", "sequential"):
        values = run(log, Counter, executor).values
        assert values["state seen"].tolist() == [[0.0], [2.0], [0.0]]
        assert values["state total"].item() == pytest.approx(0.2)


def test_ranking_in_parts_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    log = real_log("uci", 200)
    whole = run(log, lambda: DyRep(8), "levels", num_candidates=0)
    monkeypatch.setattr(scoring, "SCORE_BUDGET", 300)
    parts = run(log, lambda: DyRep(8), "levels", num_candidates=0)
    assert_same((parts, whole), 1e-12)


@pytest.mark.parametrize("budget", [0, 10**9])
def test_cutting_wide_levels_gives_the_same_run(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    log = random_log(11, 150, 400, hub=0.3)
    monkeypatch.setattr(pieces, "PADDING_BUDGET", budget)
    assert_same(both(log, lambda: DyRep(6), num_candidates=3), 1e-12)


@pytest.mark.parametrize("new_model", OTHERS)
def test_other_models_are_exact_on_a_real_log(new_model: Callable[[], DynamicGNN]) -> None:
    log = real_log("uci", 400)
    assert_same(both(log, new_model, num_candidates=0), 1e-12)
    # the gradient of GruMemory's `kinds`, one number, is a sum of some that are a hundred times it
    assert_same(both(log, new_model, dtype=torch.float32), 1e-5 if new_model is GruMemory else 1e-6)


def test_equal_times_are_taken_in_log_order() -> None:
    log = EventLog.from_arrays(["a", "b", "c"], ["b", "c", "d"], [1, 1, 1])
    backwards = EventLog.from_arrays(["c", "b", "a"], ["d", "c", "b"], [1, 1, 1])
    runs = both(log, lambda: DyRep(4))
    assert_same(runs, 1e-12)
    z = runs[0].values["state embedding"]
    turned = run(backwards, lambda: DyRep(4), "levels").values["state embedding"]
    assert not torch.allclose(z[[1, 2]], turned[[2, 1]], rtol=1e-3)  # b and c saw another past


def test_a_repeated_run_has_the_same_bits() -> None:
    log = real_log("uci", 400)
    for executor in ("levels", "sequential"):
        runs = [
            run(log, lambda: DyRep(16), executor, dtype=torch.float32, learning_rate=0.01)
            for _ in range(2)
        ]
        assert runs[0].equals(runs[1])


def test_candidates_change_nothing_but_the_scores() -> None:
    log = real_log("uci", 300)
    runs = [run(log, lambda: DyRep(8), "levels", num_candidates=m) for m in (None, 5, 0)]
    assert "scores" not in runs[0].values
    for other in runs[1:]:
        for name, value in runs[0].values.items():
            torch.testing.assert_close(value, other.values[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_exchanging_neighbouring_events_of_one_level_leaves_the_states(seed: int) -> None:
    first = list(range(0, 40, 2)), list(range(1, 40, 2))  # all nodes are known before the events
    src, dst = np.random.default_rng(seed).integers(0, 40, (2, 50)).tolist()
    log = EventLog.from_arrays(src, dst, [5] * 50, initial=first)
    plan = LevelExecutor(Replay(log, DyRep(6))).prepare(Replay(log, DyRep(6)).resolve(0, 50))
    level = plan.schedule.level.tolist()
    pairs = [i for i in range(0, 49, 2) if level[i] == level[i + 1]]
    assert pairs
    for i in pairs:
        src[i], src[i + 1] = src[i + 1], src[i]
        dst[i], dst[i + 1] = dst[i + 1], dst[i]
    other = EventLog.from_arrays(src, dst, [5] * 50, initial=first)
    z = [run(each, lambda: DyRep(6), "levels").values["state embedding"] for each in (log, other)]
    torch.testing.assert_close(z[0], z[1], rtol=1e-12, atol=1e-12)
