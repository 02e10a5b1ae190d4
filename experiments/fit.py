"""`fit`: from an event log to a report: test, then train, window by window.

    predict the events that the window adds        states and weights as the last window left them
    go back to the state at the window's start     exactly: graph, states, links
    train on the window, segment by segment        one optimiser step a segment, `epochs` times
    remember the state where the next one starts   in the last epoch

With the protocol "split", `split` trains, validates and tests on parts of the log instead.
Invariant: everything that a later window sees is a function of (log, config, seed), so a run that
is killed and resumed equals one that never was, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..parallel.ranks import Alone, Comm, agree
from ..stream import EventLog, Window
from . import runs
from .config import TrainConfig
from .keeper import Keeper, check_ways, checksum, class_of, finished, kept_in
from .learn import NewModel, named, threads_of
from .report import write_report
from .split import SplitTrainer, run_epochs
from .summary import make_report, make_split_report, versions
from .trainer import Trainer
from .windows import windows_of


def fit(
    log: EventLog,
    config: TrainConfig,
    folder: str | Path | None = None,
    *,
    model: NewModel | None = None,
    resume: bool = False,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    comm: Comm | None = None,
) -> dict[str, Any]:
    """The report of a run: by default every event predicted before it is learned.

    `model` is a class or function, called without arguments, that makes a model of your own; else
    the configuration names one in the box.

    With a `folder`, config.toml, checkpoints and at the end the report are written there; `resume`
    goes on from the newest checkpoint in it, or starts if there is none, and `force` replaces the
    run in it, once log and configuration are known to be valid.  `reading` says how the log was
    read, in JSON's types: reading.json keeps it for who resumes.  `progress` is called after each
    window or epoch with its figures, `done_events` and `total_events`; within an epoch with these
    two and the last epoch's `epoch`, `loss` and `ap`.

    On several ranks of a `comm` (`guard.ranks` gives one), all of which call this alike, the result
    is that of one, up to rounding; the first one alone writes, reports progress and returns the
    whole report.

    Raises:
        ValueError: if the log is empty, the configuration does not fit it or this machine, the
            loss diverges, the folder holds a run (without `resume` or `force`) or is in use, or
            the ranks differ in log, configuration, versions or in the weights of your own model.
        TypeError: if `log` is no EventLog, or `config` no TrainConfig.
        CheckpointError: if the folder's checkpoint or report is damaged, or from another log,
            config, or class of your own model.
        KeyboardInterrupt: on Ctrl-C, once the last whole window or epoch is in the folder.
        OSError: if a file cannot be written, for instance on a full disk; it is named.
    """
    runs.check_given(log, config)
    if not len(log):
        raise ValueError("the log holds no event: there is nothing to train on")
    check_ways(folder, resume, force)
    if model is not None:
        config = named(config, model)
    where = None if folder is None else Path(folder)
    comm = comm or Alone()
    progress = None if comm.rank else progress
    if comm.size > 1:
        settings = config.model_dump(mode="json") | {"resume": folder is not None and resume}
        known = {f"version of {name}": v for name, v in versions().items() if name != "platform"}
        agree(comm, {"log": log.checksum, **settings, **known})
    runs.check_device(config.device)
    with threads_of(config), torch.random.fork_rng():
        torch.manual_seed(config.seed)
        began = time.perf_counter()
        is_split = config.protocol == "split"
        windows = [] if is_split else list(windows_of(log, config))
        before = finished(where, resume, log, config, model, comm)
        if before is not None:
            return before
        trainer: Trainer | SplitTrainer
        trainer = (SplitTrainer if is_split else Trainer)(log, config, model, comm)
        if model is not None and comm.size > 1:  # those in the box follow from what is agreed on
            agree(comm, {"first weights of the model": checksum(trainer.model)})
        model_class = None if model is None else class_of(trainer.model)
        ways: dict[str, Any] = {"resume": resume, "force": force, "reading": reading}
        with kept_in(where, log, config, trainer, comm, model_class=model_class, **ways) as keeper:
            if isinstance(trainer, SplitTrainer):
                figures = run_epochs(trainer, keeper, progress)
                report = {} if comm.rank else make_split_report(trainer, figures)
            else:
                report = _move(trainer, windows, keeper, began, progress)
            report |= {} if comm.rank else {"model_class": model_class}
            if keeper is not None and where is not None:
                write_report(where, report)
        return report


def _move(
    trainer: Trainer,
    windows: list[Window],
    keeper: Keeper | None,
    began: float,
    progress: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """The report of a trainer that went through the windows which it had not done."""
    done = trainer.done
    before = done.seconds
    total = sum(len(window.train) for window in windows)
    if not done.pending:
        done.pending = trainer.predict(windows[0], windows[0].start)
    for index in range(done.window, len(windows)):
        window, last = windows[index], index + 1 == len(windows)
        predicted = done.pending
        trained = trainer.train(window, None if last else windows[index + 1].start)
        if not last:
            done.pending = trainer.predict(windows[index + 1], window.stop)
        done.window = index + 1
        done.seconds = before + time.perf_counter() - began
        done.windows.append(
            {"start": window.start, "stop": window.stop, "test_start": window.test_start}
            | predicted
            | trained
            | {"seconds": predicted["seconds"] + trained["seconds"]}
        )
        if keeper is not None:
            keeper.save(trainer, force=last)
        if progress is not None:
            finished = sum(len(w.train) for w in windows[: index + 1])
            progress(done.windows[-1] | {"done_events": finished, "total_events": total})
    return {} if trainer.replay.comm.rank else make_report(trainer)
