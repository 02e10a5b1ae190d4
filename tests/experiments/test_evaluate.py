"""Every event is scored once, before it is learned, and the report's metrics are those scores'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from neutronstream.experiments.evaluate import Evaluation
from neutronstream.experiments.fit import fit
from neutronstream.experiments.report import PARTS
from neutronstream.experiments.trainer import segments
from neutronstream.models import DyRep
from neutronstream.parallel import Replay
from neutronstream.stream import EventLog

from .small import WINDOWS, Recording, hourly_log, record, settings

LOG = hourly_log(160, seed=3)


def brute_force(run: Recording, positions: range) -> dict[str, float]:
    """The metrics of some events from their scores, in loops."""
    ranks, own, first = [], [], []
    for position in positions:
        score, *others = run.scores[position].tolist()
        allowed = [s for s, ok in zip(others, run.valid[position], strict=True) if ok]
        if allowed:
            greater = sum(other > score for other in allowed)
            equal = sum(other == score for other in allowed)
            ranks.append(1 + greater + equal / 2)
            own.append(score)
            first.append(allowed[0])
    truth = [1] * len(own) + [0] * len(first)
    return {
        "ap": float(average_precision_score(truth, own + first)),
        "auc": float(roc_auc_score(truth, own + first)),
        "mrr": sum(1 / rank for rank in ranks) / len(ranks),
        "hits@10": sum(rank <= 10 for rank in ranks) / len(ranks),
        "mar": sum(rank - 1 for rank in ranks) / len(ranks),
        "loss": sum(run.losses[position] for position in positions) / len(positions),
        "events": len(ranks),
    }


@pytest.mark.parametrize("candidates", [15, 0])
@pytest.mark.parametrize("way", WINDOWS)
def test_the_metrics_are_those_of_the_scores(way: str, candidates: int) -> None:
    run = record(LOG, settings(candidates=candidates, **WINDOWS[way]))
    spans = {"overall": range(len(LOG)), "last_half": range(len(LOG) // 2, len(LOG))}
    for part in PARTS:
        expected = brute_force(run, spans[part])
        assert run.report["metrics"]["dyrep"][part] == pytest.approx(expected, abs=1e-9)


def test_the_figures_of_a_window_are_those_of_the_events_it_adds() -> None:
    run = record(LOG, settings(**WINDOWS["fixed"]))
    for window in run.report["windows"]:
        expected = brute_force(run, range(window["test_start"], window["stop"]))
        found = {name: window[name] for name in expected if name != "events"}
        expected.pop("events")
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("way", WINDOWS)
def test_every_event_is_predicted_once_and_before_it_is_learned(way: str) -> None:
    run = record(LOG, settings(epochs=2, **WINDOWS[way]))
    assert sorted(run.scores) == list(range(len(LOG)))  # `record` refuses a second time
    learned = 0
    for step, start, stop in run.steps:
        if step == "predict":
            assert start >= learned, f"event {start} was predicted after it was learned"
        else:
            assert all(position in run.scores for position in range(start, stop))
            learned = max(learned, stop)
    assert learned == len(LOG)


def test_the_future_changes_no_score() -> None:
    """The first 120 events of a log are scored alike whatever follows them."""
    config = settings(edgebank_window=3600, **WINDOWS["fixed"])
    whole, head = record(LOG, config), record(LOG.head(120), config)
    for position in range(120):
        np.testing.assert_array_equal(whole.scores[position], head.scores[position])


def _evaluate(scorer: str, num_candidates: int, num_events: int = 2000) -> dict[str, Any]:
    """The table of a model that scores all candidates by a rule without skill."""
    log = hourly_log(num_events, 40, seed=1)
    config = settings(candidates=num_candidates)
    replay = Replay(log, DyRep(4, log.kinds))
    evaluation = Evaluation(log, config)
    generator = torch.Generator().manual_seed(0)
    for start, stop in segments(0, len(log), 500):
        segment = replay.resolve(start, stop, num_candidates=num_candidates)
        scores = torch.rand(len(segment), 1 + num_candidates, generator=generator)
        evaluation.update(
            segment, scores if scorer == "random" else torch.ones_like(scores), scores[:, 0]
        )
    evaluation.close_window()
    value: dict[str, Any] = evaluation.value()
    return value


def test_random_scores_rank_in_the_middle() -> None:
    m = 20
    found = _evaluate("random", m)["dyrep"]["overall"]
    assert found["events"] == 1999
    assert found["mar"] == pytest.approx(m / 2, abs=0.6)  # 4 standard errors: 6.06 / sqrt(1999)
    assert found["hits@10"] == pytest.approx(10 / (m + 1), abs=0.045)
    assert found["auc"] == pytest.approx(0.5, abs=0.04)


def test_equal_scores_rank_in_the_middle_exactly() -> None:
    found = _evaluate("constant", 20, 2000)["dyrep"]["overall"]
    assert found["mar"] == pytest.approx(10, abs=0.1)  # early events have fewer than 20 negatives
    assert found["mrr"] == pytest.approx(1 / 11, abs=0.01) and found["auc"] == 0.5


@pytest.mark.parametrize("few", [False, True])
def test_ap_and_auc_do_not_depend_on_how_many_candidates_are_ranked(few: bool) -> None:
    """Their negative is one drawn destination: not that which appeared first, nor the only one."""
    log = hourly_log(200, 25)
    if few:
        src, dst = log.events.src, log.events.dst
        log = EventLog.from_arrays(src, 100 + dst % 4, log.events.time)
    runs = [fit(log, settings(candidates=m, **WINDOWS["fixed"]))["metrics"] for m in (0, 3, 50)]
    for scorer, parts in runs[0].items():
        for part in PARTS:
            for name in ("ap", "auc"):
                found = [run[scorer][part][name] for run in runs]
                assert found == pytest.approx([parts[part][name]] * 3, abs=1e-9), (scorer, name)
    assert runs[0]["dyrep"]["overall"]["mar"] == runs[2]["dyrep"]["overall"]["mar"]  # all known


def test_baselines_are_scored_on_the_same_events_as_the_model() -> None:
    metrics = record(LOG, settings(**WINDOWS["adaptive"])).report["metrics"]
    assert set(metrics) == {
        *("dyrep", "edgebank", "edgebank_window", "popularity", "recent_partner")
    }
    for part in PARTS:
        assert len({scores[part]["events"] for scores in metrics.values()}) == 1
        assert all("loss" not in metrics[name][part] for name in metrics if name != "dyrep")


def test_a_part_without_events_has_no_figures() -> None:
    table = Evaluation(LOG, settings()).value()
    for scores in table.values():
        assert scores["overall"]["events"] == 0 and np.isnan(scores["overall"]["ap"])
    assert table["dyrep"]["overall"]["loss"] is None
