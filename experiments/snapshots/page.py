"""The report of a run on snapshots as one self-contained HTML page, of the parts in `page_parts`.

It is a function of the report alone, in plain types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..charts import line_chart
from ..page_parts import (
    document,
    escaped,
    header,
    legend,
    listed,
    pairs,
    said,
    score_cell,
    section,
    sentence,
    table,
    tiles,
)
from ..report import format_number
from .summary import COUNTS, LOWER, PARTS, best_value, format_bytes


def render_snapshots(report: Mapping[str, Any]) -> str:
    """The report as an HTML page."""
    model, backend = str(report["config"]["model"]), report["backend"]
    title = f"{model} on the snapshots of {report['log']}"
    body = [
        f"<h1>{escaped(title)}</h1>",
        said(_subtitle(report)),
        _tiles(report, model),
        section("Scores", _scores(report, model) + listed(report["verdict"]) + _rule(report)),
        f'<div class="charts">{_charts(report)}</div>',
        section(
            f"Bytes by purpose, one epoch of training, {backend['name']}",
            _traffic(report["traffic"]) + said(f"backend: {backend['reason']}"),
        ),
        section(
            f"Balance over {backend['ranks']} {_plural('rank', backend['ranks'])}",
            _balance(report["balance"]),
        ),
        '<div class="columns">',
        section("Snapshots", pairs(report["snapshots"], report["split"])),
        section("Seconds", pairs(report["throughput"])),
        section("Settings", pairs(report["config"])),
        section("Versions", pairs(report["versions"])),
        "</div>",
        section("Notes", listed(report["notes"])),
    ]
    return document(title, body)


def _subtitle(report: Mapping[str, Any]) -> str:
    snapshots, backend = report["snapshots"], report["backend"]
    steps, ranks, count = snapshots["snapshots"], backend["ranks"], len(report["epochs"])
    best = report["split"]["best_epoch"]
    chosen = "the last" if best is None else f"epoch {best}, the best on validation"
    words = [
        f"{format_number(steps)} {_plural('snapshot', steps)}",
        f"{format_number(snapshots['nodes'])} nodes",
        f"backend {backend['name']} on {ranks} {_plural('rank', ranks)}",
        f"{count} {_plural('epoch', count)}, tested once with the weights of {chosen}",
    ]
    return ", ".join(words)


def _tiles(report: Mapping[str, Any], model: str) -> str:
    metric, metrics = report["metric"], report["metrics"]
    rivals = {name: scores for name, scores in metrics.items() if name != model}
    best = best_value(rivals, "test", metric)
    throughput = report["throughput"]
    figures = [
        (
            f"{metric.upper()}, test",
            format_number(metrics[model]["test"][metric]),
            f"best baseline {format_number(best)}",
        ),
        (
            "An epoch of training",
            f"{format_number(throughput['train_seconds_an_epoch'])} s",
            f"{format_number(throughput['seconds'])} s in all",
        ),
        (
            "Sent in an epoch",
            format_bytes(throughput["bytes_an_epoch"]),
            f"by {report['backend']['name']}, all ranks",
        ),
    ]
    return tiles(figures)


def _scores(report: Mapping[str, Any], model: str) -> str:
    """The table: a row a scorer and part, the best of each part in bold."""
    metrics = report["metrics"]
    names = [name for name in metrics[model]["test"] if name not in COUNTS]
    bodies = []
    for part, words in PARTS.items():
        rows = []
        best = {name: best_value(metrics, part, name) for name in names}
        for scorer, scores in metrics.items():
            cells = "".join(score_cell(scores[part][name], name, best[name]) for name in names)
            own = f"<strong>{escaped(scorer)}</strong>" if scorer == model else escaped(scorer)
            count = format_number(scores[part]["answers"])
            rows.append(f"<tr><td>{own}</td><td>{words}</td>{cells}<td>{count}</td></tr>")
        bodies.append("".join(rows))
    shown = (name.replace("_", " ").upper() for name in names)
    return table(header("Scorer", "Part", *shown, "Answers"), *bodies)


def _rule(report: Mapping[str, Any]) -> str:
    words = str(report["ranking"]["what"])
    if report["metric"] in LOWER:
        words += "; lower is better"
    return sentence(words)


def _charts(report: Mapping[str, Any]) -> str:
    """Training loss, the metric on validation, and bytes, a point an epoch."""
    epochs, metric = report["epochs"], report["metric"]
    best = report["split"]["best_epoch"]
    charts = [
        _over_epochs(epochs, "Training loss", {"training": "train_loss"}, "mean of an epoch"),
        _over_epochs(
            epochs,
            f"Validation {metric.upper()}",
            {"validation": f"val_{metric}"},
            "none is the best" if best is None else f"best after epoch {best}",
            _floor(report),
        ),
    ]
    return "".join(charts)


def _floor(report: Mapping[str, Any]) -> dict[str, float]:
    """What each baseline has on validation, as level lines."""
    model, metric = report["config"]["model"], report["metric"]
    found = {name: scores["val"][metric] for name, scores in report["metrics"].items()}
    return {name: v for name, v in found.items() if name != model and v is not None}


def _over_epochs(
    epochs: Sequence[Mapping[str, Any]],
    title: str,
    lines: Mapping[str, str],
    words: str,
    levels: Mapping[str, float] | None = None,
) -> str:
    places = [float(epoch["epoch"]) for epoch in epochs]
    series = {
        name: [(x, epoch.get(key)) for x, epoch in zip(places, epochs, strict=True)]
        for name, key in lines.items()
    }
    for name, value in (levels or {}).items():
        series[name] = [(x, value) for x in dict.fromkeys((places[0], places[-1]))]
    drawn = line_chart(title, series, x_label="epoch")
    return section(title, legend(series, words) + drawn)


def _traffic(rows: Sequence[Mapping[str, Any]]) -> str:
    if not any(row["bytes"] for row in rows):
        return said("One rank sends nothing.")
    cells = "".join(
        f"<tr><td>{escaped(row['purpose'])}</td><td>{format_number(row['exchanges'])}</td>"
        f"<td>{format_number(row['bytes'])}</td><td>{format_number(row['imbalance'])}</td></tr>"
        for row in rows
        if row["bytes"]
    )
    return table(header("Purpose", "Exchanges", "Bytes, all ranks", "Largest / mean"), cells)


def _balance(found: Mapping[str, Any]) -> str:
    words = {
        "rows": "rows of nodes",
        "work": "edges x columns of one product with each snapshot",
        "bytes": "bytes sent in an epoch",
        "cpu_seconds": "seconds of CPU in an epoch",
    }
    rows = "".join(
        f"<tr><td>{words[name]}</td>"
        + "".join(f"<td>{format_number(value)}</td>" for value in of["ranks"])
        + f"<td>{format_number(of['imbalance'])}</td></tr>"
        for name, of in found.items()
    )
    ranks = (f"Rank {rank}" for rank in range(len(found["rows"]["ranks"])))
    return table(header("What", *ranks, "Largest / mean"), rows)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
