"""The command line keeps its promises: one JSON object, one line an error, a run goes on.

Everything runs on small files in a temporary folder, once as a process of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner, Result

from neutronstream import __version__
from neutronstream.experiments import profile_log
from neutronstream.experiments.cli import app
from neutronstream.experiments.config import TrainConfig, load_config
from neutronstream.experiments.flags import split_settings
from neutronstream.models import MODELS
from neutronstream.models.snapshots import SNAPSHOT_MODELS
from neutronstream.parallel.backends import BACKENDS

Call = Callable[..., Result]

LOG = "src,dst,time\n" + "".join(
    f"{(7 * i) % 11},{11 + (5 * i) % 7},{1_600_000_000 + 60 * (i // 2)}\n" for i in range(120)
)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs the command line in an empty folder that holds log.csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEUTRONSTREAM_DATA", raising=False)
    (tmp_path / "log.csv").write_text(LOG)
    return lambda *arguments: CliRunner().invoke(app, [str(word) for word in arguments])


def _only_object(result: Result) -> Any:
    """The JSON on stdout, strictly, and nothing beside it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=refuse)


def _refusal(result: Result) -> str:
    """The one line of an error."""
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    return lines[0].removeprefix("error: ")


def test_every_command_has_help_with_an_example(call: Call) -> None:
    for command in ("train", "replay", "inspect", "datasets"):
        result = call(command, "--help")
        assert result.exit_code == 0
        assert f"neutronstream {command}" in result.stdout.split("xample")[-1]


def test_no_command_shows_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "train" in result.output and result.exit_code in (0, 2)


def test_the_version_is_printed(call: Call) -> None:
    assert call("--version").stdout == f"neutronstream {__version__}\n"


def test_every_setting_has_a_flag(call: Call) -> None:
    text = call("train", "--help").stdout
    for name in TrainConfig.model_fields:
        flag = "set" if name == "options" else name.replace("_", "-")
        assert f"--{flag} " in text, name


def test_the_help_names_every_model_and_every_backend(call: Call) -> None:
    for command, kind, names in (
        ("train", "model", MODELS),
        ("snapshots", "model", SNAPSHOT_MODELS),
        ("snapshots", "backend", BACKENDS),
    ):
        text = " ".join(call(command, "--help").stdout.replace("│", "").split())
        told = text.split(f"--{kind} NAME ")[1].split("--")[0]
        assert set(names) <= set(re.findall(r"\w+", told)), (command, kind)


def test_the_help_of_a_switch_asks_for_no_value(call: Call) -> None:
    lines = call("train", "--help").stdout.splitlines()
    switches = ("--resume ", "--force ", "--json ", "--check ")
    found = [line for line in lines if line.strip("│ ").startswith(switches)]
    assert len(found) == len(switches)
    assert not any("<" in line for line in found)


def test_flags_are_split_into_settings_and_ways_to_read() -> None:
    assert split_settings({"seed": 0, "width": None, "src": "a", "dst": None}) == (
        {"seed": 0},
        {"src": "a"},
    )
    assert split_settings({"options": ["k=5", "sparse=true"]}) == (
        {"options": {"k": 5, "sparse": True}},
        {},
    )
    assert split_settings({"options": []}) == ({}, {})


# -- inspect ---------------------------------------------------------------------------------------


def test_inspect_prints_one_object_with_the_figures(call: Call) -> None:
    Path("few.csv").write_text("src,dst,time\na,b,5\nb,b,5\na,b,5\nc,a,86405\n")
    figures = _only_object(call("inspect", "few.csv", "--json"))
    expected = {
        "events": 4,
        "nodes": 3,
        "pairs": 3,
        "self_loops": 1,
        "ties": 2,
        "sorted": True,
        "time_unit": "s",
        "start": 5,
        "end": 86405,
        "span": 86400,
        "span_text": "24 hours",
        "start_utc": None,
        "repeat_share": 0.25,
        "bipartite": False,
        "max_degree": 3,
        "quarantined": 0,
    }
    assert {key: figures[key] for key in expected} == expected
    assert len(figures["checksum"]) == 64
    assert set(figures["suggested_window"]) == {"size", "stride"}


