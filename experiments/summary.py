"""What a finished run says of itself: the report, as data."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import __version__
from ..stream import EventLog, suggest_window
from .report import to_plain
from .split import SplitTrainer
from .trainer import Trainer

PACKAGES = ("torch", "numpy", "numba", "pyarrow", "scikit-learn")
TIE_RULE = "average rank: 1 + greater + equal / 2"
SPLIT_TIE_RULE = "equal scores share one threshold (AP), a tied pair is worth 1/2 (AUC)"


def make_report(trainer: Trainer) -> dict[str, Any]:
    """The report of a run whose windows are all done, in JSON's own types."""
    log, config, done = trainer.log, trainer.config, trainer.done
    counts = _counts(log, trainer.replay.graph.position)
    notes = list(log.notes)
    if config.size is None and config.window != "adaptive":
        notes.append(
            "the window's size was suggested: {} events, moved by {}".format(*suggest_window(log))
        )
    if len(done.windows) == 1 < len(log):
        notes.append(
            "one window holds the whole log, so nothing was learned before an event was predicted: "
            "a smaller `size` shows what the model learns"
        )
    if trainer.evaluation.unscored:
        notes.append(
            f"events without another known destination to be ranked against, which are not in the "
            f"metrics: {trainer.evaluation.unscored}"
        )
    return to_plain(  # type: ignore[no-any-return]
        {
            "log": log.name,
            "windows": done.windows,
            "metrics": trainer.evaluation.value(),
            "times": trainer.evaluation.times.value(),
            "counts": counts,
            "throughput": {
                "train_events_per_second": _rate(done.train_events, done.train_seconds),
                "predict_events_per_second": _rate(done.stop, done.predict_seconds),
                "seconds": done.seconds,
            },
            "stage_seconds": done.stage_seconds,
            "levels": _levels(done.widths),
            "ranking": {
                "candidates": config.candidates or "all",
                "drawn_from": "destinations known before the event, without its own two ends, each "
                "once; all of them where there are no more",
                "ap_auc": "against one of them an event, drawn alike whatever `candidates` is",
                "negatives": trainer.model.num_negatives,
                "tie_rule": TIE_RULE,
                "batch_size": config.batch_size,
                "consistency": config.consistency,
                "edgebank_window": trainer.evaluation.memory,
                "data_checksum": log.checksum,
            },
            "config": config.model_dump(),
            "versions": versions(),
            "notes": notes,
        }
    )


def make_split_report(trainer: SplitTrainer, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a run on a split, tested with these `metrics`, in JSON's own types."""
    log, config, done, split = trainer.log, trainer.config, trainer.done, trainer.split
    counts = _counts(log, trainer.scoring.replay.graph.position)
    best = None if done.best is None else done.epochs[done.best]
    notes = list(log.notes)
    for part, (start, stop) in split.spans.items():
        if not split.inductive[start:stop].any():
            name = {"val": "validation", "test": "test"}[part]
            notes.append(
                f"inductive {name} figures are not available: every node of the {name} part is in "
                "the training set"
            )
    return to_plain(  # type: ignore[no-any-return]
        {
            "log": log.name,
            "windows": [],
            "epochs": done.epochs,
            "metrics": metrics,
            "counts": counts,
            "split": {
                "trained_events": int(split.trained.sum()),
                "left_out_events": int(split.val_start - split.trained.sum()),
                "val_events": split.test_start - split.val_start,
                "test_events": len(log) - split.test_start,
                "inductive_val_events": int(split.inductive[: split.test_start].sum()),
                "inductive_test_events": int(split.inductive[split.test_start :].sum()),
                "new_nodes": len(split.new_nodes),
                "val_time": split.val_time,
                "test_time": split.test_time,
                "evaluate_from": config.evaluate_from,
                "best_epoch": None if best is None else best["epoch"],
                "best_val_ap": None if best is None else best["val_ap"],
            },
            "throughput": {
                "train_events_per_second": _rate(done.train_events, done.train_seconds),
                "predict_events_per_second": _rate(done.predict_events, done.predict_seconds),
                "seconds": done.seconds,
            },
            "stage_seconds": done.stage_seconds,
            "levels": _levels(done.widths),
            "ranking": {
                "protocol": f"train, validate on {config.val_ratio:g} and test on "
                f"{config.test_ratio:g} of the log in its order; weights of the best validation AP",
                "candidates": "one pair an event and strategy",
                "random": "the event's source and any destination of the set's log",
                "historical": "pairs seen before the batch and not in it; random ones fill up",
                "inductive": "those of them that were not seen before the part; random ones fill "
                "up",
                "inductive sets": "events with a node that is not in the training set, against "
                "pairs of such events",
                "negatives": trainer.model.num_negatives,
                "tie_rule": SPLIT_TIE_RULE,
                "batch_size": config.batch_size,
                "consistency": config.consistency,
                "split_seed": config.split_seed,
                "edgebank_window": trainer.evaluation.windows,
                "data_checksum": log.checksum,
            },
            "config": config.model_dump(),
            "versions": versions(),
            "notes": notes,
        }
    )


def _counts(log: EventLog, applied: int) -> dict[str, int]:
    """What became of the events read.

    Raises:
        AssertionError: if one is not accounted for.
    """
    counts = {
        "read": len(log) + log.quarantined,
        "applied": applied,
        "late": 0,
        "quarantined": log.quarantined,
    }
    if counts["read"] != sum(counts.values()) - counts["read"]:
        raise AssertionError(f"events were lost, so there is no report: {counts}")
    return counts


def _levels(widths: Mapping[int, int]) -> dict[str, Any]:
    """How wide the levels were, in events."""
    levels, events = sum(widths.values()), sum(w * count for w, count in widths.items())
    return {
        "average_width": events / levels if levels else None,
        "max_width": max(widths, default=0),
        "histogram": dict(sorted(widths.items())),
    }


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "neutronstream": __version__,  # of the code that runs, installed or not
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def _rate(events: int, seconds: float) -> float | None:
    return events / seconds if seconds > 0 else None
