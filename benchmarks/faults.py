"""How soon does training end when a rank is killed, stopped or differs, and does it go on the same?

`neutronstream train` runs on several ranks.  At a random moment of its life, from when all ranks
have started, one rank drawn at random is sent SIGKILL or SIGSTOP; or one that starts a random while
after the others has another log, seed or version.  Counted are jobs that ended within ten seconds
with one message, the right one, and processes that were left behind.  A run that lost a rank is
resumed: on as many ranks the report must be the same to the last bit, on one rank up to 1e-9.

    python benchmarks/faults.py --times 20 --ranks 2

Answer (2026-11-30): killed 20 of 20 right, after 0.1 to 0.4 s, and stopped 20 of 20, after 5.2 to
5.5 s, both on cores that did other work; unlike 20 of 20, after 2.9 s (on busy cores, at low
priority, one of 11 took 11.06 s); nothing left behind, and all resumed equal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import finish  # type: ignore  # beside this file

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 10.0  # seconds
WORDS = (
    *("--width", "8", "--candidates", "10", "--dtype", "float64", "--checkpoint-seconds", "0"),
    *("--size", "100", "--stride", "10", "--json", "--quiet"),
)
EVENTS, NODES = 400, 60
RANK = "${PMI_RANK:-$RANK}"  # as the shell knows it
OTHERS = ("log", "seed", "version of numba")


def launcher(name: str, ranks: int) -> list[str]:
    """What starts so many processes of the command that follows."""
    if name == "mpiexec":
        return [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    return [*run, f"--nproc-per-node={ranks}"]


@dataclass(frozen=True)
class Place:
    """A folder with logs that differ in one event, and a folder with another version of numba."""

    folder: Path
    launcher: str
    ranks: int

    def prepare(self) -> None:
        rng = np.random.default_rng(0)
        src, dst = rng.integers(0, NODES, (2, EVENTS))
        for name in ("log", "other"):
            rows = (f"{a},{b},{i // 2}\n" for i, (a, b) in enumerate(zip(src, dst, strict=True)))
            (self.folder / f"{name}.csv").write_text("src,dst,time\n" + "".join(rows))
            src[EVENTS // 2] += 1
        known = self.folder / "packages" / "numba-0.1.dist-info"
        known.mkdir(parents=True)
        (known / "METADATA").write_text("Name: numba\nVersion: 0.1\n")

    def start(
        self, output: str, *words: str, ranks: int | None = None, unlike: str = ""
    ) -> subprocess.Popen[str]:
        """A job of training; the shell runs `unlike` before."""
        program = f'{unlike}\nexec "$PYTHON" -m neutronstream train $LOG "$@"'
        given = [*WORDS, *words, "--output", str(self.folder / output)]
        environ = {"PYTHON": sys.executable, "LOG": str(self.folder / "log.csv")}
        return subprocess.Popen(
            [*launcher(self.launcher, ranks or self.ranks), "sh", "-c", program, "sh", *given],
            env=os.environ | environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def report(self, output: str) -> dict[str, Any]:
        text = (self.folder / output / "report.json").read_text()
        return {k: v for k, v in leaves(json.loads(text)).items() if not is_timed(k)}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """What a report says, by the place in it."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, item in items for k, v in leaves(item, f"{path}/{name}").items()}
    return {path: value}


def is_timed(path: str) -> bool:
    """Whether the clock decides of it."""
    return "seconds" in path or "_per_second" in path


def is_same(one: dict[str, Any], other: dict[str, Any], bound: float) -> bool:
    """Whether two reports are the same, numbers up to a `bound` relative to what is above 1."""

    def close(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, float):
            return abs(a - b) <= bound * max(1.0, abs(a))
        return bool(a == b)

    return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)


@dataclass
class Seen:
    """The processes of a job."""

    ranks: dict[int, int] = field(default_factory=dict)  # process by rank
    witness: int = 0
    met: bool = False  # whether the witness knows all ranks

    def look(self, job: subprocess.Popen[str], ranks: int) -> None:
        parents, witnesses = {}, []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                pid = int(folder.name)
                parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"neutronstream" in command and b"train" in command:
                    own = (folder / "environ").read_bytes()
                    found = re.search(rb"(?:^|\0)(?:PMI_RANK|RANK)=(\d+)", own)
                    if found is not None and _is_below(pid, job.pid, parents):
                        self.ranks[int(found[1])] = pid
                elif any(word.endswith(b"/witness.py") for word in command):
                    witnesses.append(pid)
        for pid in witnesses:
            if parents[pid] in self.ranks.values():
                self.witness = pid
        with suppress(OSError):
            files = [os.readlink(f) for f in Path(f"/proc/{self.witness}/fd").iterdir()]
            self.met = self.witness > 0 and sum("pidfd" in name for name in files) == ranks

    def left(self) -> int:
        """How many of them are still there."""
        known = [*self.ranks.values(), *([self.witness] if self.witness else [])]
        return sum(map(_runs, known))


