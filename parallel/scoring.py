"""Scoring: everything that does not feed the recurrence, as one batch over some events.

Invariant: a scored state is the version before the event beside which it is scored; which one that
is, the executor knows, and gives it through `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models import Around, DynamicGNN, Events, Nodes, Priced
from ..models.views import StateRows
from ..stream import EventLog, Int64
from .segment import LEARNED, Group, Recent, Segment, take

SCORE_BUDGET = 1 << 19  # state rows gathered at a time for ranking


Places: TypeAlias = slice | Int64
"""Rows or columns: a span, or arrays of both of the same shape."""


class ReadScored(Protocol):
    """The states of some columns of `Segment.scored`, with gradient or without."""

    def __call__(
        self, names: tuple[str, ...], columns: Places, rows: Places, grad: bool
    ) -> Mapping[str, Tensor]:
        """Each (rows, columns, width); of arrays, that of their common shape.

        As `StateRows` they are gathered only where they are used.
        """


@dataclass(frozen=True, slots=True)
class Scored:
    """What a segment's states are worth."""

    losses: Tensor  # (n,) with gradient if parameters have it
    scores: Tensor | None  # (n, 1 + m): the event's own destination, then the candidates
    pair_scores: Tensor | None  # (n, 1 + q): the event's own pair, then the pairs asked for
    embedded: Tensor | None  # (n, width) of the event's source, without gradient
    expected: Tensor | None  # (n,) expected time of the event, in mean gaps, without gradient


