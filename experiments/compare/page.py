"""A comparison as one self-contained HTML page, of the parts in `page_parts`.

It is a function of the comparison alone, in plain types as `make_comparison` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..charts import line_chart
from ..page_parts import (
    cell,
    document,
    escaped,
    header,
    legend,
    listed,
    pairs,
    said,
    section,
    sentence,
    table,
    tiles,
)
from ..report import PARTS, SPLIT_PARTS, best_scores, format_number, heading
from .layout import Grid, grids_of, means_of, scoring_words, short, trained

_LINES = 6  # in a chart; more could not be told apart

_STYLE = """
small { color: var(--soft); font-size: 12px; display: block; white-space: nowrap; }
td { vertical-align: top; } td:first-child { white-space: nowrap; } td b small { font-weight: 400; }
.all { color: var(--good); } .none { color: var(--soft); }
.tile span { overflow-wrap: anywhere; } .charts section:only-child { max-width: 560px; }
"""


def render_comparison(comparison: Mapping[str, Any]) -> str:
    """The comparison as an HTML page."""
    title = f"{', '.join(row['name'] for row in trained(comparison))} on {comparison['log']}"
    grids = grids_of(comparison["protocol"])
    words = f"{scoring_words(comparison)}; best mean in bold"
    lower = "; MAR: lower is better" if comparison["protocol"] != "split" else ""
    body = [
        f"<h1>{escaped(title)}</h1>",
        said(_subtitle(comparison)),
        _tiles(comparison, grids[0]),
        *(section(grid.title, _grid(comparison, grid, words + lower)) for grid in grids),
        section("Seeds won against the baselines", _wins(comparison, grids[0])),
        section("Time to the next event, errors in mean gaps of a node", _times(comparison)),
        f'<div class="charts">{_charts(comparison)}</div>',
        section("Training", _training(comparison)),
        '<div class="columns">',
        section("Scoring", pairs(comparison["scoring"])),
        section("Shared settings", pairs(comparison["config"])),
        section("Versions", pairs(comparison["versions"])),
        "</div>",
        section("Notes", listed(comparison["notes"])),
    ]
    return document(title, body, _STYLE)


def _subtitle(comparison: Mapping[str, Any]) -> str:
    count, seeds = len(trained(comparison)), len(comparison["seeds"])
    how = "every event is predicted before it is learned"
    if comparison["protocol"] == "split":
        how = "trained, validated and tested on parts of the log in its order"
    models = f"{count} model{'s' if count > 1 else ''}"
    each = f"with {seeds} seeds each, mean ± standard deviation over them"
    words = f"{models} {each if seeds > 1 else 'with one seed'}"
    return f"{format_number(comparison['counts']['applied'])} events, {how}; {words}"


def _tiles(comparison: Mapping[str, Any], grid: Grid) -> str:
    """The best of each of the first columns, over all rows."""
    means, figures = means_of(comparison), []
    shown = [column for column in grid.columns if column[2] in ("ap", "mrr")]
    for _, part, metric in (shown[:1] + shown[1:4:2])[:3]:
        if (best := best_scores(means, part).get(metric)) is not None:
            names = [name for name in means if means[name][part][metric] == best]
            words = f"Best {heading(metric)}, {(PARTS | SPLIT_PARTS)[part]}"
            figures.append((words, format_number(best, metric), names[0]))
    seconds = [row["seconds"]["values"] for row in trained(comparison)]
    total, count = sum(map(sum, seconds)), sum(map(len, seconds))
    figures.append(("Runs", str(count), f"{format_number(total)} s in all"))
    return tiles(figures)


def _grid(comparison: Mapping[str, Any], grid: Grid, words: str) -> str:
    """The table, the best means in bold; under a name stands what differs from row to row."""
    means, rows = means_of(comparison), []
    for row in comparison["rows"]:
        scores = comparison["metrics"][row["name"]]
        cells = "".join(
            _cell(scores[part][metric], metric, best_scores(means, part).get(metric))
            for _, part, metric in grid.columns
        )
        name = escaped(row["name"])
        if row["trained"]:
            name = f"<strong>{name}</strong><small>{escaped(_run_words(row))}</small>"
        rows.append(f"<tr><td>{name}</td>{cells}</tr>")
    return table(_head(grid), "".join(rows)) + sentence(words)


def _head(grid: Grid) -> str:
    spans = "".join(f'<th colspan="{n}">{escaped(label)}</th>' for label, n in grid.groups)
    above = f"<tr><th></th>{spans}</tr>" if spans else ""
    return above + header("", *(label for label, _, _ in grid.columns))


def _run_words(row: Mapping[str, Any]) -> str:
    """What the figures of a row depend on beside what all rows share."""
    words = [f"batches of {row['batch_size']}, {row['consistency']}"]
    words.append(f"{row['negatives']} negative{'s' if row['negatives'] > 1 else ''}")
    windows = row.get("windows")
    words.append(f"{short(row['epochs'])} epochs" if windows is None else f"{windows} windows")
    return ", ".join(words)


def _cell(found: Mapping[str, Any], metric: str, best: float | None = None) -> str:
    text, mean = format_number(found["mean"], metric), found["mean"]
    if found["std"]:
        text += f"<small>± {format_number(found['std'], metric)}</small>"
    return cell(text, mean is not None and mean == best)


def _wins(comparison: Mapping[str, Any], grid: Grid) -> str:
    """A row a model and baseline: in how many seeds it is strictly better, column by column."""
    seeds = len(comparison["seeds"])
    rows = []
    for name, rivals in comparison["wins"].items():
        for rival, wins in rivals.items():
            cells = []
            for _, part, metric in grid.columns:
                won = wins[part][metric]
                look = "all" if won == seeds else "" if won else "none"
                cells.append(f'<td class="{look}">{won} of {seeds}</td>')
            label = f"<td><strong>{escaped(name)}</strong> against {escaped(rival)}</td>"
            rows.append(f"<tr>{label}{''.join(cells)}</tr>")
    words = f"{grid.title}: seeds in which the model is strictly better."
    return table(_head(grid), "".join(rows)) + said(words)


def _times(comparison: Mapping[str, Any]) -> str:
    times = comparison["times"]
    if not times:
        return ""
    rows = []
    for part, words in PARTS.items():
        best = {
            key: min(
                (p[part][key]["mean"] for p in times.values() if p[part][key]["mean"]), default=None
            )
            for key in ("mae", "median_ae")
        }
        for name, parts in times.items():
            cells = "".join(_cell(parts[part][key], key, best[key]) for key in best)
            rows.append(f"<tr><td>{escaped(name)}</td><td>{words}</td>{cells}</tr>")
    return table(header("", "Part", "Mean absolute", "Median absolute"), "".join(rows))


def _training(comparison: Mapping[str, Any]) -> str:
    keys = ("batch_size", "negatives", "consistency", "windows", "epochs")
    rows = []
    for row in trained(comparison):
        cells = "".join(f"<td>{escaped(short(row.get(key)))}</td>" for key in keys)
        cells += _cell(row["train_events_per_second"], "") + _cell(row["seconds"], "")
        rows.append(f"<tr><td>{escaped(row['name'])}</td>{cells}</tr>")
    names = ("", "Batch", "Negatives", "Consistency", "Windows", "Epochs", "Events/s", "Seconds")
    return table(header(*names), "".join(rows))


def _charts(comparison: Mapping[str, Any]) -> str:
    """A chart a metric; models that do not fit go into another, beside the best baselines."""
    means, headline = means_of(comparison), grids_of(comparison["protocol"])[0].columns[0][1]
    learned = [row["name"] for row in trained(comparison)]
    charts = []
    for metric, lines in comparison["curves"].items():
        scores = {name: means[name][headline][metric] for name in lines if name not in learned}
        rivals = sorted(scores, key=lambda name: scores[name] or 0.0, reverse=True)
        room = _LINES - min(len(rivals), 1)
        groups = [learned[at : at + room] for at in range(0, len(learned), room)]
        for number, group in enumerate(groups):
            shown = {*group, *rivals[: _LINES - len(group)]}
            names = [name for name in lines if name in shown]  # one colour a row in all charts
            count = f", {number + 1} of {len(groups)}" if len(groups) > 1 else ""
            charts.append(_chart(metric, {name: lines[name] for name in names}, count))
    return "".join(charts)


def _chart(metric: str, lines: Mapping[str, Any], count: str) -> str:
    if metric == "val_ap":
        title, label = f"Validation AP over the epochs{count}", "epoch"
    else:
        title, label = f"{heading(metric)} over the stream{count}", "position in the stream"
    series = {name: [(x, y) for x, y in points] for name, points in lines.items()}
    drawn = line_chart(title, series, x_label=label)
    return section(title, legend(lines) + drawn)
