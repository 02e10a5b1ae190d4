"""A run on a split trains on its part alone, chooses by validation alone, and tests once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from neutronstream.experiments import TrainConfig
from neutronstream.experiments.fit import fit
from neutronstream.experiments.report import SPLIT_PARTS
from neutronstream.experiments.split import split_log
from neutronstream.experiments.split.carry import carry_states
from neutronstream.experiments.split.evaluate import SETTINGS, SplitEvaluation, pair_figures
from neutronstream.experiments.split.pairs import STRATEGIES
from neutronstream.experiments.split.trainer import SplitTrainer, run_epochs
from neutronstream.parallel import Replay
from neutronstream.storage import read_checkpoint
from neutronstream.stream import CheckpointError, EventLog, Float64

from ..small import assert_same_bits, hourly_log, numbers, settings, untimed

LOG = hourly_log(200, 30)


def split_settings(**given: Any) -> TrainConfig:
    """A split of a small fast model."""
    fast = {"protocol": "split", "model": "jodie", "epochs": 3, "learning_rate": 0.01}
    return settings(**(fast | given))


def trained(log: EventLog, config: TrainConfig) -> tuple[SplitTrainer, dict[str, Any]]:
    """A trainer that has gone through its run, and the table of its test."""
    torch.manual_seed(config.seed)
    trainer = SplitTrainer(log, config)
    return trainer, run_epochs(trainer, None, None)


def with_ends(log: EventLog, span: slice, change: Callable[[Any], Any]) -> EventLog:
    """The log with the destinations of a span changed; they must stay the same set of nodes."""
    dst = log.events.dst.copy()
    dst[span] = change(dst[span])
    return replace(log, events=replace(log.events, dst=dst))


# -- what may be seen ------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluate_from", ["trained", "replay"])
@pytest.mark.parametrize("consistency", ["exact", "batch"])
def test_the_test_part_reaches_neither_training_nor_validation(
    consistency: str, evaluate_from: str
) -> None:
    config = split_settings(consistency=consistency, evaluate_from=evaluate_from)
    first, table = trained(LOG, config)
    start = first.split.test_start
    other = with_ends(LOG, slice(start, None), lambda dst: np.roll(dst, 5))
    second, changed = trained(other, config)
    assert untimed(second.done.epochs) == untimed(first.done.epochs)
    assert_same_bits(first.best | first.left, second.best | second.left)
    assert_same_bits(first.model.state_dict(), second.model.state_dict())
    for scorer, parts in table.items():
        for part, figures in parts.items():
            if part.startswith("val"):
                assert changed[scorer][part] == figures
            elif scorer == "jodie":
                assert changed[scorer][part] != figures


@pytest.mark.parametrize("evaluate_from", ["trained", "replay"])
def test_the_validation_part_reaches_no_weight_but_by_the_choice_of_them(
    evaluate_from: str,
) -> None:
    config = split_settings(evaluate_from=evaluate_from)
    first, _ = trained(LOG, config)
    span = slice(first.split.val_start, first.split.test_start)
    second, _ = trained(with_ends(LOG, span, lambda dst: np.roll(dst, 3)), config)
    losses = [[epoch["train_loss"] for epoch in t.done.epochs] for t in (first, second)]
    assert losses[0] == losses[1]
    aps = [[epoch["val_ap"] for epoch in t.done.epochs] for t in (first, second)]
    assert aps[0] != aps[1]


def test_what_new_nodes_do_before_validation_is_not_trained_on_but_replayed() -> None:
    config = split_settings(learning_rate=0.0)
    split = split_log(LOG)
    left_out = np.flatnonzero(~split.trained[: split.val_start])
    time = LOG.events.time.copy()
    weight = np.ones(len(LOG))
    weight[left_out] = 5.0
    assert len(left_out) > 20
    logs = [replace(LOG, events=replace(LOG.events, weight=w)) for w in (np.ones(len(LOG)), weight)]
    runs = [trained(log, config)[0] for log in logs]
    losses = [[epoch["train_loss"] for epoch in run.done.epochs] for run in runs]
    assert losses[0] == losses[1]
    kept = runs[0].learning.replay.log
    assert len(kept) == split.trained.sum()
    np.testing.assert_array_equal(kept.events.time, time[split.trained])
    assert runs[0].scoring.replay.log is logs[0]


@pytest.mark.parametrize(
    "given",
    [
        {"model": "jodie"},
        {"model": "tgn", "options": {"k": 3}},
        {"model": "dyrep"},
        {"model": "jodie", "consistency": "batch"},
        {"model": "tgn", "consistency": "batch", "options": {"k": 3}},
        {"model": "dyrep", "consistency": "batch"},
    ],
)
def test_with_weights_at_rest_the_states_that_training_left_are_those_of_a_replay(
    given: dict[str, Any],
) -> None:
    """Where no node is kept from training and weights stand still, both ways must agree."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 9, (2, 200))  # a tenth of nine nodes is none
    log = EventLog.from_arrays(src, dst, range(200), initial=([0, 1, 2], [1, 2, 5]))
    runs = [
        trained(log, split_settings(learning_rate=0.0, epochs=1, evaluate_from=name, **given))
        for name in ("trained", "replay")
    ]
    (one, table), (other, expected) = runs
    assert len(one.learning.replay.log) == one.split.val_start  # with batches of 25, not all full
    if given["model"] == "dyrep":  # states are the same, so scores differ by no bit in exact runs
        assert one.scoring.state["attention"].shape == other.scoring.state["attention"].shape
    for name, parts in expected.items():
        for part, figures in parts.items():
            assert table[name][part] == pytest.approx(figures, abs=1e-6), (name, part)
    for name in one.model.tables:
        torch.testing.assert_close(one.scoring.state[name], other.scoring.state[name])


