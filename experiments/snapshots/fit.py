"""`fit_snapshots`: from snapshots to a report, on one rank or many, over a backend by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...datasets import Signal, StaticGraph
from ...models.snapshots import (
    SNAPSHOT_MODELS,
    SnapshotModel,
    build_snapshot_model,
    snapshot_options,
)
from ...parallel.backends import BACKENDS, make_propagator
from ...parallel.backends.choose import choose
from ...parallel.ranks import Alone, Comm, agree
from ...stream import EventLog
from ...stream.errors import unknown_name
from ..keeper import Keeper, check_ways, checksum, class_of, finished, kept_in
from ..report import write_report
from ..summary import versions
from .config import SnapshotConfig
from .data import SnapshotData, data_of
from .page import render_snapshots
from .summary import make_snapshot_report
from .traffic import Backend
from .trainer import NewModel, SnapshotTrainer


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
    of the features and that of its rows; else the configuration names one in the box.  Its name in
    the report is that of the configuration, or else of the class, in small letters.

    With a `folder`, config.toml, checkpoints and at the end the report are written there; `resume`
    goes on from the newest checkpoint in it, and `force` replaces the run in it, once data and
    configuration are known to be valid.  `progress` is called after each epoch with its figures.

    On several ranks of a `comm`, all of which call this alike, the result is that of one, up to
    rounding; the first one alone writes, reports progress and returns the whole report.

    Raises:
        ValueError: if the data are too short, the configuration does not fit them, the loss
            diverges, the folder holds a run or is in use, or the ranks differ.
        CheckpointError: if the folder's checkpoint is damaged, or from another log, config, or
            class of your own model.
        KeyboardInterrupt: on Ctrl-C, once the last whole epoch is in the folder.
    """
    check_ways(folder, resume, force)
    if model is not None:
        config = _named(config, model)
    where = None if folder is None else Path(folder)
    comm = comm or Alone()
    progress = None if comm.rank else progress
    data = data_of(source, config)
    if comm.size > 1:
        settings = {k: str(v) for k, v in config.model_dump(mode="json").items()}
        known = {f"version of {name}": v for name, v in versions().items() if name != "platform"}
        resumes = {"resume": folder is not None and resume}
        agree(comm, {**settings, **resumes, **known})
        agree(comm, {"data": data.checksum})  # which depend on settings, the seed among them
    with _set_up(config):
        make = None if model is None else partial(model, data.in_width(), config.width)
        before = finished(where, resume, data, config, make, comm)
        if before is not None:
            return before
        backend = choose_backend(data, config, comm.size)
        propagator = make_propagator(backend.name, data.snapshots, comm, **backend.options)
        trainer = SnapshotTrainer(data, config, propagator, model or _in_the_box(data, config))
        if comm.size > 1:
            agree(comm, {"first weights of the model": checksum(trainer.net)})
        model_class = None if model is None else class_of(trainer.model)
        ways: dict[str, Any] = {"resume": resume, "force": force, "reading": reading}
        with kept_in(where, data, config, trainer, comm, model_class=model_class, **ways) as keeper:
            _run(trainer, backend, keeper, progress)
            trainer.load_best()
            outputs = {part: trainer.predict(part) for part in ("val", "test")}
            report = {} if comm.rank else make_snapshot_report(trainer, outputs, backend)
            report |= {} if comm.rank else {"model_class": model_class}
            if keeper is not None and where is not None:
                write_report(where, report, render_snapshots)
        return report


@contextmanager
def _set_up(config: SnapshotConfig) -> Iterator[None]:
    """Torch with the threads and the seed of a run, until the block ends."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _run(
    trainer: SnapshotTrainer,
    backend: Backend,
    keeper: Keeper | None,
    progress: Callable[[dict[str, Any]], None] | None,
) -> None:
    """All epochs that are left."""
    epochs, steps = trainer.config.epochs, len(trainer.data.train)
    trainer.warm_up(backend)
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
    """The backend of the configuration, or for `auto` the one that the cost model picks.

    Raises:
        ValueError: if there is no such backend.
    """
    names = ("auto", *BACKENDS)
    if config.backend not in names:
        raise unknown_name("backend", config.backend, names)
    if config.backend != "auto":
        return Backend(config.backend, "it was asked for", config.backend_options)
    found = choose(data.snapshots, ranks, [config.width, config.width])
    return Backend(found.backend, found.reason, {**found.options, **config.backend_options})


RIVALS = frozenset({"persistence", "edgebank", "popularity", "mean", "majority"})
"""Names that stand beside the model's in a report."""


def _named(config: SnapshotConfig, model: NewModel) -> SnapshotConfig:
    """The configuration of a run of one's own model, with a name for it.

    Raises:
        ValueError: if options are given, which only models in the box take, or the name is that of
            one of them or of a baseline.
        TypeError: if `model` cannot be called with two widths.
    """
    if isinstance(model, SnapshotModel) or not callable(model):
        raise TypeError(
            "`model` must be a class or a function that makes a model of two widths, so that the "
            f"seed decides its weights: got {type(model).__name__}"
        )
    if config.options:
        raise ValueError(
            "`options` are for the models in the box: give them to your own where you make it; got "
            f"{config.options}"
        )
    name = getattr(model, "__name__", "model").strip("<>_").lower()
    name = config.model if "model" in config.model_fields_set else name
    taken = "a baseline" if name in RIVALS else "one in the box" if name in SNAPSHOT_MODELS else ""
    if taken:
        raise ValueError(
            "`model` of the configuration must be a name of its own for your model: got "
            f"{name!r}, which is that of {taken}"
        )
    return config.model_copy(update={"model": name})


def _in_the_box(data: SnapshotData, config: SnapshotConfig) -> NewModel:
    options = dict(config.options)
    if data.kind != "values" and "periods" in snapshot_options(config.model):
        options.setdefault("periods", 1)  # columns that are no history

    def make(in_width: int, width: int) -> SnapshotModel:
        return build_snapshot_model(config.model, in_width, width, **options)

    return make
