"""Events in order: `EventBatch`, a run of events, and `EventLog`, all of them with their names.

Invariant: the events of a log stand in order of (time, position), and dense node ids are given in
order of first appearance (source before destination), so the nodes known before position `p` are
exactly `0 .. nodes_before(p) - 1`: nothing about a node is known before it appears.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .errors import OrderError

Int64: TypeAlias = npt.NDArray[np.int64]
UInt8: TypeAlias = npt.NDArray[np.uint8]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]

TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns", "step"]
"""What one tick of `time` is; `step` is a tick without a length in seconds."""

TICKS_PER_SECOND: dict[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "step": 1}


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A run of events as a frozen struct of arrays; slicing gives views."""

    src: Int64  # (n,) dense node ids
    dst: Int64  # (n,) dense node ids
    time: Int64  # (n,) ticks of the log's unit, never decreasing
    kind: UInt8  # (n,) index into the log's `kinds`
    weight: Float64 | None = None  # (n,)
    label: Int64 | None = None  # (n,)
    features: Float32 | None = None  # (n, num_features)

    def __post_init__(self) -> None:
        for name in ("dst", "time", "kind", "weight", "label", "features"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.src):
                raise ValueError(
                    f"`{name}` must have one value an event: got {len(column)} for {len(self.src)}"
                )

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, span: slice | Bool | Int64) -> EventBatch:
        """The events of a slice (views), a mask or positions (copies)."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, column in columns.items():
            columns[name] = None if column is None else column[span]
        return EventBatch(**columns)


@dataclass(frozen=True)
class EventLog:
    """An ordered sequence of events with its node-id map and time unit.

    `len(log)` is the number of events, `log[a:b]` an `EventBatch` of views.

    >>> log = EventLog.from_arrays(["ann", "bob"], ["bob", "eve"], [0, 7], unit="s")
    >>> log.num_nodes, log[1:2].dst.tolist(), log.name_of([2])
    (3, [2], ['eve'])
    """

    events: EventBatch
    nodes: pa.Array  # original ids; the place is the dense id
    unit: TimeUnit = "s"
    kinds: tuple[str, ...] = ("event",)
    name: str = "log"
    initial: EventBatch | None = None  # links that stand before the first event
    quarantined: int = 0  # rows of the source that were put aside, see `read_log`
    was_sorted: bool = True  # whether the source stood in time order
    notes: tuple[str, ...] = ()  # what was noticed while reading, in sentences

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, span: slice) -> EventBatch:
        return self.events[span]

    @property
    def num_nodes(self) -> int:
        """How many distinct nodes the log (and its initial links) names."""
        return len(self.nodes)

    @cached_property
    def _known(self) -> Int64:
        """Nodes known before each position; (n + 1,)."""
        start = 0
        if self.initial is not None and len(self.initial):
            start = int(max(self.initial.src.max(), self.initial.dst.max())) + 1
        newest = np.maximum(self.events.src, self.events.dst) + 1
        return np.maximum.accumulate(np.concatenate([[start], newest]))

    @overload
    def nodes_before(self, position: int) -> int: ...
    @overload
    def nodes_before(self, position: Int64) -> Int64: ...
    def nodes_before(self, position: int | Int64) -> int | Int64:
        """How many nodes have appeared before `position`; they are the ids below that number."""
        known = self._known[position]
        return known if isinstance(known, np.ndarray) else int(known)

    def name_of(self, nodes: Sequence[int] | Int64) -> list[Any]:
        """The original ids of dense `nodes`, as Python values."""
        result: list[Any] = self.nodes.take(pa.array(np.asarray(nodes, np.int64))).to_pylist()
        return result

    def head(self, limit: int) -> EventLog:
        """The first `limit` events as a log of its own, with only the nodes known by then."""
        if limit < 0:
            raise ValueError(f"`limit` must not be negative: got {limit}")
        if limit >= len(self):
            return self
        nodes = self.nodes.slice(0, self.nodes_before(limit))
        return replace(self, events=self.events[:limit], nodes=nodes)

    @cached_property
    def checksum(self) -> str:
        """sha256 over all that a run sees: events, initial links, node ids, kinds and time unit.

        Ids are taken as text, so that 7 and "7" are one id: a file and its copy as Parquet agree.
        """
        digest = hashlib.sha256(repr((self.unit, self.kinds)).encode())
        for part, batch in (("initial", self.initial), ("events", self.events)):
            for field in fields(EventBatch):
                column = getattr(batch, field.name, None)
                if column is not None:
                    digest.update(repr((part, field.name, column.shape)).encode())
                    digest.update(np.ascontiguousarray(column).data)
        texts = pa.concat_arrays([self.nodes.cast(pa.large_string(), safe=False)])
        if len(texts):
            _, offsets, characters = texts.buffers()
            ends = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
            digest.update((ends - ends[0]).data)
            digest.update(memoryview(characters)[ends[0] : ends[-1]] if characters else b"")
        return digest.hexdigest()

    @classmethod
    def from_arrays(
        cls,
        src: Sequence[Any] | npt.NDArray[Any],
        dst: Sequence[Any] | npt.NDArray[Any],
        time: Sequence[int] | Int64,
        *,
        kind: Sequence[str] | None = None,
        weight: Sequence[float] | Float64 | None = None,
        label: Sequence[int] | Int64 | None = None,
        features: Float32 | None = None,
        initial: tuple[Sequence[Any], Sequence[Any]] | None = None,
        unit: TimeUnit = "s",
        name: str = "log",
    ) -> EventLog:
        """The log of these columns; ids of any one type are mapped densely.

        Lists, arrays and tensors are taken alike.  `kind` is a text an event; `initial` holds the
        links that stand before the first event; `features` are (n, f).

        Raises:
            OrderError: if `time` decreases anywhere; sort first (stable) or use `read_log`.
            ValueError: if a time is no whole number, columns differ in length, ids in type, or
                `features` are no table.
        """
        given = np.asarray(time)
        if given.dtype.kind == "f" and (odd := given[~(np.abs(given) < 2.0**63)]).size:
            raise ValueError(f"`time` must be finite and fit int64: got {odd[0]}")
        when = given.astype(np.int64)
        if given.dtype.kind == "f" and (odd := given[when != given]).size:
            raise ValueError(f"`time` must be whole ticks of `unit`: got {odd[0]}")
        drops = np.flatnonzero(when[1:] < when[:-1])  # a difference might overflow
        if len(drops):
            raise OrderError(
                f"`time` must not decrease: position {drops[0] + 1} has {when[drops[0] + 1]} "
                f"after {when[drops[0]]}; sort the events first (stable)"
            )
        before = ([], []) if initial is None else initial
        num_initial, num_events = len(before[0]), len(when)
        if len(src) != num_events or len(dst) != num_events or len(before[1]) != num_initial:
            raise ValueError(
                "`src`, `dst` and `time` must have one value an event, and `initial` as many "
                f"sources as targets: got {len(src)}, {len(dst)}, {num_events} and "
                f"{num_initial}, {len(before[1])}"
            )
        ends = [_ids(column) for column in (*before, src, dst)]
        types = {end.type for end in ends if len(end)}
        if len(types) > 1 and all(map(pa.types.is_integer, types)):
            ends = [end.cast(pa.int64()) for end in ends]
        elif len(types) > 1:
            raise ValueError(
                "ids of `src`, `dst` and `initial` must be of one type, such as int64 or text: got "
                f"{' and '.join(sorted(map(str, types)))}"
            )
        table = None if features is None else np.asarray(features, np.float32)
        if table is not None and table.ndim != 2:
            raise ValueError(f"`features` must be a table (n, f): got the shape {table.shape}")
        dense, nodes = map_densely(*(end for end in ends if len(end)))
        parts = iter(dense)
        arrays = [next(parts) if len(end) else np.empty(0, np.int64) for end in ends]
        names = ("event",) if kind is None else tuple(dict.fromkeys(kind))
        if len(names) > 256:
            raise ValueError(f"at most 256 kinds of event are supported: got {len(names)}")
        code = {text: index for index, text in enumerate(names)}
        kinds = [0] * num_events if kind is None else [code[text] for text in kind]
        links = None
        if initial is not None:
            first = when[0] if num_events else 0
            zeros = np.zeros(num_initial, np.uint8)
            links = EventBatch(arrays[0], arrays[1], np.full(num_initial, first), zeros)
        events = EventBatch(
            arrays[2],
            arrays[3],
            when,
            np.asarray(kinds, np.uint8),
            None if weight is None else np.asarray(weight, np.float64),
            None if label is None else np.asarray(label, np.int64),
            table,
        )
        return cls(events, nodes, unit, names or ("event",), name, links)


def _ids(column: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
    """Ids as Arrow holds them, which knows no tensor."""
    return pa.array(np.asarray(column) if hasattr(column, "detach") else column)


def map_densely(*columns: pa.Array) -> tuple[list[Int64], pa.Array]:
    """Columns of ids, pairwise (src, dst), to dense ids in order of first appearance.

    Columns are taken two by two; within a pair, row by row, source before destination.  Returns
    the dense columns and the original ids, whose place is the dense id.
    """
    if len(columns) % 2:
        raise ValueError(f"`columns` must come in pairs: got {len(columns)}")
    if not columns:
        return [], pa.array([], pa.int64())
    woven = []
    for src, dst in zip(columns[::2], columns[1::2], strict=True):
        order = np.arange(2 * len(src)).reshape(2, -1).T.ravel()  # src0, dst0, src1, dst1, ...
        woven.append(pa.concat_arrays([src, dst]).take(pa.array(order)))
    encoded = pa.concat_arrays(woven).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    dense: list[Int64] = []
    start = 0
    for src in columns[::2]:
        part = codes[start : start + 2 * len(src)]
        dense += [np.ascontiguousarray(part[0::2]), np.ascontiguousarray(part[1::2])]
        start += 2 * len(src)
    return dense, encoded.dictionary