class Scorer:
    """Scores segments of one log with one model."""

    def __init__(
        self,
        model: DynamicGNN,
        log: EventLog,
        dtype: torch.dtype,
        device: torch.device,
        *,
        once: bool,
    ) -> None:
        self.model, self.log, self.dtype, self.device = model, log, dtype, device
        self.once = once  # every node of a segment has one state: embed it once if that is all

    def score(
        self,
        segment: Segment,
        read: ReadScored,
        rows: slice,
        *,
        embed: bool = False,
        priced: Priced | None = None,
    ) -> Scored:
        """Losses, scores and what else is wanted of the events in `rows` of a segment.

        Losses that are `priced` already are taken as they are.
        """
        model = self.model
        if not segment.sizes[Group.SRC]:  # only to bring the states forward
            count = len(range(*rows.indices(len(segment))))
            nothing = torch.zeros(count, dtype=self.dtype, device=self.device)
            return Scored(nothing, None, None, None, None)
        src: Nodes | None = None
        if priced is None:
            events = take(segment.events, rows)
            src, dst, *others = self._learned(segment, read, rows, events)
            losses = model.loss(events, src, dst, *others)
            with torch.no_grad():
                expected = model.expected_idle(events, src, dst)
        else:
            losses, expected = priced.losses, priced.expected
        with torch.no_grad():
            embedded = scores = pair_scores = None
            if embed:
                if src is None:
                    events = take(segment.events, rows)
                    src = self._view(segment, (Group.SRC,), read, rows, events, False)
                embedded = src.embedding[:, 0]
            if segment.sizes[Group.CANDIDATES]:
                scores = self._rank(segment, read, rows)
            if segment.sizes[Group.PAIR_SRC]:
                pair_scores = self._pairs(segment, read, rows)
        return Scored(losses, scores, pair_scores, embedded, expected)

    def _rank(self, segment: Segment, read: ReadScored, rows: slice) -> Tensor:
        """The event's own destination first, then the candidates, a few events at a time."""
        start, stop, _ = rows.indices(len(segment))
        around = segment.around(segment.groups[Group.SRC])  # of the one source
        width = 1 + around.stop - around.start
        step = max(1, SCORE_BUDGET // ((1 + segment.sizes[Group.CANDIDATES]) * width))
        parts = []
        for first in range(start, max(stop, start + 1), step):  # an empty segment has a part
            span = slice(first, min(first + step, stop))
            events = take(segment.events, span)
            src = self._view(segment, (Group.SRC,), read, span, events, False)
            # together, so that equal states get equal scores
            dst = self._view(segment, (Group.DST, Group.CANDIDATES), read, span, events, False)
            parts.append(self.model.score(events, src, dst))
        return torch.cat(parts)

    def _pairs(self, segment: Segment, read: ReadScored, rows: slice) -> Tensor:
        """Each pair as if it were an event of its own: (n q, 1) against (n q, 1)."""
        events = take(segment.events, rows)
        src, dst = (
            self._view(segment, (group,), read, rows, events, False)
            for group in (Group.PAIR_SRC, Group.PAIR_DST)
        )
        n, q = src.gap.shape
        again = torch.arange(n, device=self.device).repeat_interleave(q)
        gap = torch.stack([src.gap, dst.gap], dim=-1).view(n * q, 2)
        each = replace(take(events, again), gap=gap)
        return self.model.score(each, _single(src), _single(dst)).view(n, q)

    def _learned(
        self, segment: Segment, read: ReadScored, rows: slice, events: Events
    ) -> list[Nodes]:
        """The views that a loss is made of, which are embedded together."""
        view = self._distinct if self.once else self._view
        sizes = [segment.sizes[group] for group in LEARNED]
        return _apart(view(segment, LEARNED, read, rows, events, True), sizes)

    def _distinct(
        self,
        segment: Segment,
        groups: Sequence[Group],
        read: ReadScored,
        rows: slice,
        events: Events,
        grad: bool,
    ) -> Nodes:
        """`_view` of groups that follow one another, each distinct node embedded once."""
        model, (columns,) = self.model, _runs(segment, groups)
        beside, start = segment.shown.columns(columns), columns.start
        shape = beside.node[rows].shape
        _, first, back = np.unique(beside.node[rows], return_index=True, return_inverse=True)
        row, column = (place[:, None] for place in np.unravel_index(first, shape))
        around = None
        if beside.recent is not None:
            k = beside.recent.node.shape[2]
            near = segment.around(columns).start + k * column + np.arange(k)
            states = read(model.reads.around, near, np.repeat(row, k, axis=1), grad)
            around = self._around(beside.recent, states, (row, column))
        gap, idle, valid = (
            self._tensor(a[row, column]) for a in (beside.gap, beside.idle, beside.valid)
        )
        own = _gathered(read(model.reads.scored, start + column, row, grad))
        at = torch.from_numpy(row[:, 0])
        each = take(events, at)
        embedded = model.embed(each, Nodes(own, gap, idle, valid, around))[:, 0]
        everywhere = slice(start, start + shape[1])
        states = _gathered(read(model.reads.scored, everywhere, rows, grad))
        gap, idle, valid = (self._tensor(a[rows]) for a in (beside.gap, beside.idle, beside.valid))
        place = self._tensor(back.reshape(shape).astype(np.int64))
        return Nodes(states, gap, idle, valid, None, F.embedding(place, embedded))

    def _view(
        self,
        segment: Segment,
        groups: Sequence[Group],
        read: ReadScored,
        rows: slice,
        events: Events,
        grad: bool,
    ) -> Nodes:
        """The view, embedded, of the nodes of some groups of a segment, side by side."""
        model = self.model
        parts = []
        for own in _runs(segment, groups):
            beside = segment.shown.columns(own)
            states = _gathered(read(model.reads.scored, own, rows, grad))
            around = None
            if beside.recent is not None:
                near = read(model.reads.around, segment.around(own), rows, grad)
                around = self._around(beside.recent, near, rows)
            gap, idle, valid = (
                self._tensor(a[rows]) for a in (beside.gap, beside.idle, beside.valid)
            )
            parts.append(Nodes(states, gap, idle, valid, around))
        nodes = parts[0] if len(parts) == 1 else _side_by_side(parts)
        return replace(nodes, embedded=model.embed(events, nodes))

    def _around(
        self, recent: Recent, states: Mapping[str, Tensor], rows: slice | tuple[Int64, Int64]
    ) -> Around:
        log, event = self.log.events, recent.event[rows]
        shape = event.shape
        mask, gap, idle_gap, is_src = (
            self._tensor(a[rows]) for a in (recent.mask, recent.gap, recent.idle_gap, recent.is_src)
        )

        def column(values: npt.NDArray[Any] | None) -> Tensor | None:
            return None if values is None else self._tensor(values[event]).to(self.dtype)

        return Around(
            _changed(lambda s: s.reshape(*shape, *s.shape[2:]), states),
            *(mask, gap, idle_gap, is_src, self._tensor(log.kind[event].astype(np.int64))),
            *(column(log.weight), column(log.features)),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _runs(segment: Segment, groups: Sequence[Group]) -> list[slice]:
    """The columns of some groups; those that follow one another are read at once."""
    runs: list[slice] = []
    for columns in (segment.groups[group] for group in groups):
        if runs and runs[-1].stop == columns.start:
            runs[-1] = slice(runs[-1].start, columns.stop)
        else:
            runs.append(columns)
    return runs


def _side_by_side(parts: list[Nodes]) -> Nodes:
    """Views (n, m1), (n, m2) ... of the same events as one."""
    return _each(lambda *values: torch.cat(values, dim=1), *parts)


def _apart(nodes: Nodes, sizes: Sequence[int]) -> list[Nodes]:
    """One view as several of `sizes` nodes each; every tensor is split once."""

    def column(values: Tensor | None) -> Sequence[Any]:
        if values is None:
            return [None] * len(sizes)
        parts: Sequence[Any] = values.split(sizes, dim=1)  # type: ignore[no-untyped-call]
        return parts

    def named(values: Mapping[str, Tensor]) -> Sequence[dict[str, Tensor]]:
        parts = {name: column(each) for name, each in values.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(len(sizes))]

    def states(values: Mapping[str, Tensor]) -> Sequence[Mapping[str, Tensor]]:
        if not isinstance(values, StateRows):
            return named(values)
        places = zip(column(values.rows), named(values.gathered), strict=True)
        return [StateRows(values.tables, *place) for place in places]

    near: Sequence[Around | None] = [None] * len(sizes)
    if nodes.around is not None:
        a = nodes.around
        known = (a.mask, a.gap, a.idle_gap, a.is_src, a.kind, a.weight, a.features)
        near = list(map(Around, states(a.states), *map(column, known)))
    times = map(column, (nodes.gap, nodes.idle, nodes.valid))
    return list(map(Nodes, states(nodes.states), *times, near, column(nodes.embedded)))


def _single(nodes: Nodes) -> Nodes:
    """(n, q) nodes as (n q, 1)."""
    return _each(lambda values: values.reshape(-1, 1, *values.shape[2:]), nodes)


def _each(change: Callable[..., Tensor], *views: Nodes) -> Nodes:
    """A view made of others by `change` of every tensor in them."""

    def parts(items: Sequence[Nodes | Around], names: tuple[str, ...]) -> dict[str, Any]:
        columns = {name: [getattr(item, name) for item in items] for name in names}
        return {n: None if c[0] is None else change(*c) for n, c in columns.items()}

    around = None
    if views[0].around is not None:
        near = [view.around for view in views if view.around is not None]
        names = ("mask", "gap", "idle_gap", "is_src", "kind", "weight", "features")
        around = Around(_changed(change, *(a.states for a in near)), **parts(near, names))
    known = parts(views, ("gap", "idle", "valid", "embedded"))
    return Nodes(_changed(change, *(v.states for v in views)), around=around, **known)


def _changed(change: Callable[..., Tensor], *maps: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """States after a `change` of their leading dimensions, and of the rows where they stand."""

    def named(maps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: change(*(m[name] for m in maps)) for name in maps[0]}

    rows = [m for m in maps if isinstance(m, StateRows)]
    if len(rows) < len(maps):
        return named(maps)
    gathered = named([m.gathered for m in rows])
    return StateRows(rows[0].tables, change(*(m.rows for m in rows)), gathered)


def _gathered(states: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return states.gather() if isinstance(states, StateRows) else states
