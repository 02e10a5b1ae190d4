"""The command `snapshots`: what it prints, what it leaves, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from neutronstream.experiments.cli import app
from neutronstream.experiments.snapshots import load_snapshot_config

from .small import write_habit

SMALL = ("--period", "1d", "--width", "6", "--names", "5", "--epochs", "2", "--quiet")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with habit.csv."""
    monkeypatch.chdir(tmp_path)
    write_habit(tmp_path / "habit.csv")
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["snapshots", *map(str, words)])


def test_a_run_prints_scores_and_leaves_a_report(place: Path) -> None:
    result = run("habit.csv", *SMALL)
    assert result.exit_code == 0, result.stderr
    folder = place / "runs/habit-gconvgru-snapshots-seed0"
    assert {path.name for path in folder.iterdir()} == {
        *("report.json", "report.html", "metrics.parquet", "config.toml"),
        *("checkpoints", ".lock"),
    }
    for words in ("gconvgru", "persistence", "edgebank", "MRR", "backend single on 1 rank"):
        assert words in result.stdout
    assert result.stderr == ""


def test_json_is_one_object(place: Path) -> None:
    result = run("habit.csv", *SMALL, "--json", "--output", "here", "--set", "orders=3")
    report = json.loads(result.stdout)
    assert report["folder"] == "here"
    assert report["config"]["options"] == {"orders": 3}
    assert report["task"] == "links"


def test_resume_takes_the_settings_of_the_run(place: Path) -> None:
    first = run("habit.csv", *SMALL, "--json", "--src", "src")
    again = run("habit.csv", "--resume", "--quiet", "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert "is finished: nothing to resume" in again.stderr


def test_settings_come_from_a_file_and_flags_win(place: Path) -> None:
    (place / "run.toml").write_text('model = "gcn"\nepochs = 1\noptions = { layers = 3 }\n')
    result = run("habit.csv", *SMALL, "--config", "run.toml", "--json")
    config = json.loads(result.stdout)["config"]
    assert (config["model"], config["epochs"], config["options"]) == ("gcn", 2, {"layers": 3})
    folder = place / "runs/habit-gcn-snapshots-seed0"
    assert load_snapshot_config(folder / "config.toml").model_dump() == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonesuch"], "`nonesuch` is neither a file nor a data set"),
        (["uic"], "did you mean 'uci'"),
        (["missing/log.csv"], "missing/log.csv: no such file"),
        (["habit.csv", "--period", "7x"], "`period` must be ticks or a length of time"),
        (["habit.csv", "--period", "1d", "--count", "5"], "`period` and `count` both cut the log"),
        (["habit.csv", "--count", "2"], "`count` must be greater than or equal to 3: got 2"),
        (["habit.csv", "--model", "GCN"], "`model` must be a name, such as gconvgru"),
        (["habit.csv", "--model", "gnc"], "did you mean 'gcn'"),
        (["habit.csv", "--set", "order=2"], "did you mean 'orders'"),
        (["habit.csv", "--backend", "tnsor"], "`backend` must be one of auto, single"),
        (["habit.csv", "--backend", "tnsor"], "did you mean 'tensor'?"),
        (
            ["habit.csv", "--model", "gat", "--width", "1"],
            "`width` must be a multiple of the model",
        ),
        (
            ["habit.csv", "--backend", "tensor", "--backend-set", "chunks=x"],
            "must be a valid integ",
        ),
        (["habit.csv", "--lags", "8"], "`lags` is for a signal: `habit` is a log"),
        (["habit.csv", "--val-ratio", "0.6", "--test-ratio", "0.5"], "must leave a part to train"),
        (["habit.csv", "--cumulative", "--window", "3"], "leave `window` out"),
        (["habit.csv", "--resume", "--force"], "--resume goes on with a run and --force"),
        (["chickenpox", "--src", "a"], "--src is for a file"),
    ],
)
def test_a_refusal_is_one_clear_line(place: Path, words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (place / "runs").exists()


def test_a_run_is_never_destroyed_unless_asked(place: Path) -> None:
    assert run("habit.csv", *SMALL).exit_code == 0
    refused = run("habit.csv", *SMALL)
    assert refused.exit_code == 2 and "holds a finished run: --force" in refused.stderr
    assert run("habit.csv", *SMALL, "--force").exit_code == 0


@pytest.mark.parametrize("way", ["", "--force", "--resume"])
def test_a_folder_that_is_no_run_is_left_alone(place: Path, way: str) -> None:
    (place / "site").mkdir()
    (place / "site" / "config.toml").write_text('baseURL = "https://example.org"')
    refused = run("habit.csv", *SMALL, "--output", "site", *way.split())
    assert refused.exit_code == 2 and "site is not the folder of a run, but holds" in refused.stderr
    assert [path.name for path in (place / "site").iterdir()] == ["config.toml"]


def test_notes_of_a_figure_that_is_not_defined_are_shown(place: Path) -> None:
    rows = "".join(f"1,2,{time}\n" for time in range(20))
    (place / "edge.csv").write_text(f"src,dst,time\n{rows}")
    shown = run("edge.csv", "--count", "6", *SMALL[2:]).stdout
    assert "AP of the test part is -: no pair has a destination that was one before" in shown
    assert "note: AP of the validation part is -" in shown
    assert "nan" not in shown and "None" not in shown
