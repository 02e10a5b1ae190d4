"""What the command `snapshots` prints of a run: its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ..tables import ruled, score_text
from .summary import COUNTS, PARTS, best_value, format_bytes


def show_snapshots(
    console: Console, report: Mapping[str, Any], place: str, told: Sequence[str] = ()
) -> None:
    """Prints the scores of the model and each baseline, the best in bold, and who beats whom.

    Notes that are not `told` yet follow.
    """
    metrics, model = report["metrics"], report["config"]["model"]
    names = [name for name in metrics[model]["test"] if name not in COUNTS]
    table = ruled(["", "part"], (name.replace("_", " ").upper() for name in names))
    for part, words in PARTS.items():
        best = {name: best_value(metrics, part, name) for name in names}
        for scorer, scores in metrics.items():
            cells = (score_text(scores[part][name], name, best[name]) for name in names)
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