def test_validation_goes_on_from_what_training_left_of_each_node_and_link() -> None:
    trainer = SplitTrainer(LOG, split_settings(model="dyrep"))
    first = trainer.scoring.state["embedding"].clone()
    trainer._train(0, lambda events: None)
    learning, scoring = trainer.learning.replay, trainer.scoring.replay
    kept, start = learning.log, trainer.split.val_start
    positions = np.flatnonzero(trainer.split.trained)
    left = learning.state.to_arrays()
    carry_states(left, learning, scoring, trainer.nodes, positions, start)
    row_of = {name: row for row, name in enumerate(kept.name_of(np.arange(kept.num_nodes)))}
    names = LOG.name_of(np.arange(LOG.num_nodes))
    for node, name in enumerate(names):
        expected = left["embedding"][row_of[name]] if name in row_of else first[node]
        assert torch.equal(scoring.state["embedding"][node], expected)

    def attention(replay: Replay, node: int, at: int) -> dict[Any, float]:
        links = replay.graph.links(np.array([node]), at)
        values = replay.state["attention"][links.link + 1, 0].tolist()
        return dict(zip(replay.log.name_of(links.node), values, strict=True))

    untrained = 0
    for node, name in enumerate(names):
        found = attention(scoring, node, start)
        own = attention(learning, row_of[name], len(kept)) if name in row_of else {}
        assert own.keys() <= found.keys()
        for other, value in found.items():
            assert value == pytest.approx(own.get(other, 1 / len(found)))
        untrained += len(found.keys() - own.keys())
    assert untrained > 10


def test_what_a_stale_run_has_put_off_is_done_for_the_same_events() -> None:
    trainer = SplitTrainer(LOG, split_settings(consistency="batch"))
    trainer._train(0, lambda events: None)
    learning, scoring = trainer.learning.replay, trainer.scoring.replay
    positions = np.flatnonzero(trainer.split.trained)
    left = learning.state.to_arrays()
    carry_states(left, learning, scoring, trainer.nodes, positions, trainer.split.val_start)
    waiting = 0
    for row, node in enumerate(trainer.nodes):
        own, found = left["pending"][row].tolist(), scoring.state["pending"][node].tolist()
        if not own[0]:
            assert found == [0, 0]
            continue
        waiting += 1
        for place, of_whole in ((own[0] - 1, found[0] - 1), (own[1], found[1])):
            assert of_whole == positions[place]
            event, same = (
                learning.log.events[place : place + 1],
                LOG.events[of_whole : of_whole + 1],
            )
            assert event.time == same.time
            assert learning.log.name_of(event.src) == LOG.name_of(same.src)
        assert node in (LOG.events.src[found[0] - 1], LOG.events.dst[found[0] - 1])
    assert waiting > 5


