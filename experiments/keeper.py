"""The checkpoints of a run: everything that comes later sees, between two windows or two epochs.

Invariant: a run that goes on from a checkpoint equals the run that wrote it, bit for bit.  The
graph is not stored: it follows from the log, which is named by its checksum.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer

from ..parallel import Comm
from ..storage import has_checkpoint, read_checkpoint, write_checkpoint, write_whole
from .config import TrainConfig, to_toml
from .runs import Source, check_is_same

if TYPE_CHECKING:
    from .snapshots import SnapshotConfig


class Kept(Protocol):
    """A run that can be kept; what is not in its checkpoint follows from log and settings."""

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]: ...

    def from_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None: ...


class Keeper:
    """Writes the checkpoints of a run into `folder`, at most one every `checkpoint_seconds`."""

    def __init__(self, folder: Path, log: Source, config: TrainConfig | SnapshotConfig) -> None:
        self.folder = folder / "checkpoints"
        self.log = log
        self.config = config
        self.written = time.monotonic()

    def begin(self, reading: Mapping[str, Any] | None) -> None:
        """Write reading.json, how the log was read, and config.toml.

        After `restore`: a resume that is refused leaves the settings of the run as they are.
        """
        folder = self.folder.parent
        if reading:  # first: no run without it may be gone on with
            write_whole(folder / "reading.json", json.dumps(reading, indent=1).encode())
        write_whole(folder / "config.toml", to_toml(self.config).encode())

    def save(self, trainer: Kept, *, force: bool = False) -> None:
        """Write a checkpoint if one is due, or if the run is at its end."""
        if not force and time.monotonic() - self.written < self.config.checkpoint_seconds:
            return
        tensors, meta = trainer.to_checkpoint()
        tensors |= {"rng": torch.get_rng_state()}
        meta |= {"config": self.config.model_dump(), "log": self.log.checksum}
        write_checkpoint(self.folder, tensors, meta)
        self.written = time.monotonic()

    def restore(self, trainer: Kept) -> None:
        """Bring `trainer` to the newest checkpoint; leave it as it is if there is none.

        Raises:
            CheckpointError: if it is damaged, or of another log or configuration.
        """
        if not has_checkpoint(self.folder):
            return
        tensors, meta = read_checkpoint(self.folder)
        check_is_same(self.folder, meta["config"], meta["log"], self.log, self.config)
        trainer.from_checkpoint(tensors, meta)
        torch.set_rng_state(tensors["rng"])


def checksum(model: nn.Module) -> str:
    """Of the weights, by their names."""
    return hashlib.sha256(_packed(model.state_dict())).hexdigest()


def share_progress(comm: Comm, trainer: Kept) -> None:
    """Bring the trainers of all ranks to where that of the first one stands."""
    data, meta = b"", dict[str, Any]()
    if comm.rank == 0:
        tensors, meta = trainer.to_checkpoint()
        data = _packed(tensors)
    data = comm.broadcast_bytes(data, "progress")
    meta = comm.gather_objects(meta, "progress")[0]
    if comm.rank:
        trainer.from_checkpoint(from_bytes(data), meta)


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    """The tensors as bytes; copied, as weights may share their memory."""
    return to_bytes({n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with their names below `prefix`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that stand below `prefix`, without it."""
    size = len(prefix) + 1
    return {name[size:]: v for name, v in tensors.items() if name.startswith(f"{prefix}/")}


def moments_of(optimiser: Optimizer) -> dict[str, Tensor]:
    """What the optimiser keeps of each weight, by "number/name"."""
    state = optimiser.state_dict()["state"]
    return {name: v for index, kept in state.items() for name, v in under(str(index), kept).items()}


def set_moments(optimiser: Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Bring back what `moments_of` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
