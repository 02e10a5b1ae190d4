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

Answer (30 November 2026; --epochs 20 for uci and enron, 10 bitcoinotc, 12 chickenpox and twitter,
25 england_covid; one seed, settings not searched for).  The loss falls in every run.  Test AP:

                 persistence edgebank popularity  gconvgru gclstm  tgcn a3tgcn mpnn  evolve-o -h
    uci               0.603    0.733      0.759      0.879  0.871 0.881  0.881 0.885    0.855 0.853
    enron             0.723    0.814      0.616      0.822  0.785 0.741  0.730 0.776    0.716 0.705
    bitcoinotc        0.500    0.500      0.856      0.931  0.929 0.927  0.928 0.935    0.910 0.909

Test squared error of values, lower is better:

                 persistence     mean             gconvgru gclstm  tgcn a3tgcn mpnn  evolve-o -h
    chickenpox        2.441    0.878                 0.624  0.628 0.823  0.806 0.784    0.712 0.711
    england_covid     0.488    1.010                 0.366  0.351 0.339  0.369 0.339    0.353 0.429
    twitter_rg17      0.562    0.733                 0.416  0.415 0.454  0.481 0.413    0.439 0.444

Persistence is beaten everywhere but on enron by the two EvolveGCNs, whose rows carry no memory of
a pair; there, where people write to whom they wrote before, only GConvGRU beats EdgeBank.  Four
ranks over `tensor` and one process are apart by at most 4e-16 in the first epoch's loss and by
nothing in the test score, on all six sets; work is even to the column.
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
from neutronstream.parallel.ranks import Comm

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
