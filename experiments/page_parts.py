"""What the HTML pages are made of: one house style, and no script, font or address from outside.

Invariant: `escaped` alone escapes, and every text that comes from a run goes through it.  Arguments
named `html` are markup already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .charts import stroke
from .report import format_number

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


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """The page of these parts, of which empty ones are left out; `style` adds to the house's."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{_STYLE}{style}</style></head>\n<body><main>"
        + "\n".join(part for part in body if part)
        + "</main></body></html>\n"
    )


def section(title: str, html: str) -> str:
    """A card; nothing if there is nothing in it."""
    return f"<section><h2>{escaped(title)}</h2>{html}</section>" if html else ""


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """The largest figures side by side: of each its label, itself and a remark."""
    return f'<div class="tiles">{"".join(_tile(*figure) for figure in figures)}</div>'


def _tile(label: str, value: str, remark: str) -> str:
    return (
        f'<div class="tile"><span class="soft">{escaped(label)}</span><b>{escaped(value)}</b>'
        f'<span class="soft">{escaped(remark)}</span></div>'
    )


def said(words: str) -> str:
    """A paragraph in the colour of what is beside the point."""
    return f'<p class="soft">{escaped(words)}</p>'


def sentence(words: str) -> str:
    """`said`, with a large first letter and a full stop; nothing of no words."""
    return said(f"{words[:1].upper()}{words[1:]}.") if words else ""


def listed(lines: Sequence[Any]) -> str:
    """An item a line; nothing if there is none."""
    return f"<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>" if lines else ""


def table(head: str, *bodies: str) -> str:
    """Rows of HTML: those over the columns, and those of each body, between which is a line."""
    groups = "".join(f"<tbody>{body}</tbody>" for body in bodies)
    return f"<table><thead>{head}</thead>{groups}</table>"


def header(*names: str) -> str:
    """The row over the columns."""
    return f"<tr>{''.join(f'<th>{escaped(name)}</th>' for name in names)}</tr>"


def cell(html: str, is_best: bool = False) -> str:
    """A cell, bold if it is the best of its kind."""
    return f"<td><b>{html}</b></td>" if is_best else f"<td>{html}</td>"


def score_cell(value: Any, name: str, best: float | None) -> str:
    """The cell of a score of that name, or of None."""
    return cell(escaped(format_number(value, name)), value is not None and value == best)


def pairs(*groups: Any) -> str:
    """A table of names and values; nothing if there is none."""
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


def legend(names: Iterable[str], remark: str = "") -> str:
    """What the lines of a chart are called, each beside its stroke; then a remark."""
    drawn = "".join(
        f'<span><svg viewBox="0 0 26 10" aria-hidden="true"><g class="line c{number % 6}">'
        f'<path d="M0 5H26" {stroke(number)}/></g></svg>{escaped(name)}</span>'
        for number, name in enumerate(names)
    )
    last = f"<span>{escaped(remark)}</span>" if remark else ""
    return f'<p class="legend">{drawn}{last}</p>'


def escaped(value: Any) -> str:
    """The text as HTML, also within an attribute."""
    return escape(str(value), quote=True)
