"""Killed at any moment and resumed is never killed: reports, weights and states, bit for bit.

The runs stand in processes of their own, which end themselves with SIGKILL: after a window, at a
moment of the clock, or in front of the n-th act on a file of the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neutronstream
from neutronstream.experiments import TrainConfig
from neutronstream.experiments.fit import fit
from neutronstream.storage import read_checkpoint
from neutronstream.stream import CheckpointError

from .small import WINDOWS, assert_same_bits, hourly_log, settings, untimed

LOG = hourly_log(130, 18)

RUNNER = """
import json, os, signal, sys, threading
import numpy as np, torch
from neutronstream.experiments.config import TrainConfig
from neutronstream.experiments.fit import Trainer, fit
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
        if known and "checkpoints" in str(arguments[0]):
            seen[0] += 1
            if seen[0] == number:
                die()
    if how == "file":
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


def run_and_kill(runs: list[tuple[TrainConfig, Path, list[tuple[str, float]]]]) -> list[list[int]]:
    """Each run killed as told, resumed each time; the exit codes, the last one being that of the
    run that was left alone."""
    events = LOG.events
    columns = [events.src.tolist(), events.dst.tolist(), events.time.tolist()]
    columns.append([LOG.kinds[code] for code in events.kind])
    given = [(config.model_dump(), str(folder), kills) for config, folder, kills in runs]
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
    assert len(ends) == len(runs) and all(end[-1] == 0 for end in ends), (ends, shown.stderr)
    return ends


def assert_same_run(left: Path, right: Path) -> None:
    reports = [json.loads((f / "report.json").read_text()) for f in (left, right)]
    assert untimed(reports[0]) == untimed(reports[1])
    tensors, _ = read_checkpoint(left / "checkpoints")
    others, _ = read_checkpoint(right / "checkpoints")
    assert_same_bits(tensors, others)


@pytest.mark.parametrize(
    ("way", "more", "acts"),
    [
        ("fixed", {"seed": 1}, (1, 2, 3, 4, 6, 8, 9, 17, 26, 27, 28)),
        ("adaptive", {"seed": 2, "rate": 0.5}, (8, 26)),
        ("fixed", {"seed": 3, "executor": "sequential"}, ()),
    ],
)
def test_killed_and_resumed_equals_never_killed(
    tmp_path: Path, way: str, more: dict[str, Any], acts: tuple[int, ...]
) -> None:
    config = settings(checkpoint_seconds=0.0, epochs=2, **(WINDOWS[way] | more))
    plans: list[list[tuple[str, float]]] = [
        [],
        [("window", 1)],
        [("window", 2), ("window", 1), ("window", 1)],
    ]
    if acts:
        plans += [[("file", act)] for act in acts]
        plans += [[("clock", 0.1), ("clock", 0.17), ("clock", 0.23)], [("clock", 0.3)]]
    runs = [(config, tmp_path / str(number), kills) for number, kills in enumerate(plans)]
    ends = run_and_kill(runs)
    killed = -signal.SIGKILL
    for kills, end in zip(plans, ends, strict=True):
        if not any(how == "clock" for how, _ in kills):  # the clock may strike too late
            assert end[:-1] == [killed] * len(kills)
    if acts:
        assert killed in ends[-2] + ends[-1]
    for _, folder, _ in runs[1:]:
        assert_same_run(runs[0][1], folder)


def test_a_checkpoint_now_and_then_is_enough(tmp_path: Path) -> None:
    """Where the killed run had none, the resumed one starts over; with some, it repeats a part."""
    often = settings(checkpoint_seconds=0.0, **WINDOWS["fixed"])
    never = settings(checkpoint_seconds=1e9, **WINDOWS["fixed"])
    runs: list[tuple[TrainConfig, Path, list[tuple[str, float]]]] = [
        (often, tmp_path / "often", []),
        (never, tmp_path / "never", [("window", 3)]),
    ]
    assert run_and_kill(runs) == [[0], [-signal.SIGKILL, 0]]
    reports = [json.loads((f / "report.json").read_text()) for _, f, _ in runs]
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
    other = hourly_log(130, 18, seed=9)
    with pytest.raises(CheckpointError, match=r"is of another log.*give the log it was begun with"):
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
