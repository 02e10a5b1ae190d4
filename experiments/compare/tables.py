"""A comparison in the terminal: the tables that count, and what the figures depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report import PARTS, SPLIT_PARTS, best_scores, format_number, heading, verdicts
from ..tables import ruled
from .layout import grids_of, means_of, scoring_words, short, trained


def print_comparison(console: Console, comparison: Mapping[str, Any], place: str | None) -> None:
    """Prints the tables that count, who beats whom on average, and what the figures depend on."""
    means = means_of(comparison)
    grids = grids_of(comparison["protocol"])[:2]
    for grid in grids:
        names = [label for label, _, _ in grid.columns]
        groups = [label.split(",")[0].lower() for label, span in grid.groups for _ in range(span)]
        if groups:
            names = [f"{group}\n{name}" for group, name in zip(groups, names, strict=True)]
        table = ruled([""], names)
        for row in comparison["rows"]:
            scores = comparison["metrics"][row["name"]]
            cells = []
            for _, part, metric in grid.columns:
                found = scores[part][metric]
                is_best = found["mean"] is not None
                is_best = is_best and found["mean"] == best_scores(means, part).get(metric)
                cells.append(Text(_spread_text(found, metric), "bold green" if is_best else ""))
            table.add_row(Text(row["name"]), *cells)
        _print(console, grid.title, table)
    _print_times(console, comparison)
    _print_training(console, comparison)
    _print_verdicts(console, comparison, grids[0].columns[0][1])
    console.print(Text(scoring_words(comparison)), soft_wrap=True)
    if place is not None:
        console.print(Text(f"comparison: {place}"), soft_wrap=True)


def _print_verdicts(console: Console, comparison: Mapping[str, Any], part: str) -> None:
    """On which metrics each model's mean is better than that of each baseline."""
    means = means_of(comparison)
    rivals = {row["name"]: means[row["name"]] for row in comparison["rows"] if not row["trained"]}
    average = " on average" if len(comparison["seeds"]) > 1 else ""
    title = f"Better{average} than, {(PARTS | SPLIT_PARTS)[part]}"
    table = ruled([""], [])
    for rival in rivals:
        table.add_column(Text(rival), overflow="fold")
    for row in trained(comparison):
        name, cells = row["name"], []
        for wins in verdicts({name: means[name], **rivals}, name, part).values():
            better = [heading(metric) for metric, won in wins.items() if won]
            cells.append("all" if wins and all(wins.values()) else " ".join(better) or "none")
        table.add_row(Text(name), *cells)
    _print(console, title, table)


def _print_times(console: Console, comparison: Mapping[str, Any]) -> None:
    """The errors of expected times in the part that counts; nothing where no row expects times."""
    if not comparison["times"]:
        return
    part, title = "last_half", "Time to the next event, last half of the stream"
    table = ruled([""], ["mean absolute error, in mean gaps", "median absolute error"])
    for name, parts in comparison["times"].items():
        table.add_row(Text(name), *(_spread_text(parts[part][k]) for k in ("mae", "median_ae")))
    _print(console, title, table)


def _print_training(console: Console, comparison: Mapping[str, Any]) -> None:
    keys = ("batch_size", "negatives", "consistency", "windows", "epochs")
    names = (name.replace("_", " ") for name in (*keys, "events/s", "seconds"))
    table = ruled([""], names)
    for row in trained(comparison):
        cells = [Text(short(row.get(key))) for key in keys]
        for key in ("train_events_per_second", "seconds"):
            cells.append(Text(format_number(row[key]["mean"])))
        table.add_row(Text(row["name"]), *cells)
    _print(console, "Training", table)


def _spread_text(found: Mapping[str, Any], metric: str = "") -> str:
    """The mean over the seeds, and how far they are apart."""
    text = format_number(found["mean"], metric)
    return f"{text} ± {format_number(found['std'], metric)}" if found["std"] else text


def _print(console: Console, title: str, table: Table) -> None:
    console.print(Text(title, "italic"))
    console.print(table)
