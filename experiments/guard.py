"""A job of several ranks ends as one: together if all is well, at once if one rank is lost.

Each rank keeps a line open to the witness of its host (`witness.py`), a process beside them that
sees who dies, stands still or fails, says so once, and ends the others.  Nothing is imported here
but the standard library, so that ranks are watched before they load anything that takes long.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from ..parallel import Comm

INTERRUPTED = 130
PLACES = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("PMI_RANK", "PMI_SIZE"),  # mpiexec of MPICH, and those that speak its protocol
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # mpiexec of Open MPI
)
HERE = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  # ranks on this host
JOBS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "PMIX_NAMESPACE")
PATIENCE = 5.0  # seconds that a rank may be stopped, or the witness silent
WITNESS = Path(__file__).with_name("witness.py")


def place(environ: Mapping[str, str]) -> tuple[int, int]:
    """The rank of this process and how many there are, as the launcher has it.

    >>> place({"PMI_RANK": "2", "PMI_SIZE": "4"})
    (2, 4)
    >>> place({})
    (0, 1)
    """
    for rank, size in PLACES:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    return 0, 1


class Guard:
    """The line of this rank to the witness; without one it speaks for itself."""

    def __init__(self, rank: int, size: int, line: socket.socket | None) -> None:
        self.rank = rank
        self.size = size
        self.abort: Callable[[int], object] = os._exit  # MPI has a gentler way: `Comm.abort`
        self.interrupted: Callable[[], str] = lambda: "interrupted"  # what is said of Ctrl-C
        self._line = line
        self._tell({"rank": rank})

    def waits(self, what: str) -> None:
        """Lets the witness know what this rank waits for others to do; "" when it does no more."""
        self._tell({"waits": what})

    @contextmanager
    def connected(self, environ: Mapping[str, str], device: str = "cpu") -> Iterator[Comm]:
        """The ranks of the job, for as long as they work together; see `connect`."""
        from ..parallel.comm import connect

        self._tell({"begins": True})
        with connect(environ, device=device, waits=self.waits) as comm:
            self._tell({"begins": False})
            self.abort = comm.abort
            yield comm
            self.abort = os._exit

    def interrupt(self, *_: object) -> NoReturn:
        """Ends the job at once; a handler of Ctrl-C that nothing on the way can swallow."""
        self.fails(self.interrupted(), INTERRUPTED)

    def fails(self, text: str, code: int, detail: str = "") -> NoReturn:
        """Has `text` said, once for all ranks that fail so, and ends the job with `code`.

        `detail`, a traceback say, is shown above it; nothing is said of an empty `text`.
        """
        with suppress(OSError, RuntimeError):  # a closed pipe; a signal amidst a print
            sys.stdout.flush()
        heard = b""
        if self._tell({"fails": text, "detail": detail[-50_000:]}) and self._line is not None:
            self._line.settimeout(PATIENCE)
            with suppress(OSError):
                heard = self._line.recv(1)
        if text and not heard:
            print(f"{detail}rank {self.rank} of {self.size}: {text}", file=sys.stderr, flush=True)
        self.abort(code)
        os._exit(code)

    def _tell(self, news: Mapping[str, object]) -> bool:
        with suppress(OSError):  # a witness that is gone is no reason to stop
            return self._line is not None and bool(self._line.send(json.dumps(news).encode()))
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if self.size == 1:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._tell({"leaves": True})
        elif isinstance(error, KeyboardInterrupt):
            self.interrupt()
        elif isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 1
            self.fails(f"left with {error.code}", code)
        else:
            detail = "".join(traceback.format_exception(error))
            self.fails(f"{type(error).__name__}: {error}", 1, detail)


def guarded(environ: Mapping[str, str], patience: float = PATIENCE) -> Guard:
    """A context for all that a rank does: what it raises ends the job, with its rank and once.

    A rank may be stopped for `patience` seconds.  A process alone is left as it is.

    >>> with guarded({}) as guard:
    ...     guard.size
    1
    """
    rank, size = place(environ)
    if size == 1:
        return Guard(rank, size, None)
    here = next((int(environ[name]) for name in HERE if name in environ), 0)
    return Guard(rank, size, _line(_job(environ), size, here, patience))


@contextmanager
def ranks(environ: Mapping[str, str], device: str = "cpu") -> Iterator[Comm]:
    """The ranks that this process was started with, guarded: what a script gives to `fit`.

    >>> with ranks({}) as comm:
    ...     comm.size
    1
    """
    with guarded(environ) as guard, guard.connected(environ, device) as comm:
        yield comm


def _job(environ: Mapping[str, str]) -> str:
    """What the ranks of one job on one host have in common, and others have not."""
    if "PMI_FD" in environ:  # its other end is held by the launcher of this host
        with suppress(OSError), socket.socket(fileno=os.dup(int(environ["PMI_FD"]))) as launcher:
            return f"pid {_peer(launcher)[0]}"
    named = [environ[name] for name in JOBS if name in environ]
    return " ".join(named) if named else f"pid {os.getppid()}"


def _line(job: str, size: int, here: int, patience: float) -> socket.socket | None:
    """A line to the witness of the job, which the first to come starts; None outside of Linux."""
    if sys.platform != "linux":
        return None
    address = f"\0neutronstream {os.getuid()} {job}"  # not a file: it goes with the witness
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, suppress(OSError):
        listener.bind(address)
        listener.listen(size)
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(WITNESS), *map(str, (size, here, patience))],
            stdin=listener.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # launchers end what is in a rank's own
        )
    for _ in range(100):  # the first to come may not listen yet
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):
            line.connect(address)
            if _peer(line)[1] == os.getuid():
                return line
        line.close()
        sleep(0.02)
    return None


def _peer(line: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    pid, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, user
