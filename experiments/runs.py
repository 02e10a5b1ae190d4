"""The folder of a run: where it is, whose it is, and what of it may be replaced.

A folder with a report.json is a finished run; one with a config.toml or checkpoints but no report
is an unfinished one.  Only files that a run writes are ever removed, only from the folder of a run,
and only one run at a time is in a folder.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from .config import TrainConfig

FREE = frozenset({"checkpoint_seconds", "check", "threads", "executor", "device"})
"""Settings that may differ when a run is resumed: they do not change what is computed."""

_FILES = (
    "report.json",
    "report.html",
    "metrics.parquet",
    "labels.json",
    "config.toml",
    "reading.json",
)
_CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"\.?\d{8}")  # a checkpoint, or the draft of one
_SETTINGS = frozenset({"model", "seed", "checkpoint_seconds"})  # in every config.toml of a run
_HOW = frozenset({"src", "dst", "time", "kind", "unit", "initial_graph", "quarantine"})


class Source(Protocol):
    """What a run is of, say a log."""

    @property
    def checksum(self) -> str: ...


def default_folder(source: str, config: TrainConfig) -> Path:
    """runs/LOG-MODEL-seedN under the current directory; protocol and consistency if not default.

    >>> default_folder("data/my log.csv.gz", TrainConfig(seed=3)).as_posix()
    'runs/my_log-dyrep-seed3'
    >>> default_folder("uci", TrainConfig(protocol="split", consistency="batch")).as_posix()
    'runs/uci-dyrep-split-batch-seed0'
    """
    words = [name_of(source), config.model]
    words += [config.protocol] if config.protocol != "prequential" else []
    words += [config.consistency] if config.consistency != "exact" else []
    return Path("runs") / "-".join([*words, f"seed{config.seed}"])


def name_of(source: str) -> str:
    """What a folder of runs calls a file or a data set.

    >>> name_of("data/my log.csv.gz"), name_of("nœuds, 2024.csv")
    ('my_log', 'nœuds_2024')
    """
    return re.sub(r"[^\w-]+", "_", Path(source).name.split(".")[0]) or "log"


def is_finished(folder: Path) -> bool:
    """Whether the folder holds the report of a run."""
    return (folder / "report.json").exists()


def is_run(folder: Path) -> bool:
    """Whether a run has begun in the folder: by what stands in a file, not by its name alone."""
    report, settings, how = (_content(folder / _FILES[place]) for place in (0, 4, 5))
    begun = any(_CHECKPOINT.fullmatch(path.name) for path in (folder / _CHECKPOINTS).glob("*"))
    is_known = bool(how) and how.keys() <= _HOW
    return begun or is_known or settings.keys() >= _SETTINGS or report.keys() >= {"config", "log"}


def _content(path: Path) -> dict[str, Any]:
    """The table in a JSON or TOML file; empty if it is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_may_begin(folder: Path, *, resume: bool = False, force: bool = False) -> None:
    """Refuses a folder in which a run may not begin; a run there may be gone on with or replaced.

    Raises:
        ValueError: if `folder` is a file, or a run is there and is to be left alone, or files are
            that a run would write over, or would seem to replace, and that are no run's.
    """
    _check_is_folder(folder)
    if is_run(folder):
        if resume or force:
            return
        if is_finished(folder):
            raise ValueError(
                f"{folder} holds a finished run: --force (in Python `force=True`) replaces it, "
                "--output chooses another folder"
            )
        raise ValueError(
            f"{folder} holds an unfinished run: --resume (in Python `resume=True`) goes on with "
            "it, --force starts over"
        )
    there = sorted(path.name for path in folder.glob("*") if path.name != ".lock")
    taken = {*_FILES, _CHECKPOINTS} if any((folder / _CHECKPOINTS).glob("*")) else {*_FILES}
    foreign = there if force else [name for name in there if name in taken]
    if foreign:
        more = ", ..." if len(foreign) > 3 else ""
        raise ValueError(
            f"{folder} is not the folder of a run, but holds {', '.join(foreign[:3])}{more}: "
            "nothing in it is touched, choose another folder with --output"
        )


