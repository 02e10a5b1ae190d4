"""A rank that is lost ends the job within ten seconds, with one message, and leaves no process."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from neutronstream.experiments.guard import PATIENCE, guarded, place

from .ranks import finish, start

JOB = Path(__file__).with_name("rank_job.py")
SAID = re.compile(r"^(?:rank \d of \d|RuntimeError|ValueError|interrupted).*$", re.MULTILINE)


class Job:
    """A started job whose ranks have all come to their work."""

    def __init__(
        self,
        launcher: str,
        count: int,
        what: str,
        who: int = -1,
        after: float = 0.5,
        *light: str,
        patience: float = PATIENCE,
    ) -> None:
        self.process = start(launcher, count, JOB, what, who, after, patience, *light)
        self.pids: dict[int, int] = {}
        self.moment = 0.0
        while len(self.pids) < count:
            self._read()

    def now(self) -> float:
        """Waits for the moment, and says when it was."""
        while not self.moment:
            self._read()
        return self.moment

    def _read(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        if line == "now\n":
            self.moment = time.monotonic()
        elif line.startswith("rank"):
            _, rank, pid = line.split()
            self.pids[int(rank)] = int(pid)

    def ends(self) -> tuple[int, list[str]]:
        """Its exit code, and what of its stderr is a message of ours but for tracebacks."""
        code, _, err = finish(self.process)
        until = time.monotonic() + 1
        while any(map(_runs, self.pids.values())) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(_runs, self.pids.values()))
        own = "".join(_without_tracebacks(err))
        return code, SAID.findall(own)


def _without_tracebacks(text: str) -> list[str]:
    """Lines of text without those of tracebacks, which end with the error itself."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.startswith("Traceback"):
            inside = True
        elif inside and not line.startswith(" "):
            inside = False
        elif not inside:
            kept.append(line)
    return kept


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _witnesses() -> set[int]:
    """Those that were started from here, and not by tests that run beside these."""
    here = os.environ.get("PYTEST_XDIST_WORKER", "").encode()
    found = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may end meanwhile
            if b"/witness.py" in line.read_bytes():
                given = (line.parent / "environ").read_bytes().split(b"\0")
                if not here or b"PYTEST_XDIST_WORKER=" + here in given:
                    found.add(int(line.parent.name))
    return found


@pytest.fixture(autouse=True)
def no_process_is_left() -> object:
    before = _witnesses()
    yield
    until = time.monotonic() + 1
    while _witnesses() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not _witnesses() - before


DIED = "rank 1 of 2 died: it was killed, perhaps for want of memory, or left without a word"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("kill", DIED),
        ("vanish", DIED),
        ("stop", "rank 1 of 2 is stopped, and has been for 5 s"),
        ("raise", "rank 1 of 2: RuntimeError: the reason"),
        ("leave", "rank 1 of 2: left with 3"),
    ],
)
def test_a_lost_rank_ends_the_job_with_one_message(what: str, message: str) -> None:
    job = Job("mpiexec", 2, what, 1, 0.5, "light")
    moment = job.now()
    code, said = job.ends()
    assert time.monotonic() - moment < 10
    assert code != 0
    assert said == [message]


def test_what_all_ranks_say_is_said_once_and_without_a_rank() -> None:
    code, said = Job("mpiexec", 4, "all", 0, 0, "light").ends()
    assert code != 0
    assert said == ["RuntimeError: the reason of all"]


def test_a_job_that_ends_well_says_nothing() -> None:
    assert Job("mpiexec", 4, "end", 0, 0, "light").ends() == (0, [])


def test_an_interrupted_job_says_so_once() -> None:
    job = Job("mpiexec", 2, "wait", -1, 0, "light")
    job.process.send_signal(signal.SIGINT)
    code, said = job.ends()
    assert code != 0
    assert said == ["interrupted"]


def test_a_job_that_is_suspended_and_resumed_goes_on() -> None:
    job = Job("mpiexec", 2, "raise", 0, 3, "light", patience=1)
    for pid in job.pids.values():
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    assert job.process.poll() is None
    for pid in job.pids.values():
        os.kill(pid, signal.SIGCONT)
    assert job.ends()[1] == ["rank 0 of 2: RuntimeError: the reason"]


