"""The report of a run of `train` as one self-contained HTML page, of the parts in `page_parts`.

It is a function of the report alone, in plain types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .charts import Point, histogram, legible, line_chart, thin
from .page_parts import (
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
from .report import (
    Layout,
    best_scores,
    format_number,
    heading,
    layout_of,
    scoring_line,
    verdict_lines,
)

_MOST_POINTS = 80


def render_page(report: Mapping[str, Any]) -> str:
    """The report (in plain types, see `to_plain`) as an HTML page.

    Parts that the report lacks are left out; an empty report gives a page that says so.
    """
    config = report.get("config") or {}
    model = str(config.get("model", "model"))
    metrics = report.get("metrics") or {}
    ranking, layout = report.get("ranking") or {}, layout_of(report)
    title = f"{model} on {report.get('log') or 'a log'}"
    verdict = verdict_lines(metrics, model, layout.headline) if metrics else []
    body = [
        f"<h1>{escaped(title)}</h1>",
        said(_subtitle(report)),
        _tiles(report, model, layout),
        section("Scores", _scores(metrics, model, layout) + listed(verdict) + _rule(report)),
        f'<div class="charts">{_charts(report, model)}{_levels(report)}',
        section("Events and speed", pairs(report.get("counts"), report.get("throughput"))),
        section("Where the time went", _stages(report.get("stage_seconds") or {})),
        "</div>",
        '<div class="columns">',
        section("Split", pairs(report.get("split"))),
        section("Ranking", pairs(ranking)),
        section("Settings", pairs(config)),
        section("Versions", pairs(report.get("versions"))),
        "</div>",
        section("Notes", listed(report.get("notes") or [])),
    ]
    return document(title, body)


def _subtitle(report: Mapping[str, Any]) -> str:
    windows, split = report.get("windows") or [], report.get("split")
    applied = (report.get("counts") or {}).get("applied")
    words = [f"{format_number(applied)} events"] if applied is not None else []
    if split is not None:
        epochs = report.get("epochs") or []
        words.append(f"{len(epochs):,} epochs, tested once with the weights of epoch")
        return f"{', '.join(words)} {split.get('best_epoch')}, the best on validation"
    words.append(f"{len(windows):,} windows" if windows else "no windows")
    words.append("every event is predicted before it is learned")
    return ", ".join(words)


def _tiles(report: Mapping[str, Any], model: str, layout: Layout) -> str:
    metrics = report.get("metrics") or {}
    rivals = {name: scores for name, scores in metrics.items() if name != model}
    figures = []
    for part, name in layout.tiles:
        value = metrics.get(model, {}).get(part, {}).get(name)
        if value is not None:
            rival = f"best baseline {format_number(best_scores(rivals, part).get(name), name)}"
            label = f"{heading(name)}, {layout.parts[part]}"
            figures.append((label, format_number(value, name), rival))
    speed = (report.get("throughput") or {}).get("train_events_per_second")
    if speed is not None:
        seconds = format_number((report.get("throughput") or {}).get("seconds"))
        figures.append(("Training", f"{speed:,.0f}", f"events/s, {seconds} s in all"))
    counts = report.get("counts") or {}
    if counts:
        rest = ", ".join(
            f"{format_number(counts.get(key))} {key}" for key in ("late", "quarantined")
        )
        figures.append(("Applied", format_number(counts.get("applied")), rest))
    return tiles(figures)


def _scores(metrics: Mapping[str, Any], model: str, layout: Layout) -> str:
    """The table: a row a scorer and part, the best of each part in bold."""
    if not metrics:
        return said("Nothing was scored.")
    bodies = []
    for part, words in layout.parts.items():
        rows = []
        best = best_scores(metrics, part)
        if not best and any(scores.get(part) for scores in metrics.values()):
            span = len(layout.metrics) + 1
            row = f'<tr><td>-</td><td>{words}</td><td colspan="{span}">not available</td></tr>'
            bodies.append(row)
            continue
        for scorer, scores in metrics.items():
            values = scores.get(part, {})
            cells = "".join(
                score_cell(values.get(name), name, best.get(name)) for name in layout.metrics
            )
            events = format_number(values.get("events"))
            own = f"<strong>{escaped(scorer)}</strong>" if scorer == model else escaped(scorer)
            rows.append(f"<tr><td>{own}</td><td>{words}</td>{cells}<td>{events}</td></tr>")
        bodies.append("".join(rows))
    return table(header("Scorer", "Part", *map(heading, layout.metrics), "Events"), *bodies)


def _rule(report: Mapping[str, Any]) -> str:
    words = scoring_line(report)
    if "MAR" in map(heading, layout_of(report).metrics) and words:
        words += "; MAR: lower is better"
    return sentence(words)


def _charts(report: Mapping[str, Any], model: str) -> str:
    windows = report.get("windows") or []
    if report.get("epochs"):
        return _over_epochs(report["epochs"], model)
    if not windows:
        return ""
    baselines = list(dict.fromkeys(name for w in windows for name in (w.get("baselines") or {})))
    charts = [_over_stream(windows, "Loss", {model: _own("loss")})]
    for name in ("ap", "mrr"):
        lines = {model: _own(name)} | {rival: _of(rival, name) for rival in baselines}
        charts.append(_over_stream(windows, name.upper(), lines))
    speed = {"training": _own("train_events_per_second")}
    charts.append(_over_stream(windows, "Events a second", speed, from_zero=True))
    return "".join(charts)


def _over_epochs(epochs: Sequence[Mapping[str, Any]], model: str) -> str:
    """Training loss and validation AP, a point an epoch."""
    charts = []
    for name, title in (("train_loss", "Training loss"), ("val_ap", "Validation AP")):
        points = [(float(epoch["epoch"]), epoch.get(name)) for epoch in epochs]
        drawn = line_chart(title, {model: points}, x_label="epoch")
        best = [epoch["epoch"] for epoch in epochs if epoch.get("is_best")]
        words = f"best after epoch {best[-1]}" if name == "val_ap" and best else "mean of an epoch"
        charts.append(section(title, f'<p class="legend">{words}</p>{drawn}'))
    return "".join(charts)


def _levels(report: Mapping[str, Any]) -> str:
    levels = report.get("levels") or {}
    widths = {int(width): int(count) for width, count in (levels.get("histogram") or {}).items()}
    if not widths or not (report.get("windows") or report.get("epochs")):
        return ""
    drawn = histogram("Width of levels", widths, x_label="events in a level")
    mean = format_number(levels.get("average_width"))
    words = f"mean {mean}, widest {format_number(levels.get('max_width'))}"
    return section("Levels: events that run together", f'<p class="legend">{words}</p>{drawn}')


def _stages(seconds: Mapping[str, float]) -> str:
    """Seconds of each stage and its share, in the order in which a segment passes them."""
    total = sum(seconds.values())
    if not total:
        return ""
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td><code>{spent:,.2f} s</code></td>"
        f"<td><code>{spent / total:.0%}</code></td></tr>"
        for name, spent in seconds.items()
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def _own(name: str) -> Any:
    return lambda window: window.get(name)


def _of(baseline: str, name: str) -> Any:
    return lambda window: ((window.get("baselines") or {}).get(baseline) or {}).get(name)


def _over_stream(
    windows: Sequence[Mapping[str, Any]],
    title: str,
    lines: Mapping[str, Any],
    *,
    from_zero: bool = False,
) -> str:
    """One chart: the lines over the position of the first predicted event of each window."""
    weights = [float(window.get("events") or 0) for window in windows]
    most = legible(weights, _MOST_POINTS)
    series: dict[str, list[Point]] = {}
    for name, value_of in lines.items():
        points = [(float(window.get("test_start") or 0), value_of(window)) for window in windows]
        series[name] = thin(points, weights, most)
    label = f"position in the stream (a point: about {sum(weights) / most:,.0f} events)"
    drawn = line_chart(title, series, x_label=label, from_zero=from_zero)
    return section(f"{title} over the stream", legend(series) + drawn)
