"""What the command `snapshots` prints of a run: its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report import format_number
from .summary import COUNTS, LOWER, PARTS, format_bytes


def show_snapshots(
    console: Console, report: Mapping[str, Any], place: str, told: Sequence[str] = ()
) -> None:
    """Prints the scores of the model and each baseline, the best in bold, and who beats whom.

    Notes that are not `told` yet follow.
    """
    metrics, model = report["metrics"], report["config"]["model"]
    names = [name for name in metrics[model]["test"] if name not in COUNTS]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("part")
    for name in names:
        table.add_column(name.replace("_", " ").upper(), justify="right")
    for part, words in PARTS.items():
        for scorer, scores in metrics.items():
            cells = []
            for name in names:
                known = [s[part][name] for s in metrics.values() if s[part][name] is not None]
                best = (min if name in LOWER else max)(known) if known else None
                value = scores[part][name]
                style = "bold green" if value is not None and value == best else ""
                cells.append(Text(format_number(value, name), style))
            table.add_row(Text(scorer), words, *cells)
        table.add_section()
    console.print(table)
    backend, throughput = report["backend"], report["throughput"]
    for line in report["verdict"]:
        console.print(Text(line))
    sent = format_bytes(throughput["bytes_an_epoch"])
    ranks = f"{backend['ranks']} rank{'s' if backend['ranks'] > 1 else ''}"
    console.print(Text(f"backend {backend['name']} on {ranks}: {sent} sent in an epoch"))
    for note in report["notes"]:
        if note not in told:
            console.print(Text(f"note: {note}"))
    console.print(Text(f"report: {place}"), soft_wrap=True)
