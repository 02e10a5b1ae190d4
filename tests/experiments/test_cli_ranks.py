"""`mpiexec -n N neutronstream train ...` is one run with one voice and the result of one process.

All runs are on small files in a folder of their own, with states of float64.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from neutronstream.experiments.cli import app
from neutronstream.storage import read_checkpoint

from ..data import ROOT
from ..ranks import command, finish
from .small import assert_same_bits, numbers, untimed

SMALL = ("--width", "6", "--candidates", "5", "--dtype", "float64", "--checkpoint-seconds", "0")
PREQUENTIAL = (*SMALL, "--size", "60", "--stride", "10")  # 25 windows
TRAIN = ("train", "bad.csv", *PREQUENTIAL, "--quarantine", "aside.csv")
SPLIT = (*SMALL, "--protocol", "split", "--model", "jodie", "--epochs", "3")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with log.csv of 300 events, other.csv with one changed, bad.csv with a bad row."""
    folder = tmp_path_factory.mktemp("ranks")
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 40, (2, 300))
    rows = [f"{a},{b},{60 * (i // 2)}\n" for i, (a, b) in enumerate(zip(src, dst, strict=True))]
    (folder / "log.csv").write_text("src,dst,time\n" + "".join(rows))
    rows[100] = f"41,42,{60 * 50}\n"
    (folder / "other.csv").write_text("src,dst,time\n" + "".join(rows))
    rows.insert(7, "1,2,noon\n")
    (folder / "bad.csv").write_text("src,dst,time\n" + "".join(rows))
    return folder


def launch(
    place: Path, count: int, *words: object, launcher: str = "mpiexec"
) -> subprocess.Popen[str]:
    """`neutronstream` with these words, started on `count` ranks in the folder `place`."""
    return _start([*command(launcher, count), *_program(words)], place)


def launch_unlike(place: Path, *ranks: tuple[object, ...], **environ: str) -> subprocess.Popen[str]:
    """The same with words of its own for each rank; the last one has `environ`, too."""
    mpiexec, _, _, python = command("mpiexec", 1)
    words: list[str] = []
    for number, own in enumerate(ranks):
        is_last = number == len(ranks) - 1
        given = [word for item in environ.items() if is_last for word in ("-env", *item)]
        words += [*([":"] if words else []), "-n", "1", *given, python, *_program(own)]
    return _start([mpiexec, *words], place)


def _program(words: tuple[object, ...]) -> list[str]:
    return ["-m", "neutronstream", *map(str, words)]


