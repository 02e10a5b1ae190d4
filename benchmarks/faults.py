"""How soon does a job end when one of its ranks is killed, stopped, or differs from the others?

At a random moment of a job's life, from its start on, one rank drawn at random is sent SIGKILL or
SIGSTOP; or one rank has another seed.  Counted are jobs that ended within ten seconds with one
message that names the rank, and processes that were left behind.

    python benchmarks/faults.py --times 20 --ranks 2
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from common import finish  # type: ignore  # beside this file

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "tests" / "rank_job.py"
LAUNCHERS = {
    "mpiexec": lambda ranks: [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)],
    "torchrun": lambda ranks: [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={ranks}", "--no-python"),
    ],
}
LIMIT = 10.0  # seconds
LIFE = 8.0  # seconds within which the moment is drawn: the ranks load, meet and work


def start(launcher: str, ranks: int, what: str) -> subprocess.Popen[str]:
    """A job whose ranks exchange gradients until it is ended."""
    words = [sys.executable, str(JOB), what, "-1", "0", "5"]
    return subprocess.Popen(
        [*LAUNCHERS[launcher](ranks), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(job: subprocess.Popen[str]) -> dict[int, int]:
    """Process by rank, of the ranks that run our script now."""
    parents, ranks = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if str(JOB).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                given = (folder / "environ").read_bytes()
                found = re.search(rb"(?:^|\0)(?:PMI_RANK|RANK)=(\d+)", given)
                if found is not None:
                    ranks[pid] = int(found[1])

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != job.pid:
            pid = parents.get(pid, 0)
        return pid == job.pid

    return {rank: pid for pid, rank in ranks.items() if is_ours(pid)}


def is_left(pid: int) -> bool:
    """Whether a process still runs our script, or watches those who do."""
    with suppress(OSError):
        said = Path(f"/proc/{pid}/cmdline").read_bytes()
        return str(JOB).encode() in said or b"/witness.py" in said
    return False


def trial(launcher: str, ranks: int, fault: str, rng: random.Random) -> dict[str, Any]:
    """One job with one fault."""
    began = time.monotonic()
    job = start(launcher, ranks, "differ" if fault == "differ" else "wait")
    known: dict[int, int] = {}
    if fault != "differ":
        moment = rng.uniform(0, LIFE)
        while len(known) < ranks or time.monotonic() - began < moment:
            time.sleep(0.02)
            known = ranks_of(job)
        victim = rng.randrange(ranks)
        expected = f"rank {victim} of {ranks} " + ("died" if fault == "kill" else "is stopped")
        began = time.monotonic()
        os.kill(known[victim], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    else:
        expected = "ValueError: the ranks differ in seed: 0 on rank 0, 1 on rank 1"
    err = job.communicate(timeout=120)[1]
    seconds = time.monotonic() - began
    time.sleep(0.2)
    said = re.findall(r"^(?:rank \d+ of \d+|ValueError).*$", err, re.MULTILINE)
    said = list(dict.fromkeys(said))  # a traceback ends with the error, too
    return {
        "moment": moment if fault != "differ" else None,
        "seconds": seconds,
        "said": len(said) == 1 and said[0].startswith(expected) and job.returncode != 0,
        "left": sum(map(is_left, known.values())),
        "err": err,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", choices=sorted(LAUNCHERS), default="mpiexec")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    result: dict[str, Any] = {"ranks": given.ranks, "launcher": given.launcher}
    for fault in ("kill", "stop", "differ"):
        trials = []
        for number in range(given.times):
            found = trial(given.launcher, given.ranks, fault, rng)
            trials.append(found)
            print(fault, number, f"{found['seconds']:.2f} s", "ok" if found["said"] else found)
        seconds = [one["seconds"] for one in trials]
        result[fault] = {
            "times": given.times,
            "with_one_right_message": sum(one["said"] for one in trials),
            "within_limit": sum(one["seconds"] < LIMIT for one in trials),
            "left_behind": sum(one["left"] for one in trials),
            "seconds": {"median": round(median(seconds), 2), "most": round(max(seconds), 2)},
        }
    finish(result, given.seed)


if __name__ == "__main__":
    main()
