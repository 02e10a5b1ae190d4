"""The 70/15/15 protocol of DGB and DyGLib: how do our models compare with the published figures?

Chronological split, 10 % of the later nodes kept out of training, early stopping on validation AP,
one test with the best weights; negatives random, historical and inductive (docs/protocols.md).  The
published figures are average precision, transductive, random negatives, mean over five seeds, of Yu
et al., "Towards Better Dynamic Graph Learning: New Architecture and Unified Library", NeurIPS 2023
(the table was quoted from memory, and not seen again when this was run).  What differs: their
models see a batch of 200 events late, ours (`--consistency exact`) see every earlier event; their
wikipedia has 172 text features, ours none; their Social Evo. has 2,099,519 events, ours is the
54,369 events of DyRep's authors, so that only its own columns can be compared.  EdgeBank too sees
every earlier event here: told of a batch only after it, it gives 0.764 on uci and 0.910 on
wikipedia, which are the published 0.762 and 0.904.

    python benchmarks/protocols.py [--logs NAME ...] [--models NAME ...] [--seeds N ...]

States are those that training left, as in the published figures, or with `--evaluate-from replay`
those that the held weights give to the whole log.

Answer (2026-11-30): above the published figures on uci (tgn 93.7, jodie 95.6, dyrep 92.8) and on
enron (92.2, 95.4, 92.8); on wikipedia a point below for tgn (97.7) and jodie (95.3), ten for dyrep
(85.0), which is another model there.  Without its drift dyrep has 77.4 on uci and 60.2 on enron.
The whole table, and why, is in docs/protocols.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any

from common import finish  # type: ignore  # beside this file

from neutronstream import TrainConfig, fit
from neutronstream.datasets import load

PUBLISHED = {
    "uci": {"jodie": 0.8943, "dyrep": 0.6514, "tgn": 0.9234, "edgebank": 0.7620},
    "enron": {"jodie": 0.8477, "dyrep": 0.8238, "tgn": 0.8653, "edgebank": 0.8353},
    "wikipedia": {"jodie": 0.9650, "dyrep": 0.9486, "tgn": 0.9845, "edgebank": 0.9037},
}
MODELS = ("jodie", "dyrep", "tgn")
LEARNING_RATES = {
    "jodie": 1e-3,
    "tgn": 1e-3,
    "dyrep": 2e-4,
}  # by validation; DyRep's is its authors'
BASELINES = ("edgebank", "edgebank_window")
COLUMNS = tuple(
    f"test_{nodes}_{negatives}"
    for nodes in ("transductive", "inductive")
    for negatives in ("random", "historical", "inductive")
)


def run(name: str, model: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """AP of the model and of EdgeBank in every column, of one seed."""
    kept = Path(given.keep) / f"{name}-{model}-{seed}.json" if given.keep else None
    if kept is not None and kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    config = TrainConfig(
        protocol="split",
        model=model,
        seed=seed,
        epochs=given.epochs,
        patience=given.patience,
        batch_size=200,
        learning_rate=LEARNING_RATES[model],
        consistency=given.consistency,
        evaluate_from=given.evaluate_from,
    )
    began = perf_counter()
    report = fit(load(name), config)
    scores = {
        scorer: {column: report["metrics"][scorer][column]["ap"] for column in COLUMNS}
        for scorer in (model, *BASELINES)
    }
    epochs = report["epochs"]
    took = perf_counter() - began
    print(f"# {name} {model} seed {seed}: {len(epochs)} epochs, {took:.0f} s", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(scores))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--logs", nargs="+", default=["uci", "enron", "wikipedia", "social_evolution"]
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--consistency", default="exact", choices=["exact", "batch"])
    parser.add_argument("--evaluate-from", default="trained", choices=["trained", "replay"])
    parser.add_argument("--keep", help="a folder where the scores of finished runs are kept")
    given = parser.parse_args()
    result: dict[str, Any] = {}
    names = [column.removeprefix("test_") for column in COLUMNS]
    for name in given.logs:
        print(f"{name:18}{'published':>10}" + "".join(f"{n:>26}" for n in names))
        rows: dict[str, list[dict[str, float]]] = {}
        for model in given.models:
            for seed in given.seeds:
                for scorer, scores in run(name, model, seed, given).items():
                    rows.setdefault(scorer, []).append(scores)
        for scorer, seeds in rows.items():
            line, own = "", {}
            for column in COLUMNS:
                values = [scores[column] for scores in seeds if scores[column] is not None]
                spread = stdev(values) if len(values) > 1 else 0.0
                own[column] = [round(mean(values), 4), round(spread, 4)] if values else None
                line += f"{mean(values):>17.4f} +- {spread:.4f}" if values else f"{'-':>26}"
            published = PUBLISHED.get(name, {}).get(scorer)
            result[f"{name} {scorer}"] = {"published": published, **own}
            print(f"  {scorer:16}{published or '-':>10}{line}", flush=True)
    settings = {
        k: getattr(given, k) for k in ("epochs", "patience", "consistency", "evaluate_from")
    }
    finish({**settings, "batch": 200, **result}, seed=given.seeds[0])


if __name__ == "__main__":
    main()
