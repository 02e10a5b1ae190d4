"""Small data for runs on snapshots: a log with a habit, a signal, a graph with classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from neutronstream.datasets import Signal, StaticGraph
from neutronstream.experiments import SnapshotConfig
from neutronstream.stream import EventLog

STEPS, NODES = 12, 23


def settings(**given: Any) -> SnapshotConfig:
    """A small configuration in float64, with what is `given`."""
    base: dict[str, Any] = {
        "width": 6,
        "names": 5,
        "epochs": 3,
        "candidates": 4,
        "bptt": 3,
        "dtype": "float64",
    }
    return SnapshotConfig(**(base | given))


def events(last: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """Twelve days of 40 events each; `last` moves the destinations of the last day."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, (2, STEPS, 40))
    dst[:, :20] = (src[:, :20] + 1) % NODES  # half of them go to the next node
    src[0, :NODES] = np.arange(NODES)  # every node is there from the first day on
    dst[-1] = (dst[-1] + last) % NODES
    time = 86_400 * np.arange(STEPS)[:, None] + 60 * np.arange(40)
    return src.ravel(), dst.ravel(), time.ravel()


def habit(last: int = 0) -> EventLog:
    """The `events` as a log."""
    return EventLog.from_arrays(*events(last), name="habit")


def groups() -> EventLog:
    """Two groups of 20 nodes that meet within; whom a node meets is drawn anew every day."""
    rng = np.random.default_rng(1)
    src = rng.integers(0, 40, (STEPS, 60))
    dst = (src + 2 * rng.integers(1, 20, src.shape)) % 40
    time = 86_400 * np.arange(STEPS)[:, None] + np.arange(60)
    return EventLog.from_arrays(src.ravel(), dst.ravel(), time.ravel())


def write_habit(path: Path) -> Path:
    """The `events` as a file."""
    table = pa.table(dict(zip(("src", "dst", "time"), events(), strict=True)))
    pyarrow.csv.write_csv(table, path)
    return path


def wave(last: float = 0.0) -> Signal:
    """A sine a node, each at its own phase, on a ring; `last` is added to the last step."""
    nodes = np.arange(7)
    values = np.sin(np.arange(30)[:, None] / 2 + nodes) + 3
    values[-1] += last
    ring = (nodes,), ((nodes + 1) % 7,), (np.ones(7),)
    return Signal("wave", *ring, values.astype(np.float32))


def clubs() -> StaticGraph:
    """Two clubs of nodes, linked within; training nodes are in the first half of each."""
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 2
    src = rng.integers(0, 30, 200)
    dst = (src + 2 * rng.integers(1, 15, 200)) % 30
    masks = [np.arange(30) // 10 == part for part in range(3)]
    return StaticGraph("clubs", 30, 2, src, dst, labels, None, *masks)


def timeless(report: Any) -> Any:
    """A report without what the clock had a part in."""
    if isinstance(report, dict):
        return {name: timeless(v) for name, v in report.items() if "seconds" not in name}
    return [timeless(value) for value in report] if isinstance(report, list) else report


def figures(report: dict[str, Any]) -> dict[str, float]:
    """The losses and scores of a report by name, those that there are."""
    found: dict[str, float] = {}
    for epoch in report["epochs"]:
        found |= {
            f"{epoch['epoch']} {name}": value
            for name, value in epoch.items()
            if name.startswith(("train_loss", "val_")) and value is not None
        }
    for scorer, parts in report["metrics"].items():
        for part, scores in parts.items():
            found |= {f"{scorer} {part} {name}": v for name, v in scores.items() if v is not None}
    return found
