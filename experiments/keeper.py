"""The checkpoints of a run: everything that comes later sees, between two windows or two epochs.

Invariant: a run that goes on from a checkpoint equals the run that wrote it, bit for bit.  The
graph is not stored: it follows from the log, which is named by its checksum.  Between two
checkpoints the next one waits in memory, so that Ctrl-C costs no more than what is not whole.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.optim import Optimizer

from ..parallel import Comm
from ..storage import has_checkpoint, read_checkpoint, write_checkpoint, write_whole
from ..stream import CheckpointError
from . import runs
from .config import TrainConfig
from .runs import Source
from .settings import to_toml

if TYPE_CHECKING:
    from .snapshots import SnapshotConfig


class Kept(Protocol):
    """A run that can be kept; what is not in its checkpoint follows from log and settings."""

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]: ...

    def from_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None: ...


WRITES = 5.0
"""Seconds that other ranks give the first one to write, on Ctrl-C; it ends them when it has."""

SHARE = 50
"""Least seconds between two copies in memory, in those that a copy takes."""


class Keeper:
    """Writes the checkpoints of a run into `folder`, at most one every `checkpoint_seconds`.

    `model_class` names the class of a model of one's own, which is another run with another class.
    """

    def __init__(
        self,
        folder: Path,
        log: Source,
        config: TrainConfig | SnapshotConfig,
        model_class: str | None = None,
    ) -> None:
        self.folder = folder / "checkpoints"
        self.log = log
        self.config = config
        self.model_class = model_class
        self.written = monotonic()
        self._latest: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._next = 0.0  # when a copy may be made

    def begin(self, reading: Mapping[str, Any] | None) -> None:
        """Write reading.json, how the log was read, and config.toml.

        After `restore`: a resume that is refused leaves the settings of the run as they are.
        """
        folder = self.folder.parent
        if reading:  # first: no run without it may be gone on with
            write_whole(folder / "reading.json", json.dumps(reading, indent=1).encode())
        write_whole(folder / "config.toml", to_toml(self.config).encode())

    def save(self, trainer: Kept, *, force: bool = False) -> None:
        """Write a checkpoint if one is due, or if the run is at its end; else copy it into memory.

        It is what `write_latest` writes.  As a copy grows with the graph, copies take a fiftieth of
        the time at most: where windows are shorter than that allows, not each of them is kept.
        """
        now = monotonic()
        is_due = force or now - self.written >= self.config.checkpoint_seconds
        if not is_due and now < self._next:
            return
        tensors, meta = trainer.to_checkpoint()
        tensors |= {"rng": torch.get_rng_state()}
        meta |= {"config": self.config.model_dump(), "log": self.log.checksum}
        meta |= {"model_class": self.model_class}
        if is_due:
            write_checkpoint(self.folder, tensors, meta)
            self._latest, self.written = None, monotonic()
            return
        self._latest = {n: t.detach().to("cpu", copy=True) for n, t in tensors.items()}, meta
        self._next = monotonic() + SHARE * (monotonic() - now)

    def write_latest(self) -> None:
        """Write the copy in memory, if it is newer than the last checkpoint."""
        if self._latest is not None:
            write_checkpoint(self.folder, *self._latest)
            self._latest = None

    def restore(self, trainer: Kept) -> None:
        """Bring `trainer` to the newest checkpoint; leave it as it is if there is none.

        Raises:
            CheckpointError: if it is damaged, or of another log, configuration or model.
        """
        if not has_checkpoint(self.folder):
            return
        tensors, meta = read_checkpoint(self.folder)
        runs.check_is_same(self.folder, meta["config"], meta["log"], self.log, self.config)
        runs.check_is_same_model(self.folder, meta, self.model_class)
        try:
            trainer.from_checkpoint(tensors, meta)
        except (RuntimeError, ValueError) as error:  # as torch words it, over several lines
            raise CheckpointError(
                f"the weights in {self.folder} do not fit the model: resume with the model that "
                f"the run was begun with, or start over in another folder ({_line(error)})"
            ) from error
        torch.set_rng_state(tensors["rng"])


def check_ways(folder: str | Path | None, resume: bool, force: bool) -> None:
    """Refuses what no run can be told of its folder.

    Raises:
        ValueError: if both `resume` and `force` are given, or `folder` is an empty text.
    """
    if resume and force:
        raise ValueError("`resume` goes on with a run and `force` replaces it: give one of them")
    if folder is not None and not str(folder):
        raise ValueError("`folder` must name a folder, or be None to write nothing: got ''")


def class_of(made: object) -> str:
    """The qualified name of the class of a model of one's own.

    >>> class_of(nn.Linear(1, 1))
    'torch.nn.modules.linear.Linear'
    """
    return f"{type(made).__module__}.{type(made).__qualname__}"


def finished(
    folder: Path | None,
    resume: bool,
    log: Source,
    config: TrainConfig | SnapshotConfig,
    make: Callable[[], object] | None,
    comm: Comm,
) -> dict[str, Any] | None:
    """The report of a run that was to be resumed and is done ({} but on the first rank), or None.

    `make` makes a model of one's own, to know its class.

    Raises:
        CheckpointError: if it is damaged, or of another log, configuration or model.
    """
    if folder is None or not resume:
        return None
    report = None
    if runs.is_finished(folder):
        runs.check_may_begin(folder, resume=True)  # it may be no run's report
        model_class = None if make is None else class_of(make())
        report = runs.finished_report(folder, log, config, model_class)
    if not comm.gather_objects(report is not None, "start")[0]:
        return None
    return {} if comm.rank or report is None else report


@contextmanager
def kept_in(
    folder: Path | None,
    log: Source,
    config: TrainConfig | SnapshotConfig,
    trainer: Kept,
    comm: Comm,
    *,
    model_class: str | None = None,
    resume: bool = False,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
) -> Iterator[Keeper | None]:
    """The keeper of a run in `folder`, which is locked, with `trainer` where the run goes on.

    All that is given is valid: from here on the folder is changed.  None on ranks that write
    nothing.  Ctrl-C writes what is whole, before anything else: also where another handler than
    Python's own would end the job at once.

    Raises:
        ValueError: if the folder holds a run, or something else, or is in use.
        CheckpointError: if its checkpoint is damaged, or of another log, configuration or model.
    """
    with ExitStack() as stack:
        keeper = None
        if folder is not None and comm.rank == 0:
            ways = {"resume": resume, "force": force}
            if not runs.is_run(folder):  # before a lock is left in what is another's
                runs.check_may_begin(folder, **ways)
            stack.enter_context(runs.locked(folder))
            runs.check_may_begin(folder, **ways)
            keeper = Keeper(folder, log, config, model_class)
            if resume:
                keeper.restore(trainer)
            elif force:
                runs.clear(folder)
            keeper.begin(reading)
        if folder is not None:
            write = partial(sleep, WRITES) if keeper is None else keeper.write_latest
            stack.enter_context(_first(write))
        if folder is not None and resume and comm.size > 1:
            share_progress(comm, trainer)
        try:
            yield keeper
        except KeyboardInterrupt as press:
            if folder is not None:
                write()
            if folder is not None and keeper is not None:
                press.add_note(f"`resume=True` goes on with {folder}, {standing(folder)}")
            raise


@contextmanager
def _first(act: Callable[[], object]) -> Iterator[None]:
    """Has a handler of Ctrl-C that ends the process at once `act` before it does."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not callable(before) or before is signal.default_int_handler or not is_main:
        yield
        return
    then: Callable[[int, Any], object] = before

    def press(number: int, frame: Any) -> None:
        try:
            act()
        finally:
            then(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, then)


def standing(folder: Path) -> str:
    """Where the newest checkpoint of a run stands, in words: `after 3 of 100 epochs`."""
    newest = max((folder / "checkpoints").glob("[0-9]*"), default=None)
    if newest is None:
        return "from its start"
    try:
        meta = json.loads((newest / "meta.json").read_text())["meta"]
    except (OSError, ValueError, KeyError):  # who goes on is told of it
        return "from its last checkpoint"
    progress = meta["progress"]
    if "window" in progress:
        return f"after {progress['window']} window{'s' if progress['window'] != 1 else ''}"
    return f"after {len(progress['epochs'])} of {meta['config']['epochs']} epochs"


def _line(error: Exception) -> str:
    """The first thing that an error names."""
    words = " ".join(str(error).split())
    return words if len(words) <= 200 else f"{words[:200]} ..."


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
