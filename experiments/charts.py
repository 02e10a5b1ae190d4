"""Charts as plain SVG text: lines over stream time and a histogram, drawn with the page's colours.

No plotting library and no script: colours are CSS classes (`c0`, `c1`, ...) so that one picture
serves light and dark pages, and the same numbers always give the same text.  Shapes are attributes,
so that a viewer that ignores the classes still shows the lines, in black.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

WIDTH, HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 40
_MOST_BARS = 24
_EVENTS_A_POINT = 100  # fewer make scores too noisy to read
_DASHES = ("", "6 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")

Point: TypeAlias = tuple[float, float | None]


def legible(events: Sequence[float], most: int) -> int:
    """How many points to draw of windows with so many events each: at most `most`, none too noisy.

    >>> legible([50.0] * 100, 80), legible([50.0] * 30, 80)
    (50, 15)
    """
    return min(len(events), most, max(10, int(sum(events)) // _EVENTS_A_POINT))


def thin(points: Sequence[Point], weights: Sequence[float], most: int) -> list[Point]:
    """At most `most` points: weighted means of neighbouring runs; runs without a value stay None.

    >>> thin([(0, 1.0), (1, 3.0), (2, 5.0), (3, None)], [1, 1, 1, 1], most=2)
    [(0.5, 2.0), (2.5, 5.0)]
    """
    if len(points) <= most:
        return list(points)
    result: list[Point] = []
    for part in range(most):
        span = range(part * len(points) // most, (part + 1) * len(points) // most)
        known = [(points[i][1], max(weights[i], 1e-9)) for i in span if points[i][1] is not None]
        place = sum(points[i][0] for i in span) / len(span)
        total = sum(weight for _, weight in known)
        mean = sum(value * weight for value, weight in known if value is not None)
        result.append((place, mean / total if known else None))
    return result


def line_chart(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    from_zero: bool = False,
) -> str:
    """An SVG of one line a series; a value that is None breaks its line."""
    values = [y for points in series.values() for _, y in points if y is not None]
    places = [x for points in series.values() for x, _ in points]
    if not values:
        return _empty(title)
    x_ticks = ticks(min(places), max(places))
    y_ticks = ticks(0.0 if from_zero else min(values), max(values), most=5)
    x_low, x_high = min(places), max(places)
    y_low, y_high = min(y_ticks[0], min(values)), max(y_ticks[-1], max(values))
    parts = _axes(x_ticks, y_ticks, (x_low, x_high), (y_low, y_high), x_label)
    for number, (name, points) in enumerate(series.items()):
        drawn = [
            (_scale(x, x_low, x_high, _LEFT, WIDTH - _RIGHT), _height(y, y_low, y_high))
            for x, y in points
            if y is not None
        ]
        parts.append(f'<g class="line c{number % 6}">{_path(points, drawn, number)}')
        known = [(x, y) for x, y in points if y is not None]
        for (x, y), (left, top) in zip(known, drawn, strict=True):
            hint = f"<title>{escape(name)} {_short(y)} at {_short(x)}</title>"
            spot = f'cx="{left:.1f}" cy="{top:.1f}" r="5" opacity="0"'
            parts.append(f"<circle {spot}>{hint}</circle>")
        parts.append("</g>")
    ends = "; ".join(
        f"{name} from {_short(found[0])} to {_short(found[-1])}"
        for name, points in series.items()
        if (found := [y for _, y in points if y is not None])
    )
    return _svg(title, ends, parts)


def histogram(title: str, counts: Mapping[int, int], *, x_label: str) -> str:
    """An SVG of one bar a value; beyond 24 values neighbours share a bar."""
    bars = _bars(counts)
    if not bars:
        return _empty(title)
    y_ticks = ticks(0.0, max(count for _, count in bars), most=5)
    high = max(y_ticks[-1], max(count for _, count in bars))
    parts = _axes([], y_ticks, (0, 1), (0, high), x_label)
    step = (WIDTH - _LEFT - _RIGHT) / len(bars)
    every = math.ceil(len(bars) / 12)
    for number, (label, count) in enumerate(bars):
        left, top = _LEFT + number * step, _height(count, 0, high)
        parts.append(
            f'<rect class="bar" x="{left + step * 0.1:.1f}" y="{top:.1f}" width="{step * 0.8:.1f}" '
            f'height="{HEIGHT - _BOTTOM - top:.1f}" rx="2">'
            f"<title>{label}: {count:,}</title></rect>"
        )
        if number % every == 0:
            middle = left + step / 2
            parts.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
                f"{label}</text>"
            )
    most = max(bars, key=lambda bar: bar[1])
    return _svg(title, f"{len(bars)} bars, the highest at {most[0]} with {most[1]:,}", parts)


def stroke(number: int) -> str:
    """The attributes of the line of series `number`: its width and dashes, beside its colour."""
    dashes = _DASHES[number % len(_DASHES)]
    extra = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'fill="none" stroke-width="{1.6 if number else 2.4}" stroke-linejoin="round"{extra}'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values that cover [low, high], at most about `most` of them.

    >>> ticks(0, 9), ticks(0.42, 0.93, 5)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.4, 0.6, 0.8, 1.0])
    """
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * max(size, 1e-6):  # all alike: some room around the value
        pad = 0.1 * size if size > 1e-9 else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def _path(points: Sequence[Point], drawn: Sequence[tuple[float, float]], number: int) -> str:
    """The line, broken where a value is missing."""
    steps, upcoming, pen_down = [], iter(drawn), False
    for _, y in points:
        if y is None:
            pen_down = False
            continue
        left, top = next(upcoming)
        steps.append(f"{'L' if pen_down else 'M'}{left:.1f} {top:.1f}")
        pen_down = True
    return f'<path d="{"".join(steps)}" {stroke(number)}/>'


