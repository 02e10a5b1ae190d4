"""What a comparison comes to: means and deviations over the seeds, wins, curves; as data.

Everything is a function of the reports of the runs.  A figure is compared with that of a baseline
seed by seed, since both were found on the same events against the same candidates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ...storage import write_whole
from ..charts import Point, legible, thin
from ..config import TrainConfig
from ..report import LOWER_IS_BETTER, to_json, to_plain
from .page import render_comparison

Report: TypeAlias = Mapping[str, Any]

_MOST_POINTS = 60


def make_comparison(
    reports: Mapping[str, Sequence[Report]],
    own: Mapping[str, Mapping[str, Any]],
    baselines: Sequence[str],
    config: TrainConfig,
) -> dict[str, Any]:
    """The comparison that the `reports` of each row, one a seed, come to; in JSON's types.

    `own` are the settings of each row that the others need not share, `config` the shared ones.

    Raises:
        ValueError: if two runs of a seed did not score the baselines alike.
    """
    first = next(iter(reports.values()))
    known = [name for name in first[0]["metrics"] if name != first[0]["config"]["model"]]
    _check_alike(reports, known)
    found = {
        name: [report["metrics"][report["config"]["model"]] for report in rows]
        for name, rows in reports.items()
    } | {name: [report["metrics"][name] for report in first] for name in baselines}
    shared = config.model_dump()
    return to_plain(  # type: ignore[no-any-return]
        {
            "log": first[0]["log"],
            "protocol": config.protocol,
            "seeds": [report["config"]["seed"] for report in first],
            "rows": [_describe(name, rows, own[name]) for name, rows in reports.items()]
            + [{"name": name, "trained": False} for name in baselines],
            "metrics": {name: _over_seeds(figures) for name, figures in found.items()},
            "wins": {
                name: {rival: _wins(found[name], found[rival]) for rival in baselines}
                for name in reports
            },
            "times": _times(reports),
            "curves": _curves(reports, baselines),
            "scoring": {k: v for k, v in first[0]["ranking"].items() if k not in _OF_A_ROW},
            "counts": first[0]["counts"],
            "config": {name: v for name, v in shared.items() if name not in ("model", "seed")},
            "versions": first[0]["versions"],
            "notes": _notes(reports),
        }
    )


_OF_A_ROW = ("batch_size", "consistency", "negatives")


def _check_alike(reports: Mapping[str, Sequence[Report]], baselines: Sequence[str]) -> None:
    """Refuses runs that did not score the same events against the same candidates."""
    first = next(iter(reports.values()))
    for rows in reports.values():
        for one, other in zip(first, rows, strict=True):
            for baseline in baselines:
                if one["metrics"][baseline] != other["metrics"].get(baseline):
                    raise ValueError(
                        f"{one['folder']} and {other['folder']} were not scored on the same events "
                        f"and candidates: the figures of {baseline} differ; --force (in Python "
                        "`force=True`) runs them again"
                    )


def _describe(name: str, reports: Sequence[Report], own: Mapping[str, Any]) -> dict[str, Any]:
    """A trained row: with what it was trained, and how fast."""
    first = reports[0]
    speeds = [report["throughput"]["train_events_per_second"] for report in reports]
    passes = {"windows": len(first["windows"]), "epochs": first["config"]["epochs"]}
    if first.get("epochs") is not None:  # a split: they stop early
        passes = {"epochs": statistics.fmean(len(report["epochs"]) for report in reports)}
    return {
        "name": name,
        "trained": True,
        "model": first["config"]["model"],
        "settings": dict(own),
        **{key: first["ranking"][key] for key in _OF_A_ROW},
        **passes,
        "train_events_per_second": spread(speeds),
        "seconds": spread([report["throughput"]["seconds"] for report in reports]),
        "folders": [report["folder"] for report in reports],
    }


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and the values; None for both where one is missing.

    The deviation is that of a sample, so that one value has none.

    >>> spread([0.5, 0.75])
    {'mean': 0.625, 'std': 0.1767766952966369, 'values': [0.5, 0.75]}
    """
    known = [value for value in values if value is not None]
    whole = bool(known) and len(known) == len(values)
    return {
        "mean": statistics.fmean(known) if whole else None,
        "std": statistics.stdev(known) if whole and len(known) > 1 else None,
        "values": list(values),
    }