def test_a_node_starts_alike_in_training_and_in_scoring() -> None:
    trainer = SplitTrainer(LOG, split_settings(model="dyrep"))
    log = trainer.learning.replay.log
    names = log.name_of(np.arange(log.num_nodes))
    rows = [LOG.name_of(np.arange(LOG.num_nodes)).index(name) for name in names]
    first = trainer.scoring.state["embedding"][rows]
    assert torch.equal(trainer.learning.state["embedding"], first) and first.any()


def test_every_epoch_starts_from_the_same_states_and_draws_other_negatives() -> None:
    config = split_settings(learning_rate=0.0, patience=9, epochs=4)
    (first, _), (again, _) = trained(LOG, config), trained(LOG, config)
    losses = [epoch["train_loss"] for epoch in first.done.epochs]
    assert len(set(losses)) == 4  # the same weights and states, against other nodes
    assert len({epoch["val_ap"] for epoch in first.done.epochs}) == 1
    assert untimed(first.done.epochs) == untimed(again.done.epochs)


def test_the_loss_is_against_any_destination_of_the_training_part() -> None:
    trainer = SplitTrainer(LOG, split_settings(model="dyrep", negatives=400))
    replay, events = trainer.learning.replay, trainer.learning.replay.log.events
    drawn = []
    for epoch in range(2):
        replay.sampler.offsets[0] = (1 + epoch) * len(replay.log)
        segment = replay.resolve(0, 3)
        drawn.append(segment.other_dst.node)
        for row in range(3):
            own = {int(events.src[row]), int(events.dst[row])}
            assert set(segment.other_dst.node[row].tolist()) == set(events.dst.tolist()) - own
            assert set(segment.other_src.node[row].tolist()) == set(events.src.tolist()) - own
        assert segment.other_dst.valid.all()
    assert (drawn[0] != drawn[1]).mean() > 0.8
    scored = trainer.scoring.replay.resolve(0, 3)  # the other replay is as ever
    assert not scored.other_dst.valid[0].any()


# -- early stopping --------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Has validation find these APs, epoch by epoch."""

    def script(values: list[float]) -> None:
        left: Iterator[float] = iter(values)
        monkeypatch.setattr(SplitEvaluation, "quick_ap", lambda self, part, scores: next(left))

    return script