def _bars(counts: Mapping[int, int]) -> list[tuple[str, int]]:
    known = {value: count for value, count in counts.items() if count}
    if not known:
        return []
    low, high = min(known), max(known)
    wide = math.ceil((high - low + 1) / _MOST_BARS)
    bars = []
    for start in range(low, high + 1, wide):
        count = sum(known.get(value, 0) for value in range(start, start + wide))
        bars.append((str(start) if wide == 1 else f"{start}-{start + wide - 1}", count))
    return bars


def _axes(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    x_label: str,
) -> list[str]:
    floor = HEIGHT - _BOTTOM
    parts = []
    for value in y_ticks:
        top = _height(value, *y_range)
        parts.append(f'<path class="grid" d="M{_LEFT} {top:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        )
    for value in x_ticks:
        if not x_range[0] <= value <= x_range[1]:
            continue
        left = _scale(value, *x_range, _LEFT, WIDTH - _RIGHT)
        parts.append(
            f'<text x="{left:.1f}" y="{floor + 16}" text-anchor="middle">{_short(value)}</text>'
        )
    parts.append(f'<path class="axis" d="M{_LEFT} {floor}H{WIDTH - _RIGHT}"/>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    return parts


def _height(value: float, low: float, high: float) -> float:
    return _scale(value, low, high, HEIGHT - _BOTTOM, _TOP)


def _scale(value: float, low: float, high: float, start: float, stop: float) -> float:
    share = 0.5 if high == low else (value - low) / (high - low)
    return start + share * (stop - start)


def _short(value: float) -> str:
    """A tick's text: 0.25, 40, 12k, 1.5M."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if mark == 'k' else size):.4g}{mark}"
    return f"{value:.4g}"


def _svg(title: str, what: str, parts: Sequence[str]) -> str:
    text = escape(f"{title}: {what}" if what else title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" aria-label="{text}">'
        + "".join(parts)
        + "</svg>"
    )


def _empty(title: str) -> str:
    note = f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">no values</text>'
    return _svg(title, "no values", [note])
