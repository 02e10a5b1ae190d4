"""What is left of a run: report.json, metrics.parquet and report.html in the run's folder.

Everything written is a function of the report alone (no clock, no path, no random id), strict JSON
(a number that is not finite becomes null), and replaces an older file in one step.  report.json is
written last: where it stands, the others do, and the run is finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METRICS = ("ap", "auc", "mrr", "hits@10", "mar")
"""The scores of the table, in its order."""

PARTS = {"overall": "overall", "last_half": "last half"}
"""The parts of the stream that are scored, with the words for them."""

SPLIT_METRICS = ("ap", "auc", "ap_batch_mean")
"""The same of the protocol "split"."""

SPLIT_PARTS = {
    f"{part}_{setting}_{strategy}": f"{words}, {setting}, {strategy} negatives"
    for part, words in (("test", "test"), ("val", "validation"))
    for setting in ("transductive", "inductive")
    for strategy in ("random", "historical", "inductive")
}
"""The parts of a split, each against negatives of one strategy, with the words for them."""

LOWER_IS_BETTER = frozenset({"mar", "loss"})

_SCORES = tuple(dict.fromkeys((*METRICS, *SPLIT_METRICS)))
_COUNTS = ("start", "stop", "test_start", "events", "epoch")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the tables of a report show."""

    parts: Mapping[str, str]  # name to words
    metrics: Sequence[str]
    headline: str  # the part that verdicts are about
    tiles: Sequence[tuple[str, str]]  # (part, metric) of the largest figures


def layout_of(report: Mapping[str, Any]) -> Layout:
    """The layout of a report: that of its protocol."""
    if (report.get("config") or {}).get("protocol") == "split":
        first = "test_transductive_random"
        tiles = [(first, "ap"), ("test_inductive_random", "ap")]
        return Layout(SPLIT_PARTS, SPLIT_METRICS, first, tiles)
    return Layout(PARTS, METRICS, "last_half", [("last_half", "ap"), ("last_half", "mrr")])


def heading(metric: str) -> str:
    """A metric's name over its column."""
    return "AP by batch" if metric == "ap_batch_mean" else metric.upper()


def scoring_line(report: Mapping[str, Any]) -> str:
    """What the figures depend on, in a line; empty if the report does not say."""
    ranking, split = report.get("ranking") or {}, report.get("split")
    against = ranking.get("candidates")
    if against is None:
        return ""
    if split is not None:
        pool = "against one negative pair an event and strategy"
    else:
        most = "all" if against == "all" else f"at most {against}"
        pool = f"against {most} known destinations, each once"
    words = [pool, f"ties: {ranking.get('tie_rule', 'average rank')}"]
    if (negatives := ranking.get("negatives")) is not None:
        words.append(f"negatives in the loss: {negatives}")
    if (size := ranking.get("batch_size")) is not None:
        words.append(f"batches of {size}, {ranking.get('consistency', 'exact')}")
    if (checksum := ranking.get("data_checksum")) is not None:
        words.append(f"data {checksum[:12]}")
    return f"scored {'; '.join(words)}"


def write_report(
    folder: str | Path,
    report: Mapping[str, Any],
    page: Callable[[Mapping[str, Any]], str] | None = None,
) -> None:
    """Writes metrics.parquet, report.html and at last report.json into `folder`.

    metrics.parquet has a row a window or, where the report has `epochs`, an epoch.  `page` makes
    the HTML of the report in plain types; by default it is that of a run of `train`.

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
    epochs = plain.get("epochs")
    table = window_table(plain.get("windows") or []) if epochs is None else epoch_table(epochs)
    pq.write_table(table, sink, compression="zstd")
    write_whole(folder / "metrics.parquet", sink.getvalue().to_pybytes())
    write_whole(folder / "report.html", (page or render_page)(plain).encode())
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
    first = ("start", "stop", "test_start", "events", "loss", *METRICS)
    return _table([_flatten(window) for window in windows], first)


def epoch_table(epochs: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The epochs as a table, a row each."""
    return _table([_flatten(epoch) for epoch in epochs], ("epoch", "train_loss", "val_ap"))


def _table(rows: Sequence[Mapping[str, Any]], first: Sequence[str]) -> pa.Table:
    names = list(dict.fromkeys((*first, *(key for row in rows for key in row))))
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
    for name in _SCORES:
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
        for name in _SCORES:
            ours, theirs = own.get(name), scores.get(part, {}).get(name)
            if ours is not None and theirs is not None:
                found[baseline][name] = ours < theirs if name in LOWER_IS_BETTER else ours > theirs
    return found


def verdict_lines(metrics: Mapping[str, Any], model: str, part: str = "last_half") -> list[str]:
    """`verdicts` in words, a sentence a baseline."""
    lines = []
    for baseline, wins in verdicts(metrics, model, part).items():
        better = [heading(name) for name, won in wins.items() if won]
        behind = [heading(name) for name, won in wins.items() if not won]
        words = [f"{model} beats {baseline} on {', '.join(better)}"] if better else []
        words += [f"does not on {', '.join(behind)}"] if behind and better else []
        words += [f"{model} does not beat {baseline} on {', '.join(behind)}"] if not better else []
        where = (PARTS | SPLIT_PARTS).get(part, part)
        lines.append(f"{where}: {'; '.join(words)}" if wins else "")
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
    if isinstance(value, int) and name not in (*_SCORES, "loss"):
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
