"""A comparison is fair, goes on where it stopped, and says what its figures depend on."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from neutronstream.datasets import messages
from neutronstream.experiments import TrainConfig, keeper
from neutronstream.experiments.cli import app
from neutronstream.experiments.compare import Entry, compare, parse_models, run
from neutronstream.experiments.compare.page import render_comparison
from neutronstream.experiments.compare.report import figure_table, make_comparison, spread
from neutronstream.experiments.compare.tables import print_comparison
from neutronstream.experiments.fit import fit
from neutronstream.stream import CheckpointError

from .small import settings, untimed

LOG = messages(240, seed=3)
SMALL = settings(width=4, candidates=4, batch_size=40, size=120, checkpoint_seconds=0.0)
ROWS = "dyrep,dyrep:width=6:intensity=linear"
BASELINES = ["edgebank", "edgebank_window", "popularity", "recent_partner"]


# -- which rows ------------------------------------------------------------------------------------


def test_a_row_is_a_model_with_settings_and_options_of_its_own() -> None:
    entries, baselines = parse_models("dyrep, dyrep:intensity=linear:width=16 ,edgebank")
    assert entries == [
        Entry("dyrep", "dyrep"),
        Entry("dyrep:intensity=linear:width=16", "dyrep", {"width": 16}, {"intensity": "linear"}),
    ]
    assert baselines == ["edgebank"]
    assert entries[1].slug == "dyrep_intensity_linear_width_16"
    config = entries[1].config(SMALL.model_copy(update={"options": {"association": "x"}}), seed=7)
    assert (config.model, config.width, config.seed, config.candidates) == ("dyrep", 16, 7, 4)
    assert config.options == {"association": "x", "intensity": "linear"}


def test_all_baselines_of_the_protocol_are_shown_where_none_is_named() -> None:
    assert parse_models("dyrep")[1] == BASELINES
    assert parse_models(["dyrep"], "split")[1] == [
        *("edgebank", "edgebank_window", "edgebank_stale", "edgebank_window_stale")
    ]


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ("dyrap", r"'dyrap', which .* does not know: did you mean 'dyrep'\? it knows .*edgebank"),
        ("", "must name a model of .*dyrep"),
        ("edgebank", "baselines are scored in the runs of models"),
        ("dyrep,dyrep", "each row once: got 'dyrep' twice"),
        ("dyrep:width=8,dyrep:width:8", "must be MODEL:NAME=VALUE.*with 'width'"),
        ("dyrep:x=a/b,dyrep:x=a.b,dyrep:x=a+b", "each row once: got 'dyrep_x_a_b' twice"),
        ("edgebank:window=3", "edgebank is a baseline, which has no settings"),
        ("dyrep:candidates=5", "sets `candidates`, which all rows must share"),
        ("dyrep:seed=5", "sets `seed`, which all rows must share"),
    ],
)
def test_a_row_that_cannot_be_is_named(models: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_models(models)


def test_a_split_draws_its_pairs_by_batch_so_rows_share_the_size() -> None:
    assert parse_models("dyrep:batch_size=5")[0][0].settings == {"batch_size": 5}
    with pytest.raises(ValueError, match="sets `batch_size`, which all rows must share"):
        parse_models("dyrep:batch_size=5", "split")
    with pytest.raises(ValueError, match="'popularity', which the protocol split does not know"):
        parse_models("dyrep,popularity", "split")


@pytest.mark.parametrize(
    ("rows", "seeds", "words"),
    [
        ("dyrep,dyrep:nonesuch=1", 1, "no option 'nonesuch'"),
        ("dyrep:width=wide", 1, "dyrep:width=wide: `width` must be a valid integer: got 'wide'"),
        ("dyrep:size=7w:stride=9w", 1, "stride"),
        ("dyrep", 0, "--seeds must be at least 1: got 0"),
        ("dyrep", [1, 1], r"distinct numbers, at least one: got \[1, 1\]"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(
    tmp_path: Path, rows: str, seeds: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        compare(LOG, rows, seeds, SMALL, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# -- what it comes to ------------------------------------------------------------------------------


def _report(
    model: str, seed: int, ap: float | None, bank: float, mar: float = 3.0
) -> dict[str, Any]:
    """The parts of a report that a comparison reads."""
    window = {"test_start": 0, "events": 10, "ap": ap, "mrr": None}
    rival = {"ap": bank, "auc": 0.5, "mrr": 0.25}
    own = {"ap": ap, "auc": 0.5, "mrr": 0.5, "hits@10": 1.0, "mar": mar, "events": 10, "loss": 1.0}
    other = {**rival, "hits@10": 0.5, "mar": 4.0, "events": 10}
    return {
        "log": "<small>",
        "windows": [window | {"baselines": {"edgebank": rival}}],
        "metrics": {
            model: {"overall": own, "last_half": own},
            "edgebank": {"overall": other, "last_half": other},
        },
        "times": {},
        "ranking": {
            "candidates": 4,
            "tie_rule": "average rank",
            "negatives": 5,
            "batch_size": 50,
            "consistency": "exact",
            "data_checksum": "0123456789abcdef",
        },
        "counts": {"applied": 10},
        "throughput": {"train_events_per_second": 100.0, "seconds": 2.0},
        "config": TrainConfig(model=model, seed=seed).model_dump(),
        "versions": {"neutronstream": "0.1.0", "torch": "2"},
        "notes": ["<script>", "noticed"],
        "folder": f"{model}-seed{seed}",
    }


def _comparison(*rows: str, seeds: int = 2) -> dict[str, Any]:
    reports = {
        name: [_report("dyrep", seed, 0.5 + seed / 4, 0.6, 3.0 + seed) for seed in range(seeds)]
        for name in rows
    }
    return make_comparison(reports, {name: {} for name in rows}, ["edgebank"], TrainConfig())


def test_a_figure_is_the_mean_of_the_seeds_with_the_deviation_of_a_sample() -> None:
    assert spread([0.5, 0.75]) == {
        "mean": 0.625,
        "std": pytest.approx(0.125 * 2**0.5),
        "values": [0.5, 0.75],
    }
    assert spread([0.5]) == {"mean": 0.5, "std": None, "values": [0.5]}
    assert spread([0.5, None]) == {"mean": None, "std": None, "values": [0.5, None]}
    assert spread([]) == {"mean": None, "std": None, "values": []}


def test_wins_are_counted_seed_by_seed_and_a_tie_is_none() -> None:
    found = _comparison("dyrep")
    assert found["metrics"]["dyrep"]["last_half"]["ap"]["values"] == [0.5, 0.75]
    assert found["wins"]["dyrep"]["edgebank"]["last_half"] == {
        "ap": 1,  # 0.5 and 0.75 against 0.6
        "auc": 0,  # a tie
        "mrr": 2,
        "hits@10": 2,
        "mar": 1,  # 3 and 4 against 4, lower is better
    }
    assert found["seeds"] == [0, 1] and found["notes"] == ["<script>", "noticed"]
    assert found["curves"]["ap"] == {"dyrep": [[0, 0.625]], "edgebank": [[0, 0.6]]}
    assert found["curves"]["mrr"]["dyrep"] == [[0, None]]


def test_runs_that_were_not_scored_alike_are_refused() -> None:
    reports = {name: [_report("dyrep", 0, 0.5, bank)] for name, bank in (("a", 0.6), ("b", 0.7))}
    with pytest.raises(
        ValueError, match=r"not scored on the same events .* edgebank differ; --force"
    ):
        make_comparison(reports, {"a": {}, "b": {}}, ["edgebank"], TrainConfig())


class _Page(HTMLParser):
    """Collects the tags, and the cells in bold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.bold: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "b":
            self.bold.append(data)


