"""Pieces: independent events of a segment laid out as padded tensors of state rows.

What a row means is the executor's affair: a version on the tape, or a row of the state as it was
before the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..models import DynamicGNN, Level, Links, Members, Near, Written
from ..storage import NodeState
from ..stream import Bool, Int64
from .kernels import cut_pieces, pad_lists
from .segment import Segment

PADDING_BUDGET = 4096  # padded neighbour slots that a piece may waste

Read = Callable[[Sequence[tuple[str, Tensor]]], Sequence[Tensor]]  # of (table, rows) the states


@dataclass(frozen=True, slots=True)
class Rows:
    """The row in which each read of a segment finds its state."""

    ends: Int64  # (n, 2)
    neighbors: Int64  # (r,)
    members: Int64  # (t,)
    sampled: Int64  # (n, s)


@dataclass(frozen=True, slots=True)
class Piece:
    """Independent events that are updated together: a level, or a part of a wide one."""

    size: int
    kind: Tensor  # (size,)
    ends: Tensor  # (size, 2) rows
    neighbors: Tensor  # (size, 2, k) rows
    mask: Tensor  # (size, 2, k) bool
    links: Tensor | None  # (size, 2, k) rows of the link tables, 0 is padding
    written: Tensor | None  # the same without what the other side of a self loop writes
    after: Tensor | None
    partner: Tensor | None
    near: Near | None
    members: Tensor | None  # (size, p) rows
    slots: tuple[Tensor, Tensor, Tensor] | None  # mask, ends and neighbors of `Members`
    sampled: Tensor  # (size, s) rows
    sampled_mask: Tensor  # (size, s)
    noise: Tensor  # (size, q)
    num_writes: int

    def level(
        self, model: DynamicGNN, state: NodeState, encoded: Mapping[str, Tensor], read: Read
    ) -> Level:
        """What the model is shown of the piece, through `read`."""
        reads = model.reads
        rows: list[tuple[str, Tensor]] = []
        if self.members is None:
            rows += [(name, self.ends) for name in reads.ends]
            rows += [(name, self.neighbors) for name in reads.neighbors]
        else:
            rows += [(name, self.members) for name in reads.ends]
        rows += [(name, self.sampled) for name in reads.sampled]
        values = list(read(rows))
        links = None
        if self.links is not None:
            assert self.after is not None and self.partner is not None
            gathered = {name: state[name][:, 0][self.links] for name in model.link_tables}
            links = Links(gathered, self.after, self.partner)
        first = dict(zip(reads.ends, values, strict=False))
        members = None
        if self.slots is not None:
            members, first = Members(first, *self.slots), {}
        around = values[len(reads.ends) : len(values) - len(reads.sampled)]
        drawn = values[len(values) - len(reads.sampled) :]
        return Level(
            *(self.kind, encoded, first, dict(zip(reads.neighbors, around, strict=True))),
            *(self.mask, links, self.near, members),
            *(dict(zip(reads.sampled, drawn, strict=True)), self.sampled_mask, self.noise),
        )

    def flat(self, written: Written) -> dict[str, Tensor]:
        """The written states (num_writes, width), event by event."""
        if self.slots is None:
            return {name: s.reshape(2 * self.size, -1) for name, s in written.states.items()}
        return {name: s[self.slots[0]] for name, s in written.states.items()}


def write_links(state: NodeState, rows: Tensor, links: Mapping[str, Tensor]) -> None:
    """Set the values on links (n, 2, k) in `rows`, which must have been touched; 0 is padding."""
    for name, value in links.items():
        table = state[name][:, 0]
        table[rows] = value.detach()
        table[0] = 0.0


def lay_out(
    segment: Segment,
    rows: Rows,
    order: Int64,
    level: Int64,
    device: torch.device,
    *,
    has_links: bool,
) -> tuple[Piece, ...]:
    """The events in `order`, cut where `level` (n,) changes or where padding would waste memory."""
    n, neighbors = len(segment), segment.neighbors
    stops, widths = np.empty(n, np.int64), np.empty(n, np.int64)
    lengths = np.diff(neighbors.indptr).reshape(n, 2)
    longest = lengths.max(1) if n else np.empty(0, np.int64)
    count = cut_pieces(order, level, longest, PADDING_BUDGET, stops, widths)
    stops, widths = stops[:count], widths[:count]
    sizes = np.diff(stops, prepend=0)
    cells = int((2 * sizes * widths).sum())

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def pad(values: Int64) -> tuple[Tensor, Tensor]:
        padded, mask = np.empty(cells, np.int64), np.empty(cells, np.bool_)
        pad_lists(order, stops, widths, neighbors.indptr, values, 0, padded, mask)
        return tensor(padded), tensor(mask)

    def flags(values: Bool) -> Tensor:
        return pad(values.astype(np.int64))[0].bool()

    spans = list(_spans(2 * sizes * widths))

    def parts(values: Tensor | None) -> list[Tensor | None]:
        """A padded column, piece by piece (size, 2, k)."""
        if values is None:
            return [None] * count
        shapes = zip(sizes.tolist(), widths.tolist(), strict=True)
        return [values[a:b].view(s, 2, w) for (a, b), (s, w) in zip(spans, shapes, strict=True)]

    neighbor_rows, listed = pad(rows.neighbors)
    before = flags(neighbors.before)
    links = written = partner = None
    if has_links:
        links = written = pad(neighbors.link + 1)[0]
        partner = flags(neighbors.partner)
        loops = segment.ends[:, 0] == segment.ends[:, 1]
        if loops.any():
            sources = np.stack([loops, np.zeros_like(loops)], axis=1).ravel()
            hidden = np.repeat(sources, np.diff(neighbors.indptr))
            written = pad(np.where(hidden, 0, neighbors.link + 1))[0]
    near: list[Near | None] = [None] * count
    if len(neighbors.gap) or len(neighbors.is_src):
        gaps = pad(neighbors.gap.view(np.int64))[0].view(torch.float64)  # the same bits
        pairs = zip(parts(gaps), parts(flags(neighbors.is_src)), strict=True)
        near = [Near(g, s) for g, s in pairs if g is not None and s is not None]
    elif not has_links:  # no neighbour at all: still of the right form
        zeros = torch.zeros(cells, dtype=torch.float64, device=device)
        pairs = zip(parts(zeros), parts(zeros.bool()), strict=True)
        near = [Near(g, s) for g, s in pairs if g is not None and s is not None]
    columns = [parts(c) for c in (neighbor_rows, before, links, written, partner)]
    columns.append(parts(listed if has_links else None))
    starts = stops - sizes
    by_event = [
        [tensor(values[order])[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        for values in (rows.ends, rows.sampled, segment.sampled_valid, segment.noise)
    ]
    kind = segment.events.kind[tensor(order)]
    pieces = []
    for index, (a, b) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        rows_of, mask, link, write, other, after = (column[index] for column in columns)
        assert rows_of is not None and mask is not None
        ends, sampled, sampled_mask, noise = (column[index] for column in by_event)
        members, slots, num_writes = None, None, 2 * (b - a)
        if segment.members is not None:
            members, slots, num_writes = _members(
                segment, rows, order[a:b], int(widths[index]), tensor
            )
        piece = Piece(
            *(b - a, kind[a:b], ends, rows_of, mask, link, write, after, other, near[index]),
            *(members, slots, sampled, sampled_mask, noise.to(dtype=torch.float64), num_writes),
        )
        pieces.append(piece)
    return tuple(pieces)


def _members(
    segment: Segment,
    rows: Rows,
    events: Int64,
    width: int,
    tensor: Callable[[npt.NDArray[Any]], Tensor],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], int]:
    """The members of some events, padded: rows (n, p), (mask, ends, neighbors), how many."""
    members, neighbors = segment.members, segment.neighbors
    assert members is not None
    sizes = np.diff(members.indptr)[events]
    mask = np.arange(sizes.max(initial=1)) < sizes[:, None]  # (n, p)
    row = np.zeros(mask.shape, np.int64)
    row[mask] = rows.members[_ranges(members.indptr[events], sizes)]
    ends = members.ends[events]
    slots = np.repeat(ends[:, :, None], width, axis=2)  # (n, 2, k)
    lists = (2 * events[:, None] + np.arange(2)).ravel()
    lengths = np.diff(neighbors.indptr)[lists]
    filled = (np.arange(width) < lengths[:, None]).reshape(slots.shape)
    slots[filled] = members.neighbors[_ranges(neighbors.indptr[lists], lengths)]
    return tensor(row), (tensor(mask), tensor(ends), tensor(slots)), int(sizes.sum())


def _ranges(starts: Int64, lengths: Int64) -> Int64:
    """start, start + 1, ... of every range, one range after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(
        int(ends[-1]) if len(ends) else 0
    )


def _spans(sizes: Int64) -> Iterator[tuple[int, int]]:
    return pairwise([0, *np.cumsum(sizes).tolist()])


def spread(
    encoded: Mapping[str, Tensor], order: Tensor, pieces: Iterable[Piece]
) -> list[dict[str, Tensor]]:
    """What was encoded of a segment's events, piece by piece."""
    sizes = [piece.size for piece in pieces]
    columns = {name: torch.split(values[order], sizes) for name, values in encoded.items()}
    return [{name: parts[i] for name, parts in columns.items()} for i in range(len(sizes))]
