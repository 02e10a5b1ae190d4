"""Memory that all ranks of a host see: a message costs one copy in and one out.

The invariant: a rank has announced an exchange only when it has read all of the one before.  So
its next message may go where its last but one was, and two halves a rank are enough.
"""

from __future__ import annotations

import mmap
import os
import platform
import tempfile

import numpy as np
import numpy.typing as npt

FOLDER = "/dev/shm"
TOTAL = 2**25  # bytes on a host at most; half of what containers have, if nobody gives them more
LINE = 256  # bytes of a rank's count and, from `NAMES` on, of what it calls each of its halves
NAMES, NAME = 64, 96
TOKEN = slice(8, 16)  # of the first line: known only to those who see the same memory
STRICT = ("x86_64", "AMD64")  # processors whose writes are seen in the order they are made in

Bytes = npt.NDArray[np.uint8]


def create(size: int) -> str:
    """The path of memory for `size` ranks, or "" where there is none to be had."""
    if platform.machine() not in STRICT or not os.path.isdir(FOLDER):
        return ""
    try:
        file, path = tempfile.mkstemp(prefix="neutronstream-", dir=FOLDER)
    except OSError:
        return ""
    try:
        os.posix_fallocate(file, 0, _length(size))  # now, not when it is first written to
        os.pwrite(file, os.urandom(TOKEN.stop - TOKEN.start), TOKEN.start)
    except OSError:
        os.unlink(path)
        return ""
    finally:
        os.close(file)
    return path


class Blackboard:
    """One rank's view of the memory at `path`, which may be gone once all ranks have it.

    Raises:
        OSError: where there is none, as on another host.
    """

    def __init__(self, path: str, rank: int, size: int) -> None:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), _length(size))
        self.name = memory[TOKEN].hex()
        """The same for those who see the same memory."""
        self.room = _room(size)
        """Bytes that a rank can send at once."""
        self._rank, self._turn = rank, 0
        self._lines = memoryview(memory)[: LINE * size]
        self._counts = self._lines.cast("q")
        parts: Bytes = np.frombuffer(memory, np.uint8)[LINE * size :]
        self._halves = parts.reshape(size, 2, self.room)

    def post(self, name: str, *pieces: tuple[int, Bytes]) -> None:
        """Begins the next exchange, by its name: shows these bytes, each from its place on."""
        self._turn += 1
        half = self._halves[self._rank, self._turn % 2]
        for place, piece in pieces:
            half[place : place + len(piece)] = piece
        self._lines[self._name_of(self._rank)] = name.encode()[:NAME].ljust(NAME)
        self._counts[self._rank * LINE // 8] = self._turn

    def is_there(self, rank: int) -> bool:
        """Whether a rank has come to this exchange as well."""
        return bool(self._counts[rank * LINE // 8] >= self._turn)

    def name_of(self, rank: int) -> str:
        """What a rank that is there calls this exchange, or how that begins."""
        return bytes(self._lines[self._name_of(rank)]).decode(errors="replace").rstrip()

    def _name_of(self, rank: int) -> slice:
        start = LINE * rank + NAMES + NAME * (self._turn % 2)
        return slice(start, start + NAME)

    def read(self, rank: int, start: int, count: int) -> Bytes:
        """What a rank that is there shows, until the next `post` but one."""
        found: Bytes = self._halves[rank, self._turn % 2, start : start + count]
        return found


def _room(size: int) -> int:
    return min(2**22, TOTAL // (2 * size)) // mmap.PAGESIZE * mmap.PAGESIZE


def _length(size: int) -> int:
    return LINE * size + 2 * size * _room(size)
