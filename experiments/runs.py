"""The folder of a run: where it is, whose it is, and what of it may be replaced.

A folder with a report.json is a finished run; one with a config.toml or checkpoints but no report
is an unfinished one.  Only files that a run writes are ever removed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from .config import TrainConfig, load_config

_FILES = ("report.json", "report.html", "metrics.parquet", "config.toml")
_CHECKPOINTS = "checkpoints"


def default_folder(source: str, config: TrainConfig) -> Path:
    """runs/LOG-MODEL-seedN under the current directory.

    >>> default_folder("data/my log.csv.gz", TrainConfig(seed=3)).as_posix()
    'runs/my_log-dyrep-seed3'
    """
    name = Path(source).name.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", name) or "log"
    return Path("runs") / f"{name}-{config.model}-seed{config.seed}"


def is_finished(folder: Path) -> bool:
    """Whether the folder holds the report of a run."""
    return (folder / "report.json").exists()


def is_started(folder: Path) -> bool:
    """Whether the folder holds anything that a run leaves."""
    return any((folder / name).exists() for name in (*_FILES, _CHECKPOINTS))


def check_is_free(folder: Path) -> None:
    """Refuses a folder with a run in it.

    Raises:
        ValueError: if a run, finished or not, is there; or if `folder` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the output must be a folder: {folder} is a file")
    if is_finished(folder):
        raise ValueError(
            f"{folder} holds a finished run: --force replaces it, --output chooses another folder"
        )
    if is_started(folder):
        raise ValueError(
            f"{folder} holds an unfinished run: --resume goes on with it, --force starts over"
        )


def check_device(device: str) -> None:
    """Refuses a device that this machine, or its torch, has not.

    Raises:
        ValueError: saying what there is.
    """
    import torch

    kind, _, number = device.partition(":")
    have = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": torch.backends.mps.is_available()}
    if int(number or 0) >= have[kind]:
        found = [name for name, count in have.items() if count]
        raise ValueError(f"`device` must be one that is here ({', '.join(found)}): got {device!r}")


def clear(folder: Path) -> None:
    """Removes what a run left in `folder`, and nothing else."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)


def stored_config(folder: Path, overrides: dict[str, object]) -> TrainConfig:
    """The settings of the run in `folder` under `overrides`, for going on with it.

    Raises:
        ValueError: if the run is finished and the overrides would change it.
    """
    path = folder / "config.toml"
    config = load_config(path, overrides)
    if is_finished(folder) and config != load_config(path):
        raise ValueError(
            f"{folder} holds a run finished with other settings: --force starts over with these"
        )
    return config


def peak_memory() -> float | None:
    """The most memory that this process has held, in MiB; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10
