"""Killed at any moment and resumed is never killed: reports, weights and states, bit for bit.

The runs stand in processes of their own, which end themselves with SIGKILL: after a window, at a
moment of the clock, or in front of the n-th act on a file of the checkpoints or the report.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import neutronstream
from neutronstream.experiments import TrainConfig
from neutronstream.experiments import keeper as keeper_module
from neutronstream.experiments.fit import fit
from neutronstream.experiments.keeper import Keeper
from neutronstream.storage import read_checkpoint
from neutronstream.stream import CheckpointError

from .small import WINDOWS, assert_same_bits, hourly_log, settings, untimed

LOG = hourly_log(100, 18)

RUNNER = """
import json, os, signal, sys, threading
import numpy as np, torch
from neutronstream.experiments.config import TrainConfig
from neutronstream.experiments.fit import fit
from neutronstream.experiments.trainer import Trainer
from neutronstream.experiments.windows import windows_of
from neutronstream.stream import EventLog

columns, runs = json.load(sys.stdin)
log = EventLog.from_arrays(*columns[:3], kind=columns[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def once(config, folder, kill):
    how, number = kill or ("never", 0)
    seen = [0]
    def after_window(figures):
        if how == "window":
            seen[0] += 1
            if seen[0] == number:
                die()
    def before_act(event, arguments):
        known = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
        path = str(arguments[0]) if known else ""
        is_report = os.path.basename(path).startswith(("report.", "metrics."))
        if is_report if how == "report" else "checkpoints" in path:
            seen[0] += 1
            if seen[0] == number:
                die()
    if how in ("file", "report"):
        sys.addaudithook(before_act)
    if how == "clock":
        threading.Timer(number, die).start()
    fit(log, config, folder, resume=True, progress=after_window)

first = TrainConfig(**runs[0][0])  # load and compile before the forks, but without a backward pass
torch.set_num_threads(1)
window = next(iter(windows_of(log, first)))
Trainer(log, first).predict(window, 0)
for settings, folder, kills in runs:
    ends = []
    for kill in [*kills, None]:
        child = os.fork()
        if not child:
            code = 1
            try:
                once(TrainConfig(**settings), folder, kill)
                code = 0
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            os._exit(code)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(ends), flush=True)
"""


Kills = list[tuple[str, float]]

EVERY = settings(checkpoint_seconds=0.0, epochs=2, seed=1, **WINDOWS["fixed"])
ADAPTIVE = settings(checkpoint_seconds=0.0, epochs=2, seed=2, **(WINDOWS["adaptive"]))
SEQUENTIAL = settings(checkpoint_seconds=0.0, seed=3, executor="sequential", **WINDOWS["fixed"])
SPLIT = settings(checkpoint_seconds=0.0, epochs=3, protocol="split", model="jodie", seed=4)
NEVER = settings(checkpoint_seconds=1e9, epochs=2, seed=1, **WINDOWS["fixed"])

TWICE: Kills = [("window", 2), ("window", 1)]
FIRST: Kills = [("file", act) for act in range(1, 10)]  # all acts of the first checkpoint
CLOCK: Kills = [("clock", 0.08), ("clock", 0.12), ("clock", 0.2)]
REPORT: Kills = [("report", act) for act in range(1, 7)]  # written and renamed, three files


def plan(config: TrainConfig, *ways: Kills) -> list[tuple[TrainConfig, Kills]]:
    return [(config, kills) for kills in ways]


PLANS = [
    *plan(EVERY, [], [("window", 1)], TWICE, FIRST, CLOCK, REPORT),
    *plan(EVERY, [("file", 26)], [("file", 28)], [("file", 29)], [("file", 30)]),  # the third's
    *plan(ADAPTIVE, [], TWICE, [("file", 8), ("file", 26)], CLOCK),
    *plan(SEQUENTIAL, [], TWICE),
    *plan(SPLIT, [], [("window", 3), ("window", 12)], [("file", 8), ("file", 26)], CLOCK, REPORT),
    *plan(NEVER, [("window", 2)]),
]


@dataclass(frozen=True)
class Run:
    """A run that was killed as told, resumed each time, and in the end left alone."""

    config: TrainConfig
    kills: Kills
    folder: Path
    ends: list[int]  # exit codes, one more than `kills`


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """All of `PLANS`, by forks of one process: to start one takes longer than a run."""
    root = tmp_path_factory.mktemp("killed")
    events = LOG.events
    columns = [events.src.tolist(), events.dst.tolist(), events.time.tolist()]
    columns.append([LOG.kinds[code] for code in events.kind])
    folders = [root / str(number) for number in range(len(PLANS))]
    given = [
        (config.model_dump(), str(folder), kills)
        for (config, kills), folder in zip(PLANS, folders, strict=True)
    ]
    shown = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([columns, given]),
        env={**os.environ, "PYTHONPATH": str(Path(neutronstream.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert shown.returncode == 0, shown.stderr
    ends: list[list[int]] = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(ends) == len(PLANS) and all(end[-1] == 0 for end in ends), (ends, shown.stderr)
    found = zip(PLANS, folders, ends, strict=True)
    return [Run(config, kills, folder, end) for (config, kills), folder, end in found]


def assert_same_run(left: Path, right: Path) -> None:
    reports = [json.loads((f / "report.json").read_text()) for f in (left, right)]
    assert untimed(reports[0]) == untimed(reports[1])
    tensors, _ = read_checkpoint(left / "checkpoints")
    others, _ = read_checkpoint(right / "checkpoints")
    assert_same_bits(tensors, others)
    assert {path.name for path in left.iterdir()} == {path.name for path in right.iterdir()}


@pytest.mark.parametrize(
    "config", [EVERY, ADAPTIVE, SEQUENTIAL, SPLIT], ids=["fixed", "adaptive", "seq", "split"]
)
def test_killed_and_resumed_equals_never_killed(runs: list[Run], config: TrainConfig) -> None:
    whole, *killed = [run for run in runs if run.config == config]
    assert whole.ends == [0]
    for run in killed:
        if run.kills is CLOCK:  # it may strike too late
            assert -signal.SIGKILL in run.ends
        else:
            assert run.ends == [-signal.SIGKILL] * len(run.kills) + [0], run.kills
        assert_same_run(whole.folder, run.folder)


def test_killed_while_the_report_is_written_it_is_written_again(runs: list[Run]) -> None:
    """report.json is the last of the files: with it the others are there, and the run is done."""
    run, other = [run for run in runs if run.kills is REPORT]
    assert (run.config, other.config) == (EVERY, SPLIT) and other.ends == run.ends
    assert run.ends == [-signal.SIGKILL] * 6 + [0]
    assert {path.name for path in run.folder.iterdir()} == {
        *("report.json", "report.html", "metrics.parquet", "config.toml", "checkpoints", ".lock")
    }


def test_a_checkpoint_now_and_then_is_enough(runs: list[Run]) -> None:
    """Where the killed run had none, the resumed one starts over."""
    often = next(run for run in runs if run.config == EVERY)
    (never,) = [run for run in runs if run.config == NEVER]
    assert never.ends == [-signal.SIGKILL, 0]
    reports = [json.loads((run.folder / "report.json").read_text()) for run in (often, never)]
    for report in reports:
        report["config"].pop("checkpoint_seconds")
    assert untimed(reports[0]) == untimed(reports[1])


class _Stopped(Exception):
    pass


def _stop_after(windows: int) -> Callable[[dict[str, Any]], None]:
    seen = []

    def progress(figures: dict[str, Any]) -> None:
        seen.append(figures)
        if len(seen) == windows:
            raise _Stopped

    return progress


def _stopped_run(folder: Path, config: TrainConfig) -> None:
    with pytest.raises(_Stopped):
        fit(LOG, config, folder, progress=_stop_after(2))


CONFIG = settings(checkpoint_seconds=0.0, **WINDOWS["fixed"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "`seed` 0: got 1"),
        ({"learning_rate": 0.5}, "`learning_rate` 0.001: got 0.5"),
        ({"epochs": 3}, "`epochs` 1: got 3"),
        ({"width": 4}, "`width` 8: got 4"),
        ({"stride": 30}, "`stride` 20: got 30"),
    ],
)
def test_other_settings_are_refused_and_leave_the_folder_as_it_was(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    config = CONFIG.model_copy(update={"learning_rate": 0.001})
    _stopped_run(tmp_path, config)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match=f"{named}; resume with the same settings, or start"):
        fit(LOG, config.model_copy(update=change), tmp_path, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_another_log_is_refused(tmp_path: Path) -> None:
    _stopped_run(tmp_path, CONFIG)
    others = [hourly_log(100, 18, seed=9), replace(LOG, unit="ms"), replace(LOG, kinds=("a", "b"))]
    others += [replace(LOG, nodes=LOG.nodes.take(list(range(LOG.num_nodes))[::-1]))]
    for other in others:
        with pytest.raises(CheckpointError, match=r"is of another log.*give the log it was begun"):
            fit(other, CONFIG, tmp_path, resume=True)


def test_what_does_not_change_the_result_may_change(tmp_path: Path) -> None:
    _stopped_run(tmp_path / "stopped", CONFIG)
    free = {"checkpoint_seconds": 5.0, "check": True, "threads": 2}
    resumed = fit(LOG, CONFIG.model_copy(update=free), tmp_path / "stopped", resume=True)
    whole = fit(LOG, CONFIG)
    for report in (resumed, whole):
        del report["config"]
    assert untimed(resumed) == untimed(whole)


@pytest.mark.parametrize("name", ["tensors.safetensors", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path, name: str, damage: str) -> None:
    _stopped_run(tmp_path, CONFIG)
    newest = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    path = newest / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged.*remove .* to go on from the"):
        fit(LOG, CONFIG, tmp_path, resume=True)


def test_the_advice_of_that_error_is_good(tmp_path: Path) -> None:
    _stopped_run(tmp_path, CONFIG)
    newest = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    resumed = fit(LOG, CONFIG, tmp_path, resume=True)
    assert untimed(resumed) == untimed(fit(LOG, CONFIG))


def test_resuming_a_finished_run_gives_its_report_again(tmp_path: Path) -> None:
    report = fit(LOG, CONFIG, tmp_path)
    again = fit(LOG, CONFIG, tmp_path, resume=True)
    assert untimed(again) == untimed(report)
    assert again["windows"] == report["windows"]  # times too: nothing was done again


def test_a_finished_run_is_given_again_for_its_own_log_and_settings_only(tmp_path: Path) -> None:
    report = fit(LOG, CONFIG, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")  # the report alone says whose it is
    assert fit(LOG, CONFIG.model_copy(update={"threads": 2}), tmp_path, resume=True) == report
    with pytest.raises(CheckpointError, match="is of another log"):
        fit(LOG.head(90), CONFIG, tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="is of a run with `seed` 0: got 4"):
        fit(LOG, CONFIG.model_copy(update={"seed": 4}), tmp_path, resume=True)
    assert json.loads((tmp_path / "report.json").read_text()) == report


@pytest.mark.parametrize("content", [b"", b'{"windows": [', b"[]", b"{}", b"\xff\xfe"])
def test_a_damaged_report_is_named_and_its_advice_is_good(tmp_path: Path, content: bytes) -> None:
    report = fit(LOG, CONFIG, tmp_path)
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{path} is damaged .*: remove it, and the run"):
        fit(LOG, CONFIG, tmp_path, resume=True)
    path.unlink()
    assert untimed(fit(LOG, CONFIG, tmp_path, resume=True)) == untimed(report)


def test_a_run_in_the_folder_is_neither_mixed_with_nor_replaced_unasked(tmp_path: Path) -> None:
    first = fit(LOG, CONFIG, tmp_path)
    with pytest.raises(ValueError, match="holds a finished run: --force"):
        fit(LOG, CONFIG, tmp_path)
    other = fit(LOG, CONFIG.model_copy(update={"seed": 1}), tmp_path, force=True)
    assert other["metrics"] != first["metrics"]
    assert max(p.name for p in (tmp_path / "checkpoints").iterdir()) == "00000003"  # its own
    with pytest.raises(ValueError, match="give one of them"):
        fit(LOG, CONFIG, tmp_path, force=True, resume=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "nonesuch"}, "`model` must be one of"),
        ({"size": "1ms", "stride": "1ms"}, "`size`"),
        ({"device": "cuda:99"}, "`device` must be one that is here"),
    ],
)
def test_what_is_refused_leaves_the_run_that_was_to_be_replaced(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    fit(LOG, CONFIG, tmp_path / "run")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for folder, force in (("run", True), ("new", False)):
        with pytest.raises(ValueError, match=words):
            fit(LOG, CONFIG.model_copy(update=change), tmp_path / folder, force=force)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert not (tmp_path / "new").exists()


def test_one_run_at_a_time_is_in_a_folder(tmp_path: Path) -> None:
    """The second is refused while the first is on its way, and leaves it alone."""
    ways: list[dict[str, Any]] = [{}, {"resume": True}, {"force": True}]
    refused: list[object] = []

    def progress(figures: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"{tmp_path} is in use by another run") as error:
            fit(LOG, CONFIG, tmp_path, **ways[len(refused)])
        refused.append(error)

    report = fit(LOG, CONFIG, tmp_path, progress=progress)
    assert len(refused) == 3
    assert untimed(report) == untimed(fit(LOG, CONFIG))


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a begun checkpoint"])
def test_resuming_where_no_checkpoint_is_yet_starts_over(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "run"
    if left != "nothing":
        (folder / "checkpoints").mkdir(parents=True)
    if left == "a begun checkpoint":
        begun = folder / "checkpoints" / ".00000001"
        begun.mkdir()
        (begun / "tensors.safetensors").write_bytes(b"half")
    assert untimed(fit(LOG, CONFIG, folder, resume=True)) == untimed(fit(LOG, CONFIG))


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        fit(LOG, CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", ["prequential", "split"])
def test_ctrl_c_keeps_what_is_whole_however_seldom_checkpoints_are(
    tmp_path: Path, protocol: str
) -> None:
    given = {"checkpoint_seconds": 1e9, "seed": 1}
    windows = {**WINDOWS["fixed"], "epochs": 2}
    rest = windows if protocol == "prequential" else {"protocol": "split", "epochs": 3}
    config = settings(**given, **rest)

    def press(figures: dict[str, Any]) -> None:
        if protocol == "prequential" or "epoch" in figures:  # of a split: amidst the second
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as pressed:
        fit(LOG, config, tmp_path, progress=press)
    stands = "after 1 window" if protocol == "prequential" else "after 1 of 3 epochs"
    assert pressed.value.__notes__ == [f"`resume=True` goes on with {tmp_path}, {stands}"]
    _, meta = read_checkpoint(tmp_path / "checkpoints")
    done = meta["progress"]
    assert done["window"] == 1 if protocol == "prequential" else len(done["epochs"]) == 1
    assert untimed(fit(LOG, config, tmp_path, resume=True)) == untimed(fit(LOG, config))


def test_copies_in_memory_take_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not written yet is copied after the first window, and then no more than now and then.

    By this clock a window takes 1 ms, and a copy 10.
    """
    now = 0.0
    monkeypatch.setattr(keeper_module, "monotonic", lambda: now)

    class Slow:
        copies = 0

        def to_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
            nonlocal now
            now += 0.01
            self.copies += 1
            return {}, {"progress": {"window": self.copies}}

        def from_checkpoint(self, tensors: Any, meta: Any) -> None: ...

    trainer, keeper = Slow(), Keeper(tmp_path, LOG, settings(checkpoint_seconds=1e9))
    for _ in range(1_200):
        now += 0.001
        keeper.save(trainer)
    assert trainer.copies == 3  # at 0.01, 0.52 and 1.03 s
    assert not (tmp_path / "checkpoints").exists()
    keeper.write_latest()
    keeper.write_latest()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000001"]
    assert read_checkpoint(tmp_path / "checkpoints")[1]["progress"] == {"window": trainer.copies}


FOREIGN: dict[str, dict[str, str]] = {
    "settings of a site": {"config.toml": 'baseURL = "https://example.org"\n'},
    "settings of one's own": {"config.toml": 'model = "tgn"\nseed = 3\n'},
    "a report of something": {"report.json": '{"config": 3}', "report.html": "<p>"},
    "notes": {"notes.txt": "mine", "thesis.tex": "mine"},
    "weights of something": {"checkpoints/best.pt": "weights", "train.py": "import torch"},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_run_is_neither_replaced_nor_written_over(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    is_taken = "notes.txt" not in files
    tried: list[dict[str, Any]] = [{"force": True}, {}, {"resume": True}]
    for ways in tried:
        if ways.get("force") or is_taken:
            with pytest.raises(ValueError, match=f"{tmp_path} is not the folder of a run, but"):
                fit(LOG, CONFIG, tmp_path, **ways)
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == {tmp_path / name for name in files}
    assert all((tmp_path / name).read_text() == text for name, text in files.items())


def test_a_run_that_was_only_begun_is_one(tmp_path: Path) -> None:
    """By any one of the files that it wrote before it was killed."""
    fit(LOG, CONFIG, tmp_path / "whole", reading={"unit": "s"})
    for name in ("config.toml", "reading.json", "report.json", "checkpoints"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (shutil.copytree if name == "checkpoints" else shutil.copy)(
            tmp_path / "whole" / name, folder / name
        )
        with pytest.raises(ValueError, match=r"holds an? (un)?finished run"):
            fit(LOG, CONFIG, folder)
        assert untimed(fit(LOG, CONFIG, folder, force=True)) == untimed(fit(LOG, CONFIG))
