"""Delimited text as a source: split into columns by the rules that users' files follow.

Invariant: a line is a row, or named in `rejects`, or blank or a comment; nothing else is left out.
The lines are only looked up when something is wrong, so good files pay nothing for it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from .errors import LogError
from .formats import NAMES, is_header, is_value, plain, spread_features
from .sources import Reject, is_text, one_array

SAMPLE = 10_000  # rows that are looked at to recognise a format
MARKS = (b"%", b"#")  # a line that starts with one is a comment, unless ids start so
DELIMITERS = (";", "\t", "|", ",", " ")  # in order of preference; " " is any blank space
CLOCK = re.compile(rb"(\d{4}[-/]\d\d?[-/]\d\d?)[ \t]+(?=\d\d?:)")  # a date and a time of day


class TextSource:
    """Delimited text as a source."""

    place = "line"

    def __init__(self, data: bytes, name: str, least: int, limit: int | None) -> None:
        self.name = name
        self.notes: list[str] = []
        self.rejects: list[Reject] = []
        data = self._decoded(data)
        self.head, self._first = self._skip_head(data)
        self._body = data[sum(map(len, self.head)) :]
        if self.head and self.head[0].lower().startswith(b"%%matrixmarket"):
            self._skip_size()
        if not self._body and not (least == 2 and self.head):
            raise LogError(f"{name}: the file has no rows")
        lines = self._body[: 1 << 23].split(b"\n", SAMPLE + 1)[:SAMPLE]
        if len(lines) > 1 and len(self._body) > 1 << 23:
            lines.pop()  # it may be cut short
        rows = [line for line in lines if line.strip() and line[:1] not in MARKS]
        self._delimiter, width = self._recognise(rows, least)
        split = [self._split(line) for line in rows]
        self.names = self._header(split, width)
        self.width = max(width, least) if self.names is None else len(self.names)
        self.sample = [row for row in split if len(row) == self.width]
        self._kept: list[tuple[int, bytes]] | None = None  # None: every line that is not blank
        if self._body[:1] in MARKS or any(b"\n" + mark in self._body for mark in MARKS):
            self._leave_out_comments()
        if limit is not None:
            self._cut(limit)

    def _decoded(self, data: bytes) -> bytes:
        """The text in UTF-8, lines ending in a newline."""
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what spreadsheets call Unicode text
            data = data.decode("utf-16", "replace").encode()
        data = data.removeprefix(b"\xef\xbb\xbf")
        if b"\x00" in data:
            raise LogError(f"{self.name}: the file is not text (nor Parquet, Arrow, gzip or zip)")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        try:
            if not data.isascii():
                data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise LogError(f"{self.name}, line {line}: the text is not UTF-8") from None
        return data

    def _skip_head(self, data: bytes) -> tuple[list[bytes], int]:
        """The comments and blank lines before the first row, and the line of that row."""
        head: list[bytes] = []
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1 or len(data)
            line = data[start:end]
            if line.strip() and line.lstrip()[:1] not in MARKS:
                break
            head.append(line)
            start = end
        return head, len(head) + 1

    def _skip_size(self) -> None:
        """Takes the line `rows columns entries` off a MatrixMarket file: it is no entry."""
        if b"coordinate" not in self.head[0].lower():
            raise LogError(
                f"{self.name}, line 1: a MatrixMarket file must list coordinates: "
                f"got {_show(self.head[0].strip())}"
            )
        end = self._body.find(b"\n") + 1 or len(self._body)
        size, self._body = self._body[:end], self._body[end:]
        told = re.fullmatch(rb"\s*\d+\s+\d+\s+(\d+)\s*", size)
        if told is None:
            raise LogError(
                f"{self.name}, line {self._first}: how many rows, columns and entries a "
                f"MatrixMarket file has is expected: got {_show(size.strip())}"
            )
        lines = self._body.split(b"\n")
        entries = sum(1 for line in lines if line.strip() and line[:1] not in MARKS)
        if entries != int(told[1]):
            raise LogError(
                f"{self.name}, line {self._first}: it tells of {int(told[1])} entries, the file "
                f"has {entries}; is it cut short?"
            )
        self._first += 1

    def _recognise(self, rows: list[bytes], least: int) -> tuple[str, int]:
        """The delimiter and the number of fields of most rows."""
        best = (0, ",", 0)
        for delimiter in DELIMITERS:
            counts = Counter(len(self._split(row, delimiter)) for row in rows[:100])
            fitting = Counter({width: n for width, n in counts.items() if width >= least})
            if fitting:
                width, hits = max(fitting.items(), key=lambda item: (item[1], item[0]))
                best = max(best, (hits, delimiter, width), key=lambda choice: choice[0])
        if rows and not best[0]:
            needs = "source, target, time" if least == 3 else "source, target"
            raise LogError(
                f"{self.name}, line {self._first}: at least {least} fields ({needs}) are expected "
                f"between commas, semicolons, tabs, bars or spaces: got {_show(rows[0])}"
            )
        return best[1], best[2]

    def _split(self, line: bytes, delimiter: str | None = None) -> list[str]:
        delimiter = delimiter or self._delimiter
        if delimiter == " ":
            line = re.sub(rb"\s+", b" ", CLOCK.sub(rb"\1T", line.strip()))
        text = line.decode(errors="replace")
        if '"' not in text:
            return text.split(delimiter)
        try:
            return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:  # an endless field, say
            return text.split(delimiter)

    def _header(self, split: list[list[str]], width: int) -> list[str] | None:
        """The names of the header, which is taken off the body and the sample."""
        comment = next((line for line in reversed(self.head) if line.strip()), b"")
        names = self._split(comment.lstrip(b"%# \t")) if comment else []
        known = {plain(name) for name in names}
        if all(known & set(NAMES[role]) for role in ("src", "dst", "time")):
            return [name.strip() for name in names]
        if not split or not is_header(split[0], split[1:]):
            return None
        names = [name.strip() for name in split.pop(0)]
        if split:
            width = Counter(map(len, split)).most_common(1)[0][0]
            names = spread_features(names, width)
        end = self._body.find(b"\n") + 1 or len(self._body)
        self._body = self._body[end:]
        self._first += 1
        return names

    def _lines(self) -> list[tuple[int, bytes]]:
        """The rows with their lines, found when first asked for."""
        if self._kept is None:
            lines = enumerate(self._body.split(b"\n"), self._first)
            self._kept = [(number, line) for number, line in lines if line.strip()]
        return self._kept

    def _leave_out_comments(self) -> None:
        lines = self._lines()
        marked = [(number, line) for number, line in lines if line[:1] in MARKS]
        split = {number: self._split(line) for number, line in marked}
        rows = {number for number, line in marked if len(split[number]) == self.width}
        odd = [line for number, line in marked if number not in rows]
        for mark in MARKS:
            like = {n: split[n] for n, line in marked if n in rows and line[:1] == mark}
            known = any(line.lstrip()[:1] == mark for line in (*self.head, *odd))
            if like and self._is_comment(mark.decode(), list(like.values()), known):
                rows -= set(like)
        self._kept = [(n, line) for n, line in lines if n not in split or n in rows]
        comments = [number for number in split if number not in rows]
        if comments:
            self.notes.append(
                f"{len(comments)} comments between the rows, the first in line {comments[0]}"
            )

    def _is_comment(self, mark: str, like: list[list[str]], known: bool) -> bool:
        """Whether lines that start with `mark` but have a row's fields are rows commented out.

        They are where the rows without a mark mostly start with numbers or dates, and where the
        mark is `known` from other comments and no id of another column starts with it.
        """
        if not self.sample:
            return False
        if 2 * sum(is_value(row[0]) for row in self.sample) > len(self.sample):
            return True
        elsewhere = (text for row in (*self.sample, *like) for text in row[1:])
        return known and not any(text.strip().startswith(mark) for text in elsewhere)

    def _cut(self, limit: int) -> None:
        if self._kept is not None:
            self._kept = self._kept[:limit]
            return
        rows = islice(re.finditer(rb"[^\n]*[^\s][^\n]*\n?", self._body), limit)
        end = 0
        for match in rows:
            end = match.end()
        self._body = self._body[:end]

    def columns(self, wanted: Sequence[int], floats: Collection[int]) -> list[pa.Array]:
        table = self._parse(wanted, floats)
        if table is None:
            self._set_aside()
            table = self._parse(wanted, floats)
            if table is None:
                raise LogError(f"{self.name}: the rows cannot be told apart; are quotes closed?")
        columns = [one_array(column) for column in table.columns]
        if b" " in self._body or b"\t" in self._body:
            columns = [pc.utf8_trim_whitespace(c) if is_text(c) else c for c in columns]
        return columns

    def _parse(self, wanted: Sequence[int], floats: Collection[int]) -> pa.Table | None:
        """The columns, or None if a row is no row."""
        if not wanted:
            return None
        clean = self._clean()
        if not clean:
            return pa.table({str(place): pa.array([], pa.string()) for place in wanted})
        types = {str(i): pa.float32() if i in floats else pa.string() for i in wanted}
        odd: list[Any] = []

        def set_aside(row: Any) -> str:
            odd.append(row)
            return "skip"

        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(clean),
                pyarrow.csv.ReadOptions(column_names=[str(i) for i in range(self.width)]),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=set_aside),
                pyarrow.csv.ConvertOptions(
                    column_types=types,
                    include_columns=[str(i) for i in wanted],
                    check_utf8=False,
                    null_values=[""],
                ),
            )
        except pa.ArrowInvalid:
            return self._parse(wanted, ()) if floats else None
        if odd or (b'"' in clean and table.num_rows != len(self._lines())):
            return None
        return table

    def _clean(self) -> bytes:
        """The rows as the parser needs them: one delimiter, no space around quotes."""
        body = self._body
        if self._kept is not None:
            body = b"\n".join(line for _, line in self._kept)
        if self._delimiter == " ":
            if b":" in body:
                body = CLOCK.sub(rb"\1T", body)
            if any(odd in body for odd in (b"  ", b"\t", b"\n ", b" \n")) or body != body.strip(
                b" "
            ):
                body = re.sub(rb"[ \t]+", b" ", body).strip(b" ")
                body = body.replace(b" \n", b"\n").replace(b"\n ", b"\n")
        elif b'"' in body and re.search(rb'[ \t]"|"[ \t]', body):
            out = io.StringIO()
            write = csv.writer(out, delimiter=self._delimiter, lineterminator="\n")
            write.writerows(self._split(line) for _, line in self._lines())
            body = out.getvalue().encode()
        return body

    def _set_aside(self) -> None:
        """Rows with another number of fields become rejects."""
        good = []
        for number, line in self._lines():
            fields = len(self._split(line))
            if fields == self.width and line.count(b'"') % 2 == 0:
                good.append((number, line))
                continue
            reason = f"{self.width} fields are expected, got {fields}"
            if line.count(b'"') % 2:
                reason = "a quote is not closed on its line (a quoted field holds no newline)"
            self.rejects.append(Reject(number, reason, line.decode()))
        self._kept = good

    def line_of(self, row: int) -> int:
        return self._lines()[row][0]

    def text_of(self, row: int) -> str:
        return self._lines()[row][1].decode()


def _show(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
