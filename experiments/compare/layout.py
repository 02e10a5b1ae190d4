"""What the tables of a comparison show, on the page and in the terminal alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report import METRICS, format_number, heading, scoring_line
from ..split import SETTINGS, STRATEGIES


@dataclass(frozen=True, slots=True)
class Grid:
    """One table of scores: rows are the rows of the comparison."""

    title: str
    columns: Sequence[tuple[str, str, str]]  # heading, part, metric
    groups: Sequence[tuple[str, int]] = ()  # headings above, with how many columns they span


def grids_of(protocol: str) -> list[Grid]:
    """The tables of a protocol, the one that counts first."""
    if protocol != "split":
        titles = {
            "last_half": "Scores, last half of the stream",
            "overall": "Scores, all events",
        }
        return [
            Grid(title, [(heading(metric), part, metric) for metric in METRICS])
            for part, title in titles.items()
        ]
    sets = [(setting, strategy) for setting in SETTINGS for strategy in STRATEGIES]
    groups = [(f"{setting.capitalize()}, negatives:", len(STRATEGIES)) for setting in SETTINGS]
    return [
        Grid(
            f"{words} {heading(metric)}",
            [(strategy, f"{part}_{setting}_{strategy}", metric) for setting, strategy in sets],
            groups,
        )
        for part, words in (("test", "Test"), ("val", "Validation"))
        for metric in ("ap", "auc")
    ]


def means_of(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Row, part, metric, mean: what the tables of one report show."""
    return {
        name: {
            part: {metric: found["mean"] for metric, found in scores.items()}
            for part, scores in parts.items()
        }
        for name, parts in comparison["metrics"].items()
    }


def scoring_words(comparison: Mapping[str, Any]) -> str:
    """What all figures depend on, in a line."""
    seeds, versions = comparison["seeds"], comparison["versions"]
    split: dict[str, Any] | None = {} if comparison["protocol"] == "split" else None
    words = [scoring_line({"ranking": comparison["scoring"], "split": split})]
    words.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    words += [f"{name} {versions[name]}" for name in ("neutronstream", "torch")]
    return "; ".join(words)


def trained(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that were trained."""
    return [row for row in comparison["rows"] if row["trained"]]


def short(value: Any) -> str:
    """A count or setting for a narrow column; a mean of counts with its fraction."""
    return f"{value:.3g}" if isinstance(value, float) else format_number(value)
