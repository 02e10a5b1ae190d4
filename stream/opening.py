"""Files opened and unpacked: what they are is told by their first bytes, not by their names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from .errors import LogError
from .sources import Source, TableSource
from .text import TextSource

DATA_SUFFIXES = (".edges", ".csv", ".tsv", ".txt", ".dat", ".parquet", ".arrow", ".feather", ".gz")


def open_source(path: str | Path, *, least: int, limit: int | None = None) -> Source:
    """The source at `path`, which has at least `least` columns; at most `limit` rows of it.

    The content says what it is, not the suffix: Parquet, Arrow or Feather, else text, each perhaps
    within gzip, bzip2, xz or a zip archive with one data file.
    """
    path = Path(path)
    name = path.name
    data = _unpack(_read_bytes(path), name)
    if data[:4] == b"PAR1" or data[:6] == b"ARROW1" or data[:4] in (b"FEA1", b"\xff\xff\xff\xff"):
        return TableSource(_read_table(data, name), name, limit)
    return TextSource(data, name, least, limit)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LogError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise LogError(f"{path}: a file is expected, this is a directory") from None
    except OSError as error:
        raise LogError(f"{path}: the file cannot be read: {error.strerror}") from None


def _unpack(data: bytes, name: str) -> bytes:
    """The bytes within gzip, bzip2, xz and zip."""
    try:
        if data[:2] == b"\x1f\x8b":
            return gzip.decompress(data)
        if data[:3] == b"BZh":
            return bz2.decompress(data)
        if data[:6] == b"\xfd7zXZ\x00":
            return lzma.decompress(data)
        if data[:4] == b"PK\x03\x04":
            return _unpack(_only_member(data, name), name)
    except (EOFError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, LogError):
            raise
        raise LogError(f"{name}: the compressed file is cut short or damaged: {error}") from None
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise LogError(f"{name}: the compressed file is cut short or damaged: {error}") from None
    return data


def _only_member(data: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [m.filename for m in archive.infolist() if not m.is_dir()]
        fitting = [
            m
            for m in members
            if m.lower().endswith(DATA_SUFFIXES)
            and not Path(m).name.lower().startswith((".", "readme", "license"))
        ]
        if len(fitting) != 1:
            raise LogError(
                f"{name}: one data file ({', '.join(DATA_SUFFIXES)}) is expected in the archive, "
                f"it holds {', '.join(fitting or members) or 'nothing'}; unpack the one you mean"
            )
        return archive.read(fitting[0])


def _read_table(data: bytes, name: str) -> pa.Table:
    try:
        if data[:4] == b"PAR1":
            return pyarrow.parquet.read_table(pa.BufferReader(data))
        if data[:4] == b"\xff\xff\xff\xff":
            return pa.ipc.open_stream(data).read_all()
        return pyarrow.feather.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise LogError(f"{name}: the Arrow or Parquet data are damaged: {error}") from None
