"""`train --explain`: what a run would do is said, and nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from neutronstream.experiments import TrainConfig
from neutronstream.experiments.cli import app
from neutronstream.experiments.explain import evenly, explain, steps_of
from neutronstream.parallel import STAGES

from ..ranks import finish, start
from .small import hourly_log, settings


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_steps_looked_at_lie_evenly_over_the_log() -> None:
    assert evenly(10, 3) == [1, 5, 8]
    assert evenly(2, 40) == [0, 1]
    assert evenly(0, 40) == []
    assert len(evenly(1_000_000, 40)) == 40


def test_the_steps_are_those_of_training() -> None:
    log = hourly_log(100)
    config = TrainConfig(size=60, stride=40, batch_size=25)
    part, spans = steps_of(log, config)
    assert part is log
    # windows [0, 60) and [40, 100): a step ends where the next window starts
    first, second = [(0, 25), (25, 40), (40, 60)], [(40, 65), (65, 90), (90, 100)]
    assert spans == first + second
    split, spans = steps_of(log, TrainConfig(protocol="split", batch_size=25))
    assert len(split) < 70 and spans[0] == (0, 25) and spans[-1][1] == len(split)


def test_figures_of_one_rank_need_no_exchange() -> None:
    found = explain(hourly_log(), settings(model="tgn", size=120, stride=60), sample=3)
    assert found["ranks"] == 1 and found["traffic"] == {} and found["steps_looked_at"] == 3
    assert found["updates"]["shared_steps"] == 0
    assert found["updates"]["why"] == "one rank makes all updates"
    assert found["seconds"]["one_rank"] == found["seconds"]["each_rank"]
    assert all(seconds >= 0 for seconds in found["seconds"]["one_rank"].values())
    assert {"resolve", "scan", "score", "step"} <= found["seconds"]["one_rank"].keys() <= {*STAGES}
    shape = found["shape"]
    assert shape["events"] / shape["levels"] == pytest.approx(shape["events_a_level"])


def test_figures_of_supposed_ranks_have_bytes_and_both_ways() -> None:
    found = explain(hourly_log(), settings(model="dyrep", epochs=2, size=240), 4, sample=3)
    assert found["steps"] == 20  # ten an epoch
    assert found["updates"]["shared_steps"] + found["updates"]["redundant_steps"] == 3
    assert found["updates"]["events_of_the_busiest_rank"] <= 25
    # of 25 events with a loss and an expected time each a rank sends its quarter to three others
    assert found["traffic"]["scores"] == {"exchanges": 2.0, "bytes_sent": 3 * 25 * 2 * 4 / 4}
    assert found["seconds"]["each_rank"]["exchange"] > 0


def test_a_run_without_a_schedule_is_refused() -> None:
    for given, words in (
        ({"consistency": "batch"}, "a stale batch"),
        ({"executor": "sequential"}, "'sequential'"),
    ):
        with pytest.raises(ValueError, match=f"{words} has no schedule to be explained"):
            explain(hourly_log(), settings(**given))
    with pytest.raises(ValueError, match="the log holds no event"):
        explain(hourly_log(0), settings())


def test_the_command_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("demo", "--limit", 500, "--width", 8, "--quiet", "--explain")
    text = call(*small, "--ranks", 3).stdout
    for words in (
        "optimiser steps,",
        "events in",
        "executor fused: DyRep has a fused scan",
        "updates: shared in",
        "row gradients" if "row gradients" in text else "gradients",
        "exchange, predicted",
        "on 3 ranks",
    ):
        assert words in text
    found = json.loads(call(*small, "--ranks", 3, "--json").stdout)
    assert found["ranks"] == 3
    assert list(tmp_path.iterdir()) == []


def test_ranks_are_supposed_for_an_explanation_only() -> None:
    result = call("demo", "--ranks", 2)
    assert result.exit_code == 2
    assert "started by mpiexec" in result.stderr


def test_under_mpiexec_the_first_rank_explains_for_all() -> None:
    job = ("neutronstream", "train", "demo", "--limit", 300, "--width", 8, "--quiet", "--explain")
    code, out, err = finish(start("mpiexec", 2, Path("-m"), *job, "--json"), 240)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["ranks"] == 2