def test_ranks_end_with_their_launcher() -> None:
    job = Job("mpiexec", 2, "wait", -1, 0, "light")
    job.process.kill()
    assert job.ends()[0] != 0


def test_a_job_goes_on_without_its_witness() -> None:
    before = _witnesses()
    job = Job("mpiexec", 2, "end", -1, 0, "light")
    (witness,) = _witnesses() - before
    os.kill(witness, signal.SIGKILL)
    assert job.ends() == (0, [])


@pytest.mark.parametrize(
    ("launcher", "what", "message"),
    [
        ("mpiexec", "kill", DIED),
        ("mpiexec", "sleep", r"rank 1 of 2 has done nothing for 2.8 s, while rank 0 of 2 "
            r"waits for it in `gradients` \(exchange \d+\): it hangs"),
        ("mpiexec", "early", "rank 1 of 2 has left, while rank 0 of 2 waits for it in the start: "
            "every rank must make the same calls"),
        ("mpiexec", "depart", "rank 1 of 2 has left, while rank 0 of 2 waits for it in `gradients` "
            r"\(exchange \d+\): every rank must make the same calls"),
        ("torchrun", "kill", DIED),
    ],
)  # fmt: skip
def test_ranks_that_wait_for_a_lost_one_are_ended(launcher: str, what: str, message: str) -> None:
    job = Job(launcher, 2, what, 1, patience=2)
    moment = job.now()
    code, said = job.ends()
    assert time.monotonic() - moment < 10
    assert code != 0
    assert len(said) == 1
    assert re.fullmatch(message, said[0])


def _shared_memory(pid: int) -> set[str]:
    return set(re.findall(r"/dev/shm/mpich_shm_\w+$", Path(f"/proc/{pid}/maps").read_text(), re.M))


def test_a_lost_rank_leaves_no_shared_memory_behind() -> None:
    job = Job("mpiexec", 2, "wait", -1, 0)
    until, files = time.monotonic() + 60, set[str]()
    while not files and time.monotonic() < until:
        time.sleep(0.1)
        files = _shared_memory(job.pids[1])
    assert files
    time.sleep(1)  # until it has said that it is connected
    os.kill(job.pids[1], signal.SIGKILL)
    assert job.ends()[1] == [DIED]
    assert not any(map(os.path.exists, files))


def test_ranks_that_differ_end_with_one_message() -> None:
    code, said = Job("mpiexec", 2, "differ", -1, 0).ends()
    assert code != 0
    (text,) = said
    assert text.startswith("ValueError: the ranks differ in seed: 0 on rank 0, 1 on rank 1;")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
@pytest.mark.parametrize("what", ["end", "kill", "stop", "raise", "sleep", "all"])
def test_faults_among_four_ranks(launcher: str, what: str) -> None:
    job = Job(launcher, 4, what, 2, 0.3)
    moment = time.monotonic() if what in ("end", "all") else job.now()
    code, said = job.ends()
    assert what in ("end", "all") or time.monotonic() - moment < 15  # torchrun takes its time
    assert (code == 0) == (what == "end")
    assert len(said) == (what != "end")


@pytest.mark.slow
def test_a_rank_that_works_long_is_not_taken_for_lost() -> None:
    job = Job("mpiexec", 2, "work", 1, patience=2)
    job.now()
    time.sleep(8)
    assert job.process.poll() is None
    os.kill(job.pids[0], signal.SIGKILL)
    assert job.ends()[1] == [DIED.replace("rank 1", "rank 0")]


def test_a_process_alone_is_left_as_it_is() -> None:
    before = _witnesses()
    with pytest.raises(RuntimeError, match="as ever"), guarded({}) as guard:
        assert guard.size == 1
        assert _witnesses() == before
        raise RuntimeError("as ever")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script is not a rank
    ],
)
def test_the_launcher_tells_the_rank(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert place(environ) == expected