def _check_is_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the output must be a folder: {folder} is a file")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes `folder` and keeps every other run out of it; a process that dies lets go of it.

    Raises:
        ValueError: if another run is in it, or if `folder` is a file.
    """
    _check_is_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:  # stays: a new one would be another lock
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by another run: wait for its end, or choose another folder"
            ) from None
        except (ImportError, OSError):
            pass  # Windows, or a file system without locks: nothing to hold
        yield


def check_given(log: object, config: object) -> None:
    """Refuses what is no log, say the path of one, and what is no configuration.

    Raises:
        TypeError: saying what makes one.
    """
    from ..stream import EventLog

    if not isinstance(log, EventLog):
        raise TypeError(
            "`log` must be an EventLog, as `read_log(path)` and `load(name)` make: got "
            f"{type(log).__name__} {log!r:.60}"
        )
    if not isinstance(config, TrainConfig):
        raise TypeError(
            "`config` must be a TrainConfig, as `TrainConfig(model=...)` and `load_config(path)` "
            f"make: got {type(config).__name__} {config!r:.60}"
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
    """Removes what a run left in `folder`, and nothing else.

    report.json goes first: what is left by a kill on the way is no finished run.

    Raises:
        ValueError: if what is there is no run's.
    """
    check_may_begin(folder, force=True)
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
        (folder / f"{name}.tmp").unlink(missing_ok=True)
    for found in (folder / _CHECKPOINTS).glob("*"):
        if _CHECKPOINT.fullmatch(found.name):
            shutil.rmtree(found, ignore_errors=True)
    with suppress(OSError):  # something else is there, or nothing
        (folder / _CHECKPOINTS).rmdir()


def stored_reading(folder: Path) -> dict[str, Any]:
    """How the log of the run in `folder` was read, see `fit`; nothing if that is not stored.

    Raises:
        ValueError: if the file is damaged; it is named.
    """
    path = folder / "reading.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): value for name, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}): remove it and give the flags again that say how to "
            "read the log"
        ) from None


def finished_report(
    folder: Path, log: Source, config: BaseModel, model_class: str | None = None
) -> dict[str, Any]:
    """The report of the finished run in `folder`, which is that of `log`, `config` and the model.

    Raises:
        CheckpointError: if it is damaged, or of another log, configuration or model.
    """
    from ..stream import CheckpointError

    path = folder / "report.json"
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        settings, checksum = dict(report["config"]), str(report["ranking"]["data_checksum"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error!r}): remove it, and the run resumed writes it again from "
            "its last checkpoint"
        ) from None
    check_is_same(folder, settings, checksum, log, config)
    check_is_same_model(folder, report, model_class)
    return report


def check_is_same(
    place: Path, settings: Mapping[str, Any], checksum: str, log: Source, config: BaseModel
) -> None:
    """Refuses to go on in `place`, of a run with these `settings` on the log of this `checksum`.

    Raises:
        CheckpointError: if `log` or `config` is another; settings in `FREE` may differ.
    """
    from ..stream import CheckpointError

    now = config.model_dump()
    for name, value in settings.items():
        if name not in FREE and now.get(name) != value:
            raise CheckpointError(
                f"{place} is of a run with `{name}` {value!r}: got {now.get(name)!r}; "
                "resume with the same settings, or start over in another folder (--output)"
            )
    if checksum != log.checksum:
        raise CheckpointError(
            f"{place} is of another log (its events, ids, kinds and unit have checksum "
            f"{checksum[:12]}, these {log.checksum[:12]}): give the log it was begun with, read "
            "in the same way, or start over in another folder (--output)"
        )


def check_is_same_model(place: Path, kept: Mapping[str, Any], model_class: str | None) -> None:
    """Refuses to go on in `place` with a model of another class; `kept` may tell the `model_class`.

    Raises:
        CheckpointError: if it is another; None stands for a model in the box.
    """
    from ..stream import CheckpointError

    before = kept.get("model_class", model_class)  # not told by runs of older versions
    if before != model_class:
        was, now = (name or "a model in the box" for name in (before, model_class))
        raise CheckpointError(
            f"{place} is of a run of {was}: got {now} as `model`; resume with the same class, or "
            "start over in another folder"
        )


def peak_memory() -> float | None:
    """The most memory that this process has held, in MiB; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10
