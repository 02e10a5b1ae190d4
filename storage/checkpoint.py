"""Checkpoints: tensors and a JSON document that are either whole on disk, or not there.

Invariant: killed at any moment, a folder holds the checkpoints that were finished, and reading it
gives the newest of them.  One is written into a hidden folder, flushed, and renamed as the last
act.  Tensors are safetensors, so reading runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..stream.errors import CheckpointError
from .files import flush, write_whole

FORMAT = 1
TENSORS, META = "tensors.safetensors", "meta.json"


def write_checkpoint(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """The folder of the new checkpoint, a numbered one within `folder`; the last `keep` stay.

    `meta` must survive JSON: tuples come back as lists, keys as text.  One writer at a time.

    Raises:
        OSError: if a file cannot be written, for instance on a full disk; it is named.
        CheckpointError: if that was the file of tensors.
    """
    if keep < 1:
        raise ValueError(f"`keep` must be at least 1: got {keep}")
    plain = json.loads(json.dumps(dict(meta)))  # as it will be read
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(".[0-9]*"):  # by a run that was killed while writing or removing
        shutil.rmtree(left)
    finished = _finished(root)
    number = int(finished[-1].name) + 1 if finished else 1
    draft, final = root / f".{number:08d}", root / f"{number:08d}"
    draft.mkdir()
    plain_tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    try:
        save_file(plain_tensors, draft / TENSORS)
    except SafetensorError as error:  # it has the system's error in its text only
        (draft / TENSORS).unlink(missing_ok=True)
        raise CheckpointError(f"{draft / TENSORS} could not be written: {error}") from error
    document = {
        "format": FORMAT,
        "tensors_sha256": _sha256(draft / TENSORS),
        "meta_sha256": _digest(plain),
        "meta": plain,
    }
    write_whole(draft / META, json.dumps(document, indent=1, sort_keys=True).encode())
    for path in (draft / TENSORS, draft):
        flush(path)
    draft.rename(final)
    flush(root)
    for old in [*finished, final][:-keep]:
        # hide it first: a half-removed checkpoint must not look like a damaged one
        hidden = old.with_name(f".{old.name}")
        old.rename(hidden)
        shutil.rmtree(hidden)
    return final


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`(tensors, meta)` of the newest checkpoint in `folder`, bit for bit as written.

    Raises:
        CheckpointError: if there is none, or the newest one is damaged; the message names the file.
    """
    finished = _finished(Path(folder))
    if not finished:
        raise CheckpointError(f"no checkpoint in {folder}: nothing was saved there yet")
    newest = finished[-1]
    advice = f"remove {newest} to go on from the checkpoint before it"
    try:
        document = json.loads((newest / META).read_text())
        meta: dict[str, Any] = document["meta"]
        is_whole = document["meta_sha256"] == _digest(meta)
        found, expected = document["format"], document["tensors_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{newest / META} is damaged ({error!r}); {advice}") from error
    if found != FORMAT:
        raise CheckpointError(
            f"{newest / META} has format {found!r}, this version reads {FORMAT}: "
            "read it with the version that wrote it"
        )
    if not is_whole:
        raise CheckpointError(f"{newest / META} is damaged (checksum differs); {advice}")
    try:
        if _sha256(newest / TENSORS) != expected:
            raise CheckpointError(f"{newest / TENSORS} is damaged (checksum differs); {advice}")
        tensors = load_file(newest / TENSORS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{newest / TENSORS} is damaged ({error!r}); {advice}") from error
    return tensors, meta


def has_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Whether `read_checkpoint` would find one in `folder`; one that was only begun does not count.

    A folder that is missing has none.
    """
    return bool(_finished(Path(folder)))


def _finished(root: Path) -> list[Path]:
    """The finished checkpoints, oldest first."""
    return sorted(p for p in root.glob("[0-9]*") if p.name.isdecimal() and p.is_dir())


def _digest(meta: Any) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
