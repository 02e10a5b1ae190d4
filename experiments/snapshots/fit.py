"""`fit_snapshots`: from snapshots to a report, on one rank or many, over a backend by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...datasets import Signal, StaticGraph
from ...models.snapshots import SnapshotModel, build_snapshot_model, snapshot_options
from ...parallel.backends import make_propagator
from ...parallel.backends.choose import choose
from ...parallel.comm import Alone, Comm, agree
from ...stream import EventLog
from .. import runs
from ..keeper import Keeper, checksum, share_progress
from ..report import write_report
from ..summary import versions
from .config import SnapshotConfig
from .data import SnapshotData, data_of
from .page import render_snapshots
from .summary import make_snapshot_report
from .trainer import NewModel, SnapshotTrainer


@dataclass(frozen=True, slots=True)
class Backend:
    """Which backend was taken, and why."""

    name: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


def fit_snapshots(
    source: str | EventLog | Signal | StaticGraph | SnapshotData,
    config: SnapshotConfig,
    folder: str | Path | None = None,
    *,
    model: NewModel | None = None,
    resume: bool = False,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    comm: Comm | None = None,
) -> dict[str, Any]:
    """The report of a run: trained on the first snapshots, chosen on the next, tested on the last.

    `source` is a log, whose links are predicted, a signal, whose values are, or a static graph,
    whose nodes have classes; or the name of one.  `model` makes a model of your own from the width
    of the features and that of its rows; else the configuration names one in the box.

    With a `folder`, config.toml, checkpoints and at the end the report are written there; `resume`
    goes on from the newest checkpoint in it, and `force` replaces the run in it, once data and
    configuration are known to be valid.  `progress` is called after each epoch with its figures.

    On several ranks of a `comm`, all of which call this alike, the result is that of one, up to
    rounding; the first one alone writes, reports progress and returns the whole report.

    Raises:
        ValueError: if the data are too short, the configuration does not fit them, the loss
            diverges, the folder holds a run or is in use, or the ranks differ.
        CheckpointError: if the folder's checkpoint is damaged, or from another log or config.
    """
    if resume and force:
        raise ValueError("`resume` goes on with a run and `force` replaces it: give one of them")
    if folder is not None and not str(folder):
        raise ValueError("`folder` must name a folder, or be None to write nothing: got ''")
    comm = comm or Alone()
    data = data_of(source, config)
    if comm.size > 1:
        settings = {k: str(v) for k, v in config.model_dump(mode="json").items()}
        known = {f"version of {name}": v for name, v in versions().items() if name != "platform"}
        resumes = {"resume": folder is not None and resume}
        agree(comm, {"data": data.checksum, **settings, **resumes, **known})
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            where = None if folder is None else Path(folder)
            return _fit(data, config, where, model, resume, force, reading, progress, comm)
    finally:
        torch.set_num_threads(threads)


def _fit(
    data: SnapshotData,
    config: SnapshotConfig,
    folder: Path | None,
    model: NewModel | None,
    resume: bool,
    force: bool,
    reading: Mapping[str, Any] | None,
    progress: Callable[[dict[str, Any]], None] | None,
    comm: Comm,
) -> dict[str, Any]:
    writes, resumes = folder is not None and comm.rank == 0, folder is not None and resume
    if resumes:
        assert folder is not None
        finished = runs.finished_report(folder, data, config) if runs.is_finished(folder) else None
        if comm.gather_objects(finished is not None, "start")[0]:
            return finished or {}
    backend = choose_backend(data, config, comm.size)
    propagator = make_propagator(backend.name, data.snapshots, comm, **backend.options)
    trainer = SnapshotTrainer(data, config, propagator, model or _in_the_box(data, config))
    if comm.size > 1:
        agree(comm, {"first weights of the model": checksum(trainer.net)})
    with ExitStack() as stack:
        keeper = None
        if writes:  # all is valid: from here on the folder is changed
            assert folder is not None
            stack.enter_context(runs.locked(folder))
            keeper = Keeper(folder, data, config)
            if resume:
                keeper.restore(trainer)
            elif force:
                runs.clear(folder)
            else:
                runs.check_is_free(folder)
            keeper.begin(reading)
        if resumes and comm.size > 1:
            share_progress(comm, trainer)
        _run(trainer, keeper, progress if comm.rank == 0 else None)
        trainer.load_best()
        outputs = {part: trainer.predict(part) for part in ("val", "test")}
        report = {} if comm.rank else make_snapshot_report(trainer, outputs, backend)
        if writes:
            assert folder is not None
            write_report(folder, report, render_snapshots)
    return report


def _run(
    trainer: SnapshotTrainer,
    keeper: Keeper | None,
    progress: Callable[[dict[str, Any]], None] | None,
) -> None:
    """All epochs that are left."""
    epochs, steps = trainer.config.epochs, len(trainer.data.train)
    trainer.warm_up()
    while not trainer.is_over:
        trainer.run_epoch()
        if keeper is not None:
            keeper.save(trainer, force=trainer.is_over)
        if progress is not None:
            figures, metric = trainer.done.epochs[-1], trainer.task.metric
            progress(
                {
                    **figures,
                    "loss": figures["train_loss"],
                    metric: figures[f"val_{metric}"],
                    "unit": "snapshots",
                    "done_events": (epochs if trainer.is_over else trainer.done.epoch) * steps,
                    "total_events": epochs * steps,
                }
            )


def choose_backend(data: SnapshotData, config: SnapshotConfig, ranks: int) -> Backend:
    """The backend of the configuration, or for `auto` the one that the cost model picks."""
    if config.backend != "auto":
        return Backend(config.backend, "it was asked for", config.backend_options)
    found = choose(data.snapshots, ranks, [config.width, config.width])
    return Backend(found.backend, found.reason, {**found.options, **config.backend_options})


def _in_the_box(data: SnapshotData, config: SnapshotConfig) -> NewModel:
    options = dict(config.options)
    if data.kind != "values" and "periods" in snapshot_options(config.model):
        options.setdefault("periods", 1)  # columns that are no history

    def make(in_width: int, width: int) -> SnapshotModel:
        return build_snapshot_model(config.model, in_width, width, **options)

    return make
