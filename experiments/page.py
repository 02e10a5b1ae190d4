"""The report as one self-contained HTML page: no script, no font, no address outside it.

Every text that comes from the run (names, notes, settings) is escaped here, in `escaped` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .charts import Point, histogram, line_chart, stroke, thin
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
_EVENTS_A_POINT = 100  # fewer make scores too noisy to read

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5b6675;
  --rule: #e2e6eb; --good: #0b7a4b; --c0: #1459d9; --c1: #c2570c; --c2: #7a3fb5; --c3: #0c7f78;
  --c4: #8a6d00; --c5: #b0275f; }
@media (prefers-color-scheme: dark) { :root { --page: #10141a; --card: #181e27; --ink: #e6eaf0;
  --soft: #9aa7b8; --rule: #2b3441; --good: #4fd08f; --c0: #74a7ff; --c1: #ffa25e; --c2: #c99bf5;
  --c3: #4fd1c5; --c4: #e0c04a; --c5: #ff8ab5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 16px; margin: 0 0 10px; }
p { margin: 4px 0; } ul { margin: 10px 0 6px; padding-left: 20px; } .soft { color: var(--soft); }
section, .tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
section { padding: 16px 18px; margin-top: 16px; overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px;
  margin-top: 20px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px; line-height: 1.3; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 16px; }
.charts section { margin-top: 0; } .charts { margin-top: 16px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 500; }
tr:last-child td { border-bottom: 0; }
td b { color: var(--good); } td:nth-child(2) { white-space: nowrap; }
table.pairs td { text-align: left; white-space: normal; }
table.pairs td:first-child { color: var(--soft); width: 40%; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); } .grid { stroke: var(--rule); }
.axis { stroke: var(--soft); }
.line path { stroke: var(--c); } .line circle { fill: var(--c); }
.line circle:hover { opacity: 1; }
.bar { fill: var(--c0); } .bar:hover { opacity: .75; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 0 0 6px; color: var(--soft);
  font-size: 13px; } .legend svg { display: inline-block; width: 26px; height: 10px;
  margin-right: 6px; vertical-align: middle; }
.columns { columns: 3 300px; column-gap: 16px; margin-top: 16px; }
.columns section { break-inside: avoid; margin: 0 0 16px; }
tbody + tbody { border-top: 2px solid var(--soft); }
"""


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
        f'<p class="soft">{escaped(_subtitle(report))}</p>',
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
    tiles = []
    for part, name in layout.tiles:
        value = metrics.get(model, {}).get(part, {}).get(name)
        if value is not None:
            rival = f"best baseline {format_number(best_scores(rivals, part).get(name), name)}"
            label = f"{heading(name)}, {layout.parts[part]}"
            tiles.append((label, format_number(value, name), rival))
    speed = (report.get("throughput") or {}).get("train_events_per_second")
    if speed is not None:
        seconds = format_number((report.get("throughput") or {}).get("seconds"))
        tiles.append(("Training", f"{speed:,.0f}", f"events/s, {seconds} s in all"))
    counts = report.get("counts") or {}
    if counts:
        rest = ", ".join(
            f"{format_number(counts.get(key))} {key}" for key in ("late", "quarantined")
        )
        tiles.append(("Applied", format_number(counts.get("applied")), rest))
    return '<div class="tiles">' + "".join(tile(*each) for each in tiles) + "</div>"


def tile(label: str, value: str, remark: str) -> str:
    return (
        f'<div class="tile"><span class="soft">{escaped(label)}</span><b>{escaped(value)}</b>'
        f'<span class="soft">{escaped(remark)}</span></div>'
    )


def _scores(metrics: Mapping[str, Any], model: str, layout: Layout) -> str:
    """The table: a row a scorer and part, the best of each part in bold."""
    if not metrics:
        return '<p class="soft">Nothing was scored.</p>'
    head = "".join(f"<th>{heading(name)}</th>" for name in layout.metrics)
    bodies = []
    for part, words in layout.parts.items():
        rows = []
        best = best_scores(metrics, part)
        if not best and any(scores.get(part) for scores in metrics.values()):
            span = len(layout.metrics) + 1
            row = f'<tr><td>-</td><td>{words}</td><td colspan="{span}">not available</td></tr>'
            bodies.append(f"<tbody>{row}</tbody>")
            continue
        for scorer, scores in metrics.items():
            values = scores.get(part, {})
            cells = "".join(
                _cell(values.get(name), name, best.get(name)) for name in layout.metrics
            )
            events = format_number(values.get("events"))
            own = f"<strong>{escaped(scorer)}</strong>" if scorer == model else escaped(scorer)
            rows.append(f"<tr><td>{own}</td><td>{words}</td>{cells}<td>{events}</td></tr>")
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    return (
        f"<table><thead><tr><th>Scorer</th><th>Part</th>{head}<th>Events</th></tr></thead>"
        f"{''.join(bodies)}</table>"
    )


def _cell(value: Any, name: str, best: float | None) -> str:
    text = format_number(value, name)
    return f"<td><b>{text}</b></td>" if value is not None and value == best else f"<td>{text}</td>"


def _rule(report: Mapping[str, Any]) -> str:
    words = scoring_line(report)
    if "MAR" in map(heading, layout_of(report).metrics) and words:
        words += "; MAR: lower is better"
    return f'<p class="soft">{escaped(words[:1].upper() + words[1:])}.</p>' if words else ""


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
    most = min(len(windows), _MOST_POINTS, max(10, int(sum(weights)) // _EVENTS_A_POINT))
    series: dict[str, list[Point]] = {}
    for name, value_of in lines.items():
        points = [(float(window.get("test_start") or 0), value_of(window)) for window in windows]
        series[name] = thin(points, weights, most)
    label = f"position in the stream (a point: about {sum(weights) / most:,.0f} events)"
    drawn = line_chart(title, series, x_label=label, from_zero=from_zero)
    return section(f"{title} over the stream", legend(series) + drawn)


def pairs(*groups: Any) -> str:
    rows = []
    for key, value in (pair for group in groups for pair in (group or {}).items()):
        whole = isinstance(value, int) and not isinstance(value, bool) and key != "seed"
        text = format_number(value) if whole else _plain_value(value)
        rows.append(f"<tr><td>{escaped(key)}</td><td><code>{escaped(text)}</code></td></tr>")
    return f'<table class="pairs"><tbody>{"".join(rows)}</tbody></table>' if rows else ""


def _plain_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """The page of these parts, of which empty ones are left out; `style` adds to the house's."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{_STYLE}{style}</style></head>\n<body><main>"
        + "\n".join(part for part in body if part)
        + "</main></body></html>\n"
    )


def legend(names: Iterable[str], remark: str = "") -> str:
    """What the lines of a chart are called, each beside its stroke."""
    drawn = "".join(
        f'<span><svg viewBox="0 0 26 10" aria-hidden="true"><g class="line c{number % 6}">'
        f'<path d="M0 5H26" {stroke(number)}/></g></svg>{escaped(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{drawn}{remark}</p>'


def listed(lines: Sequence[Any]) -> str:
    return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>" if lines else ""


def section(title: str, content: str) -> str:
    return f"<section><h2>{escaped(title)}</h2>{content}</section>" if content else ""


def escaped(value: Any) -> str:
    return escape(str(value), quote=True)
