"""`read_log`: one door for every file of events.

Invariant: rows read = events of the log + rows put aside; a row that cannot be an event is an error
that names file, line, column and value, or a row of the quarantine file if the caller asked for
one.  Nodes, kinds and positions are numbered after the (stable) sort by time.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .columns import (
    as_text,
    keep_apart,
    parse_floats,
    parse_ids,
    parse_kinds,
    parse_labels,
    stack_features,
)
from .errors import LogError, OrderError
from .events import (
    TICKS_PER_SECOND,
    Bool,
    EventBatch,
    EventLog,
    Float32,
    Float64,
    Int64,
    TimeUnit,
    map_densely,
)
from .formats import Column, Roles, roles_by_content, roles_by_name, roles_of_links
from .opening import open_source
from .sources import Reject, Source, TableSource
from .times import Times, parse_times

Links: TypeAlias = tuple[pa.Array, pa.Array]
"""Sources and targets of links without a time, by their original ids."""


class ArrowStream(Protocol):
    """A table that Arrow can take over: of pyarrow, pandas, polars, duckdb ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def read_log(
    source: str | Path | ArrowStream,
    *,
    src: Column | None = None,
    dst: Column | None = None,
    time: Column | None = None,
    kind: Column | None = None,
    weight: Column | None = None,
    label: Column | None = None,
    unit: TimeUnit | None = None,
    initial: str | Path | tuple[Sequence[Any], Sequence[Any]] | Links | None = None,
    order: Literal["sort", "error"] = "sort",
    quarantine: str | Path | None = None,
    limit: int | None = None,
    name: str | None = None,
) -> EventLog:
    """The events of a file (or of a table in memory) in order of time, equal times in file order.

    Delimited text (MatrixMarket too), Parquet, Arrow and Feather, also within gzip, bzip2, xz or
    zip, are recognised by their content, columns by a header's names or by the rule of
    `roles_by_content`.

    A row of text is a line: a quoted field cannot hold a newline, and the lines of one that does
    are bad rows, each counted as one.  Lines that start with # or % are comments, unless ids start
    so; a note tells how many stand between the rows.

    Args:
        src, dst, time, kind, weight, label: a column by name or by position from 0, where the
            rule is not enough; "" for no kind, weight or label although a column looks like one.
        unit: of times that are numbers, see `parse_times`; of the ticks, where times are dates.
        initial: links that stand before the first event: a file of links or (sources, targets).
        order: "error" refuses a source that is not in order of time.
        quarantine: a CSV file (line, reason, text) for rows that cannot be events; it is always
            written.  Without it the first such row is an error.
        limit: read at most so many rows, the first ones of the source.
        name: of the log; the file's name by default.

    A header without rows gives a log without events; what was noticed stands in `log.notes`.

    Raises:
        LogError: if the source cannot be read, or has a row that cannot be an event.
        OrderError: if the source is not in order and `order` is "error".
        ValueError: if `unit` or `order` is none of these, or `limit` is negative.
    """
    if limit is not None:
        if limit < 0:
            raise ValueError(f"`limit` must not be negative: got {limit}")
        limit = min(limit, sys.maxsize)  # no source has more rows, and no counter holds more
    if unit is not None and unit not in TICKS_PER_SECOND:
        raise ValueError(f"`unit` must be one of {', '.join(TICKS_PER_SECOND)}: got {unit!r}")
    if order not in ("sort", "error"):
        raise ValueError(f'`order` must be "sort" or "error": got {order!r}')
    opened = _open(source, limit)
    options = dict(src=src, dst=dst, time=time, kind=kind, weight=weight, label=label)
    if opened.names is None:
        roles = roles_by_content(opened.name, opened.sample, options)
    else:
        roles = roles_by_name(opened.name, opened.names, options)
    links = read_links(initial) if isinstance(initial, str | Path) else _as_links(initial)
    table = _Table(opened, roles, unit, links, frozenset(r for r, c in options.items() if c))
    _put_aside(table, source, quarantine)
    log = _in_order(table, order)
    stem = re.split(r"\.(?=[A-Za-z])", opened.name)[0] if isinstance(source, str | Path) else "log"
    return replace(log, name=name or stem or "log")


def read_links(path: str | Path, *, src: Column | None = None, dst: Column | None = None) -> Links:
    """The links of a file without times (source, target), for `read_log(..., initial=)`.

    The first two columns are taken unless a header or an option says otherwise.  A first line
    `#nodes,#links` (NeutronStream's graph0) is checked against the number of rows.

    Raises:
        LogError: if the file cannot be read or a row is no link.
    """
    opened = open_source(path, least=2)
    roles = roles_of_links(opened.name, opened.names, dict(src=src, dst=dst))
    columns = opened.columns([roles.src, roles.dst], ())
    ids = parse_ids(columns)
    faults = [
        _reject(opened, place, "id", columns[i], int(row), int(row))
        for i, place in enumerate((roles.src, roles.dst))
        for row in np.flatnonzero(ids.bad[i])[:1]
    ]
    if faults or opened.rejects:
        raise _error(opened, min([*faults, *opened.rejects], key=_line))
    head = b"".join(getattr(opened, "head", [])).strip()
    told = re.fullmatch(rb"#(\d+)\s*,\s*#(\d+)", head)
    if told and int(told[2]) != len(columns[0]):
        raise LogError(
            f"{opened.name}: the first line tells of {int(told[2])} links, the file has "
            f"{len(columns[0])}; is it cut short?"
        )
    return ids.columns[0], ids.columns[1]


