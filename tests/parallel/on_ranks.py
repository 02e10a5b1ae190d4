"""The same small runs over all ranks and on one; rank 0 compares them and prints a line of JSON.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/on_ranks.py

`test_ranks.py` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import torch

from neutronstream.models import DynamicGNN, build
from neutronstream.models.threads import using_threads
from neutronstream.parallel import Comm, FusedExecutor, LevelExecutor, fused
from neutronstream.parallel.comm import connect
from neutronstream.parallel.costs import Costs
from neutronstream.stream import EventLog
from tests import devices
from tests.data import real_log
from tests.naive import random_log
from tests.parallel.runs import Run, run

LOGS = {
    "random": random_log(3, 100, 20, kinds=("AE", "talk"), num_initial=20),
    "few": random_log(4, 3, 40),  # fewer events than ranks
    "loose": random_log(5, 90, 400, hub=0.0),  # most events hang together with no other
}
MODELS = ("dygnn", "dyrep", "jodie", "ldg", "tgn")


def new_model(name: str, log: EventLog) -> DynamicGNN:
    return build(name, width=6, kinds=log.kinds)


def difference(ranks: Comm, log: EventLog, name: str, executor: str) -> dict[str, Any]:
    """How far a run over all ranks is from one that each makes for itself."""
    settings: dict[str, Any] = {"learning_rate": 0.01, "size": 40, "num_candidates": 3}
    with using_threads(1):
        alone = run(log, partial(new_model, name, log), executor, **settings)
    ours = run(log, partial(new_model, name, log), executor, comm=ranks, **settings)
    worst = max(
        float((value - ours.values[key]).abs().max()) / max(1.0, float(value.abs().max()))
        for key, value in alone.values.items()
        if value.numel()
    )
    return {"worst": worst, "bits": checksum(ours)}


def checksum(found: Run) -> str:
    """Differs if any bit does, nearly always."""
    total = torch.stack([v.double().sum() for v in found.values.values()]).sum()
    return float(total).hex()


def main() -> None:
    torch.set_num_threads(1)
    which = sys.argv[1] if len(sys.argv) > 1 else "levels"
    models = sys.argv[2].split(",") if len(sys.argv) > 2 else MODELS
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 1  # of each rank
    LOGS["uci"] = real_log("uci", 150)
    free = Costs(event=1.0, message=0.0, byte=0.0)  # so that all that can be shared is
    LevelExecutor.costs = FusedExecutor.costs = free
    vars(fused)["threaded"] = lambda width: free
    device = devices.use(sys.argv[4]) if len(sys.argv) > 4 else "cpu"
    with connect(os.environ, device=device) as ranks, using_threads(threads):
        found = {
            f"{name} {model}": difference(ranks, log, model, which)
            for name, log in LOGS.items()
            for model in models
        }
        everywhere = ranks.gather_objects(found, "test")
        traffic = {purpose: [t.sent, t.received] for purpose, t in ranks.bytes.items()}
        moved = ranks.gather_objects(traffic, "test")
    if ranks.rank == 0:
        worst = max((one["worst"], name) for each in everywhere for name, one in each.items())
        same = all(
            each[name]["bits"] == one["bits"] for each in everywhere for name, one in found.items()
        )
        print(json.dumps({"ranks": ranks.size, "worst": worst, "same": same, "moved": moved}))


if __name__ == "__main__":
    main()
