"""Do recurrent models learn real snapshots, and beat what needs no training?

    python benchmarks/snapshot_models.py [--sets uci ...] [--models gconvgru ...] [--epochs N]
        [--agree]
    mpiexec -n 4 python benchmarks/snapshot_models.py --agree

Links of three logs (AP against one negative a pair, by 40 snapshots of equal events, uci by weeks)
and values of three signals (squared error in deviations of the training part, from four lags).
Snapshots are split 70/15/15 in time; weights of the best validation epoch are tested once.  The
same settings for all: width 32 (chickenpox, of 20 nodes, 16), Adam 0.01, 8 snapshots a step, seed
0; `skip` for EvolveGCN, whose rows alone tell little of who a node is.  With --agree one epoch of
float64 is run on the ranks it is started with, over `tensor`, and its losses and scores compared
with one process alone.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from common import finish  # type: ignore  # beside this file

from neutronstream.experiments import SnapshotConfig, fit_snapshots
from neutronstream.experiments.guard import ranks
from neutronstream.experiments.snapshots.data import open_data
from neutronstream.parallel.comm import Comm

SETS: dict[str, dict[str, Any]] = {
    "uci": {"period": "7d"},
    "enron": {"count": 40},
    "bitcoinotc": {"count": 40},
    "chickenpox": {},
    "england_covid": {},
    "twitter_tennis_rg17": {},
}
MODELS = ("gconvgru", "gclstm", "tgcn", "a3tgcn", "mpnnlstm", "evolvegcno", "evolvegcnh")


def settings(name: str, model: str, **given: Any) -> SnapshotConfig:
    """Those of a set and a model; EvolveGCN-H has as many columns as it reads nodes."""
    width = 16 if name == "chickenpox" else 32  # of 20 nodes
    evolves = model.startswith("evolve")
    return SnapshotConfig(model=model, width=width, skip=evolves, **SETS[name], **given)


def row(name: str, model: str, epochs: int) -> dict[str, Any]:
    """What a model has reached on a set, and each baseline."""
    report = fit_snapshots(name, settings(name, model, epochs=epochs, patience=10))
    metric, metrics = report["metric"], report["metrics"]
    own = metrics.pop(model)["test"][metric]
    rivals = {rival: scores["test"][metric] for rival, scores in metrics.items()}
    losses = [epoch["train_loss"] for epoch in report["epochs"]]
    found = {
        "set": name,
        "model": model,
        "loss": [round(losses[0], 4), round(min(losses), 4)],
        "metric": metric,
        "own": round(own, 4),
        "baselines": {rival: round(score, 4) for rival, score in rivals.items()},
        "learns": min(losses) < losses[0],
        "loses_to": [
            rival
            for rival, score in rivals.items()
            if (own <= score if report["higher_is_better"] else own >= score)
        ],
        "epochs": len(losses),
        "seconds_an_epoch": round(report["throughput"]["train_seconds_an_epoch"], 3),
    }
    print(found, flush=True)
    return found


def apart(name: str, comm: Comm) -> dict[str, Any]:
    """How far one epoch on these ranks is from one process alone."""
    given = settings(name, "gconvgru", epochs=1, dtype="float64")
    data = open_data(name, given)
    config = given.model_copy(update={"backend": "tensor" if comm.size > 1 else "single"})
    report = fit_snapshots(data, config, comm=comm)
    if comm.rank:
        return {}
    alone = fit_snapshots(data, given)
    losses = [r["epochs"][0]["train_loss"] for r in (report, alone)]
    scores = [r["metrics"]["gconvgru"]["test"][report["metric"]] for r in (report, alone)]
    found = {
        "set": name,
        "loss_apart": abs(losses[0] - losses[1]),
        "score_apart": abs(scores[0] - scores[1]),
        "bytes": int(report["throughput"]["bytes_an_epoch"]),
        "work_imbalance": report["balance"]["work"]["imbalance"],
    }
    print(found, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--agree", action="store_true")
    given = parser.parse_args(arguments)
    if given.agree:
        with ranks(os.environ) as comm:
            rows = [apart(name, comm) for name in given.sets]
            if comm.rank == 0:
                finish({"benchmark": "snapshot_models", "ranks": comm.size, "rows": rows}, seed=0)
        return
    rows = [row(name, model, given.epochs) for name in given.sets for model in given.models]
    finish({"benchmark": "snapshot_models", "rows": rows}, seed=0)


if __name__ == "__main__":
    main()
