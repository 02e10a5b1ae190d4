"""What is left of a run: report.json, metrics.parquet and report.html in the run's folder.

Everything written is a function of the report alone (no clock, no path, no random id), strict JSON
(a number that is not finite becomes null), and replaces an older file in one step.  report.json is
written last: where it stands, the others do, and the run is finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METRICS = ("ap", "auc", "mrr", "hits@10", "mar")
"""The scores of the table, in its order."""

PARTS = {"overall": "overall", "last_half": "last half"}
"""The parts of the stream that are scored, with the words for them."""

LOWER_IS_BETTER = frozenset({"mar", "loss"})

_COUNTS = ("start", "stop", "test_start", "events")


def write_report(folder: str | Path, report: Mapping[str, Any]) -> None:
    """Writes metrics.parquet (a row a window), report.html and at last report.json into `folder`.

    The folder is made if it is missing.

    Raises:
        TypeError: if the report holds something that JSON cannot.
        OSError: if a file cannot be written, for instance on a full disk; it is named.
    """
    from ..storage import write_whole  # here: it loads torch, which no other figure needs
    from .page import render_page

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain = to_plain(report)
    sink = pa.BufferOutputStream()
    pq.write_table(window_table(plain.get("windows") or []), sink, compression="zstd")
    write_whole(folder / "metrics.parquet", sink.getvalue().to_pybytes())
    write_whole(folder / "report.html", render_page(plain).encode())
    write_whole(folder / "report.json", (to_json(plain) + "\n").encode())


def to_plain(value: Any) -> Any:
    """`value` in JSON's own types: arrays as lists, paths as text, keys as text, NaN as None.

    >>> to_plain({"ap": np.float32("nan"), 3: np.arange(2), "at": Path("runs")})
    {'ap': None, '3': [0, 1], 'at': 'runs'}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item) for item in value)
    raise TypeError(f"a report holds numbers, texts, lists and mappings: got {type(value)}")


def to_json(value: Any) -> str:
    """`value` as one strict JSON text, in its own order of keys."""
    return json.dumps(to_plain(value), allow_nan=False, ensure_ascii=False, indent=1)


def window_table(windows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The windows as a table, a row each; `baselines` become columns such as `edgebank_mrr`."""
    rows = [_flatten(window) for window in windows]
    names = list(dict.fromkeys((*_COUNTS, "loss", *METRICS, *(key for row in rows for key in row))))
    columns = {
        name: pa.array(
            [row.get(name) for row in rows], pa.int64() if name in _COUNTS else pa.float64()
        )
        for name in names
    }
    return pa.table(columns)


def best_scores(metrics: Mapping[str, Any], part: str) -> dict[str, float]:
    """The best value of each score over all scorers; a score that nobody has is absent."""
    best = {}
    for name in METRICS:
        values = [scores.get(part, {}).get(name) for scores in metrics.values()]
        known = [value for value in values if value is not None]
        if known:
            best[name] = min(known) if name in LOWER_IS_BETTER else max(known)
    return best


def verdicts(metrics: Mapping[str, Any], model: str, part: str) -> dict[str, dict[str, bool]]:
    """Whether `model` is strictly better than each baseline, score by score.

    >>> scores = {"dyrep": {"overall": {"ap": 0.9}}, "edgebank": {"overall": {"ap": 0.8}}}
    >>> verdicts(scores, "dyrep", "overall")
    {'edgebank': {'ap': True}}
    """
    own = metrics.get(model, {}).get(part, {})
    found: dict[str, dict[str, bool]] = {}
    for baseline, scores in metrics.items():
        if baseline == model:
            continue
        found[baseline] = {}
        for name in METRICS:
            ours, theirs = own.get(name), scores.get(part, {}).get(name)
            if ours is not None and theirs is not None:
                found[baseline][name] = ours < theirs if name in LOWER_IS_BETTER else ours > theirs
    return found


def verdict_lines(metrics: Mapping[str, Any], model: str, part: str = "last_half") -> list[str]:
    """`verdicts` in words, a sentence a baseline."""
    lines = []
    for baseline, wins in verdicts(metrics, model, part).items():
        better = [name.upper() for name, won in wins.items() if won]
        behind = [name.upper() for name, won in wins.items() if not won]
        words = [f"{model} beats {baseline} on {', '.join(better)}"] if better else []
        words += [f"does not on {', '.join(behind)}"] if behind and better else []
        words += [f"{model} does not beat {baseline} on {', '.join(behind)}"] if not better else []
        lines.append(f"{PARTS.get(part, part)}: {'; '.join(words)}" if wins else "")
    return [line for line in lines if line]


def format_number(value: Any, name: str = "") -> str:
    """A score or count for reading; None is a dash.

    >>> format_number(0.98765, "ap"), format_number(1234567), format_number(None)
    ('0.9877', '1,234,567', '-')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and name not in (*METRICS, "loss"):
        return f"{value:,}"
    if name == "mar" or abs(value) >= 100:
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def _flatten(window: Mapping[str, Any]) -> dict[str, Any]:
    row = {
        key: value
        for key, value in window.items()
        if value is None or isinstance(value, int | float)
    }
    for baseline, scores in (window.get("baselines") or {}).items():
        row |= {f"{baseline}_{name}": value for name, value in scores.items()}
    return row
