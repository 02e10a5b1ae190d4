"""The witness: a process beside the ranks of one host that ends a job when a rank is lost.

It shares nothing with the ranks, so a busy interpreter cannot make one look dead, and a launcher
that kills all ranks when it misses one cannot silence it.  Each rank holds a line to it: one that
closes without a farewell has died.  The kernel hands out such news in their order, so the first is
the cause.  That a rank stands still is seen in /proc.

`guard.py` runs this file as a script, with the listening socket as its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

TICK = 0.25  # seconds between two looks
IDLE = 1.4  # times the patience with a stopped rank: for one that others wait for in vain
BUSY = 0.05  # of a processor: a thread that shows the progress takes less
GATHER = 2.0  # seconds in which ranks that fail together are heard
START = 3.0  # the same at their start, where some load slower; less than one waits to be heard
LEAVE = 2.0  # seconds in which they may leave before they are killed
JOIN = 24.0  # times the patience, in which the ranks of this host must come, first and last


@dataclass(slots=True, eq=False)
class Rank:
    """What is known of one rank."""

    pid: int
    line: socket.socket
    number: int = -1
    begins: bool = False  # it connects to the others
    has_begun: bool = False  # it does, or did
    waits: str = ""  # what for; empty while it works
    failure: str | None = None
    detail: str = ""  # a traceback, to be shown before it
    left: bool = False  # in peace
    gone: bool = False
    mark: tuple[str, ...] = ()  # its state, and how often its main thread was on a processor
    still: float = 0.0  # seconds in which the mark was the same
    work: float = 0.0  # seconds of processor time, of all threads, when that began
    worked: float = 0.0  # the same since
    deserted: float = 0.0  # seconds in which it waited although another had left

    @property
    def is_stopped(self) -> bool:
        return self.mark[:1] in (("T",), ("t",))

    @property
    def is_idle(self) -> bool:
        # one that could run and is not let to ("R") may be on a crowded machine
        return self.mark[:1] != ("R",) and self.worked < BUSY * self.still


class Witness:
    """Hears and looks until all ranks have left, or one is lost."""

    def __init__(self, listener: socket.socket, size: int, here: int, patience: float) -> None:
        self.listener = listener
        self.size = size
        self.here = here  # ranks of this host, 0 if not known
        self.patience = patience
        self.ranks: list[Rank] = []
        self.shared: set[str] = set()  # files of the ranks' shared memory
        self._poll = select.epoll()
        self._sources: dict[int, Rank] = {}
        self._poll.register(listener.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Returns when the job has ended."""
        before, late = monotonic(), 0.0
        while self.present or len(self.ranks) < max(self.here, 1):
            lost = self.hear(TICK)
            if lost is not None:
                return self.end(self.words(lost))
            now = monotonic()
            passed, before = min(now - before, 2 * TICK), now  # no more if all slept, this too
            text = self.look(passed)
            if text:
                return self.end(text)
            late += passed if len(self.ranks) < max(self.here, 1) else 0.0
            if late > JOIN * self.patience:
                return self.end(self.missing()) if self.present else None
        return None

    @property
    def present(self) -> list[Rank]:
        return [rank for rank in self.ranks if not (rank.left or rank.gone)]

    @property
    def is_loading(self) -> bool:
        """Whether there is a rank that may yet fail as others did before they connected."""
        come = [r for r in self.ranks if r.has_begun or r.left or r.failure is not None]
        return len(come) < (self.here or self.size)

    @property
    def all_failed(self) -> bool:
        return len(self.ranks) == self.size and all(rank.failure is not None for rank in self.ranks)

    def hear(self, seconds: float) -> Rank | None:
        """Takes the news of at most so long; the first rank of which they are bad, if any."""
        lost = None
        for source, _ in self._poll.poll(seconds):
            if source == self.listener.fileno():
                self._meet()
                continue
            rank = self._sources.get(source)
            if rank is None:  # what came before it told of its end
                continue
            is_open = self._read(rank)
            if not is_open or source != rank.line.fileno():
                rank.gone = True
                self._forget(rank)
            if lost is None and not rank.left and (rank.gone or rank.failure is not None):
                lost = rank
        return lost

    def words(self, lost: Rank) -> str:
        """What to say of the first rank lost.

        Others may fail since it did, or as it did; and a death that follows a failure so soon is
        the cause of it, since those who fail wait to be heard.
        """
        first, at_start = monotonic(), not lost.has_begun
        while not (lost.gone or self.all_failed):
            until = first + (START if at_start and self.is_loading else GATHER)
            if monotonic() >= until:
                break
            other = self.hear(min(until - monotonic(), TICK))
            lost = other if other is not None and other.gone else lost
        if lost.gone:
            return (
                f"{self.name(lost)} died: it was killed, perhaps for want of memory, or left "
                "without a word"
            )
        alike = [rank for rank in self.ranks if rank.failure == lost.failure]
        who = "" if len(alike) == self.size else f"{self.name(lost)}: "
        return f"{lost.detail}{who}{lost.failure}" if lost.failure else ""

    def look(self, passed: float) -> str:
        """What to say of ranks that stand still, if anything."""
        present = self.present
        for rank in present:
            mark, work = _look(rank.pid)
            if mark and mark == rank.mark:
                rank.still += passed
                rank.worked = work - rank.work
            else:
                rank.mark, rank.still, rank.work, rank.worked = mark, 0.0, work, 0.0
        if len(present) > 1 and all(rank.is_stopped for rank in present):
            for rank in present:  # somebody suspended the job
                rank.still = 0.0
        waiting = [rank for rank in present if rank.waits]
        left = [rank for rank in self.ranks if rank.left]
        limit = IDLE * self.patience
        for rank in present:
            is_deserted = bool(left) and (rank.begins or bool(rank.waits))
            rank.deserted = rank.deserted + passed if is_deserted else 0.0
            if rank.deserted > limit:
                return (
                    f"{self.name(left[0])} has left, while {self.name(rank)} waits for it in "
                    f"{rank.waits or 'the start'}: every rank must make the same calls"
                )
            if rank.is_stopped and rank.still > self.patience:
                return f"{self.name(rank)} is stopped, and has been for {self.patience:g} s"
            if waiting and not rank.waits and rank.still > limit and rank.is_idle:
                return (
                    f"{self.name(rank)} has done nothing for {limit:g} s, while "
                    f"{self.name(waiting[0])} waits for it in {waiting[0].waits}: it hangs"
                )
        return ""

    def missing(self) -> str:
        """What to say of ranks that have not come."""
        numbers = {rank.number for rank in self.ranks}
        others = [f"{n}" for n in range(self.size) if n not in numbers]
        who = f"rank {', '.join(others)} of {self.size}" if self.here == self.size else "a rank"
        limit = JOIN * self.patience
        return f"{who} has not come for {limit:g} s, while others wait: it never began, or hangs"

    def end(self, text: str) -> None:
        """Says it, if anything, lets ranks that failed leave, and kills all others."""
        self.listener.close()
        if text:
            shown = "\x1b[?25h" if os.isatty(2) else ""  # the cursor, which a bar may have hidden
            with suppress(OSError):
                os.write(2, f"{shown}{text}\n".encode())
        for rank in self.present:
            self.shared |= _shared_memory(rank.pid)
        failed = [rank for rank in self.present if rank.failure is not None]
        for rank in failed:
            with suppress(OSError):
                rank.line.send(b".")
        until = monotonic() + LEAVE
        while any(not rank.gone for rank in failed) and monotonic() < until:
            self.hear(until - monotonic())
        for rank in self.present:
            with suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
        for path in self.shared:  # which MPI leaves behind if a rank does not end by itself
            with suppress(OSError):
                os.unlink(path)

    def name(self, rank: Rank) -> str:
        return f"rank {rank.number} of {self.size}"

    def _meet(self) -> None:
        """Lets a rank in, if it is of the same user."""
        line, _ = self.listener.accept()
        pid, user, _ = struct.unpack(
            "3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if user != os.getuid():
            line.close()
            return
        rank = Rank(pid, line)
        self.ranks.append(rank)
        sources = [line.fileno()]
        with suppress(OSError):  # a child of a dead rank may hold its line
            sources.append(os.pidfd_open(pid))
        for source in sources:
            self._sources[source] = rank
            self._poll.register(source, select.EPOLLIN)

    def _forget(self, rank: Rank) -> None:
        for source in [source for source, of in self._sources.items() if of is rank]:
            self._poll.unregister(source)
            del self._sources[source]

    def _read(self, rank: Rank) -> bool:
        """Takes all that a rank has said; whether its line is still open."""
        while True:
            try:
                said = rank.line.recv(2**18, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not said:
                return False
            news = json.loads(said)
            rank.number = news.get("rank", rank.number)
            if rank.begins and not news.get("begins", True):
                self.shared |= _shared_memory(rank.pid)  # it may be killed without a word
            rank.begins = news.get("begins", rank.begins)
            rank.has_begun = rank.has_begun or rank.begins
            rank.waits = news.get("waits", rank.waits)
            rank.failure = news.get("fails", rank.failure)
            rank.detail = news.get("detail", rank.detail)
            rank.left = rank.left or "leaves" in news


def _look(pid: int) -> tuple[tuple[str, ...], float]:
    """State and switches of the main thread, no mark if unknown or in the disk's hands; work."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return (), 0.0
    state, work = fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    switches = [line for line in status if "ctxt_switches" in line]
    return (() if state == "D" else (state, *switches)), work


def _shared_memory(pid: int) -> set[str]:
    """The files in which a rank shares memory with others by MPICH."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/dev/shm/mpich_shm_" in line}
    return {path for path in paths if path.startswith("/dev/shm/mpich_shm_") and " " not in path}


def main() -> None:
    """Serves the ranks that connect to the socket at standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the ranks are gone
    size, here, patience = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    Witness(socket.socket(fileno=0), size, here, patience).serve()


if __name__ == "__main__":
    main()