def test_the_page_stands_alone_and_escapes_every_text() -> None:
    text = render_comparison(_comparison("dyrep", "<b>&"))
    page = _Page(text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in text and "url(" not in text and "@import" not in text
    assert "&lt;b&gt;&amp;" in text and "&lt;script&gt;" in text and "&lt;small&gt;" in text


def test_beside_the_figures_stands_what_they_depend_on() -> None:
    found = _comparison("dyrep")
    text = render_comparison(found)
    console = Console(width=200, record=True, file=io.StringIO())
    print_comparison(console, found, "here")
    for shown in (text, console.export_text()):
        for words in ("at most 4 known", "average rank", "0123456789ab", "seeds 0, 1", "torch 2"):
            assert words in shown, words
    assert "batches of 50, exact, 5 negatives, 1 windows" in text
    assert "0.6250<small>± 0.1768</small>" in text


def test_who_beats_whom_is_in_the_terminal() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    print_comparison(console, _comparison("dyrep"), None)
    shown = console.export_text().split("Better on average than, last half")[1]
    assert re.search(r"dyrep +AP MRR HITS@10 MAR\b", shown)  # AUC is a tie


def test_expected_times_stand_beside_trivial_ones() -> None:
    report = _report("dyrep", 0, 0.5, 0.6)
    errors = {"dyrep": 4.0, "calibrated": 0.75, "running_mean": 0.5, "running_median": 0.25}
    for name, error in errors.items():
        part = {"mae": error, "median_ae": error / 2, "events": 9}
        report["times"][name] = {"overall": part, "last_half": part}
    found = make_comparison({"a": [report]}, {"a": {}}, ["edgebank"], TrainConfig())
    assert list(found["times"]) == ["a", "a, calibrated", "running_mean", "running_median"]
    page = _Page(render_comparison(found))
    assert page.bold.count("0.2500") == page.bold.count("0.1250") == 2 and "4.0000" not in page.bold
    console = Console(width=200, record=True, file=io.StringIO())
    print_comparison(console, found, None)
    assert re.search(r"running_median +0\.2500 +0\.1250", console.export_text())


def test_the_best_mean_is_bold_in_each_column() -> None:
    bold = _Page(render_comparison(_comparison("dyrep"))).bold
    assert bold.count("0.6250") == 2 + 1  # AP in both parts, and a tile
    assert "0.6000" not in bold  # AP of edgebank
    assert bold.count("0.5000") == 2 * (2 + 1) + 1  # AUC of both rows, MRR of one; and a tile


def test_more_rows_than_a_chart_can_hold_are_drawn_in_several() -> None:
    names = [f"dyrep:width={width}" for width in range(1, 8)]
    text = render_comparison(_comparison(*names))
    assert text.count("AP over the stream, 1 of 2") > 0 and "AP over the stream, 2 of 2" in text
    for legend in re.findall(r'<p class="legend">(.*?)</p>', text):
        assert 1 < legend.count("<svg") <= 6 and "edgebank" in legend


def test_the_table_of_figures_has_a_row_a_figure_of_a_run() -> None:
    found = _comparison("dyrep")
    rows = figure_table(found).to_pylist()
    assert len(rows) == 2 * (2 * 7 + 2 * 6)  # seeds x (parts x metrics of each row)
    (row,) = (
        r
        for r in rows
        if (r["name"], r["part"], r["metric"], r["seed"]) == ("dyrep", "overall", "ap", 1)
    )
    assert row["value"] == 0.75
    assert (row["batch_size"], row["negatives"], row["windows"]) == (50, 5, 1)
    assert (row["candidates"], row["data_checksum"]) == ("4", "0123456789abcdef")
    assert (row["protocol"], row["consistency"]) == ("prequential", "exact")


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    compare(LOG, ROWS, 2, SMALL, folder)
    return folder


def _stored(folder: Path) -> Any:
    return json.loads((folder / "compare.json").read_text())


def test_a_row_has_the_figures_of_its_runs(whole: Path) -> None:
    found = _stored(whole)
    for seed in (0, 1):
        alone = fit(LOG, SMALL.model_copy(update={"seed": seed}))
        for name in ("dyrep", *BASELINES):
            for part, scores in alone["metrics"][name].items():
                for metric, value in scores.items():
                    assert found["metrics"][name][part][metric]["values"][seed] == value
    assert [row["name"] for row in found["rows"]] == [*ROWS.split(","), *BASELINES]
    assert found["rows"][1]["settings"] == {"width": 6, "intensity": "linear"}
    assert found["scoring"]["data_checksum"] == LOG.checksum
    assert "expected" not in found and set(found["times"]) == {
        *(name + suffix for name in ROWS.split(",") for suffix in ("", ", calibrated")),
        *("running_mean", "running_median"),
    }


def test_the_folder_holds_a_table_a_page_and_the_runs(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        *("compare.json", "compare.parquet", "compare.html", ".lock"),
        *(f"dyrep{own}-seed{n}" for own in ("", "_width_6_intensity_linear") for n in (0, 1)),
    }
    assert pq.read_table(whole / "compare.parquet").num_rows > 100


def test_an_interrupted_comparison_goes_on_and_equals_an_unbroken_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = keeper.Keeper.save, []

    def save_and_stop(self: Any, *rest: Any, **options: Any) -> None:
        save(self, *rest, **options)
        saved.append(self.folder.parent.name)
        if len(saved) in (1, 5):  # in the first run, and in the third
            raise KeyboardInterrupt

    monkeypatch.setattr(keeper.Keeper, "save", save_and_stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compare(LOG, ROWS, 2, SMALL, tmp_path)
    assert not (tmp_path / "compare.json").exists()
    told: list[dict[str, Any]] = []
    found = compare(LOG, ROWS, 2, SMALL, tmp_path, told.append)
    assert untimed(found) == untimed(_stored(whole))
    assert len(saved) == 2 * 4  # windows x runs: nothing was done twice
    assert [t["run"] for t in told if t.get("was_finished")] == [
        "dyrep seed 0",
        "dyrep:width=6:intensity=linear seed 0",
    ]


def test_finished_runs_are_not_repeated_and_new_rows_are_added(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a finished run was repeated")

    before = _stored(whole)
    with monkeypatch.context() as patch:
        patch.setattr("neutronstream.experiments.fit.Trainer", refuse)
        again = compare(LOG, f"{ROWS},edgebank", 2, SMALL, whole)
        assert again["metrics"]["dyrep"] == before["metrics"]["dyrep"]
        assert [row["name"] for row in again["rows"]][2:] == ["edgebank"]
        with pytest.raises(AssertionError, match="was repeated"):
            compare(LOG, "dyrep,dyrep:width=3", 2, SMALL, whole)


def test_runs_of_other_settings_are_refused_before_any_is_trained(whole: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is of a run with `learning_rate` 0\.003: got 0\.1"):
        compare(
            LOG, f"dyrep:width=3,{ROWS}", 2, SMALL.model_copy(update={"learning_rate": 0.1}), whole
        )
    assert not list(whole.glob("*width_3-*"))


def test_force_makes_the_runs_again(tmp_path: Path) -> None:
    first = compare(LOG, "dyrep", 1, SMALL, tmp_path)
    other = SMALL.model_copy(update={"learning_rate": 0.1})
    second = compare(LOG, "dyrep", 1, other, tmp_path, force=True)
    assert second["config"]["learning_rate"] == 0.1
    assert first["metrics"]["dyrep"] != second["metrics"]["dyrep"]
    assert first["metrics"]["edgebank"] == second["metrics"]["edgebank"]


def test_a_split_is_compared_on_every_set_of_negatives(tmp_path: Path) -> None:
    config = settings(protocol="split", width=4, epochs=2, batch_size=40)
    found = compare(LOG, "dyrep,dyrep:epochs=1", [5], config, tmp_path)
    parts = set(found["metrics"]["dyrep"])
    assert parts == {
        f"{part}_{setting}_{strategy}"
        for part in ("val", "test")
        for setting in ("transductive", "inductive")
        for strategy in ("random", "historical", "inductive")
    }
    assert [len(line) for line in found["curves"]["val_ap"].values()] == [2, 1]
    assert found["seeds"] == [5] and found["rows"][1]["epochs"] == 1.0
    text = (tmp_path / "compare.html").read_text()
    for words in (
        "Test AP",
        "Test AUC",
        "Transductive, negatives:",
        "Validation AP over the epochs",
    ):
        assert words in text


# -- the command -----------------------------------------------------------------------------------

Call = Callable[..., Result]
FLAGS = ("--width", 4, "--candidates", 4, "--size", 60, "--checkpoint-seconds", 0)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `compare` in an empty folder that holds log.csv."""
    monkeypatch.chdir(tmp_path)
    lines = (f"{(7 * i) % 11},{11 + (5 * i) % 7},{60 * (i // 2)}\n" for i in range(120))
    Path("log.csv").write_text("src,dst,when\n" + "".join(lines))
    common = ("compare", "log.csv")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in (*common, *words)])


def test_the_command_prints_one_object_or_a_table(call: Call) -> None:
    rows = ("--models", "dyrep,edgebank", "--seeds", 2)
    result = call(*rows, *FLAGS, "--time", "when", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["folder"] == "runs/log-compare"
    assert "1 of 2: dyrep seed 0: 100%" in result.stderr
    again = call(*rows, *FLAGS)  # reads the log as before
    assert again.exit_code == 0, again.stderr
    assert "2 of 2: dyrep seed 1: finished before" in again.stderr
    assert "comparison: runs/log-compare/compare.html" in again.stdout
    assert "Better on average than, last half" in again.stdout
    assert call(*rows, *FLAGS, "--quiet").stderr == ""


def test_an_unknown_row_is_one_line_before_the_log_is_read(call: Call) -> None:
    for arguments in (("--models", "nonesuch"), ("--models", "dyrep:width=x", "--time", "when")):
        result = call(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ")
    assert not Path("runs").exists()
    assert "No such option: --model" in call("--models", "dyrep", "--model", "dyrep").stderr


def test_an_interrupt_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", press)
    stopped = call("--models", "dyrep", *FLAGS, "--time", "when", "--force")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "the same command without --force goes on with runs/log-compare" in stopped.stderr


def test_help_has_examples(call: Call) -> None:
    text = call("--help").stdout
    assert "neutronstream compare uci --models dyrep,tgn,edgebank --seeds 3" in text
