"""What a finished run says of itself: the report, as data."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import __version__
from ..stream import suggest_window
from .report import to_plain
from .trainer import Trainer

PACKAGES = ("torch", "numpy", "numba", "pyarrow", "scikit-learn")
TIE_RULE = "average rank: 1 + greater + equal / 2"


def make_report(trainer: Trainer) -> dict[str, Any]:
    """The report of a run whose windows are all done, in JSON's own types."""
    log, config, done = trainer.log, trainer.config, trainer.done
    applied = trainer.replay.graph.position
    counts = {
        "read": len(log) + log.quarantined,
        "applied": applied,
        "late": 0,
        "quarantined": log.quarantined,
    }
    if counts["read"] != sum(counts.values()) - counts["read"]:
        raise AssertionError(f"events were lost, so there is no report: {counts}")
    widths = dict(sorted(done.widths.items()))
    levels, events = sum(widths.values()), sum(w * count for w, count in widths.items())
    notes = list(log.notes)
    if config.size is None and config.window != "adaptive":
        notes.append(
            "the window's size was suggested: {} events, moved by {}".format(*suggest_window(log))
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
            "counts": counts,
            "throughput": {
                "train_events_per_second": _rate(done.train_events, done.train_seconds),
                "predict_events_per_second": _rate(done.stop, done.predict_seconds),
                "seconds": done.seconds,
            },
            "levels": {
                "average_width": events / levels if levels else None,
                "max_width": max(widths, default=0),
                "histogram": widths,
            },
            "ranking": {
                "candidates": config.candidates or "all",
                "drawn_from": "destinations known before the event, without its own two ends, each "
                "once; all of them where there are no more",
                "ap_auc": "against one of them an event, drawn alike whatever `candidates` is",
                "negatives": config.negatives,
                "tie_rule": TIE_RULE,
                "batch_size": config.batch_size,
                "edgebank_window": trainer.evaluation.memory,
                "data_checksum": log.checksum,
            },
            "config": config.model_dump(),
            "versions": versions(),
            "notes": notes,
        }
    )


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