def test_inspect_prints_lines_for_a_person(call: Call) -> None:
    result = call("inspect", "log.csv")
    assert result.exit_code == 0
    assert "events" in result.stdout and "2020-09-13T12:26:40Z" in result.stdout


def test_an_unsorted_file_is_said_to_be_unsorted(call: Call) -> None:
    Path("back.csv").write_text("src,dst,time\n1,2,9\n1,2,8\n")
    figures = _only_object(call("inspect", "back.csv", "--json"))
    assert (figures["sorted"], figures["start"], figures["end"]) == (False, 8, 9)


def test_limit_reads_only_the_first_events(call: Call) -> None:
    assert _only_object(call("inspect", "log.csv", "--limit", 7, "--json"))["events"] == 7


def test_columns_and_unit_can_be_named(call: Call) -> None:
    Path("odd.csv").write_text("x,y,when\n1,2,3000\n2,3,4000\n")
    arguments = ("--src", "y", "--dst", "x", "--time", "when", "--unit", "ms", "--json")
    figures = _only_object(call("inspect", "odd.csv", *arguments))
    assert (figures["events"], figures["time_unit"], figures["span"]) == (2, "ms", 1000)


def test_a_log_without_events_has_figures_too(call: Call) -> None:
    Path("none.csv").write_text("src,dst,time\n")
    figures = _only_object(call("inspect", "none.csv", "--json"))
    assert (figures["events"], figures["start"], figures["repeat_share"]) == (0, None, None)


# -- refusals --------------------------------------------------------------------------------------


HOSTILE = [
    ("missing.csv: no such file", "inspect missing.csv"),
    ("neither a file nor a data set", "inspect nonesuch"),
    ("text.csv", "inspect text.csv"),
    ("junk.csv", "inspect junk.csv"),
    ("empty.csv", "inspect empty.csv"),
    ("torn.csv.gz", "inspect torn.csv.gz"),
    ("folder", "inspect folder"),
    ("nowhere", "inspect log.csv --src nowhere"),
    ("fortnight", "inspect log.csv --unit fortnight"),
    ("--unit is for a file", "inspect demo --unit s"),
    ("limit", "inspect log.csv --limit 0"),
    ("limit", "inspect log.csv --limit many"),
    ("missing.txt", "inspect log.csv --initial-graph missing.txt"),
    ("--colour", "inspect log.csv --colour"),
    ("LOG", "inspect"),
    ("tranin", "tranin log.csv"),
    ("bad.toml: unknown setting `batchsize`", "train log.csv --config bad.toml"),
    ("none.toml", "train log.csv --config none.toml"),
    ("`rate` must be less", "train log.csv --rate 7"),
    ("`size` must be a count", "train log.csv --size parsecs"),
    ("`stride` must not exceed", "train log.csv --size 5 --stride 6"),
    ("give one of them", "train log.csv --resume --force"),
    ("is a file", "train log.csv --output log.csv"),
    ("nonesuch", "train log.csv --model nonesuch"),
    ("`device` must be one that is here (cpu", "train log.csv --device cuda:99"),
    ("no event", "train none.csv --quiet"),
    ("--set must be NAME=VALUE", "train log.csv --set k"),
    (
        "model 'dyrep' has no option 'intensty': did you mean 'inten",
        "train log.csv --set intensty=3",
    ),
    (
        "option 'intensity' of model 'dyrep' must be 'linear' or 'bilinear': got 'cubic'",
        "train log.csv --set intensity=cubic",
    ),
    ("has no windows", "train log.csv --protocol split --size 5"),
    ("leaves no event to validate on", "train one.csv --protocol split --quiet"),
    ("leaves no event to test on", "train log.csv --protocol split --test-ratio 0.001 --quiet"),
    ("exact by its nature", "train log.csv --consistency batch --executor sequential"),
]


