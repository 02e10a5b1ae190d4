"""What a finished run on snapshots says of itself: the report, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..report import to_plain
from ..summary import TIE_RULE, versions
from .tasks import Outputs, Task
from .traffic import Backend, Maker, balance, by_purpose
from .trainer import SnapshotTrainer, mean_of

PARTS = {"test": "test", "val": "validation"}
"""The parts that are scored, with the words for them."""

LOWER = frozenset({"mse", "mae", "mae_in_units", "mar"})
"""Scores of which less is better."""

COUNTS = ("answers", "unscored")


def make_snapshot_report(
    trainer: SnapshotTrainer, outputs: Mapping[str, Outputs], backend: Backend
) -> dict[str, Any]:
    """The report of a run whose epochs are done, in JSON's own types.

    Bytes, balance and seconds of an epoch are those of the last `Maker` of epochs; `backend` is
    what the test ran over.
    """
    data, config, done, task = trainer.data, trainer.config, trainer.done, trainer.task
    maker = done.makers[-1]
    epochs = done.epochs[maker.first - 1 :]
    best = None if done.best is None else done.epochs[done.best]
    metrics: dict[str, dict[str, dict[str, float]]] = {}
    for part, found in outputs.items():
        metrics.setdefault(config.model, {})[part] = task.measure(found, part)
        for name, scores in task.baselines(part).items():
            metrics.setdefault(name, {})[part] = scores
    edges = [snapshot.adjacency.num_edges for snapshot in data.snapshots]
    return to_plain(  # type: ignore[no-any-return]
        {
            "log": data.name,
            "task": data.kind,
            "metric": task.metric,
            "higher_is_better": task.higher,
            "metrics": metrics,
            "verdict": verdict(task, metrics, config.model),
            "epochs": done.epochs,
            "snapshots": {
                "snapshots": len(data.snapshots),
                "nodes": data.num_nodes,
                "features": data.in_width(),
                "edges, mean": float(np.mean(edges)),
                "edges, most": max(edges),
                "events": data.events,
            },
            "split": _split(trainer) | {"best_epoch": None if best is None else best["epoch"]},
            "backend": {
                "name": maker.backend,
                "ranks": maker.ranks,
                "reason": maker.reason,
                "options": maker.options,
                "epochs": _spans(done.makers, done.epoch),
            },
            "traffic": by_purpose(done.ranks),
            "balance": balance(maker, done.ranks),
            "throughput": {
                "seconds": done.seconds,
                "train_seconds_an_epoch": mean_of(e["train_seconds"] for e in epochs),
                "bytes_an_epoch": mean_of(e["bytes"] for e in epochs),
                "bytes_before_training": maker.set_up,
            },
            "ranking": {
                "what": task.words,
                **({"tie_rule": TIE_RULE} if data.kind == "links" else {}),
                "data_checksum": data.checksum,
            },
            "config": config.model_dump(),
            "versions": versions(),
            "notes": [*data.notes, *_makers(trainer, backend), *_unmeasured(trainer)],
        }
    )


def best_value(
    metrics: Mapping[str, Mapping[str, Mapping[str, float | None]]], part: str, name: str
) -> float | None:
    """The best that a scorer has of a score in a part; None where nobody has it."""
    known = [value for of in metrics.values() if (value := of[part][name]) is not None]
    return (min if name in LOWER else max)(known, default=None)


def verdict(
    task: Task, metrics: Mapping[str, Mapping[str, Mapping[str, float]]], model: str
) -> list[str]:
    """Whom the model beats on the test part by the task's metric, a sentence a baseline."""
    own, metric = metrics[model]["test"][task.metric], task.metric.upper()
    if not np.isfinite(own):
        return [f"{metric} of the test part is -: {task.undefined}, so nothing is compared"]
    lines = []
    for name, scores in metrics.items():
        if name != model:
            theirs = scores["test"][task.metric]
            won = task.is_better(own, theirs)
            word = "beats" if won else "does not beat"
            figures = f"{own:.4f} against {theirs:.4f}"
            lines.append(f"{model} {word} {name} on {metric}: {figures}")
    return lines


def _spans(makers: Sequence[Maker], last: int) -> dict[str, str]:
    """Who made which epochs, in words: {"1 to 3": "tensor on 2 ranks"}."""
    ends = [*(maker.first for maker in makers), last + 1]
    spans = (f"{a}" if a + 1 == b else f"{a} to {b - 1}" for a, b in pairwise(ends))
    return {span: str(maker) for span, maker in zip(spans, makers, strict=True)}


def _makers(trainer: SnapshotTrainer, backend: Backend) -> list[str]:
    """What is to be said of a run that was gone on with on other ranks, or over another backend."""
    makers, notes = trainer.done.makers, []
    if len(makers) > 1:
        spans = _spans(makers, trainer.done.epoch).items()
        made = ", ".join(f"{span} by {maker}" for span, maker in spans)
        notes.append(
            f"epochs {made}: bytes, balance and seconds of an epoch are those of {makers[-1]}"
        )
    here = replace(makers[-1], backend=backend.name, ranks=trainer.comm.size)
    if str(here) != str(makers[-1]):
        notes.append(f"tested by {here}, after all epochs were done by {makers[-1]}")
    return notes


def _unmeasured(trainer: SnapshotTrainer) -> list[str]:
    if trainer.done.best is not None:
        return []
    return [
        f"{trainer.task.metric.upper()} of the validation part is -: {trainer.task.undefined}, so "
        "the weights of the last epoch were tested"
    ]


def _split(trainer: SnapshotTrainer) -> dict[str, Any]:
    data = trainer.data
    if data.kind == "classes":
        return {f"{part}_nodes": int(mask.sum()) for part, mask in data.masks.items()}
    spans = (("train", data.train), ("val", data.val), ("test", data.test))
    return {f"{part}_steps": len(steps) for part, steps in spans}


def format_bytes(count: float | None) -> str:
    """A number of bytes for reading.

    >>> format_bytes(1536), format_bytes(0)
    ('1.5 KiB', '0 bytes')
    """
    if count is None:
        return "-"
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