def _open(source: str | Path | ArrowStream, limit: int | None) -> Source:
    if isinstance(source, str | Path):
        return open_source(source, least=3, limit=limit)
    if not hasattr(source, "__arrow_c_stream__"):
        raise TypeError(f"`source` must be a path or a table: got {type(source).__name__}")
    return TableSource(pa.table(source), "table", limit)


def _as_links(pair: tuple[Sequence[Any], Sequence[Any]] | Links | None) -> Links | None:
    if pair is None:
        return None
    src, dst = (column if isinstance(column, pa.Array) else pa.array(column) for column in pair)
    if len(src) != len(dst):
        raise ValueError(
            f"`initial` must have as many sources as targets: got {len(src)} and {len(dst)}"
        )
    return src, dst


@dataclass
class _Table:
    """A source's columns on their way to a log; `keep` narrows them to rows without fault."""

    source: Source
    roles: Roles
    unit: TimeUnit | None
    links: Links | None
    asked: frozenset[str]  # roles whose column the caller named
    columns: dict[int, pa.Array] = field(init=False)
    rows: Int64 = field(init=False)  # where each row stood in the source
    notes: list[str] = field(init=False)
    quarantined: int = 0
    # what `parse` made of the columns
    ids: list[pa.Array] = field(init=False)  # of links and events: src, dst, src, dst
    times: Times = field(init=False)
    kind: pa.Array | None = field(init=False)
    weight: Float64 | None = field(init=False)
    label: Int64 | None = field(init=False)
    features: Float32 | None = field(init=False)
    faults: list[tuple[str, int, Bool]] = field(init=False)  # (role, place, bad rows)
    said: list[str] = field(init=False)  # notes

    def __post_init__(self) -> None:
        roles = self.roles
        known = (roles.src, roles.dst, roles.time, roles.kind, roles.weight, roles.label)
        wanted = [place for place in known if place is not None] + list(roles.features)
        arrays = self.source.columns(wanted, set(roles.features))
        self.columns = dict(zip(wanted, arrays, strict=True))
        self.rows = np.arange(len(arrays[0]))
        self.notes = [*self.source.notes, *roles.notes]

    def keep(self, good: Bool) -> None:
        mask = pa.array(good)
        self.columns = {place: column.filter(mask) for place, column in self.columns.items()}
        self.rows = self.rows[good]

    def parse(self) -> None:
        """Parses every column; `faults` tells which have bad values."""
        roles, self.faults, self.said = self.roles, [], []
        assert roles.time is not None
        ends = [self.columns[roles.src], self.columns[roles.dst]]
        ids = parse_ids([*(self.links or ()), *ends])
        if self.links is not None and (ids.bad[0].any() or ids.bad[1].any()):
            raise LogError("an initial link has an end without an id")
        self.ids = ids.columns
        self._note_faults("id", roles.src, ids.bad[-2])
        self._note_faults("id", roles.dst, ids.bad[-1])
        self.times = self._times(self.columns[roles.time])
        if self.times.bad is not None:
            self._note_faults("time", roles.time, self.times.bad)
        self.kind = None
        if roles.kind is not None:
            self.kind, bad = as_text(self.columns[roles.kind])
            self._note_faults("kind", roles.kind, bad)
        self.weight = self._numbers("weight", roles.weight, parse_floats)
        self.label = self._numbers("label", roles.label, parse_labels)
        self.features = None
        if roles.features:
            self.features, masks = stack_features([self.columns[i] for i in roles.features])
            for place, bad in zip(roles.features, masks, strict=True):
                self._note_faults("number", place, bad)
        if roles.apart and not self.faults:
            self.ids[1::2], note = keep_apart(self.ids[0::2], self.ids[1::2])
            self.said += [note] if note else []

    def _times(self, column: pa.Array) -> Times:
        try:
            return parse_times(column, self.unit)
        except LogError as error:
            raise error.at(self.source.name) from None

    def _numbers(self, role: str, place: int | None, parse: Any) -> Any:
        """The column as numbers, or None if most of it is not and nobody asked for it."""
        if place is None:
            return None
        values, bad = parse(self.columns[place])
        if role not in self.asked and 2 * bad.sum() > len(bad):
            self.said.append(f"column {self.title(place)} holds no {role}s and is not used")
            return None
        self._note_faults(role, place, bad)
        return values

    def _note_faults(self, role: str, place: int, bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            self.faults.append((role, place, bad))

    def title(self, place: int) -> str:
        return _title(self.source, place)


def _title(source: Source, place: int) -> str:
    return str(place) if source.names is None else f"`{source.names[place]}`"


def _line(reject: Reject) -> int:
    return reject.line


WANTED = {
    "id": "an id is expected",
    "time": "a number, or a date like 2008-09-11 03:16:14, is expected",
    "kind": "a kind is expected",
    "weight": "a finite number is expected",
    "label": "a whole number is expected",
    "number": "a finite number is expected",
}


def _reject(source: Source, place: int, role: str, column: pa.Array, at: int, row: int) -> Reject:
    value = column[at].as_py()
    got = "nothing" if value is None or value == "" else repr(value)
    reason = f"column {_title(source, place)}: {WANTED[role]}, got {got}"
    return Reject(source.line_of(row), reason, source.text_of(row))


def _error(source: Source, reject: Reject) -> LogError:
    place = f"{source.name}, {source.place} {reject.line}"
    aside = f"{place}, {reject.reason}; repair it, or put such rows aside: "
    return LogError(aside, quarantine="PATH")


def _put_aside(table: _Table, path: object, quarantine: str | Path | None) -> None:
    """Parses the table; rows that cannot be events go to the quarantine file or are an error."""
    same = isinstance(path, str | Path) and quarantine is not None
    if same and Path(str(quarantine)).resolve() == Path(str(path)).resolve():
        raise ValueError(f"`quarantine` must not be the source itself: got {quarantine}")
    rejects = list(table.source.rejects)
    table.parse()
    while table.faults:  # what is a column of numbers may depend on the rows that stay
        good = np.ones(len(table.rows), np.bool_)
        for role, place, bad in table.faults:
            rows = np.flatnonzero(bad & good)
            rows = rows[:1] if quarantine is None else rows
            column = table.columns[place]
            rejects += [
                _reject(table.source, place, role, column, at, int(table.rows[at]))
                for at in rows.tolist()
            ]
            good &= ~bad
        if quarantine is None:
            break
        table.keep(good)
        table.parse()
    if quarantine is None and rejects:
        raise _error(table.source, min(rejects, key=_line))
    table.quarantined = len(rejects)
    if quarantine is None:
        return
    try:
        with Path(quarantine).open("w", newline="", encoding="utf-8") as file:
            write = csv.writer(file)
            write.writerow(("line", "reason", "text"))
            rows_aside = sorted(rejects, key=_line)
            write.writerows((each.line, each.reason, each.text) for each in rows_aside)
    except OSError as error:
        raise LogError(f"{quarantine}: the quarantine cannot be written: {error}") from None
    if rejects:
        table.notes.append(f"{len(rejects)} rows were put aside in {quarantine}")


def _in_order(table: _Table, order: str) -> EventLog:
    """The log of a parsed table, sorted by time."""
    time, source = table.times.ticks, table.source
    notes = [*table.notes, *table.times.notes, *table.said]
    weight, label, features = table.weight, table.label, table.features
    ids, kind = table.ids, table.kind
    drops = np.flatnonzero(time[1:] < time[:-1])
    if len(drops):
        first = int(table.rows[drops[0] + 1])
        told = (
            f"{source.place} {source.line_of(first)} has time {time[drops[0] + 1]} after "
            f"{time[drops[0]]}"
        )
        if order == "error":
            raise OrderError(f"{source.name} is not in order of time: {told}")
        sort = np.argsort(time, kind="stable")  # stable: equal times keep the order of the file
        time = time[sort]
        ids = [*ids[:-2], *(column.take(pa.array(sort)) for column in ids[-2:])]
        kind = None if kind is None else kind.take(pa.array(sort))
        weight = None if weight is None else weight[sort]
        label = None if label is None else label[sort]
        features = None if features is None else features[sort]
        notes.append(f"the source was not in order of time and was sorted (stable): {told}")
    dense, nodes = map_densely(*ids)
    codes = np.zeros(len(time), np.uint8)
    kinds: tuple[str, ...] = ("event",)
    if kind is not None and len(kind):
        try:
            codes, kinds = parse_kinds(kind)
        except LogError as error:
            assert table.roles.kind is not None
            raise error.at(f"{source.name}, column {table.title(table.roles.kind)}") from None
    initial = None
    if table.links is not None:
        size = len(dense[0])
        start = int(time[0]) if len(time) else 0
        stamp = np.full(size, start, np.int64)
        initial = EventBatch(dense[0], dense[1], stamp, np.zeros(size, np.uint8))
    if not len(time):
        notes.append("the source has no events")
    events = EventBatch(dense[-2], dense[-1], time, codes, weight, label, features)
    return EventLog(
        events,
        nodes,
        table.times.unit,
        kinds,
        initial=initial,
        quarantined=table.quarantined,
        was_sorted=not len(drops),
        notes=tuple(notes),
    )
