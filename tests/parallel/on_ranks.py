"""The same small run on every rank; rank 0 compares all of them and prints one line of JSON.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/on_ranks.py

`test_ranks.py` starts it.  Nothing here depends on the rank, so every bit must be the same.
"""

from __future__ import annotations

import json
from functools import partial

import torch
from mpi4py import MPI

from neutronstream.models import DyRep
from tests.data import real_log
from tests.naive import random_log
from tests.parallel.runs import Run, run


def small_runs() -> dict[str, Run]:
    """One run by name: two kinds, self loops, ties and initial links; and a real log."""
    log = random_log(3, 100, 20, kinds=("AE", "talk"), num_initial=20)
    uci = real_log("uci", 150)
    options = {"learning_rate": 0.01, "size": 60, "num_candidates": 3}
    return {
        "random": run(log, partial(DyRep, 8, log.kinds), "levels", **options),  # type: ignore[arg-type]
        "uci": run(uci, partial(DyRep, 8), "levels", dtype=torch.float32, **options),  # type: ignore[arg-type]
    }


def main() -> None:
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    found = small_runs()
    everywhere = world.gather({name: one.values for name, one in found.items()})
    if everywhere is not None:  # rank 0
        same = all(
            Run(values[name]).equals(one) for values in everywhere for name, one in found.items()
        )
        losses = {name: one.values["losses"].double().sum().item() for name, one in found.items()}
        print(json.dumps({"ranks": len(everywhere), "same": same, "losses": losses}))


if __name__ == "__main__":
    main()