def _is_below(pid: int, above: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != above:
        if pid not in parents:
            with suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text()
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
        pid = parents.get(pid, 0)
    return pid == above


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@dataclass
class Trial:
    """What became of one job with one fault."""

    moment: float  # seconds from the start of the job
    seconds: float  # from the fault to the end of the job
    said: bool  # one message, the right one
    left: int  # processes
    same: bool | None  # the report of the run resumed; None if there is none
    err: str

    @property
    def is_good(self) -> bool:
        return self.said and self.seconds < LIMIT and not self.left and self.same is not False


def lose(place: Place, fault: str, life: float, rng: random.Random) -> Trial:
    """Kill or stop a rank at a random moment, and resume the run.

    If the report was printed already, the job had done its work, and there is another.
    """
    out = "{"
    while out.startswith("{"):
        shutil.rmtree(place.folder / "lost", ignore_errors=True)
        moment, victim = rng.uniform(0, life), rng.randrange(place.ranks)
        began, seen = time.monotonic(), Seen()
        job = place.start("lost")
        while job.poll() is None and not (seen.met and time.monotonic() - began > moment):
            time.sleep(0.01)
            if not seen.met:
                seen.look(job, place.ranks)
        moment, began = time.monotonic() - began, time.monotonic()
        if job.poll() is None:
            with suppress(ProcessLookupError):
                number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
                os.kill(seen.ranks[victim], number)
        try:
            out, err = job.communicate(timeout=2 * LIMIT)
        except subprocess.TimeoutExpired:
            os.kill(seen.ranks[victim], signal.SIGCONT)
            out, err = job.communicate()
        seconds = time.monotonic() - began
        life *= 0.95 if out.startswith("{") else 1.0
    time.sleep(0.3)
    left = seen.left()
    expected = f"rank {victim} of {place.ranks} " + ("died: " if fault == "kill" else "is stopped,")
    ranks = rng.choice([1, place.ranks])
    again = place.start("lost", "--resume", ranks=ranks)
    same = again.communicate(timeout=300)[0] != "" and again.returncode == 0
    if same:
        bound = 0.0 if ranks == place.ranks else 1e-9
        same = is_same(place.report("whole"), place.report("lost"), bound)
    return Trial(moment, seconds, said(err, expected) and job.returncode != 0, left, same, err)


def differ(place: Place, life: float, rng: random.Random) -> Trial:
    """Start one rank later than the others, and not like them."""
    moment, victim, fact = rng.uniform(0, life), rng.randrange(place.ranks), rng.choice(OTHERS)
    change = {
        "log": f"LOG={place.folder / 'other.csv'}",
        "seed": 'set -- "$@" --seed 1',
        "version of numba": f"PYTHONPATH={place.folder / 'packages'}:$PYTHONPATH",
    }[fact]
    unlike = f'if [ "{RANK}" = {victim} ]; then {change}; sleep {moment}; fi'
    began, seen = time.monotonic(), Seen()
    job = place.start("unlike", unlike=unlike)
    while job.poll() is None and not seen.met:
        time.sleep(0.01)
        seen.look(job, place.ranks)
    met = time.monotonic()
    err = job.communicate(timeout=120)[1]
    seconds = time.monotonic() - met
    time.sleep(0.3)
    named = rf"error: the ranks differ in {fact}: .+ on rank 0, .+ on rank {max(victim, 1)}; "
    right = said(err, named) and job.returncode != 0 and not (place.folder / "unlike").exists()
    return Trial(met - began, seconds, right, seen.left(), None, err)


def said(err: str, expected: str) -> bool:
    """Whether the only message of ours is the expected one."""
    lines = re.findall(r"^(?:rank \d+ of \d+|error: |Traceback|\w+Error).*$", err, re.MULTILINE)
    return len(lines) == 1 and re.match(expected, lines[0]) is not None


def summary(trials: list[Trial]) -> dict[str, Any]:
    seconds = [trial.seconds for trial in trials]
    resumed = [trial.same for trial in trials if trial.same is not None]
    return {
        "times": len(trials),
        "right_message": sum(trial.said for trial in trials),
        "within_limit": sum(trial.seconds < LIMIT for trial in trials),
        "left_behind": sum(trial.left for trial in trials),
        "resumed": len(resumed),
        "resumed_equal": sum(resumed),
        "median_s": round(median(seconds), 2),
        "most_s": round(max(seconds), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", choices=("mpiexec", "torchrun"), default="mpiexec")
    parser.add_argument("--faults", default="kill,stop,differ")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    result: dict[str, Any] = {"ranks": given.ranks, "launcher": given.launcher}
    with TemporaryDirectory() as folder:
        place = Place(Path(folder), given.launcher, given.ranks)
        place.prepare()
        for number in range(2):  # the first one may compile
            began = time.monotonic()
            job = place.start("whole", *(["--force"] if number else []))
            err = job.communicate()[1]
            assert job.returncode == 0, err
            life = time.monotonic() - began
        result["life_s"] = round(life, 1)
        found = {}
        for fault in given.faults.split(","):
            trials = []
            for number in range(given.times):
                if fault == "differ":
                    trial = differ(place, life, rng)
                else:
                    trial = lose(place, fault, life, rng)
                trials.append(trial)
                detail = "ok" if trial.is_good else f"{trial}"
                print(
                    f"{fault} {number}: at {trial.moment:.1f} s, ended after {trial.seconds:.2f} s,"
                    f" {detail}",
                    flush=True,
                )
            found[fault] = summary(trials)
    columns = list(next(iter(found.values())))
    print(" ".join(f"{name:>13}" for name in ("fault", *columns)))
    for fault, row in found.items():
        print(" ".join(f"{value:>13}" for value in (fault, *row.values())))
    finish({**result, **found}, given.seed)


if __name__ == "__main__":
    main()