def _over_seeds(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Part, metric, then the spread over the seeds."""
    return {
        part: {metric: spread([f[part].get(metric) for f in figures]) for metric in scores}
        for part, scores in figures[0].items()
    }


def _wins(own: Sequence[Mapping[str, Any]], rival: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Part, metric, then in how many seeds `own` is strictly better than `rival`."""
    wins: dict[str, dict[str, int]] = {}
    for part, scores in rival[0].items():
        wins[part] = {}
        for metric in scores:
            if metric == "events":
                continue
            sign = -1 if metric in LOWER_IS_BETTER else 1
            pairs = [
                (a[part].get(metric), b[part].get(metric)) for a, b in zip(own, rival, strict=True)
            ]
            wins[part][metric] = sum(
                sign * a > sign * b for a, b in pairs if a is not None and b is not None
            )
    return wins


def _times(reports: Mapping[str, Sequence[Report]]) -> dict[str, Any]:
    """Predictor, part, metric, spread: of the rows that expect times, and the trivial ones."""
    found: dict[str, Any] = {}
    trivial: dict[str, Any] = {}
    for name, rows in reports.items():
        if all(report.get("times") for report in rows):
            model = rows[0]["config"]["model"]
            own = {model: name, "calibrated": f"{name}, calibrated"}
            every = {
                who: _over_seeds([report["times"][who] for report in rows])
                for who in rows[0]["times"]
            }
            found |= {own[who]: spread for who, spread in every.items() if who in own}
            trivial = {who: spread for who, spread in every.items() if who not in own}
    return found | trivial


def _notes(reports: Mapping[str, Sequence[Report]]) -> list[str]:
    """What the runs noticed, each sentence once."""
    every = (note for rows in reports.values() for report in rows for note in report["notes"])
    return list(dict.fromkeys(every))


# -- over the stream, over the epochs --------------------------------------------------------------


def _curves(
    reports: Mapping[str, Sequence[Report]], baselines: Sequence[str]
) -> dict[str, dict[str, list[Point]]]:
    """Metric, row, then points (x, mean over the seeds).

    x is a position in the stream; on a split it is the epoch, and the metric validation AP.
    """
    first = next(iter(reports.values()))
    if first[0].get("epochs") is not None:
        return {"val_ap": {name: _over_epochs(rows) for name, rows in reports.items()}}
    curves: dict[str, dict[str, list[Point]]] = {}
    for metric in ("ap", "mrr"):
        lines = {name: _over_windows(rows, _own(metric)) for name, rows in reports.items()}
        curves[metric] = lines | {
            name: _over_windows(first, _of(name, metric)) for name in baselines
        }
    return curves


def _own(metric: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda window: window[metric]


def _of(baseline: str, metric: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda window: window["baselines"][baseline][metric]


def _over_windows(
    reports: Sequence[Report], value_of: Callable[[Mapping[str, Any]], Any]
) -> list[Point]:
    """The mean of the seeds, window by window, with no more points than can be read."""
    points: list[Point] = []
    weights: list[float] = []
    for windows in zip(*(report["windows"] for report in reports), strict=True):
        points.append((windows[0]["test_start"], _mean([value_of(window) for window in windows])))
        weights.append(windows[0]["events"])
    return thin(points, weights, legible(weights, _MOST_POINTS))


def _over_epochs(reports: Sequence[Report]) -> list[Point]:
    """The mean validation AP of the seeds that got to each epoch."""
    most = max(len(report["epochs"]) for report in reports)
    return [
        (n + 1, _mean([r["epochs"][n]["val_ap"] for r in reports if n < len(r["epochs"])]))
        for n in range(most)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# -- files -----------------------------------------------------------------------------------------


def write_comparison(folder: Path, comparison: Mapping[str, Any]) -> None:
    """Writes compare.parquet, compare.html and at last compare.json into `folder`.

    Raises:
        OSError: if a file cannot be written, for instance on a full disk; it is named.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(figure_table(comparison), sink, compression="zstd")
    write_whole(folder / "compare.parquet", sink.getvalue().to_pybytes())
    write_whole(folder / "compare.html", render_comparison(comparison).encode())
    write_whole(folder / "compare.json", (to_json(comparison) + "\n").encode())


_COUNTS = ("seed", "batch_size", "negatives", "windows")
_NUMBERS = ("value", "epochs")


def figure_table(comparison: Mapping[str, Any]) -> pa.Table:
    """A row a figure of a run, with what it depends on beside it."""
    scoring = comparison["scoring"]
    rows: list[dict[str, Any]] = []
    for row in comparison["rows"]:
        beside = {key: row.get(key) for key in (*_OF_A_ROW, "windows", "epochs")}
        beside |= {
            "log": comparison["log"],
            "data_checksum": scoring["data_checksum"],
            "protocol": comparison["protocol"],
            "candidates": str(scoring["candidates"]),
            "tie_rule": scoring["tie_rule"],
            "version": comparison["versions"]["neutronstream"],
        }
        for part, scores in comparison["metrics"][row["name"]].items():
            for metric, found in scores.items():
                for seed, value in zip(comparison["seeds"], found["values"], strict=True):
                    figure = {"name": row["name"], "part": part, "metric": metric}
                    rows.append({**figure, "seed": seed, "value": value, **beside})
    kinds = dict.fromkeys(_COUNTS, pa.int64()) | dict.fromkeys(_NUMBERS, pa.float64())
    return pa.table(
        {name: pa.array([r[name] for r in rows], kinds.get(name, pa.string())) for name in rows[0]}
    )
