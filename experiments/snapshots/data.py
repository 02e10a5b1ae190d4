"""What a run on snapshots is of: the snapshots of a log, of a signal, or one graph with classes.

Invariant: what a step may see (its snapshot, the pairs of earlier periods) is a function of what
came before the step's targets.  Targets of step t of a log are the distinct pairs of the events
that follow snapshot t and are in snapshot t + 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from ...datasets import (
    Signal,
    StaticGraph,
    graph_names,
    load_graph,
    load_signal,
    random_split,
    signal_names,
)
from ...storage import Scale, Snapshot, SparseMatrix, discretise, signal_snapshots, uniform
from ...storage.signals import in_float32
from ...stream import Bool, EventLog, Int64
from ..door import open_log
from .config import SnapshotConfig

Kind: TypeAlias = Literal["links", "values", "classes"]

COUNT = 40
"""Parts that a log is cut into where nothing is said."""


@dataclass(frozen=True, eq=False)
class SnapshotData:
    """Snapshots, what is to be found at each step, and which steps are learned from."""

    name: str
    kind: Kind
    snapshots: tuple[Snapshot, ...]  # one a step; of a log there is one more, the last
    train: range  # steps; for classes one step, and masks say which nodes
    val: range
    test: range
    pairs: tuple[Int64, ...] = ()  # links: of each period the distinct src * V + dst, ascending
    masks: Mapping[str, Bool] = field(default_factory=dict)  # classes: of train, val and test
    num_classes: int = 0
    scale: Scale | None = None  # values: how they were scaled
    last: int | None = None  # values: which feature is the last value
    events: int = 0
    notes: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.snapshots[0].num_nodes

    @cached_property
    def checksum(self) -> str:
        """sha256 over all that a run sees."""
        digest = hashlib.sha256(repr((self.kind, self.train, self.val, self.test)).encode())
        for snapshot in self.snapshots:
            digest.update(snapshot.version.encode())
        for array in (*self.pairs, *self.masks.values()):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def in_width(self) -> int:
        """How wide the features are."""
        features = self.snapshots[0].features
        return 0 if features is None else features.shape[1]


def open_data(source: str, config: SnapshotConfig, **how: Any) -> SnapshotData:
    """The data that a name or a file means; `how` are arguments of `read_log` for a file.

    Raises:
        ValueError: if it means nothing, or is too short to be split.
        LogError: if a file is not there or cannot be read.
    """
    is_file = source != "demo" and Path(source).exists()
    given = sorted(name for name, value in how.items() if value is not None)
    for names in (signal_names(), graph_names()):
        if not is_file and source in names:
            if given:
                flags = ", ".join("--" + name.replace("_", "-") for name in given)
                raise ValueError(f"{flags} is for a file: `{source}` is a data set")
            if names == signal_names():
                return data_of_signal(load_signal(source), config)
            return data_of_graph(load_graph(source), config)
    return data_of_log(open_log(source, limit=config.limit, **how), config)


def data_of_log(log: EventLog, config: SnapshotConfig) -> SnapshotData:
    """A log cut into snapshots; step t predicts the links that follow snapshot t.

    A node's features are its degrees in the snapshot and in all so far, as logarithms, and
    `names` normal numbers that are a function of the seed and the node.

    Raises:
        ValueError: if there are too few snapshots for three parts.
    """
    if not len(log):
        raise ValueError("the log holds no event: there is nothing to train on")
    _check_fits(log.name, "a log", config, signal=False, log=True)
    is_cut = config.period is not None or config.count is not None
    count = config.count if is_cut else min(COUNT, len(log))
    found = discretise(
        log,
        config.period,
        count,
        cumulative=config.cumulative,
        window=config.window,
        features="history",
    )
    names = _names(log.num_nodes, config)
    snapshots = tuple(_with_names(snapshot, names, config.undirected) for snapshot in found)
    ends = [0, *(snapshot.stop for snapshot in found)]
    pairs = []
    for start, stop in pairwise(ends):
        events = log[start:stop]
        pairs.append(np.unique(events.src * log.num_nodes + events.dst))
    advice = "cut the log by `count`, or into shorter periods"
    if len(log) < 4:
        advice = f"a log of at least 4 events makes so many snapshots, and this one has {len(log)}"
    parts = split_steps(len(snapshots) - 1, config, advice)
    for part, steps in zip(("train on", "validate on", "test on"), parts, strict=True):
        if not any(len(pairs[step + 1]) for step in steps):
            raise ValueError(
                f"the snapshots to {part} are followed by no event: cut the log by `count`, or "
                "into longer periods"
            )
    return SnapshotData(
        *(log.name, "links", snapshots, *parts),
        pairs=tuple(pairs),
        events=len(log),
        notes=log.notes,
    )


def data_of_signal(signal: Signal, config: SnapshotConfig) -> SnapshotData:
    """The steps of a signal; each predicts the values of the next.

    Values, and other features that a node has, are scaled by what the training part shows.
    """
    _check_fits(signal.name, "a signal with steps of its own", config, signal=True, log=False)
    values = in_float32("values", np.asarray(signal.values))
    advice = f"take fewer `lags`, or a signal of more than {len(values)} steps"
    parts = split_steps(max(0, len(values) - config.lags), config, advice)
    known = parts[0].stop + config.lags  # steps whose values are learned from
    scale = Scale.of(values, known, log=signal.is_count)
    extra = None
    if signal.features is not None:
        given = in_float32("features", np.asarray(signal.features))
        log = bool((given >= 0).all()) and signal.is_count
        columns = [
            Scale.of(column, known, log=log).apply(column) for column in np.moveaxis(given, 2, 0)
        ]
        extra = np.stack(columns, axis=2)
    edges = signal.src, signal.dst, signal.weight
    found = signal_snapshots(*edges, scale.apply(values), extra=extra, lags=config.lags)
    return SnapshotData(
        *(signal.name, "values", tuple(found), *parts),
        scale=scale,
        last=config.lags - 1,
        events=len(values),
    )


def data_of_graph(graph: StaticGraph, config: SnapshotConfig) -> SnapshotData:
    """One graph whose nodes have classes, its edges both ways.

    The masks are the source's, or else a random 70/15/15 of the nodes.  Rows of features sum to 1;
    a graph without any has the `names` of its nodes.
    """
    _check_fits(graph.name, "one graph, whose edges go both ways", config, signal=False, log=False)
    src, dst = graph.both_ways
    rows = graph.sparse_features
    features = _names(graph.num_nodes, config) if rows is None else rows.unit_rows().dense()
    masks, notes = (graph.train, graph.val, graph.test), []
    if any(mask is None for mask in masks):
        train = 1 - config.val_ratio - config.test_ratio
        masks = random_split(graph.labels, train=train, val=config.val_ratio, seed=config.seed)
        notes.append("the source has no split: the nodes were split at random by the seed")
    adjacency = SparseMatrix.from_edges(src, dst, graph.num_nodes)
    snapshot = Snapshot(adjacency, features, graph.labels)
    named = {name: mask for name, mask in zip(("train", "val", "test"), masks, strict=True)}
    for name, mask in named.items():
        classes = graph.labels[mask]
        if not len(classes) or classes.min() < 0 or classes.max() >= graph.num_classes:
            raise ValueError(
                f"`{name}` must mark nodes with labels from 0 to {graph.num_classes - 1}: it marks "
                f"{len(classes)} nodes, with labels {sorted(set(classes.tolist()))[:8]}"
            )
    return SnapshotData(
        *(graph.name, "classes", (snapshot,), range(1), range(1), range(1)),
        masks=named,  # type: ignore[arg-type]
        num_classes=graph.num_classes,
        events=len(src),
        notes=tuple(notes),
    )


def split_steps(
    count: int, config: SnapshotConfig, advice: str = "give more snapshots"
) -> tuple[range, range, range]:
    """The steps to train, to validate and to test on, in time order; none is empty.

    Raises:
        ValueError: if there are fewer than 3 steps; `advice` says what makes more.

    >>> split_steps(20, SnapshotConfig())
    (range(0, 14), range(14, 17), range(17, 20))
    """
    if count < 3:
        raise ValueError(
            f"there are {count} steps to predict, and training, validation and test need one each: "
            f"{advice}"
        )
    test = min(max(1, round(count * config.test_ratio)), count - 2)
    val = min(max(1, round(count * config.val_ratio)), count - test - 1)
    first, second = count - test - val, count - test
    return range(first), range(first, second), range(second, count)


_OF_LOGS = ("period", "count", "window", "cumulative", "undirected", "limit", "decoder")
_OF_SIGNALS = ("lags", "residual")


def _check_fits(name: str, what: str, config: SnapshotConfig, *, signal: bool, log: bool) -> None:
    """Refuses what was set and would do nothing."""
    groups = [("a log", _OF_LOGS)] * (not log) + [("a signal", _OF_SIGNALS)] * (not signal)
    for whose, settings in groups:
        for setting in settings:
            value = getattr(config, setting)
            if value != SnapshotConfig.model_fields[setting].default:
                raise ValueError(f"`{setting}` is for {whose}: `{name}` is {what}; got {value!r}")


def _names(num_nodes: int, config: SnapshotConfig) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(V, names) normal numbers of mean 0; the squares of a row sum to 1 or so."""
    half = -(-config.names // 2)
    drawn = uniform(config.seed, "names", np.arange(num_nodes), 2 * half)
    radius = np.sqrt(-2 * np.log(drawn[:, :half]))  # Box and Muller
    angle = 2 * np.pi * drawn[:, half:]
    normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    scaled: np.ndarray[Any, np.dtype[np.float32]]
    scaled = (normal[:, : config.names] / np.sqrt(max(config.names, 1))).astype(np.float32)
    return scaled


def _with_names(
    snapshot: Snapshot, names: np.ndarray[Any, np.dtype[np.float32]], undirected: bool
) -> Snapshot:
    assert snapshot.features is not None
    found = replace(snapshot, features=np.concatenate((snapshot.features, names), axis=1))
    if undirected:
        found = replace(found, adjacency=snapshot.adjacency.both_ways())
    return found


def data_of(
    source: str | EventLog | Signal | StaticGraph | SnapshotData, config: SnapshotConfig
) -> SnapshotData:
    """The data of whatever a user has in hand."""
    if isinstance(source, SnapshotData):
        return source
    if isinstance(source, EventLog):
        return data_of_log(source, config)
    if isinstance(source, Signal):
        return data_of_signal(source, config)
    if isinstance(source, StaticGraph):
        return data_of_graph(source, config)
    return open_data(source, config)


def data_of_snapshots(
    snapshots: Sequence[Snapshot],
    config: SnapshotConfig,
    name: str = "snapshots",
    *,
    last: int | None = None,
) -> SnapshotData:
    """Snapshots of your own that have features and, as target, a value a node.

    `last` is the column of the features that holds the last value, which for `signal_snapshots`
    is `lags - 1`; without it there is no baseline `persistence`, and no `residual`.

    Raises:
        ValueError: if one lacks them, or there are too few.
    """
    for place, snapshot in enumerate(snapshots):
        if snapshot.features is None or snapshot.target is None:
            raise ValueError(f"snapshot {place} must have `features` and `target`")
        wide = np.asarray(snapshots[0].features).shape
        for what, shape in (("features", wide), ("target", wide[:1])):
            values = np.asarray(getattr(snapshot, what))
            if values.shape != shape or len(wide) != 2:
                raise ValueError(
                    f"`features` must be (nodes, width) and `target` (nodes,), alike in all: "
                    f"`{what}` of snapshot {place} is {values.shape}, features of the first {wide}"
                )
            if not np.isfinite(values).all():
                raise ValueError(f"`{what}` must be finite: snapshot {place} has one that is not")
    parts = split_steps(len(snapshots), config)
    if config.residual and last is None:
        raise ValueError("`residual` needs `last`, the column of the features with the last value")
    return SnapshotData(name, "values", tuple(snapshots), *parts, last=last, events=len(snapshots))
