"""Over ranks and backends a run is that of one process; the command speaks with one voice."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from neutronstream.storage import read_checkpoint

from ...parallel.backends.run import held_on_ranks
from ..test_cli_ranks import alone, launch, refusal_by_all, report_of
from . import run_promises
from .run_promises import PROMISES, assert_alike
from .small import write_habit

WORDS = ("snapshots", "habit.csv", "--period", "1d", "--epochs", "2", "--width", "6", "--names")
COMMAND = (*WORDS, "5", "--dtype", "float64")


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_promises_hold_on_ranks(count: int) -> None:
    (found,) = held_on_ranks((count,), run_promises.__name__)
    assert set(found) == {promise.__name__ for promise in PROMISES}
    assert "the ranks differ in seed: '0' on rank 0" in found["ranks_that_differ_are_told"]
    assert "the ranks differ in data" in found["ranks_that_differ_are_told"]
    assert "ms a step" in found["auto_says_why"]
    (told,) = found["the_report_says_which_ranks_made_its_figures"]
    assert re.match(
        rf"epochs 1 by single on 1 rank, 2 by \w+ on {count} ranks: bytes, balance ", told
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with habit.csv."""
    return write_habit(tmp_path_factory.mktemp("snapshots") / "habit.csv").parent


@pytest.mark.parametrize("launcher", ["mpiexec", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_the_command_over_two_ranks_is_one_run_with_one_voice(place: Path, launcher: str) -> None:
    words: tuple[Any, ...] = (*COMMAND, "--backend", "tensor", "--json")
    report, err = report_of(launch(place, 2, *words, "--output", launcher, launcher=launcher))
    assert sum(line.startswith("training: 100%") for line in err.splitlines()) == 1
    assert_alike(report, alone(place, *COMMAND, "--output", f"{launcher}_alone"))
    assert report["folder"] == launcher
    stored = json.loads((place / launcher / "report.json").read_text())
    assert stored == {name: value for name, value in report.items() if name != "folder"}


def test_ranks_that_fail_alike_say_so_once(place: Path) -> None:
    said = refusal_by_all(launch(place, 2, *COMMAND, "--backend", "single", "--output", "single"))
    assert said == "error: backend `single` runs on one rank: got 2; choose another"
    assert not (place / "single").exists()


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_interrupted_job_keeps_what_is_whole_and_says_where_it_stands(
    place: Path, count: int
) -> None:
    """Checkpoints are half a minute apart; none is written before Ctrl-C."""
    folder = place / f"stopped{count}"
    words = (*COMMAND, "--epochs", "100000", "--patience", "100000", "--output", folder.name)
    job = launch(place, count, *words)
    while not (folder / "config.toml").exists():
        assert job.poll() is None, job.communicate()
        sleep(0.01)
    sleep(4)  # some epochs
    assert not (folder / "checkpoints").exists()
    job.send_signal(signal.SIGINT)
    text = refusal_by_all(job)
    said = "interrupted: the same command with --resume goes on with"
    (epochs,) = re.fullmatch(rf"{said} {folder.name}, after (\d+) of 100000 epochs", text).groups()  # type: ignore[union-attr]
    _, meta = read_checkpoint(folder / "checkpoints")
    assert len(meta["progress"]["epochs"]) == int(epochs) >= 1