@pytest.mark.parametrize(("words", "arguments"), HOSTILE)
def test_bad_input_is_one_line_and_exit_code_2(call: Call, words: str, arguments: str) -> None:
    Path("folder").mkdir()
    Path("text.csv").write_text("src,dst,time\n1,2,x\n")
    Path("none.csv").write_text("src,dst,time\n")
    Path("one.csv").write_text("src,dst,time\n1,2,3\n2,3,3\n")
    Path("junk.csv").write_bytes(bytes(range(256)) * 8)
    Path("empty.csv").write_bytes(b"")
    Path("torn.csv.gz").write_bytes(gzip.compress(LOG.encode())[:100])
    Path("bad.toml").write_text("batchsize = 3\n")
    assert words in _refusal(call(*arguments.split()))


def test_debug_shows_the_error_itself(call: Call) -> None:
    result = call("inspect", "missing.csv", "--debug")
    assert isinstance(result.exception, FileNotFoundError)


def test_a_near_miss_of_a_name_is_suggested(call: Call) -> None:
    assert "did you mean 'demo'?" in _refusal(call("inspect", "dmeo"))


def test_bad_rows_go_to_the_quarantine_if_there_is_one(call: Call) -> None:
    Path("text.csv").write_text("src,dst,time\n1,2,3\n1,2,x\n4,5,6\n")
    figures = _only_object(call("inspect", "text.csv", "--quarantine", "bad.csv", "--json"))
    assert (figures["events"], figures["quarantined"]) == (2, 1)
    assert "x" in Path("bad.csv").read_text()


# -- datasets --------------------------------------------------------------------------------------


def test_data_sets_are_listed_and_can_be_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "temporal").mkdir(parents=True)
    table = pa.table({"src": [0, 1, 1], "dst": [1, 2, 2], "t": [5, 6, 6]})
    pq.write_table(table, tmp_path / "data" / "temporal" / "uci.parquet")
    monkeypatch.setenv("NEUTRONSTREAM_DATA", str(tmp_path / "data"))
    rows = _only_object(call("datasets", "--json"))["datasets"]
    assert "uci" in [row["name"] for row in rows]
    assert _only_object(call("inspect", "uci", "--json"))["ties"] == 1


# -- replay ----------------------------------------------------------------------------------------


def test_replay_counts_what_stands_in_the_graph(call: Call) -> None:
    figures = _only_object(call("replay", "log.csv", "--check", "--json"))
    assert (figures["events"], figures["nodes"], figures["links"]) == (120, 18, 77)
    assert figures["checked_samples"] == 240
    assert figures["events_per_second"] > 0 and figures["peak_memory_mib"] > 1


def test_replay_of_no_events_is_no_fault(call: Call) -> None:
    Path("none.csv").write_text("src,dst,time\n")
    assert _only_object(call("replay", "none.csv", "--json"))["events"] == 0


# -- train -----------------------------------------------------------------------------------------

SMALL = ("--width", 4, "--size", 60, "--stride", 30, "--batch-size", 30, "--candidates", 5)


def test_train_writes_its_folder_and_prints_the_report(call: Call) -> None:
    report = _only_object(call("train", "log.csv", *SMALL, "--json"))
    folder = Path("runs/log-dyrep-seed0")
    assert report["folder"] == folder.as_posix()
    assert report["counts"] == {"read": 120, "applied": 120, "late": 0, "quarantined": 0}
    assert len(report["windows"]) == 3
    stored = json.loads((folder / "report.json").read_text())
    assert stored == {key: value for key, value in report.items() if key != "folder"}
    assert load_config(folder / "config.toml").width == 4
    assert (folder / "report.html").exists()
    assert pq.read_table(folder / "metrics.parquet").num_rows == 3