def test_the_weights_of_the_best_validation_are_tested(
    scripted: Callable[[list[float]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.7 once more is no better; two epochs without a better one end the run."""
    scripted([0.5, 0.7, 0.6, 0.7, 0.9])
    seen: list[tuple[int, dict[str, torch.Tensor]]] = []
    score = SplitTrainer._score

    def noted(self: SplitTrainer, parts: Any, left: Any, tell: Any) -> Any:
        seen.append((len(parts), {k: v.clone() for k, v in self.model.state_dict().items()}))
        return score(self, parts, left, tell)

    monkeypatch.setattr(SplitTrainer, "_score", noted)
    trainer, _ = trained(LOG, split_settings(epochs=9, patience=2))
    assert [epoch["is_best"] for epoch in trainer.done.epochs] == [True, True, False, False]
    assert trainer.done.best == 1
    assert [parts for parts, _ in seen] == [1, 1, 1, 1, 2]  # the test part is scored once
    assert_same_bits(seen[-1][1], seen[1][1])
    assert any(not torch.equal(w, seen[3][1][name]) for name, w in seen[-1][1].items())


@pytest.mark.parametrize("evaluate_from", ["trained", "replay"])
def test_epochs_after_the_best_change_nothing_in_the_test(
    scripted: Callable[[list[float]], None], evaluate_from: str
) -> None:
    config = split_settings(model="dyrep", patience=2, epochs=4, evaluate_from=evaluate_from)
    scripted([0.5, 0.7, 0.6, 0.6])
    _, table = trained(LOG, config)
    scripted([0.5, 0.7])
    assert trained(LOG, config.model_copy(update={"epochs": 2}))[1] == table


@pytest.mark.parametrize(
    ("aps", "epochs"), [([0.9, 0.8, 0.8, 0.8, 0.99], 4), ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 6)]
)
def test_patience_counts_epochs_in_a_row(
    scripted: Callable[[list[float]], None], aps: list[float], epochs: int
) -> None:
    scripted(aps)
    trainer, _ = trained(LOG, split_settings(epochs=6, patience=3))
    assert len(trainer.done.epochs) == epochs


def test_learning_is_seen_in_validation() -> None:
    rng = np.random.default_rng(0)
    src = rng.integers(0, 12, 400)
    log = EventLog.from_arrays(src, 12 + src, range(400))  # everyone has one destination
    report = fit(log, split_settings(epochs=8, width=16))
    assert report["epochs"][-1]["train_loss"] < report["epochs"][0]["train_loss"] - 0.1
    assert report["metrics"]["jodie"]["test_transductive_random"]["ap"] > 0.8


# -- the figures -----------------------------------------------------------------------------------


BANKS = ("edgebank", "edgebank_window", "edgebank_stale", "edgebank_window_stale")


def naive_bank(log: EventLog, before: int, pair: tuple[int, int], window: int | None) -> float:
    for i in range(before - 1, -1, -1):
        if (int(log.events.src[i]), int(log.events.dst[i])) == pair:
            waited = log.events.time[before] - log.events.time[i]
            return float(window is None or waited <= window)
    return 0.0


def test_the_table_is_that_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model and EdgeBank are scored on the pairs of the draws, set by set and batch by batch."""
    kept: dict[str, Float64] = {}
    score = SplitTrainer._score

    def noted(self: SplitTrainer, parts: Any, left: Any, tell: Any) -> Any:
        kept.update(score(self, parts, left, tell))
        return kept

    monkeypatch.setattr(SplitTrainer, "_score", noted)
    config = split_settings(epochs=1)
    trainer, table = trained(LOG, config)
    split, evaluation = trainer.split, trainer.evaluation
    for part, (start, stop) in split.spans.items():
        src, dst = evaluation.pairs(part)
        assert src.shape == dst.shape == (stop - start, 6)
        for number, setting in enumerate(SETTINGS):
            rows = [i for i in range(stop - start) if not number or split.inductive[start + i]]
            assert rows
            for column, strategy in enumerate(STRATEGIES):
                at = 3 * number + column
                given: dict[str, list[Any]] = {name: [] for name in ("jodie", *BANKS)}
                for i in rows:
                    pairs = [
                        (int(LOG.events.src[start + i]), int(LOG.events.dst[start + i])),
                        (int(src[i, at]), int(dst[i, at])),
                    ]
                    given["jodie"].append((kept[part][i, 0], kept[part][i, 1 + at]))
                    for name in BANKS:
                        window = evaluation.windows[part] if "window" in name else None
                        before = start + (i // 25 * 25 if "stale" in name else i)
                        given[name].append(
                            tuple(naive_bank(LOG, before, pair, window) for pair in pairs)
                        )
                for scorer, scores in given.items():
                    own, other = np.array(scores).T
                    truth = np.arange(2 * len(own)) < len(own)
                    both = np.concatenate([own, other])
                    batches = [
                        average_precision_score(
                            [1] * len(own[a : a + 25]) + [0] * len(own[a : a + 25]),
                            np.concatenate([own[a : a + 25], other[a : a + 25]]),
                        )
                        for a in range(0, len(own), 25)
                    ]
                    assert table[scorer][f"{part}_{setting}_{strategy}"] == pytest.approx(
                        {
                            "ap": average_precision_score(truth, both),
                            "auc": roc_auc_score(truth, both),
                            "ap_batch_mean": np.mean(batches),
                            "events": len(own),
                        }
                    )


def test_the_pairs_are_those_of_the_strategies() -> None:
    evaluation = SplitEvaluation(LOG, split_log(LOG), split_settings())
    start, stop = evaluation.split.spans["test"]
    src, dst = evaluation.pairs("test")
    np.testing.assert_array_equal(src[:, 0], LOG.events.src[start:stop])
    happened = set(zip(LOG.events.src.tolist(), LOG.events.dst.tolist(), strict=True))
    historical = set(zip(src[:, 1].tolist(), dst[:, 1].tolist(), strict=True))
    assert historical <= happened and len(historical) > 25
    new = evaluation.split.inductive[start:stop]
    np.testing.assert_array_equal(src[~new, 4], LOG.events.src[start:stop][~new])  # themselves
    assert set(dst[new, 3].tolist()) <= set(LOG.events.dst[start:stop][new].tolist())
    quick = evaluation.pairs("test", quick=True)
    np.testing.assert_array_equal(quick[1], dst[:, :1])


def test_negatives_and_baselines_are_the_same_whatever_is_scored() -> None:
    base = split_settings(epochs=1)
    changes: list[dict[str, Any]] = [
        {"seed": 4},
        {"width": 4},
        {"model": "dyrep"},
        {"consistency": "batch"},
    ]
    whole = trained(LOG, base)[1]
    for change in changes:
        other = trained(LOG, base.model_copy(update=change))[1]
        for name in BANKS:
            assert other[name] == whole[name], change
    drawn = [SplitEvaluation(LOG, split_log(LOG), split_settings(split_seed=s)) for s in (0, 1)]
    assert (drawn[0].pairs("val")[1] != drawn[1].pairs("val")[1]).mean() > 0.3


def test_a_score_that_is_nan_is_refused() -> None:
    trainer = SplitTrainer(LOG, split_settings())
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the loss became nan in epoch 1: try a smaller"):
        trainer._train(0, lambda events: None)
    pairs = {"val": trainer.evaluation.pairs("val")}
    scores = trainer._score(pairs, {}, lambda events: None)["val"]
    with pytest.raises(ValueError, match=r"scores must not be NaN"):
        trainer.evaluation.quick_ap("val", scores)
    with pytest.raises(ValueError, match=r"scores must not be NaN"):
        trainer.evaluation.table("val", scores)


def test_nothing_to_score_has_no_figures() -> None:
    empty = {"ap": None, "auc": None, "ap_batch_mean": None, "events": 0}
    assert pair_figures(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_), 5) == empty
    assert pair_figures(np.ones(3), np.zeros(3), np.zeros(3, np.bool_), 2) == empty
    some = pair_figures(np.ones(3), np.zeros(3), np.array([False, False, True]), 2)
    assert some == {"ap": 1.0, "auc": 1.0, "ap_batch_mean": 1.0, "events": 1}


@pytest.mark.parametrize("model", ["dyrep", "jodie"])
def test_both_exact_executors_give_the_same_report(model: str) -> None:
    reports = [
        numbers(untimed(fit(LOG, split_settings(model=model, executor=name, dtype="float64"))))
        for name in ("auto", "sequential")
    ]
    apart = ("/levels", "/config")
    left, right = ({k: v for k, v in r.items() if not k.startswith(apart)} for r in reports)
    assert left.keys() == right.keys()
    for path, value in left.items():
        if isinstance(value, float):
            assert right[path] == pytest.approx(value, rel=1e-9, abs=1e-9), path
        else:
            assert right[path] == value, path


# -- the report ------------------------------------------------------------------------------------


def test_the_report_says_what_was_done(tmp_path: Path) -> None:
    config = split_settings(epochs=2)
    report = fit(LOG, config, tmp_path)
    assert report["counts"] == {"read": 200, "applied": 200, "late": 0, "quarantined": 0}
    split = split_log(LOG)
    found = report["split"]
    assert found["trained_events"] + found["left_out_events"] == split.val_start == 141
    assert (found["val_events"], found["test_events"]) == (29, 30)
    assert found["inductive_test_events"] == split.inductive[split.test_start :].sum()
    assert set(report["metrics"]) == {"jodie", *BANKS}
    assert all(set(parts) == set(SPLIT_PARTS) for parts in report["metrics"].values())
    assert [epoch["epoch"] for epoch in report["epochs"]] == [1, 2]
    best = max(report["epochs"], key=lambda epoch: epoch["val_ap"])
    assert (found["best_epoch"], found["best_val_ap"]) == (best["epoch"], best["val_ap"])
    own = report["metrics"]["jodie"]["val_transductive_random"]["ap"]
    assert own == pytest.approx(best["val_ap"], abs=1e-6)
    ranking = report["ranking"]
    assert (ranking["batch_size"], ranking["consistency"]) == (25, "exact")
    assert ranking["data_checksum"] == LOG.checksum and ranking["tie_rule"]
    assert TrainConfig(**report["config"]) == config
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert {p.name for p in tmp_path.iterdir()} == {
        *(".lock", "checkpoints", "config.toml", "metrics.parquet", "report.html", "report.json")
    }


def test_without_a_node_that_is_new_the_inductive_figures_are_not_available() -> None:
    log = EventLog.from_arrays([0, 1, 2] * 40, [1, 2, 0] * 40, range(120))
    report = fit(log, split_settings(epochs=1))
    for scorer in report["metrics"].values():
        for part, figures in scorer.items():
            assert (figures["ap"] is None) == (part.split("_")[1] == "inductive"), part
            assert figures["events"] == (18 if figures["ap"] is not None else 0)
    assert [note for note in report["notes"] if "not available" in note] == [
        f"inductive {name} figures are not available: every node of the {name} part is in the "
        "training set"
        for name in ("validation", "test")
    ]


@pytest.mark.parametrize("given", [{}, {"consistency": "batch", "model": "dyrep"}])
def test_one_seed_gives_the_same_bits(given: dict[str, Any]) -> None:
    runs = [trained(LOG, split_settings(**given)) for _ in range(2)]
    assert untimed(runs[0][1]) == untimed(runs[1][1])
    assert_same_bits(runs[0][0].model.state_dict(), runs[1][0].model.state_dict())


def test_progress_tells_of_every_segment_and_every_epoch() -> None:
    seen: list[dict[str, Any]] = []
    report = fit(LOG, split_settings(epochs=9, patience=1), progress=seen.append)
    ends = [figures for figures in seen if "val_ap" in figures]
    assert [e["epoch"] for e in ends] == [epoch["epoch"] for epoch in report["epochs"]]
    assert [e["ap"] for e in ends] == [epoch["val_ap"] for epoch in report["epochs"]]
    assert len(ends) < 9  # stopped early
    done = [figures["done_events"] for figures in seen]
    assert done == sorted(done) and done[-1] == seen[-1]["total_events"]
    assert all(figures["done_events"] <= figures["total_events"] for figures in seen)


# -- resume ----------------------------------------------------------------------------------------


class _Stopped(Exception):
    pass


def _stop_at(calls: int) -> Callable[[dict[str, Any]], None]:
    seen = []

    def progress(figures: dict[str, Any]) -> None:
        seen.append(figures)
        if len(seen) == calls:
            raise _Stopped

    return progress


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"evaluate_from": "replay"},
        {"model": "dyrep"},
        {"consistency": "batch", "model": "dyrep"},
    ],
)
def test_stopped_anywhere_and_resumed_equals_unbroken(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    config = split_settings(checkpoint_seconds=0.0, **given)
    seen: list[dict[str, Any]] = []
    whole = fit(LOG, config, tmp_path / "whole", progress=seen.append)
    tensors, _ = read_checkpoint(tmp_path / "whole" / "checkpoints")
    first, _, last = (call for call, figures in enumerate(seen, 1) if "val_ap" in figures)
    # within the first epoch, at its end, at the end of the last, and in the test
    for calls in (2, first, last, len(seen) - 1):
        folder = tmp_path / str(calls)
        with pytest.raises(_Stopped):
            fit(LOG, config, folder, progress=_stop_at(calls))
        resumed = fit(LOG, config, folder, resume=True)
        assert untimed(resumed) == untimed(whole)
        others, _ = read_checkpoint(folder / "checkpoints")
        assert_same_bits(tensors, others)


def test_a_run_stopped_early_stays_stopped_when_resumed(
    tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    config = split_settings(checkpoint_seconds=0.0, epochs=9, patience=1)
    scripted([0.6, 0.5])

    def in_the_test(figures: dict[str, Any]) -> None:
        if figures.get("epoch") == 2 and "val_ap" not in figures:
            raise _Stopped

    with pytest.raises(_Stopped):
        fit(LOG, config, tmp_path, progress=in_the_test)
    report = fit(LOG, config, tmp_path, resume=True)  # the script is at its end
    assert [epoch["val_ap"] for epoch in report["epochs"]] == [0.6, 0.5]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"patience": 4}, "`patience` 5: got 4"),
        ({"split_seed": 1}, "`split_seed` 2020: got 1"),
        ({"consistency": "batch"}, "`consistency` 'exact': got 'batch'"),
        ({"options": {"shared": True}}, "`options` {}: got {'shared': True}"),
        ({"protocol": "prequential"}, "`protocol` 'split': got 'prequential'"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    config = split_settings(checkpoint_seconds=0.0, epochs=1)
    fit(LOG, config, tmp_path)
    (tmp_path / "report.json").unlink()
    with pytest.raises(CheckpointError, match=named.replace("{", r"\{")):
        fit(LOG, config.model_copy(update=change), tmp_path, resume=True)
