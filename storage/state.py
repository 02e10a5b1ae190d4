"""The tables that a model keeps per node, saved and restored exactly.

Invariant: after `undo(mark)` every bit is as it was at `snapshot()`, at the cost of the rows that
were touched since.  While a mark is open, the old values of rows are kept before they are written;
`write` does that by itself, whoever writes into `state[name]` in place calls `touch` before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..stream.events import Int64
from . import kernels
from .counter import key_of

Fill: TypeAlias = Literal["zeros", "normal"]

CHUNK = 1 << 16  # rows drawn at a time, so that filling a large table needs little memory


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to come back to, as given by `NodeState.snapshot`."""

    serial: int
    at: int  # entries of the journal written before
    num_rows: tuple[int, ...]  # of each table


class NodeState:
    """Tables of rows, `state[name]` being the live tensor (num_rows, width) of one.

    `tables` gives the width of each; `fill` what a new row holds, "zeros" unless said otherwise;
    `dtypes` the number type of those that are not of `dtype`.
    A "normal" row holds N(0, 1) numbers that depend only on (seed, name, row, column): it does not
    matter when or in what steps the table grew.  A live tensor is valid until the next `grow`,
    `undo` or `from_arrays`.

    >>> state = NodeState({"memory": 2}, 3)
    >>> mark = state.snapshot()
    >>> state.write("memory", np.array([1]), torch.tensor([[5.0, 6.0]]))
    >>> state["memory"].tolist()
    [[0.0, 0.0], [5.0, 6.0], [0.0, 0.0]]
    >>> state.undo(mark)
    >>> state.read("memory", np.array([1])).tolist()
    [[0.0, 0.0]]
    """

    def __init__(
        self,
        tables: Mapping[str, int],
        num_rows: int | Mapping[str, int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
        fill: Mapping[str, Fill] | None = None,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        rows = dict(num_rows if isinstance(num_rows, Mapping) else dict.fromkeys(tables, num_rows))
        fills = dict.fromkeys(tables, "zeros") | dict(fill or {})
        for argument, given in (("num_rows", rows), ("fill", fills)):
            if set(given) != set(tables):
                raise ValueError(
                    f"`{argument}` must name the tables {sorted(tables)}: got {sorted(given)}"
                )
        for name, width in tables.items():
            if width < 1 or rows[name] < 0:
                raise ValueError(
                    f"`tables` and `num_rows` must give a width from 1 and rows from 0: "
                    f"got {width} and {rows[name]} for {name!r}"
                )
            if fills[name] not in ("zeros", "normal"):
                raise ValueError(
                    f"`fill` must be 'zeros' or 'normal': got {fills[name]!r} for {name!r}"
                )
        self.seed = seed
        self._fills = fills
        self._names = tuple(tables)
        self._num_rows = dict.fromkeys(tables, 0)
        self._store = {
            name: torch.empty((0, width), dtype=(dtypes or {}).get(name, dtype), device=device)
            for name, width in tables.items()
        }
        self._view = dict(self._store)
        # which snapshot (or undo) a row was journaled after; 0 is before any
        self._stamp = {name: np.zeros(0, np.int64) for name in tables}
        self._scratch = {name: np.zeros(0, np.int64) for name in tables}
        self._epoch = 0
        self._serial = 0
        self._marks: list[Mark] = []
        self._journal: list[tuple[str, Int64, Tensor]] = []
        self._dropped = 0  # entries of the journal that no mark needs any more
        for name in tables:
            self.grow(name, rows[name])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, in the order given."""
        return self._names

    def width(self, name: str) -> int:
        """How many numbers a row of the table holds."""
        return self[name].shape[1]

    def num_rows(self, name: str) -> int:
        """How many rows the table has."""
        return self[name].shape[0]

    @property
    def num_journaled(self) -> int:
        """How many old rows are kept for the open marks."""
        return sum(len(rows) for _, rows, _ in self._journal)

    def __getitem__(self, name: str) -> Tensor:
        """The live tensor (num_rows, width)."""
        try:
            return self._view[name]
        except KeyError:
            raise KeyError(f"no table {name!r}: there are {list(self._names)}") from None

    def read(self, name: str, rows: Tensor | Int64, out: Tensor | None = None) -> Tensor:
        """A copy of the rows, (n, width), made in `out` if that is given."""
        at = self._on_device(name, self._checked(name, rows))
        return torch.index_select(self[name].detach(), 0, at, out=out)

    def write(self, name: str, rows: Tensor | Int64, values: Tensor) -> None:
        """Set distinct rows to `values` (n, width), detached.

        Raises:
            ValueError: if a row does not exist or is given twice, or `values` has another shape.
        """
        at = self._checked(name, rows)
        table = self[name]
        if values.shape != (len(at), table.shape[1]):
            raise ValueError(
                f"`values` must have shape {(len(at), table.shape[1])} for table {name!r}: "
                f"got {tuple(values.shape)}"
            )
        order = np.arange(len(at))
        scratch = self._scratch[name]
        scratch[at] = order
        other = scratch[at] != order
        if other.any():
            twice = at[np.flatnonzero(other)[0]]
            raise ValueError(f"`rows` must be distinct: got row {twice} of table {name!r} twice")
        self._keep(name, at)
        with torch.no_grad():
            new = values.detach().to(table.device, table.dtype)
            table.index_copy_(0, self._on_device(name, at), new)

    def touch(self, name: str, rows: Tensor | Int64) -> None:
        """Keep the old values of rows that the caller is about to write; some may come twice."""
        self._keep(name, self._checked(name, rows))

    def grow(self, name: str, num_rows: int) -> None:
        """Give the table at least `num_rows` rows, at amortised cost; never takes any away."""
        old = self.num_rows(name)
        if num_rows <= old:
            return
        store = self._store[name]
        if num_rows > len(store):
            capacity = max(num_rows, 2 * len(store))
            grown = store.new_empty((capacity, store.shape[1]))
            grown[:old] = store[:old]
            store = self._store[name] = grown
            for arrays in (self._stamp, self._scratch):
                longer = np.zeros(capacity, np.int64)
                longer[: len(arrays[name])] = arrays[name]
                arrays[name] = longer
        self._set_rows(name, num_rows)
        if self._fills[name] == "zeros":
            store[old:num_rows] = 0
            return
        key = key_of(self.seed, name)
        for first in range(old, num_rows, CHUNK):
            last = min(first + CHUNK, num_rows)
            drawn = np.empty((last - first, store.shape[1]))
            with np.errstate(over="ignore"):  # uint64 wraps on purpose
                kernels.fill_normal(key, first, drawn)
            store[first:last] = torch.from_numpy(drawn).to(store.device, store.dtype)

    def snapshot(self) -> Mark:
        """A mark of the present state; from now on old values are kept until it is forgotten."""
        self._epoch += 1
        self._serial += 1
        sizes = tuple(self._num_rows[name] for name in self._names)
        mark = Mark(self._serial, self._dropped + len(self._journal), sizes)
        self._marks.append(mark)
        return mark

    def undo(self, mark: Mark) -> None:
        """Bring back the state of `mark`, which stays usable; marks taken after it are gone.

        Raises:
            ValueError: if the mark was forgotten, or an older one was undone.
        """
        place = self._place(mark)
        del self._marks[place + 1 :]
        with torch.no_grad():
            while len(self._journal) > mark.at - self._dropped:
                name, rows, values = self._journal.pop()
                self._store[name][self._on_device(name, rows)] = values
        for name, num_rows in zip(self._names, mark.num_rows, strict=True):
            self._set_rows(name, num_rows)
        self._epoch += 1  # what was journaled is gone: journal again

    def forget(self, mark: Mark) -> None:
        """Drop the mark, and the old values that no other mark needs.

        Raises:
            ValueError: if the mark is gone already.
        """
        del self._marks[self._place(mark)]
        needed = self._marks[0].at if self._marks else self._dropped + len(self._journal)
        del self._journal[: needed - self._dropped]
        self._dropped = needed

    def to_arrays(self) -> dict[str, Tensor]:
        """Copies of all tables on the CPU, for a checkpoint."""
        return {name: self[name].detach().to("cpu", copy=True) for name in self._names}

    def from_arrays(self, arrays: Mapping[str, Tensor]) -> None:
        """Replace all tables, bit for bit, by those of `to_arrays`; all marks are gone.

        Raises:
            ValueError: if names, widths or dtypes are not those of this state.
        """
        if set(arrays) != set(self._names):
            raise ValueError(
                f"`arrays` must hold the tables {sorted(self._names)}: got {sorted(arrays)}"
            )
        for name, values in arrays.items():
            table = self[name]
            if values.ndim != 2 or values.shape[1] != table.shape[1]:
                raise ValueError(
                    f"`arrays[{name!r}]` must have {table.shape[1]} columns: "
                    f"got shape {tuple(values.shape)}"
                )
            if values.dtype != table.dtype:
                raise ValueError(f"`arrays[{name!r}]` must be {table.dtype}: got {values.dtype}")
        self._marks.clear()
        self._journal.clear()
        self._epoch += 1
        for name, values in arrays.items():
            self.grow(name, len(values))
            self._set_rows(name, len(values))
            self[name].copy_(values.detach())

    def _set_rows(self, name: str, num_rows: int) -> None:
        self._num_rows[name] = num_rows
        self._view[name] = self._store[name][:num_rows]

    def _place(self, mark: Mark) -> int:
        for place in range(len(self._marks) - 1, -1, -1):
            if self._marks[place] is mark:
                return place
        raise ValueError(
            f"`mark` {mark.serial} is no longer open: it was forgotten, or an older mark was undone"
        )

    def _checked(self, name: str, rows: Tensor | Int64) -> Int64:
        """The rows as an int64 array, all of them there."""
        at = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if at.ndim != 1 or (at.size and at.dtype.kind not in "iu"):
            raise ValueError(
                f"`rows` must be a 1-d array of integers: got {at.dtype} of shape {at.shape}"
            )
        limit = self.num_rows(name)
        if at.size and not 0 <= at.min() <= at.max() < limit:
            bad = at[np.flatnonzero((at < 0) | (at >= limit))[0]]
            raise ValueError(
                f"`rows` must be below {limit}, the rows of table {name!r}: got {bad}; "
                f"call grow({name!r}, ...) first"
            )
        return at.astype(np.int64, copy=False)

    def _on_device(self, name: str, rows: Int64) -> Tensor:
        return torch.from_numpy(np.array(rows)).to(self._store[name].device)

    def _keep(self, name: str, rows: Int64) -> None:
        """Journal the values of rows that have not been journaled since the newest mark."""
        if not self._marks:
            return
        stamp = self._stamp[name]
        rows = np.unique(rows[stamp[rows] != self._epoch])  # links of many events come often
        if len(rows):
            stamp[rows] = self._epoch
            self._journal.append((name, rows, self[name][self._on_device(name, rows)]))
