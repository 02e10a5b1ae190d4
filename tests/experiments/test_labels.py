"""Labels are read from the states before an event, and the test part chooses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner, Result

from neutronstream.datasets import messages
from neutronstream.experiments import labels as module
from neutronstream.experiments.cli import app
from neutronstream.experiments.keeper import below
from neutronstream.experiments.labels import (
    STRENGTHS,
    embed_sources,
    label_run,
    label_task,
    read_labels,
    score_labels,
    trained_model,
    trivial_features,
)
from neutronstream.experiments.learn import make_executor, make_model
from neutronstream.storage import read_checkpoint
from neutronstream.stream import Bool, CheckpointError, EventLog, Float64

from .small import settings

CONFIG = settings(protocol="split", width=6, epochs=2, batch_size=40)
PARTS = {"train": slice(0, 600), "val": slice(600, 800), "test": slice(800, 1000)}


def labelled(num_events: int = 300, seed: int = 3) -> EventLog:
    """A generated log whose label says that its source has had five events or more."""
    log = messages(num_events, seed=seed)
    count = np.expm1(trivial_features(log)["earlier_events"][:, 0]).round()
    return replace(log, events=replace(log.events, label=(count >= 5).astype(np.int64)))


LOG = labelled()


def _columns(seed: int = 0) -> tuple[Bool, Float64]:
    """Rare labels and three features, the first of which says something of them."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(1000, 3)) * [1.0, 50.0, 0.1] + [0.0, 7.0, 0.0]
    labels = features[:, 0] + rng.normal(size=1000) > 2.5
    return labels, features


# -- scores ----------------------------------------------------------------------------------------


def test_the_score_is_that_of_a_balanced_logistic_regression_chosen_on_validation() -> None:
    labels, features = _columns()
    train, val, test = (PARTS[part] for part in ("train", "val", "test"))
    scaler = StandardScaler().fit(features[train])
    found = {}
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000)
        model.fit(scaler.transform(features[train]), labels[train])
        guess = model.decision_function(scaler.transform(features))
        found[strength] = [float(roc_auc_score(labels[part], guess[part])) for part in (val, test)]
    best = max(found, key=lambda strength: found[strength][0])
    scores = score_labels(labels, {"own": features}, PARTS)["own"]
    assert scores["strength"] == best
    assert [scores["val"], scores["test"]] == pytest.approx(found[best])
    assert found[best][1] > 0.8


def test_the_labels_of_the_test_part_choose_nothing() -> None:
    labels, features = _columns()
    other = labels.copy()
    other[PARTS["test"]] = ~other[PARTS["test"]]
    for classifier in ("logistic", "mlp"):
        one, two = (
            score_labels(given, {"own": features}, PARTS, classifier=classifier)["own"]
            for given in (labels, other)
        )
        assert one["val"] == two["val"] and one["strength"] == two["strength"]
        assert one["test"] is not None and two["test"] == pytest.approx(1 - one["test"])


def test_what_comes_after_training_fits_nothing() -> None:
    labels, features = _columns()
    shifted = features.copy()
    shifted[600:] = shifted[600:] * 3.0  # another scale, but the same order
    one, two = (
        score_labels(labels, {"own": given[:, :1]}, PARTS)["own"] for given in (features, shifted)
    )
    assert (one["val"], one["test"]) == (two["val"], two["test"])


def test_a_constant_knows_nothing_and_one_class_has_no_score() -> None:
    labels, features = _columns()
    labels[PARTS["val"]] = False
    scores = score_labels(labels, {"constant": np.ones((1000, 1)), "own": features}, PARTS)
    assert scores["constant"] == {"val": None, "test": 0.5, "strength": 1.0}
    assert scores["own"]["val"] is None and scores["own"]["test"] is not None


@pytest.mark.parametrize("value", [False, True])
def test_a_train_part_of_one_class_is_refused(value: bool) -> None:
    labels, features = _columns()
    labels[PARTS["train"]] = value
    with pytest.raises(ValueError, match=f"got {600 * value} of 600 with label 1"):
        score_labels(labels, {"own": features}, PARTS)