def test_train_shows_a_table_and_where_the_report_is(call: Call) -> None:
    result = call("train", "log.csv", *SMALL, "--output", "here")
    assert result.exit_code == 0, result.stderr
    assert "edgebank" in result.stdout and "last half" in result.stdout
    assert "report: here/report.html" in result.stdout
    assert "training: 100%" in result.stderr


def test_quiet_says_nothing_on_stderr(call: Call) -> None:
    assert call("train", "log.csv", *SMALL, "--quiet").stderr == ""


def test_a_finished_run_is_replaced_only_by_force(call: Call) -> None:
    arguments = ("train", "log.csv", *SMALL, "--output", "out", "--json")
    first = _only_object(call(*arguments))
    Path("out/mine.txt").write_text("not of the run")
    Path("out/checkpoints").mkdir(exist_ok=True)
    Path("out/checkpoints/mine.ckpt").write_text("nor is this")
    assert "holds a finished run: --force" in _refusal(call(*arguments))
    again = _only_object(call(*arguments, "--force"))
    assert again["metrics"] == first["metrics"]
    assert Path("out/mine.txt").exists()
    assert Path("out/checkpoints/mine.ckpt").exists()


def test_resume_of_a_finished_run_shows_it_and_of_another_is_refused(call: Call) -> None:
    first = _only_object(call("train", "log.csv", *SMALL, "--output", "out", "--json"))
    resumed = _only_object(call("train", "log.csv", "--output", "out", "--resume", "--json"))
    assert resumed == first
    other = call("train", "log.csv", "--output", "out", "--resume", "--epochs", 2)
    assert "out is of a run with `epochs` 1: got 2" in _refusal(other)
    Path("other.toml").write_text("width = 5\nsize = 60\n")
    other = call("train", "log.csv", "--output", "out", "--resume", "--config", "other.toml")
    assert "out is of a run with `width` 4: got 5" in _refusal(other)
    missing = call("train", "missing.csv", "--output", "out", "--resume")
    assert "missing.csv: no such file" in _refusal(missing)


def test_logs_of_one_name_share_a_folder_but_never_a_run(call: Call) -> None:
    for folder, text in (("x", LOG), ("y", LOG + "1,12,1700000000\n")):
        Path(folder).mkdir()
        Path(folder, "log.csv").write_text(text)
    first = _only_object(call("train", "x/log.csv", *SMALL, "--json"))
    assert "holds a finished run" in _refusal(call("train", "y/log.csv", *SMALL))
    assert "is of another log" in _refusal(call("train", "y/log.csv", "--resume", "--quiet"))
    assert _only_object(call("train", "x/log.csv", "--resume", "--json")) == first


def test_a_report_cut_off_is_named(call: Call) -> None:
    assert call("train", "log.csv", *SMALL, "--output", "out").exit_code == 0
    Path("out/report.json").write_text('{"windows": [')
    words = _refusal(call("train", "log.csv", "--output", "out", "--resume", "--quiet"))
    assert words.startswith("out/report.json is damaged") and "remove it" in words


SPLIT = ("--protocol", "split", "--width", 4, "--epochs", 2, "--batch-size", 30)


def test_train_on_a_split_writes_its_folder_and_prints_the_report(call: Call) -> None:
    options = ("--patience", 1, "--set", "intensity=linear", "--set", "association=x")
    report = _only_object(call("train", "log.csv", *SPLIT, *options, "--json"))
    folder = Path("runs/log-dyrep-split-seed0")
    assert report["folder"] == folder.as_posix()
    assert report["config"]["options"] == {"intensity": "linear", "association": "x"}
    assert report["counts"]["applied"] == 120
    assert 1 <= len(report["epochs"]) <= 2
    assert pq.read_table(folder / "metrics.parquet").num_rows == len(report["epochs"])
    again = _only_object(call("train", "log.csv", "--output", folder, "--resume", "--json"))
    assert again == report


