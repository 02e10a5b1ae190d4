"""`fit` predicts, then trains, window by window, and windows add nothing but what they promise."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream import __version__
from neutronstream.experiments import TrainConfig
from neutronstream.experiments.compare import compare
from neutronstream.experiments.fit import fit
from neutronstream.experiments.summary import make_report
from neutronstream.experiments.trainer import Trainer, segments
from neutronstream.models.threads import count_threads
from neutronstream.stream import EventLog, Window, read_log

from .small import (
    WINDOWS,
    assert_same_bits,
    hourly_log,
    numbers,
    path_of,
    plain_pass,
    record,
    settings,
    untimed,
)

LOG = hourly_log(180)


# -- windows change nothing but what is learned ----------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 500])
@pytest.mark.parametrize("way", WINDOWS)
def test_without_learning_any_window_gives_the_states_of_a_plain_pass(
    way: str, batch_size: int
) -> None:
    """Bit for bit, however segments are cut; a score is a batched product and may round apart."""
    log = LOG if batch_size > 1 else LOG.head(70)
    config = settings(learning_rate=0.0, batch_size=batch_size, epochs=2, **WINDOWS[way])
    run = record(log, config)
    whole = plain_pass(log, config, [(0, len(log))])
    assert_same_bits(run.states, whole.states)
    assert run.scores.keys() == whole.scores.keys()
    for position, scores in whole.scores.items():
        np.testing.assert_allclose(run.scores[position], scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", WINDOWS)
def test_in_double_precision_they_agree_to_rounding(way: str) -> None:
    config = settings(learning_rate=0.0, batch_size=7, dtype="float64", **WINDOWS[way])
    run, whole = record(LOG, config), plain_pass(LOG, config, [(0, len(LOG))])
    for name, states in whole.states.items():
        torch.testing.assert_close(run.states[name], states, rtol=1e-12, atol=1e-12)
    for position, scores in whole.scores.items():
        np.testing.assert_allclose(run.scores[position], scores, rtol=1e-12, atol=1e-12)


def test_without_learning_and_overlap_scores_are_those_of_a_plain_pass_bit_for_bit() -> None:
    config = settings(learning_rate=0.0, **WINDOWS["tumbling"])
    run, plain = record(LOG, config), plain_pass(LOG, config, path_of(LOG, config))
    for position, scores in plain.scores.items():
        np.testing.assert_array_equal(run.scores[position], scores)


def test_a_stride_of_the_size_is_plain_batching() -> None:
    config = settings(size=50, stride=50, batch_size=20)
    run = record(LOG, config)
    torch.manual_seed(config.seed)
    trainer = Trainer(LOG, config)
    losses = []
    for start in range(0, len(LOG), 50):
        total = 0.0
        for a, b in segments(start, min(start + 50, len(LOG)), 20):
            outcome = trainer.executor.run(trainer.executor.prepare(trainer.replay.resolve(a, b)))
            loss = outcome.losses.mean()
            trainer.optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            assert all(weight.grad is not None for weight in trainer.model.parameters())
            torch.nn.utils.clip_grad_value_(trainer.model.parameters(), config.clip)
            trainer.optimiser.step()
            trainer.model.constrain()
            outcome.commit()
            total += float(loss.detach()) * (b - a)
        losses.append(total / (min(start + 50, len(LOG)) - start))
    assert [window["train_loss"] for window in run.report["windows"]] == losses
    assert_same_bits(run.weights, trainer.model.state_dict())
    assert_same_bits(run.states, trainer.replay.state.to_arrays())


def test_learning_changes_the_weights_and_lowers_the_loss() -> None:
    config = settings(size=60, stride=60, epochs=8, learning_rate=0.01)
    run, still = record(LOG, config), record(LOG, settings(size=60, stride=60, learning_rate=0.0))
    assert all(not torch.equal(w, still.weights[name]) for name, w in run.weights.items())
    learned, start = (r.report["metrics"]["dyrep"]["last_half"]["loss"] for r in (run, still))
    assert learned < start - 0.1


# -- the same run again, and by other means --------------------------------------------------------


@pytest.mark.parametrize("way", WINDOWS)
def test_two_runs_of_one_seed_have_the_same_bits(way: str) -> None:
    first, second = (record(LOG, settings(epochs=2, **WINDOWS[way])) for _ in range(2))
    assert untimed(first.report) == untimed(second.report)
    assert_same_bits(first.weights, second.weights)
    assert_same_bits(first.states, second.states)
    other = record(LOG, settings(epochs=2, seed=1, **WINDOWS[way]))
    assert untimed(other.report)["metrics"] != untimed(first.report)["metrics"]


def test_a_run_leaves_the_random_numbers_and_threads_of_the_caller_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    fit(LOG.head(20), settings(threads=threads + 1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert count_threads() == 1  # of compiled loops


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", ["fixed", "adaptive"])
def test_both_executors_give_the_same_report(way: str, dtype: str) -> None:
    tolerance = 1e-6 if dtype == "float32" else 1e-12
    reports = [
        numbers(untimed(fit(LOG, settings(executor=name, epochs=2, dtype=dtype, **WINDOWS[way]))))
        for name in ("levels", "sequential")
    ]
    apart = ("/levels", "/config")  # how it was done, not what came out
    left, right = (
        {k: v for k, v in r.items() if not k.startswith(apart) and "level_width" not in k}
        for r in reports
    )
    assert left.keys() == right.keys()
    for path, value in left.items():
        if isinstance(value, float):
            assert right[path] == pytest.approx(value, rel=tolerance, abs=tolerance), path
        else:
            assert right[path] == value, path


def test_a_last_segment_of_one_event_moves_the_weights_alike_in_both_executors() -> None:
    """Its event updates states that no loss reads: gradients are 0 there, and never missing."""
    log = LOG.head(41)
    levels, sequential = (
        record(log, settings(executor=name, dtype="float64", size=41, batch_size=20, epochs=3))
        for name in ("levels", "sequential")
    )
    for name, weight in levels.weights.items():
        torch.testing.assert_close(sequential.weights[name], weight, rtol=1e-12, atol=1e-12)


def test_every_neighbourhood_may_be_checked_on_the_way() -> None:
    plain, checked = (fit(LOG, settings(check=c, **WINDOWS["fixed"])) for c in (False, True))
    assert untimed(plain)["metrics"] == untimed(checked)["metrics"]


# -- small and odd logs ----------------------------------------------------------------------------

ODD: dict[str, tuple[EventLog, dict[str, Any]]] = {
    "one event": (EventLog.from_arrays([1], [2], [7]), {}),
    "one self loop": (EventLog.from_arrays([1], [1], [7]), {}),
    "two events": (EventLog.from_arrays([1, 1], [2, 3], [7, 7]), {"size": 1, "stride": 1}),
    "one node": (EventLog.from_arrays([3] * 9, [3] * 9, range(9)), {"size": 4, "stride": 2}),
    "all ties": (EventLog.from_arrays([1, 2, 3, 4] * 9, [2, 3, 4, 1] * 9, [5] * 36), {"size": 12}),
    "all ties, by duration": (
        EventLog.from_arrays([1, 2, 3, 4] * 9, [2, 3, 4, 1] * 9, [5] * 36),
        {"size": "1h", "stride": "30m"},
    ),
    "shorter than the window": (hourly_log(30), {"size": 500, "stride": 100}),
    "gaps": (
        EventLog.from_arrays([1, 2, 3, 4] * 5, [2, 3, 4, 1] * 5, sorted([0, 5, 10**7, 10**9] * 5)),
        {"size": "1d", "stride": "6h"},
    ),
    "steps": (
        EventLog.from_arrays([1, 2, 3, 4] * 5, [2, 3, 4, 1] * 5, range(20), unit="step"),
        {"size": 8, "stride": 4},
    ),
    "batches of one": (hourly_log(12), {"size": 5, "stride": 2, "batch_size": 1}),
}


@pytest.mark.parametrize("candidates", [5, 0])
@pytest.mark.parametrize("case", ODD)
def test_small_and_odd_logs_have_a_report(case: str, candidates: int) -> None:
    log, given = ODD[case]
    report = fit(log, settings(candidates=candidates, **given))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    counts = report["counts"]
    assert counts["read"] == counts["applied"] == len(log) and not counts["late"]
    assert sum(window["events"] for window in report["windows"]) >= sum(
        window["stop"] - window["test_start"] for window in report["windows"]
    ) - len(log)
    scored = report["metrics"]["dyrep"]["overall"]
    if log.num_nodes < 3:
        assert scored["events"] == 0 and scored["ap"] is None and scored["mrr"] is None
        assert any("not in the metrics" in note for note in report["notes"])
    else:
        assert scored["events"] > 0 and 0 < scored["mrr"] <= 1
    assert np.isfinite(scored["loss"])


def test_what_is_no_log_or_no_configuration_is_refused_with_what_makes_one() -> None:
    given: Any = ("messages.csv", TrainConfig())
    with pytest.raises(TypeError, match=r"as `read_log\(path\)` and .* got str 'messages.csv'"):
        fit(*given)
    with pytest.raises(TypeError, match=r"as `read_log\(path\)` and .* got str 'messages.csv'"):
        compare(given[0], "tgn")
    given = (LOG, {"model": "tgn"})
    with pytest.raises(TypeError, match=r"as `TrainConfig\(model=...\)` and .* got dict {'model'"):
        fit(*given)


def test_a_log_without_events_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no event: there is nothing to train on"):
        fit(EventLog.from_arrays([], [], []), settings())


def test_a_duration_has_no_meaning_where_ticks_are_steps() -> None:
    log = EventLog.from_arrays([1, 2], [2, 3], [0, 1], unit="step")
    with pytest.raises(ValueError, match="`size` must be in ticks: a step of this log has no"):
        fit(log, settings(size="1d"))


@pytest.mark.parametrize("poisoned", ["omega.bias", "recurrence.weight"])
def test_a_diverged_model_is_one_clear_error(poisoned: str) -> None:
    config = settings(size=60, stride=60)
    torch.manual_seed(0)
    trainer = Trainer(LOG, config)
    trainer.predict(Window(0, 60, 0), 0)
    with torch.no_grad():
        trainer.model.get_parameter(poisoned).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the loss became nan in window \[0, 60\): try a smaller"):
        trainer.train(Window(0, 60, 0), None)
    with pytest.raises(ValueError, match=r"scores must not be NaN.*try a smaller learning rate"):
        trainer.predict(Window(0, 120, 60), 60)


def test_a_huge_learning_rate_saturates_but_never_gives_nan() -> None:
    """States are sigmoids and intensities are clamped, so there the loss is bad but finite."""
    text = json.dumps(fit(LOG, settings(learning_rate=1e3, **WINDOWS["fixed"])), allow_nan=False)
    assert json.loads(text)["metrics"]["dyrep"]["last_half"]["loss"] > 5


def test_a_device_or_folder_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`device` must be one that is here \(cpu.*got 'cuda:99'"):
        fit(LOG, settings(device="cuda:99"))
    with pytest.raises(ValueError, match=r"`folder` must name a folder, or be None.*got ''"):
        fit(LOG, settings(), "")


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"`model` must be one of .*dyrep.*: got 'rnn'"):
        fit(LOG, settings(model="rnn"))


# -- nothing is lost, nothing piles up -------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 30])
def test_what_was_read_is_applied_or_put_aside(tmp_path: Path, limit: int | None) -> None:
    rows = [f"{i % 7},{7 + i % 5},{60 * i}" for i in range(50)]
    rows[10], rows[20], rows[40] = "3,x", "1,2,soon", ",4,99"
    (tmp_path / "log.csv").write_text("src,dst,time\n" + "\n".join(rows) + "\n")
    aside = tmp_path / "aside.csv"
    log = read_log(tmp_path / "log.csv", quarantine=aside, limit=limit)
    counts = fit(log, settings(size=20, stride=10))["counts"]
    bad = len(aside.read_text().splitlines()) - 1
    assert bad == (3 if limit is None else 2)
    assert counts == {"read": limit or 50, "applied": (limit or 50) - bad, "late": 0} | {
        "quarantined": bad
    }


def test_there_is_no_report_where_events_were_lost() -> None:
    config = settings(size=20, stride=20)
    trainer = Trainer(LOG.head(40), config)
    trainer.predict(Window(0, 20, 0), 0)
    with pytest.raises(AssertionError, match=r"events were lost.*'read': 40, 'applied': 20"):
        make_report(trainer)


def test_the_head_of_a_log_counts_only_itself() -> None:
    counts = fit(LOG.head(40), settings(size=20, stride=10))["counts"]
    assert counts == {"read": 40, "applied": 40, "late": 0, "quarantined": 0}


@pytest.mark.parametrize("executor", ["levels", "sequential"])
@pytest.mark.parametrize(
    ("way", "more"), [("fixed", {}), ("tumbling", {"size": 24}), ("adaptive", {"rate": 0.3})]
)
def test_nothing_piles_up_over_windows(way: str, more: dict[str, Any], executor: str) -> None:
    """Marks, old rows and tensors: a graph that stopped growing needs no more of them."""
    log = EventLog.from_arrays(list(range(12)) * 25, [*range(1, 12), 0] * 25, range(300))
    config = settings(executor=executor, batch_size=20, **(WINDOWS[way] | more))
    journal, marks, tensors = [], [], []

    class Counted(Trainer):
        def train(self, window: Window, next_start: int | None) -> dict[str, Any]:
            figures = super().train(window, next_start)
            state = self.replay.state
            journal.append(state.num_journaled)
            marks.append(len(state._marks))
            if len(marks) in (4, 12):
                gc.collect()
                tensors.append(sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects()))
            return figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neutronstream.experiments.fit.Trainer", Counted)
        fit(log, config)
    assert len(marks) >= 12
    assert set(marks) == {1}
    assert max(journal) <= 2 * (log.num_nodes + 2 * 12 + 1)  # a copy of each row, and of links
    first, second = tensors
    assert second <= first + 8  # those of one journal entry more or less


def test_progress_counts_up_to_the_end() -> None:
    seen: list[dict[str, Any]] = []
    report = fit(LOG, settings(**WINDOWS["fixed"]), progress=seen.append)
    assert len(seen) == len(report["windows"])
    assert [s["stop"] for s in seen] == [w["stop"] for w in report["windows"]]
    done = [s["done_events"] for s in seen]
    assert done == sorted(set(done)) and done[-1] == seen[-1]["total_events"]


def test_the_report_names_its_settings(tmp_path: Path) -> None:
    config = settings(seed=3, **WINDOWS["fixed"])
    report = fit(LOG, config, tmp_path / "run")
    assert TrainConfig(**report["config"]) == config
    assert report["ranking"]["data_checksum"] == LOG.checksum
    assert {"python", "torch", "numpy"} <= report["versions"].keys()
    assert report["versions"]["neutronstream"] == __version__  # installed or not
    stored = json.loads((tmp_path / "run" / "report.json").read_text())
    assert stored == report
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        *(".lock", "checkpoints", "config.toml", "metrics.parquet", "report.html", "report.json")
    }