def test_trivial_features_count_what_was_before() -> None:
    log = EventLog.from_arrays([0, 1, 0, 2, 1], [1, 2, 0, 2, 0], [3, 5, 9, 9, 10])
    found = trivial_features(log)
    assert np.expm1(found["earlier_events"][:, 0]).round(9).tolist() == [0, 1, 1, 1, 2]
    assert np.expm1(found["idle"][:, 0]).round(9).tolist() == [0, 2, 6, 4, 5]
    assert found["constant"].tolist() == [[0.0]] * 5
    assert found["both"].tolist() == np.hstack([found["earlier_events"], found["idle"]]).tolist()


def test_labels_must_be_there_and_binary() -> None:
    with pytest.raises(ValueError, match="messages has no column `label`"):
        read_labels(messages(10))
    odd = EventLog.from_arrays([0], [1], [0], label=[3])
    with pytest.raises(ValueError, match="labels must be 0 or 1: got 3"):
        read_labels(odd)
    assert read_labels(EventLog.from_arrays([0, 1], [1, 0], [0, 1], label=[0, 1])).tolist() == [
        False,
        True,
    ]


# -- embeddings ------------------------------------------------------------------------------------


def test_embeddings_are_those_of_one_event_at_a_time() -> None:
    torch.manual_seed(0)
    model = make_model(LOG, CONFIG)
    executor = make_executor(LOG, model, CONFIG)
    alone = []
    for position in range(60):  # DyRep embeds a node by its state
        node = torch.tensor([int(LOG.events.src[position])])
        alone.append(executor.state.read("embedding", node)[0].tolist())
        plan = executor.prepare(executor.replay.resolve(position, position + 1))
        with torch.no_grad():
            executor.run(plan).commit()
    found = embed_sources(LOG.head(60), model, CONFIG)
    assert found == pytest.approx(np.array(alone), abs=1e-6)
    assert model.training  # as it was


