"""The checkpoints of a run: everything a later window sees, between two windows.

Invariant: a run that goes on from a checkpoint equals the run that wrote it, bit for bit.  The
graph is not stored: it follows from the log, which is named by its checksum.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..storage import has_checkpoint, read_checkpoint, write_checkpoint, write_whole
from ..stream import EventLog
from .config import TrainConfig, to_toml
from .report import to_plain
from .runs import check_is_same
from .trainer import Trainer


class Keeper:
    """Writes the checkpoints of a run into `folder`, at most one every `checkpoint_seconds`."""

    def __init__(self, folder: Path, log: EventLog, config: TrainConfig) -> None:
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

    def save(self, trainer: Trainer, *, force: bool = False) -> None:
        """Write a checkpoint if one is due, or if the run is at its end."""
        if not force and time.monotonic() - self.written < self.config.checkpoint_seconds:
            return
        tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
        tensors |= _under("model", trainer.model.state_dict())
        tensors |= _under("state", trainer.replay.state.to_arrays())
        tensors |= _under("evaluation", trainer.evaluation.to_tensors())
        for index, moments in trainer.optimiser.state_dict()["state"].items():
            tensors |= _under(f"optimiser/{index}", moments)
        meta = {
            "config": self.config.model_dump(),
            "log": self.log.checksum,
            "position": trainer.replay.graph.position,
            "progress": to_plain(asdict(trainer.done)),
        }
        write_checkpoint(self.folder, tensors, meta)
        self.written = time.monotonic()

    def restore(self, trainer: Trainer) -> None:
        """Bring `trainer` to the newest checkpoint; leave it as it is if there is none.

        Raises:
            CheckpointError: if it is damaged, or of another log or configuration.
        """
        if not has_checkpoint(self.folder):
            return
        tensors, meta = read_checkpoint(self.folder)
        check_is_same(self.folder, meta["config"], meta["log"], self.log, self.config)
        trainer.model.load_state_dict(_below("model", tensors))
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in _below("optimiser", tensors).items():
            index, name = key.split("/")
            moments.setdefault(int(index), {})[name] = value
        groups = trainer.optimiser.state_dict()["param_groups"]
        trainer.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        trainer.replay.apply(meta["position"])
        trainer.replay.state.from_arrays(_below("state", tensors))
        trainer.carry = trainer.replay.state.snapshot()
        done = meta["progress"]
        done["widths"] = {int(width): count for width, count in done["widths"].items()}
        for name, value in done.items():
            setattr(trainer.done, name, value)
        trainer.evaluation.from_tensors(_below("evaluation", tensors), trainer.done.stop)
        torch.set_rng_state(tensors["rng"])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    size = len(prefix) + 1
    return {name[size:]: v for name, v in tensors.items() if name.startswith(f"{prefix}/")}
