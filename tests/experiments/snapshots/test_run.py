"""Runs on snapshots: they learn, leak nothing, and killed and resumed are as if never killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.experiments import fit_snapshots
from neutronstream.experiments.snapshots.data import data_of, data_of_snapshots
from neutronstream.experiments.snapshots.trainer import SnapshotTrainer
from neutronstream.models.snapshots import (
    SNAPSHOT_MODELS,
    Propagator,
    SnapshotModel,
    State,
    build_snapshot_model,
)
from neutronstream.parallel.backends import make_propagator
from neutronstream.storage import Snapshot, SparseMatrix
from neutronstream.stream import CheckpointError, EventLog, Float64

from .small import NODES, clubs, groups, habit, settings, timeless, wave


def trained(source: Any, **given: Any) -> SnapshotTrainer:
    """A trainer after its epochs, with the weights of the last."""
    config = settings(**given)
    data = data_of(source, config)
    torch.manual_seed(0)

    def new(in_width: int, width: int) -> SnapshotModel:
        return build_snapshot_model(config.model, in_width, width, **config.options)

    trainer = SnapshotTrainer(data, config, make_propagator("single", data.snapshots), new)
    while not trainer.is_over:
        trainer.run_epoch()
    return trainer


def scores_of(trainer: SnapshotTrainer, step: int, part: str, answers: Float64) -> dict[Any, float]:
    """The score of each pair that was asked for."""
    src, dst, _ = trainer.task.candidates(step, part, dst_count(trainer))  # type: ignore[attr-defined]
    return {
        (int(source), int(node)): float(score)
        for source, nodes, row in zip(src, dst, answers, strict=True)
        for node, score in zip(nodes, row, strict=True)
    }


def dst_count(trainer: SnapshotTrainer) -> int:
    return trainer.config.candidates


@pytest.mark.parametrize("model", ["gconvgru", "evolvegcnh", "gcn"])
def test_the_last_snapshot_changes_no_prediction_before_it(model: str) -> None:
    given = {"period": "1d", "model": model, "candidates": 30}
    one, two = (trained(habit(last), **given) for last in (0, 7))
    assert not np.array_equal(one.data.pairs[-1], two.data.pairs[-1])
    for part in ("val", "test"):
        found, other = one.predict(part), two.predict(part)
        for step in list(found)[: None if part == "val" else -1]:
            assert np.array_equal(found[step], other[step])
    last = one.data.test[-1]  # its targets differ; a pair's score knows nothing of them
    left = scores_of(one, last, "test", one.predict("test")[last])
    right = scores_of(two, last, "test", two.predict("test")[last])
    common = left.keys() & right.keys()
    assert len(common) > 50
    assert all(left[pair] == right[pair] for pair in common)


@pytest.mark.parametrize("model", list(SNAPSHOT_MODELS))
def test_a_node_that_comes_last_changes_no_prediction_before_it(model: str) -> None:
    random = np.random.default_rng(1)
    src, dst = random.integers(0, 12, (2, 200))
    found = []
    for newcomer in (3, 12):
        src[-3:] = newcomer
        log = EventLog.from_arrays(src.copy(), dst, np.arange(200))
        given = {"period": 10, "model": model, "epochs": 2, "width": 4}
        one = trained(log, **given)
        losses = [epoch["train_loss"] for epoch in one.done.epochs]
        found.append((losses, one.predict("val") | one.predict("test")))
    (losses, before), (again, after) = found
    assert losses == pytest.approx(again, rel=0, abs=1e-13)  # one row more rounds differently
    for step in list(before)[:-1]:
        np.testing.assert_allclose(before[step], after[step], rtol=0, atol=1e-13)


def test_the_last_value_of_a_signal_changes_no_prediction() -> None:
    one, two = (trained(wave(last)) for last in (0.0, 5.0))
    for part in ("val", "test"):
        found, other = one.predict(part), two.predict(part)
        assert all(np.array_equal(found[step], other[step]) for step in found)


def test_validation_goes_on_from_the_state_that_the_past_leaves() -> None:
    trainer = trained(wave(), model="gconvgru")
    first = trainer.data.val.start
    with torch.no_grad():
        state: State = ()
        for step in range(first + 1):
            rows, state = trainer._forward(step, state)
        expected = trainer.task.answer(trainer.net["head"], rows, first, "val")
    assert np.array_equal(trainer.predict("val")[first], expected)


def test_a_longer_window_takes_fewer_and_other_steps() -> None:
    losses = {
        bptt: trained(wave(), model="gconvgru", bptt=bptt).done.epochs for bptt in (1, 4, 1000)
    }
    figures = {bptt: epochs[-1]["train_loss"] for bptt, epochs in losses.items()}
    assert len(set(figures.values())) == 3
    assert losses[1000][0]["train_loss"] > losses[1][0]["train_loss"]  # one step an epoch


LEARNS: dict[str, dict[str, Any]] = {
    "links": {"period": "1d", "width": 16, "names": 32, "undirected": True},
    "values": {"lags": 4},
    "classes": {"names": 8, "model": "gcn"},
}


@pytest.mark.parametrize("kind", LEARNS)
def test_a_model_learns_and_beats_what_needs_no_training(kind: str) -> None:
    makers: dict[str, Any] = {"links": groups, "values": wave, "classes": clubs}
    source = makers[kind]()
    config = settings(epochs=20, learning_rate=0.03, **LEARNS[kind])
    report = fit_snapshots(source, config)
    losses = [epoch["train_loss"] for epoch in report["epochs"]]
    assert losses[-1] < (0.9 if kind == "links" else 0.5) * losses[0]
    own, name = report["metrics"][config.model]["test"], report["metric"]
    for rival in ("persistence", "mean", "majority"):
        if rival in report["metrics"]:
            theirs = report["metrics"][rival]["test"][name]
            assert (own[name] > theirs) == report["higher_is_better"] and own[name] != theirs
    assert all(
        f"{config.model} beats " in line for line in report["verdict"] if "edgebank" not in line
    )


@pytest.mark.parametrize("model", SNAPSHOT_MODELS)
def test_every_model_in_the_box_runs(model: str) -> None:
    report = fit_snapshots(wave(), settings(model=model, epochs=1))
    assert np.isfinite(report["metrics"][model]["test"]["mse"])


def test_training_ends_when_validation_gets_no_better() -> None:
    report = fit_snapshots(wave(), settings(epochs=50, patience=2, learning_rate=0.0))
    assert [epoch["is_best"] for epoch in report["epochs"]] == [True, False, False]
    assert report["split"]["best_epoch"] == 1


def test_a_model_of_your_own_is_a_function_of_two_widths() -> None:
    class Last(SnapshotModel):
        def __init__(self, in_width: int, width: int) -> None:
            super().__init__()
            self.width = width
            self.linear = nn.Linear(in_width, width)

        def forward(
            self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
        ) -> tuple[Tensor, State]:
            return self.linear(x), ()

    report = fit_snapshots(wave(), settings(model="last"), model=Last)
    assert report["epochs"][-1]["train_loss"] < report["epochs"][0]["train_loss"]
    assert set(report["metrics"]) == {"last", "persistence", "mean"}


class Stop(Exception):
    """Where a run is killed."""


@pytest.mark.parametrize("model", ["gconvgru", "evolvegcno"])
def test_killed_after_any_epoch_and_resumed_is_as_if_never_killed(
    model: str, tmp_path: Path
) -> None:
    given = settings(period="1d", model=model, epochs=3, checkpoint_seconds=0)
    whole = fit_snapshots(habit(), given, tmp_path / "whole")
    for epoch in (1, 2):

        def stop(figures: dict[str, Any], at: int = epoch) -> None:
            if figures["epoch"] == at:
                raise Stop

        folder = tmp_path / f"killed{epoch}"
        with pytest.raises(Stop):
            fit_snapshots(habit(), given, folder, progress=stop)
        with pytest.raises(ValueError, match="holds an unfinished run"):
            fit_snapshots(habit(), given, folder)
        assert timeless(fit_snapshots(habit(), given, folder, resume=True)) == timeless(whole)


def test_a_finished_run_is_not_destroyed(tmp_path: Path) -> None:
    config = settings(epochs=1)
    report = fit_snapshots(wave(), config, tmp_path)
    text = (tmp_path / "report.json").read_text()
    with pytest.raises(ValueError, match="holds a finished run"):
        fit_snapshots(wave(), config, tmp_path)
    with pytest.raises(CheckpointError, match="`epochs` 1: got 2"):
        fit_snapshots(wave(), settings(epochs=2), tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="of another log"):
        fit_snapshots(wave(1.0), config, tmp_path, resume=True)
    with pytest.raises(ValueError, match="`model` must be one of"):
        fit_snapshots(wave(), settings(model="nonesuch"), tmp_path, force=True)
    assert (tmp_path / "report.json").read_text() == text
    assert fit_snapshots(wave(), config, tmp_path, resume=True) == json.loads(text) == report
    again = fit_snapshots(wave(), config, tmp_path, force=True)
    assert timeless(again) == timeless(report)


def test_the_page_shows_scores_bytes_and_balance(tmp_path: Path) -> None:
    fit_snapshots(habit(), settings(period="1d"), tmp_path)
    page = (tmp_path / "report.html").read_text()
    for words in ("gconvgru on the snapshots of habit", "Validation AP", "Balance", "edgebank"):
        assert words in page
    assert "<script" not in page and "http" not in page
    assert page.count("<svg") > 2


def test_a_loss_that_diverges_is_an_error() -> None:
    ones = np.ones((2, 1), np.float32)
    huge = np.array([1e200, 0])
    matrix = SparseMatrix.from_edges([0], [1], 2)
    data = data_of_snapshots([Snapshot(matrix, ones, huge) for _ in range(9)], settings())
    with pytest.raises(ValueError, match="the loss is inf in epoch 1 at step 0: the model"):
        fit_snapshots(data, settings())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "gconvgruu"}, "did you mean 'gconvgru'"),
        ({"options": {"order": 3}}, "has no option 'order': did you mean 'orders'"),
        ({"backend": "tensors"}, "`backend` must be one of single"),
    ],
)
def test_bad_settings_get_one_clear_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_snapshots(wave(), settings(**given))


def test_nodes_without_a_link_stay_in_every_snapshot() -> None:
    data = data_of(habit(), settings(period="1d"))
    assert {snapshot.num_nodes for snapshot in data.snapshots} == {NODES}