def test_train_on_a_split_shows_the_test_and_what_it_depends_on(call: Call) -> None:
    result = call("train", "log.csv", *SPLIT, "--consistency", "batch")
    assert result.exit_code == 0, result.stderr
    for words in (
        "test, transductive, random negatives",
        "test, inductive, historical negatives",
        "edgebank_window",
        "AP by batch",
        "against one negative pair an event and strategy",
        "batches of 30, batch",
        "report: runs/log-dyrep-split-batch-seed0/report.html",
    ):
        assert words in result.stdout, words
    assert "validation," not in result.stdout
    assert "training: 100%" in result.stderr and "epoch 2" in result.stderr


def test_an_interrupted_split_goes_on_where_it_stopped(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("train", "log.csv", *SPLIT, "--epochs", 3, "--checkpoint-seconds", 0, "--json")
    whole = _only_object(call(*arguments, "--output", "whole"))
    _interrupt(monkeypatch)
    assert call(*arguments, "--output", "out").exit_code == 130
    resumed = _only_object(call("train", "log.csv", "--output", "out", "--resume", "--json"))
    for key in ("metrics", "split", "config", "notes"):
        assert resumed[key] == whole[key]


def test_every_model_runs_by_its_name(call: Call) -> None:
    for model in sorted(MODELS):
        for consistency in ("exact", "batch"):
            given = ("--model", model, "--consistency", consistency, "--limit", 60)
            report = _only_object(call("train", "log.csv", *SMALL, *given, "--json"))
            assert report["metrics"][model]["overall"]["events"] > 50
            assert report["ranking"]["consistency"] == consistency


@pytest.mark.parametrize(
    "wrong",
    [
        ("--model", "nonesuch"),
        ("--set", "nonesuch=1"),
        ("--size", "1ms", "--stride", "1ms"),
        ("--device", "cuda:99"),
        ("--src", "nowhere"),
        ("--limit", 0),
    ],
)
def test_a_refused_command_removes_no_run_and_begins_none(
    call: Call, wrong: tuple[object, ...]
) -> None:
    for resume_or_force in ((), ("--resume",), ("--force",)):
        _refusal(call("train", "log.csv", "--output", "new", *wrong, *resume_or_force, "--quiet"))
        assert not Path("new").exists()
    assert call("train", "log.csv", *SMALL, "--output", "out").exit_code == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    _refusal(call("train", "log.csv", "--output", "out", *wrong, "--force", "--quiet"))
    assert before == {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["", " "])
def test_a_folder_without_a_name_is_refused(call: Call, name: str) -> None:
    before = set(Path().iterdir())
    assert f"--output must name a folder: got {name!r}" in _refusal(
        call("train", "log.csv", *SMALL, "--output", name)
    )
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize("ended", [False, True])
def test_resume_reads_the_log_as_the_run_did(
    call: Call, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Unit, columns, initial links and quarantine are those of the first command."""
    lines = LOG.splitlines()
    Path("odd.csv").write_text("\n".join(["dst,src,when", *lines[1:9], "3,x,soon", *lines[9:]]))
    Path("graph.txt").write_text("1 2\n3 4\n")
    columns = ("--src", "src", "--dst", "dst", "--time", "when", "--unit", "ms")
    how = (*columns, "--initial-graph", "graph.txt", "--quarantine", "bad.csv")
    begin = ("train", "odd.csv", *SMALL, "--checkpoint-seconds", 0, *how, "--json")
    whole = _only_object(call(*begin, "--output", "whole"))
    assert whole["counts"] == {"read": 121, "applied": 120, "late": 0, "quarantined": 1}
    if ended:
        _only_object(call(*begin, "--output", "out"))
    else:
        _interrupt(monkeypatch)
        assert call(*begin, "--output", "out").exit_code == 130
    go_on = ("train", "odd.csv", "--output", "out", "--resume")
    assert "is of another log" in _refusal(call(*go_on, "--unit", "s", "--quiet"))
    resumed = _only_object(call(*go_on, "--json"))
    assert (resumed["metrics"], resumed["counts"]) == (whole["metrics"], whole["counts"])
    Path("out/reading.json").write_text("{")
    assert "out/reading.json is damaged" in _refusal(call(*go_on))


def _interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has someone press Ctrl-C after the second checkpoint."""
    from neutronstream.experiments import keeper

    save, saved = keeper.Keeper.save, []

    def save_and_stop(self: Any, *rest: Any, **options: Any) -> None:
        save(self, *rest, **options)
        saved.append(1)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(keeper.Keeper, "save", save_and_stop)


def test_an_interrupted_run_says_how_to_go_on_and_does(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("train", "log.csv", *SMALL, "--checkpoint-seconds", 0, "--json")
    whole = _only_object(call(*arguments, "--output", "whole"))
    _interrupt(monkeypatch)
    stopped = call(*arguments, "--output", "out")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "the same command with --resume goes on with out" in stopped.stderr
    assert "holds an unfinished run: --resume" in _refusal(call(*arguments, "--output", "out"))
    resumed = _only_object(call("train", "log.csv", "--output", "out", "--resume", "--json"))
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["config"] == whole["config"]


def test_resume_without_a_run_begins_one(call: Call) -> None:
    report = _only_object(call("train", "log.csv", *SMALL, "--resume", "--json"))
    assert report["counts"]["applied"] == 120


def test_settings_come_from_a_file_and_flags_win(call: Call) -> None:
    Path("run.toml").write_text("width = 4\nsize = 60\nseed = 5\ncandidates = 5\n")
    report = _only_object(
        call("train", "log.csv", "--config", "run.toml", "--seed", 6, "--limit", 80, "--json")
    )
    assert report["folder"] == "runs/log-dyrep-seed6"
    assert (report["config"]["width"], report["config"]["seed"]) == (4, 6)
    assert report["counts"]["applied"] == 80


def test_one_window_over_the_whole_log_is_noted(call: Call) -> None:
    small = ("--width", "4", "--candidates", "5", "--force")
    said = call("train", "log.csv", *small, "--size", "1d")
    note = "note: one window holds the whole log, so nothing was learned before an event"
    assert said.exit_code == 0 and said.stderr.count(note) == 1
    assert note not in call("train", "log.csv", *small, "--size", "1d", "--quiet").stderr
    assert note not in call("train", "log.csv", *small, "--size", "60").stderr


# -- the process -----------------------------------------------------------------------------------


def _process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = Path(sys.modules["neutronstream"].__file__ or "").parents[1]
    return subprocess.run(
        [sys.executable, "-m", "neutronstream", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_module_runs_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    good = _process("inspect", "log.csv", "--json", folder=tmp_path)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["events"] == 120
    bad = _process("inspect", "missing.csv", folder=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: missing.csv: no such file\n"


def test_help_does_not_load_what_is_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from neutronstream.experiments.cli import run; run(['--help']);"
        "print([name for name in ('torch', 'numba', 'sklearn') if name in sys.modules])"
    )
    source = Path(sys.modules["neutronstream"].__file__ or "").parents[1]
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("src,dst,time\n1,2,x\n", "put such rows aside: --quarantine PATH"),
        ("a,b,c\n1,2,3\n", "name it with --src COLUMN"),
        ("0 5 9\n1 3 8\n2 4 3\n", "for example --src 0, --dst 1, --time 2"),
    ],
)
def test_a_refusal_names_options_as_flags(call: Call, content: str, words: str) -> None:
    Path("odd.csv").write_text(content)
    assert _refusal(call("inspect", "odd.csv")).endswith(words)


LARGE = 10**20


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *((name, LARGE) for name in ("width", "size", "down", "up", "batch-size", "epochs")),
        *((name, LARGE) for name in ("negatives", "candidates", "edgebank-window", "threads")),
        *((name, LARGE) for name in ("seed", "limit", "split-seed", "patience")),
        *((name, "1e305") for name in ("learning-rate", "clip", "checkpoint-seconds")),
    ],
)
def test_a_number_too_large_is_one_line(call: Call, flag: str, value: Any) -> None:
    name = flag.replace("-", "_")
    words = _refusal(call("train", "log.csv", "--output", "out", f"--{flag}", value))
    assert f"`{name}` must be less than" in words
    assert not Path("out").exists()


def test_the_largest_counts_are_taken(call: Call) -> None:
    most = 2**63 - 1
    counts = ("--size", most, "--batch-size", most, "--edgebank-window", most, "--limit", most)
    rest = ("--width", 4, "--candidates", 5, "--clip", 1e9, "--checkpoint-seconds", 1e9)
    report = _only_object(call("train", "log.csv", *counts, *rest, "--json"))
    assert report["counts"]["applied"] == 120
    window = ("--window", "adaptive", "--down", most, "--up", most)
    report = _only_object(call("train", "log.csv", *window, *rest, "--output", "other", "--json"))
    assert report["counts"]["applied"] == 120


def test_inspect_of_a_limit_beyond_the_log_takes_all_of_it(call: Call) -> None:
    pq.write_table(pa.table({"src": [0], "dst": [1], "t": [5]}), "one.parquet")
    for name, events in (("log.csv", 120), ("one.parquet", 1)):
        assert _only_object(call("inspect", name, "--limit", LARGE, "--json"))["events"] == events


def _fill(kind: str) -> None:
    if kind == "torch":
        torch.empty(2**47)
    elif kind == "torch, beyond any count":
        torch.empty(2**40, 2**40)
    elif kind == "numpy":
        np.empty(2**47, np.float64)
    else:
        np.zeros(3, np.int64)[0] = 2**70


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("torch", "the memory does not suffice"),
        ("torch, beyond any count", "the memory does not suffice"),
        ("numpy", "the memory does not suffice"),
        ("a number", "a number is too large"),
    ],
)
def test_memory_that_does_not_suffice_is_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    monkeypatch.setattr(profile_log, "profile_log", lambda log: _fill(kind))
    assert words in _refusal(call("inspect", "log.csv"))
    assert not isinstance(call("inspect", "log.csv", "--debug").exception, SystemExit)


