"""What a source of events is: columns of text or of types, every row with its place.

Invariant: a row of `columns` knows its line in the source (from 1, header, comments and blank lines
counted), so that an error can name it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that cannot be an event, and why."""

    line: int  # from 1, header and comments counted
    reason: str  # names the column and the value
    text: str  # the row as it stands in the source


class Source(Protocol):
    """Rows and columns of one source."""

    name: str  # how messages call it
    place: str  # what a row's place is called: "line" or "row"
    names: list[str] | None  # the header's names; None without a header
    sample: list[list[str]]  # the first rows, split
    notes: list[str]
    rejects: list[Reject]  # rows that are no rows; known once `columns` was called

    def columns(self, wanted: Sequence[int], floats: Collection[int]) -> list[pa.Array]:
        """The columns at these places, as text, typed, or (`floats`) perhaps float32."""
        ...

    def line_of(self, row: int) -> int:
        """Where a row of `columns` stands in the source, from 1."""
        ...

    def text_of(self, row: int) -> str:
        """A row of `columns` as it stands in the source."""
        ...


class TableSource:
    """An Arrow table as a source."""

    place = "row"

    def __init__(self, table: pa.Table, name: str, limit: int | None) -> None:
        self.name = name
        self.names: list[str] | None = list(table.column_names)
        self._table = table if limit is None else table.slice(0, limit)
        self.sample: list[list[str]] = []
        self.notes: list[str] = []
        self.rejects: list[Reject] = []

    def columns(self, wanted: Sequence[int], floats: Collection[int]) -> list[pa.Array]:
        return [one_array(self._table.column(place)) for place in wanted]

    def line_of(self, row: int) -> int:
        return row + 1

    def text_of(self, row: int) -> str:
        values = self._table.slice(row, 1).to_pylist()[0].values()
        return ",".join("" if value is None else str(value) for value in values)


def is_text(column: pa.Array) -> bool:
    """Whether a column holds texts."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece, without dictionary encoding."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunks, or more than fits into one
            column = pa.concat_arrays(column.chunks)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column
