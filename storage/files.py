"""Files that are whole or not there, and errors of a full disk that name their file.

Invariant: a reader of a path sees the old content or the new, and never a part of either, whenever
the writer is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes `content` beside the file at `path`, flushed, which then takes its place.

    Raises:
        OSError: if that fails, with the name of the file; the old one is left as it was.
    """
    path = Path(path)
    beside = path.with_name(path.name + ".tmp")
    with named(path):
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)  # on a full disk half a file is in the way
            raise


@contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Gives the errors of the system inside it the name of the file, where they have none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def flush(path: str | os.PathLike[str]) -> None:
    """Has the file or folder on disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with named(path):
            os.fsync(handle)
    finally:
        os.close(handle)