def test_an_embedding_knows_nothing_of_its_event_or_later_ones() -> None:
    torch.manual_seed(0)
    model = make_model(LOG, CONFIG)
    events = LOG.events
    dst = events.dst.copy()
    dst[150:] = events.src[150:]  # other ends from here on
    other = replace(LOG, events=replace(events, dst=dst))
    one, two = (embed_sources(log, model, CONFIG) for log in (LOG, other))
    assert one[:151].tolist() == two[:151].tolist()
    assert one[151:].tolist() != two[151:].tolist()


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on labels."""
    folder = tmp_path_factory.mktemp("run")
    label_run(LOG, CONFIG, folder)
    return folder


def test_the_weights_are_those_that_validated_best(finished: Path) -> None:
    kept = below("best", read_checkpoint(finished / "checkpoints")[0])
    for name, weight in trained_model(LOG, CONFIG, finished).state_dict().items():
        assert torch.equal(weight, kept[name])


def test_the_result_says_what_it_depends_on(finished: Path) -> None:
    found = json.loads((finished / "labels.json").read_text())
    assert list(found["metrics"]) == ["dyrep", "constant", "earlier_events", "idle", "both"]
    assert found["metrics"]["earlier_events"]["test"] == 1.0  # the label is a function of it
    assert found["metrics"]["constant"]["test"] == 0.5
    assert sum(found["events"].values()) == 300
    assert sum(found["positives"].values()) == int(read_labels(LOG).sum())
    scoring = found["scoring"]
    assert scoring["data_checksum"] == LOG.checksum
    assert (scoring["batch_size"], scoring["consistency"], scoring["seed"]) == (40, "exact", 0)


def test_a_finished_run_is_used_and_gives_the_same_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the model was trained again")

    before = json.loads((finished / "labels.json").read_text())
    monkeypatch.setattr("neutronstream.experiments.fit.SplitTrainer", refuse)
    told: list[dict[str, Any]] = []
    assert label_run(LOG, CONFIG, finished, progress=told.append) == before
    assert told[-1] == {"run": "embedding", "done_events": 300, "total_events": 300}
    with pytest.raises(CheckpointError, match="is of a run with `width` 6: got 7"):
        label_run(LOG, CONFIG.model_copy(update={"width": 7}), finished)


def test_the_task_is_fair_to_either_class() -> None:
    """A flip of all labels changes no score: embeddings do not know them, classes are balanced."""
    events = LOG.events
    assert events.label is not None
    other = replace(LOG, events=replace(events, label=1 - events.label))
    torch.manual_seed(0)
    model = make_model(LOG, CONFIG)
    one, two = (label_task(log, model, CONFIG) for log in (LOG, other))
    assert one["metrics"]["dyrep"]["test"] == pytest.approx(two["metrics"]["dyrep"]["test"])
    assert [
        n + m for n, m in zip(one["positives"].values(), two["positives"].values(), strict=True)
    ] == list(one["events"].values())


def test_embeddings_that_are_no_numbers_are_refused() -> None:
    model = make_model(LOG, CONFIG)
    with torch.no_grad():
        next(model.parameters()).fill_(np.nan)
    with pytest.raises(ValueError, match=r"embeddings of events \[\d+, 40\) must be finite"):
        embed_sources(LOG.head(40), model, CONFIG)


@pytest.mark.parametrize(
    ("changed", "classifier", "words"),
    [
        ({"protocol": "prequential"}, "logistic", "`protocol` must be 'split', got 'prequential'"),
        ({}, "tree", "`classifier` must be one of .*logistic.*: got 'tree'"),
    ],
)
def test_a_run_that_could_not_be_fair_is_refused(
    tmp_path: Path, changed: dict[str, Any], classifier: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        label_run(LOG, CONFIG.model_copy(update=changed), tmp_path / "new", classifier=classifier)
    with pytest.raises(ValueError, match="has no column `label`"):
        label_run(messages(50), CONFIG, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_without_its_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoints is gone, .*--force"):
        trained_model(LOG, CONFIG, tmp_path)


# -- the command -----------------------------------------------------------------------------------

Call = Callable[..., Result]
FLAGS = ("--width", 4, "--epochs", 1, "--batch-size", 40)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `labels` in an empty folder that holds log.csv."""
    monkeypatch.chdir(tmp_path)
    e = LOG.events
    assert e.label is not None
    rows = zip(e.src.tolist(), e.dst.tolist(), e.time.tolist(), e.label.tolist(), strict=True)
    lines = (",".join(map(str, row)) + "\n" for row in rows)
    Path("log.csv").write_text("src,dst,time,label\n" + "".join(lines))
    common = ("labels", "log.csv")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in (*common, *words)])


def test_the_command_trains_then_reads_the_labels(call: Call) -> None:
    result = call(*FLAGS, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["folder"] == "runs/log-dyrep-split-seed0"
    assert found["metrics"]["dyrep"]["test"] is not None
    assert "training: 100%" in result.stderr and "embedding: 100%" in result.stderr
    again = call("--classifier", "mlp")  # the settings are those of the run
    assert again.exit_code == 0, again.stderr
    assert "MLP with hidden layers of 80 and 10" in again.stdout
    assert "events with label 1: " in again.stdout and "training" not in again.stderr
    assert "labels: runs/log-dyrep-split-seed0/labels.json" in again.stdout


def test_an_interrupt_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "fit", press)
    stopped = call(*FLAGS)
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "the same command goes on with runs/log-dyrep-split-seed0" in stopped.stderr


def test_a_log_without_labels_is_one_line(call: Call) -> None:
    Path("log.csv").write_text("src,dst,time\n1,2,3\n")
    refused = call(*FLAGS)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "has no column `label`" in refused.stderr and not Path("runs").exists()


def test_help_has_examples(call: Call) -> None:
    assert "neutronstream labels wikipedia --model tgn" in call("--help").stdout
