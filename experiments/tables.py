"""What a person reads in the terminal: scores, figures and data sets as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .report import (
    best_scores,
    format_number,
    heading,
    layout_of,
    scoring_line,
    verdict_lines,
)

_TIMES = frozenset({"start", "end"})  # ticks, which read better without separators


def print_scores(console: Console, report: Mapping[str, Any], place: str | None) -> None:
    """Prints the scores of the model and each baseline, the best in bold, and who beats whom."""
    metrics, config = report.get("metrics") or {}, report.get("config") or {}
    model, layout = str(config.get("model", "model")), layout_of(report)
    table = ruled(["", "part"], map(heading, layout.metrics))
    for part, words in layout.parts.items():
        if part.startswith("val_"):  # stand in the page
            continue
        best = best_scores(metrics, part)
        if metrics and not best:
            table.add_row(Text("-"), words, "not available")
        else:
            for scorer, scores in metrics.items():
                values = scores.get(part, {})
                cells = [
                    score_text(values.get(name), name, best.get(name)) for name in layout.metrics
                ]
                table.add_row(Text(scorer), words, *cells)
        table.add_section()
    if metrics:
        console.print(table)
    for line in (*verdict_lines(metrics, model, layout.headline), scoring_line(report)):
        if line:
            console.print(Text(line))
    if place is not None:
        console.print(Text(f"report: {place}"), soft_wrap=True)


def print_figures(console: Console, figures: Mapping[str, Any]) -> None:
    """Prints a line a figure, lists a line an item; what is missing is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in figures.items():
        for number, text in enumerate([str(value)] if key in _TIMES else _lines(value)):
            table.add_row(key.replace("_", " ") if number == 0 else "", Text(text))
    console.print(table)


def print_datasets(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the data sets by name."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("events", justify="right")
    table.add_column("nodes", justify="right")
    table.add_column("what", overflow="fold")
    for row in rows:
        counts = (format_number(row.get("events")), format_number(row.get("nodes")))
        table.add_row(Text(str(row["name"])), *counts, Text(str(row.get("what") or "")))
    console.print(table)


def ruled(left: Iterable[str], right: Iterable[str]) -> Table:
    """A table without rows, whose columns stand to the left, then to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def score_text(value: Any, name: str, best: float | None) -> Text:
    """A score of that name, or None, bold if it is the best."""
    style = "bold green" if value is not None and value == best else ""
    return Text(format_number(value, name), style)


def _lines(value: Any) -> list[str]:
    """The lines of one figure; none for what is missing."""
    if value is None or value == [] or value == {}:
        return []
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, Mapping):
        return [f"{key}: {format_number(item)}" for key, item in value.items()]
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, float):
        return [f"{value:,.5g}" if abs(value) < 1e5 else f"{value:,.0f}"]
    return [format_number(value)]
