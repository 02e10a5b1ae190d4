"""Do models learn more than baselines know that need no training?

Each log is trained on and predicted in one pass of windows, for each seed and model; the table
gives mean and standard deviation over the seeds for the last half of the events.  All scorers rank
the same candidates of the same events.  Baselines have no weights, but a seed draws other
candidates, so they too have a deviation.  DyRep is run in its published form and with the settings
that runs take, a bilinear intensity that drifts.

    python benchmarks/learning.py [--limit N] [--logs NAME ...] [--seeds N ...]

Answer (2026-11-30, seeds 0 to 2, 16 minutes of a busy core): TGN is best or level with the best on
all three logs but in MRR, where the last partner is (.974, .709 and .770 against .923, .694 and
.636).  DyRep as published loses to lookups everywhere; with the defaults of runs AP rises from
.586, .645 and .770 to .950, .814 and .886.  The table is in the README.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev
from typing import Any

from common import finish  # type: ignore  # beside this file

from neutronstream import TrainConfig, fit
from neutronstream.datasets import load

LOGS = ("social_evolution", "github", "uci")
METRICS = ("ap", "auc", "mrr", "hits@10", "mar")
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dyrep, published": ("dyrep", {"intensity": "linear", "drift": False}),
    "dyrep": ("dyrep", {}),
    "jodie": ("jodie", {}),
    "tgn": ("tgn", {}),
}
"""Name of a row: model, and options other than those of a run."""

Scores = dict[str, dict[str, list[float]]]
"""Scorer: metric: a value a seed."""


def collect(name: str, limit: int | None, seeds: list[int], form: str) -> Scores:
    """The scores of every scorer over the last half of a log, a value a seed."""
    model, options = FORMS[form]
    log = load(name, limit=limit)
    scores: Scores = {}
    for seed in seeds:
        config = TrainConfig(model=model, seed=seed, options=options)
        report = fit(log, config)
        took = report["throughput"]["seconds"]
        print(f"# {name} {form} seed {seed}: {len(log):,} events in {took:.0f} s", flush=True)
        for scorer, parts in report["metrics"].items():
            own = scores.setdefault(scorer, {metric: [] for metric in METRICS})
            for metric in METRICS:
                value = parts["last_half"][metric]
                own[metric].append(float("nan") if value is None else value)
    return scores


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation (0 for one value)."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--logs", nargs="+", default=list(LOGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    given = parser.parse_args()
    result: dict[str, Any] = {}
    for name in given.logs:
        for form in given.forms:
            scores = collect(name, given.limit, given.seeds, form)
            print(f"{name}, {form}, last half")
            print(f"  {'':16}" + "".join(f"{metric.upper():>17}" for metric in METRICS))
            rows = result[f"{name} {form}"] = {}
            for scorer, values in scores.items():
                rows[scorer] = {m: [round(x, 5) for x in summary(v)] for m, v in values.items()}
                cells = (f"{a:9.4f} ±{d:6.4f}" for a, d in rows[scorer].values())
                print(f"  {scorer:16}" + "".join(f"{cell:>17}" for cell in cells), flush=True)
    finish({"limit": given.limit, "seeds": given.seeds, "last_half": result})


if __name__ == "__main__":
    main()