def _shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = Path(sys.modules["neutronstream"].__file__ or "").parents[1]
    return subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m neutronstream {line}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(os.name == "nt", reason="the shell of Unix closes streams like this")
def test_streams_that_the_caller_closed_take_nothing_and_harm_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    silent = _shell("inspect log.csv --json >&-", tmp_path)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    refused = _shell("inspect missing.csv 2>&-", tmp_path)
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", "")
    (tmp_path / "bad.csv").write_text("src,dst,time\n1,2,x\n3,4,5\n")
    aside = _shell("inspect bad.csv --quarantine q.csv <&- >&- 2>&-", tmp_path)
    assert (aside.returncode, aside.stdout, aside.stderr) == (0, "", "")
    assert (tmp_path / "q.csv").read_text().count("\n") == 2  # nothing was printed into it


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize("module", ["neutronstream.experiments.cli", "typer", "torch", "pyarrow"])
@pytest.mark.parametrize("swallow", [False, True])
def test_an_interrupt_while_modules_load_is_130(tmp_path: Path, module: str, swallow: bool) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        f"                raise AttributeError('half') if {swallow} else KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Press())\n"
        "sys.argv[1:] = ['train', 'log.csv', '--width', '4', '--candidates', '5', '--json']\n"
        "from neutronstream.__main__ import main\n"
        "main()\n"
    )
    source = Path(sys.modules["neutronstream"].__file__ or "").parents[1]
    stopped = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (130, "", "interrupted\n")
