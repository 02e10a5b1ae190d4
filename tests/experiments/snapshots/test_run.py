"""Runs on snapshots: they learn, leak nothing, and killed and resumed are as if never killed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.experiments import fit_snapshots
from neutronstream.experiments.snapshots.data import data_of, data_of_snapshots
from neutronstream.experiments.snapshots.page import render_snapshots
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


class Last(SnapshotModel):
    """Somebody's own: it looks at no neighbour."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(in_width, width)

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        return self.linear(x), ()


class Other(Last):
    """The same weights, but another model."""

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        return -self.linear(x), ()


class Pressed(Last):
    """Somebody presses Ctrl-C in the middle of its second epoch."""

    calls = 0

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        Pressed.calls += self.training
        if self.training and Pressed.calls == STEPS:
            raise KeyboardInterrupt
        return super().forward(propagator, snapshot, x, state)


class Breaking(Last):
    """Its rows are infinite from the fourth snapshot on, after an optimiser step."""

    def forward(
        self, propagator: Propagator, snapshot: Snapshot, x: Tensor, state: State = ()
    ) -> tuple[Tensor, State]:
        seen = state[0] + 1 if state else torch.ones(1)
        return self.linear(x) / (seen < 4), (seen,)


STEPS = 18 + 7  # an epoch of 18 and a part of the next


def test_a_model_of_your_own_is_a_function_of_two_widths() -> None:
    for config in (settings(model="last"), settings()):  # the name is that of the class
        report = fit_snapshots(wave(), config, model=Last)
        assert report["epochs"][-1]["train_loss"] < report["epochs"][0]["train_loss"]
        assert set(report["metrics"]) == {"last", "persistence", "mean"}
        assert report["config"]["model"] == "last"


@pytest.mark.parametrize(
    ("given", "model", "error", "message"),
    [
        ({"model": "gcn"}, Last, ValueError, "got 'gcn', which is that of one in the box"),
        ({"model": "mean"}, Last, ValueError, "got 'mean', which is that of a baseline"),
        ({"options": {"orders": 2}}, Last, ValueError, "`options` are for the models in the box"),
        ({}, Last(4, 6), TypeError, "must be a class or a function .*: got Last"),
        ({}, "gcn", TypeError, "must be a class or a function .*: got str"),
    ],
)
def test_what_does_not_fit_a_model_of_your_own_is_named(
    given: dict[str, Any], model: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit_snapshots(wave(), settings(**given), model=model)


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_goes_on_with_the_class_that_it_was_begun_with(tmp_path: Path, ended: bool) -> None:
    config = settings(model="own", checkpoint_seconds=0)

    def stop(figures: dict[str, Any]) -> None:
        if not ended:
            raise Stop

    with pytest.raises(Stop) if not ended else nullcontext():
        fit_snapshots(wave(), config, tmp_path, model=Last, progress=stop)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(
        CheckpointError, match=r"is of a run of .*test_run\.Last: got .*\.Other as `"
    ):
        fit_snapshots(wave(), config, tmp_path, model=Other, resume=True)
    if not ended:  # the same class with other weights
        with pytest.raises(CheckpointError, match=r"weights in .* do not fit the model: resume wi"):
            fit_snapshots(
                *(wave(), config, tmp_path), model=lambda wide, width: Last(wide, 9), resume=True
            )
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    resumed = fit_snapshots(wave(), config, tmp_path, model=Last, resume=True)
    assert timeless(resumed) == timeless(fit_snapshots(wave(), config, model=Last))
    assert resumed["model_class"].endswith("test_run.Last")


def test_ctrl_c_keeps_the_last_whole_epoch(tmp_path: Path) -> None:
    config = settings(model="own")  # a checkpoint every 30 seconds
    Pressed.calls = 0
    with pytest.raises(KeyboardInterrupt) as press:
        fit_snapshots(wave(), config, tmp_path, model=Pressed)
    assert press.value.__notes__ == [f"`resume=True` goes on with {tmp_path}, after 1 of 3 epochs"]
    seen: list[int] = []
    resumed = fit_snapshots(
        *(wave(), config, tmp_path),
        model=Pressed,
        resume=True,
        progress=lambda figures: seen.append(figures["epoch"]),
    )
    assert seen == [2, 3]
    whole = fit_snapshots(wave(), config, model=Last)
    for report in (whole, resumed):
        del report["model_class"]
    assert timeless(resumed) == timeless(whole)


def test_ctrl_c_before_an_epoch_is_whole_keeps_its_beginning(tmp_path: Path) -> None:
    Pressed.calls = STEPS - 3
    with pytest.raises(KeyboardInterrupt) as press:
        fit_snapshots(wave(), settings(model="own"), tmp_path, model=Pressed)
    assert press.value.__notes__ == [f"`resume=True` goes on with {tmp_path}, from its start"]
    assert fit_snapshots(wave(), settings(model="own"), tmp_path, model=Pressed, resume=True)


NEVER = "no pair has a destination that was one before, and negatives to be ranked among"


def test_a_figure_that_is_not_defined_is_a_dash_with_its_reason() -> None:
    log = EventLog.from_arrays([0] * 9, [1] * 9, range(9))  # one destination: no negative
    report = fit_snapshots(log, settings(count=6, epochs=1))
    assert report["verdict"] == [f"AP of the test part is -: {NEVER}, so nothing is compared"]
    assert report["notes"] == [
        f"AP of the validation part is -: {NEVER}, so the weights of the last epoch were tested"
    ]
    assert "nan" not in json.dumps(report).lower()
    assert "epoch None" not in render_snapshots(report)


def test_values_at_the_end_of_float32_are_learned_without_a_warning() -> None:
    far = replace(wave(), values=wave().values * np.float32(8e37))
    report = fit_snapshots(far, settings(epochs=1))
    assert np.isfinite(report["metrics"]["gconvgru"]["test"]["mae_in_units"])
    more = replace(wave(), values=wave().values.astype(float) * 1e39)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`values` must be finite and at most 3.4e\+38"):
        fit_snapshots(more, settings())


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
    with pytest.raises(ValueError, match="the loss is inf in epoch 1 at step 0: features or targ"):
        fit_snapshots(data, settings())
    with pytest.raises(ValueError, match=r"in epoch .*: the model diverges, try a smaller `lear"):
        fit_snapshots(wave(), settings(), model=Breaking)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "gconvgruu"}, "did you mean 'gconvgru'"),
        ({"options": {"order": 3}}, "has no option 'order': did you mean 'orders'"),
        ({"backend": "tensors"}, "must be one of auto, single.*did you mean .tensor."),
        (
            {"model": "gat", "width": 1},
            "`width` must be a multiple of the model's `heads`.*width 1",
        ),
        ({"model": "gat", "options": {"heads": 0}}, "`heads` must be at least 1: got 0"),
        (
            {"model": "a3tgcn", "options": {"periods": "x"}},
            "'periods' of 'a3tgcn' must be int: got",
        ),
        ({"lags": 28}, "there are 2 steps .*: take fewer `lags`, or a signal of more than 30 st"),
    ],
)
def test_bad_settings_get_one_clear_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_snapshots(wave(), settings(**given))


def test_nodes_without_a_link_stay_in_every_snapshot() -> None:
    data = data_of(habit(), settings(period="1d"))
    assert {snapshot.num_nodes for snapshot in data.snapshots} == {NODES}