def _start(words: list[str], place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pids(job: subprocess.Popen[str], count: int) -> dict[int, int]:
    """Process by rank of a job, once all of its `count` ranks are there."""
    found: dict[int, int] = {}
    while len(found) < count:
        assert job.poll() is None, job.communicate()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parent = Path(f"/proc/{fields[1]}/stat").read_text().rpartition(")")[2].split()
                environ = (folder / "environ").read_bytes()
                rank = re.search(rb"(?:^|\0)PMI_RANK=(\d+)", environ)
                if int(parent[1]) == job.pid and rank is not None:  # mpiexec > its proxy > ranks
                    found[int(rank[1])] = int(folder.name)
    return found


def report_of(job: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The one JSON object on stdout, and stderr, of a job that ends well."""
    code, out, err = finish(job)
    assert code == 0, out + err
    return json.loads(out), err


def refusal(job: subprocess.Popen[str]) -> str:
    """The one line on stderr of a job that fails."""
    code, _, err = finish(job)
    assert code != 0
    lines = err.splitlines()
    assert len(lines) == 1, err
    return lines[0]


def refusal_by_all(job: subprocess.Popen[str]) -> str:
    """The same of a job whose ranks fail alike; one that does so long before the rest is named."""
    return re.sub(r"^rank \d of \d: (error: |interrupted)", r"\1", refusal(job))


def alone(place: Path, *words: object) -> dict[str, Any]:
    """The report of one process, this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        result = CliRunner().invoke(app, [*map(str, words), "--json", "--quiet"])
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def assert_alike(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Two reports say the same, numbers up to 1e-9."""
    sides = [numbers(untimed(report)) for report in (left, right)]
    for side in sides:
        side.pop("/folder", None)
    assert sides[0].keys() == sides[1].keys()
    for name, value in sides[0].items():
        if isinstance(value, float):
            assert value == pytest.approx(sides[1][name], rel=1e-9, abs=1e-9), name
        else:
            assert value == sides[1][name], name


# -- one run --------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """A run of 2 ranks that nothing befell."""

    report: dict[str, Any]
    said: list[str]
    aside: str  # the bad rows


@pytest.fixture(scope="module")
def whole(place: Path) -> Whole:
    """It is in the folder `whole`."""
    report, err = report_of(launch(place, 2, *TRAIN, "--output", "whole", "--json"))
    return Whole(report, err.splitlines(), (place / "aside.csv").read_text())


def test_two_ranks_report_what_one_process_does(place: Path, whole: Whole) -> None:
    report = alone(place, *TRAIN, "--output", "alone")
    assert len(report["windows"]) == 25
    assert_alike(report, whole.report)


def test_one_rank_alone_tells_how_it_goes(place: Path, whole: Whole) -> None:
    assert sum(line.startswith("training: 100%") for line in whole.said) == 1
    notes = [line for line in whole.said if line.startswith("note: ")]
    assert len(notes) == len(set(notes))
    assert sum("aside.csv" in note for note in notes) == 1  # of the bad row
    assert {path.name for path in (place / "whole").iterdir()} == {
        *("report.json", "report.html", "metrics.parquet", "config.toml", "reading.json"),
        *("checkpoints", ".lock"),
    }


def test_bad_rows_are_put_aside_once(place: Path, whole: Whole) -> None:
    assert whole.report["counts"]["quarantined"] == 1
    assert len(whole.aside.splitlines()) == 2
    assert "noon" in whole.aside
    reading = json.loads((place / "whole/reading.json").read_text())
    assert reading == {"quarantine": str(place / "aside.csv")}


def test_a_split_over_two_ranks_is_the_split_of_one_process(place: Path) -> None:
    words = ("train", "log.csv", *SPLIT)
    report, _ = report_of(launch(place, 2, *words, "--output", "split", "--json"))
    assert_alike(alone(place, *words, "--output", "split_alone"), report)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize("events", [1, 2, 3, 300])
def test_four_ranks_take_logs_of_any_length(place: Path, events: int, launcher: str) -> None:
    words = ("train", "log.csv", *SMALL, "--size", "60", "--limit", events)
    output = f"{launcher}{events}"
    job = launch(place, 4, *words, "--output", output, "--json", launcher=launcher)
    report, _ = report_of(job)
    assert_alike(alone(place, *words, "--output", f"{output}_alone"), report)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dygnn", "jodie", "ldg", "tgn"])
@pytest.mark.parametrize("consistency", ["exact", "batch"])
def test_every_model_gives_on_ranks_what_it_gives_alone(
    place: Path, model: str, consistency: str
) -> None:
    how = ("--model", model, "--consistency", consistency, "--size", "100")
    words = ("train", "log.csv", *SMALL, *how)
    output = f"{model}_{consistency}"
    report, _ = report_of(launch(place, 3, *words, "--output", output, "--json"))
    assert_alike(alone(place, *words, "--output", f"{output}_alone"), report)


@pytest.mark.slow
def test_one_event_over_and_over_is_trained_on_ranks(place: Path) -> None:
    (place / "loops.csv").write_text("src,dst,time\n" + "".join(f"3,3,{i}\n" for i in range(40)))
    words = ("train", "loops.csv", *SMALL)
    report, _ = report_of(launch(place, 2, *words, "--output", "loops", "--json"))
    assert_alike(alone(place, *words, "--output", "loops_alone"), report)


@pytest.mark.slow
def test_an_explanation_for_ranks_is_given_once(place: Path) -> None:
    words = ("train", "log.csv", *SMALL, "--explain", "--json", "--output", "never")
    report, err = report_of(launch(place, 2, *words))
    assert (report["ranks"], err) == (2, "")
    assert not (place / "never").exists()


# -- refusals -------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_by_the_first_rank(place: Path, whole: Whole) -> None:
    text = refusal(launch(place, 2, "train", "log.csv", "--output", "whole"))
    assert text.startswith("rank 0 of 2: error: whole holds a finished run: --force")


def test_a_missing_file_is_told_of_once(place: Path) -> None:
    text = refusal_by_all(launch(place, 4, "train", "missing.csv"))
    assert text == "error: missing.csv: no such file"


def test_what_is_wrong_once_ranks_are_connected_is_all_that_is_said(place: Path) -> None:
    """The code of the job is that of the error; MPI, which would call it a crash, adds nothing."""
    (place / "empty.csv").write_text("src,dst,t\n")
    words = ("train", "empty.csv", "--output", "never", "--quiet")
    code, out, err = finish(launch(place, 3, *words))
    assert (code, out) == (2, "")
    text = re.sub(r"^rank \d of \d: ", "", err)  # of one that fails long before the rest
    assert text == "error: the log holds no event: there is nothing to train on\n"
    assert not (place / "never").exists()


def test_a_command_for_one_process_is_refused_on_ranks(place: Path) -> None:
    text = refusal_by_all(launch(place, 2, "inspect", "log.csv"))
    expected = "`inspect` runs in one process: start it without mpiexec (got 2 ranks)"
    assert text == f"error: {expected}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["compare log.csv --models tgn", "labels log.csv", "replay log.csv", "datasets"]
)
def test_all_other_commands_are_refused_on_ranks(place: Path, words: str) -> None:
    text = refusal_by_all(launch(place, 3, *words.split()))
    assert text.endswith("start it without mpiexec (got 3 ranks)")


@pytest.mark.slow
def test_a_missing_device_is_told_of_once(place: Path) -> None:
    text = refusal_by_all(launch(place, 2, "train", "log.csv", "--device", "cuda:99"))
    assert text.startswith("error: `device` must be one that is here")


@pytest.mark.slow
def test_ranks_without_mpi4py_are_told_what_to_install(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('it is not here')")
    path = f"{tmp_path}{os.pathsep}{ROOT / 'src'}"
    words = ("train", "log.csv", *SMALL, "--output", "never", "--quiet")
    text = refusal(launch_unlike(place, words, words, PYTHONPATH=path))
    assert text.startswith("rank 1 of 2: error: mpiexec started 2 ranks, but mpi4py cannot be")
    assert "pip install 'neutronstream[mpi]'" in text
    assert not (place / "never").exists()


@pytest.mark.slow
def test_help_and_version_are_printed_once(place: Path) -> None:
    code, out, err = finish(launch(place, 3, "--version"))
    assert (code, len(out.splitlines()), err) == (0, 1, "")
    code, out, err = finish(launch(place, 3, "train", "--help"))
    assert (code, out.count("Usage:"), err) == (0, 1, "")


@pytest.mark.slow
def test_a_first_rank_that_cannot_write_ends_the_job(place: Path) -> None:
    text = refusal(launch(place, 2, "train", "log.csv", *SMALL, "--output", "/proc/runs"))
    assert text.startswith("rank 0 of 2: error: /proc/runs: ")


def test_ranks_with_other_logs_are_refused(place: Path) -> None:
    words = (*SMALL, "--output", "never", "--quiet")
    text = refusal_by_all(
        launch_unlike(place, ("train", "log.csv", *words), ("train", "other.csv", *words))
    )
    assert re.match(
        r"error: the ranks differ in log: '[0-9a-f]{64}' on rank 0, '[0-9a-f]{64}' on rank 1; ",
        text,
    )
    assert not (place / "never").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "values"), [("seed", (0, 1)), ("resume", (False, True))])
def test_ranks_with_other_settings_are_refused(
    place: Path, flag: str, values: tuple[object, object]
) -> None:
    words = ("train", "log.csv", *SMALL, "--output", "never", "--quiet")
    flags = (("--seed", 0), ("--seed", 1)) if flag == "seed" else ((), ("--resume",))
    text = refusal_by_all(launch_unlike(place, *((*words, *own) for own in flags)))
    said = f"error: the ranks differ in {flag}: {values[0]} on rank 0, {values[1]} on rank 1; "
    assert text.startswith(said)


@pytest.mark.slow
def test_ranks_with_other_versions_are_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "numba-0.1.dist-info").mkdir()
    (tmp_path / "numba-0.1.dist-info/METADATA").write_text("Name: numba\nVersion: 0.1\n")
    path = f"{tmp_path}{os.pathsep}{ROOT / 'src'}"
    words = ("train", "log.csv", *SMALL, "--output", "never", "--quiet")
    text = refusal_by_all(launch_unlike(place, words, words, words, PYTHONPATH=path))
    assert re.match(
        r"error: the ranks differ in version of numba: '[\d.]+' on rank 0, '0.1' on rank 2; ", text
    )


# -- lost and resumed -----------------------------------------------------------------------------


def killed(place: Path, words: tuple[object, ...], output: str, victim: int) -> None:
    """A run on 2 ranks in the folder `output`, one of which is killed after two checkpoints."""
    job = launch(place, 2, *words, "--output", output, "--quiet")
    ranks = pids(job, 2)
    while not (place / output / "checkpoints" / "00000002").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.001)
    os.kill(ranks[victim], signal.SIGKILL)
    moment = time.monotonic()
    code, _, err = finish(job)
    assert time.monotonic() - moment < 10
    assert code != 0
    assert [line for line in err.splitlines() if line] == [
        f"rank {victim} of 2 died: it was killed, perhaps for want of memory, or left without a "
        "word"
    ]
    assert not (place / output / "report.json").exists()


def test_a_run_that_lost_a_rank_goes_on_with_as_many_bit_for_bit_and_with_any(
    place: Path, whole: Whole
) -> None:
    expected = json.loads((place / "whole/report.json").read_text())
    killed(place, TRAIN, "lost", 1)
    for count in (1, 2, 4):
        output = f"lost{count}"
        shutil.copytree(place / "lost", place / output)
        again = ("train", "bad.csv", "--output", output, "--resume")
        if count == 1:
            report = alone(place, *again)
        else:
            report, _ = report_of(launch(place, count, *again, "--json"))
        assert_alike(expected, report)
        if count == 2:
            assert untimed(expected) == untimed(
                json.loads((place / output / "report.json").read_text())
            )
            ends = [read_checkpoint(place / name / "checkpoints")[0] for name in ("whole", output)]
            assert_same_bits(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_split_that_lost_its_first_rank_goes_on(place: Path, count: int) -> None:
    words = ("train", "log.csv", *SPLIT, "--epochs", "6")
    if not (place / "split_whole").exists():
        report_of(launch(place, 2, *words, "--output", "split_whole", "--json"))
    expected = json.loads((place / "split_whole/report.json").read_text())
    output = f"split_lost{count}"
    killed(place, words, output, 0)
    report, err = report_of(
        launch(place, count, "train", "log.csv", "--output", output, "--resume", "--json")
    )
    assert_alike(expected, report)
    again, err = report_of(
        launch(place, 2, "train", "log.csv", "--output", output, "--resume", "--json")
    )
    assert again == report and err == f"{output} is finished: nothing to resume\n"


# -- scripts --------------------------------------------------------------------------------------


OWN = """
import os, sys
from neutronstream import TrainConfig, fit, read_log
from neutronstream.experiments.guard import ranks
from neutronstream.models import DyRep

with ranks(os.environ) as comm:

    def mine():
        if sys.argv[2] == "fails" and comm.rank == 1:
            raise RuntimeError("no memory for it")
        model = DyRep(6)
        if sys.argv[2] == "differs":
            next(model.parameters()).data += comm.rank
        return model

    config = TrainConfig(dtype="float64", candidates=5, size=100)
    fit(read_log("log.csv"), config, sys.argv[1], model=mine, comm=comm)
"""


def own(place: Path, count: int, *words: str) -> subprocess.Popen[str]:
    (place / "own.py").write_text(OWN)
    program = ["own.py", *words]
    return _start([*command("mpiexec", count), *program], place)


@pytest.mark.slow
def test_a_script_trains_a_model_of_its_own_on_ranks(place: Path) -> None:
    for count in (1, 2):
        assert finish(own(place, count, f"own{count}", "")) == (0, "", "")
    found = [json.loads((place / f"own{n}/report.json").read_text()) for n in (1, 2)]
    assert_alike(*found)


@pytest.mark.slow
def test_a_script_whose_model_differs_or_fails_on_one_rank_is_ended(place: Path) -> None:
    code, _, err = finish(own(place, 2, "own_differs", "differs"))
    assert code != 0
    assert "ValueError: the ranks differ in first weights of the model: '" in err.splitlines()[-1]
    code, _, err = finish(own(place, 2, "own_fails", "fails"))
    assert code != 0
    assert err.splitlines()[-1] == "rank 1 of 2: RuntimeError: no memory for it"
    assert not (place / "own_fails").exists()


LATE = """
import os, sys, time
from neutronstream.experiments.guard import guarded

late, patience = map(float, sys.argv[1:])
if os.environ["PMI_RANK"] == "1":
    time.sleep(late)
with guarded(os.environ, patience):
    time.sleep(late / 4)
"""


@pytest.mark.slow
def test_a_rank_may_come_late_but_not_never(place: Path) -> None:
    (place / "late.py").write_text(LATE)
    mpiexec = command("mpiexec", 2)
    assert finish(_start([*mpiexec, "late.py", "4", "0.5"], place)) == (0, "", "")
    text = refusal(_start([*mpiexec, "late.py", "100", "0.05"], place))
    assert text == (
        "rank 1 of 2 has not come for 1.2 s, while others wait: it never began, or hangs"
    )


@pytest.mark.slow
def test_an_interrupted_job_says_once_how_to_go_on(place: Path) -> None:
    words = ("train", "log.csv", *PREQUENTIAL, "--output", "stopped")
    job = launch(place, 2, *words)
    while not (place / "stopped" / "checkpoints" / "00000001").exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.001)
    job.send_signal(signal.SIGINT)
    text = refusal_by_all(job)
    said = "interrupted: the same command with --resume goes on with stopped, after"
    assert re.fullmatch(rf"{said} \d+ windows?", text)
