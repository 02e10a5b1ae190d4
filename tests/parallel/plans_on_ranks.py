"""Runs that are planned first: every rank counts its bytes, and rank 0 prints both for all models.

    PYTHONPATH=src:. mpiexec -n 2 python tests/parallel/plans_on_ranks.py

`test_explain.py` starts it.
"""

from __future__ import annotations

import json
import os
from dataclasses import astuple
from typing import Any

import torch

from neutronstream.models import build
from neutronstream.parallel import EXECUTORS, Replay
from neutronstream.parallel.comm import connect
from neutronstream.parallel.explain import Supposed, adds_to_losses, plan_segment
from neutronstream.parallel.ranks import Comm
from tests.naive import random_log

RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tgn": ("tgn", "fused", {}),
    "dyrep": ("dyrep", "fused", {}),
    "dyrep by levels": ("dyrep", "levels", {}),
    "dygnn by levels": ("dygnn", "levels", {}),
    "jodie by distance": ("jodie", "auto", {"decoder": "distance"}),
}
"""Name: model, executor and options; among them penalties, values on links and derived states."""


def counted(comm: Comm, name: str) -> dict[str, list[int]]:
    """Calls of this rank, bytes sent and received of one training step, by purpose."""
    replay, executor = _start(name, comm)
    comm.bytes.clear()
    outcome = executor.run(executor.prepare(replay.resolve(0, len(replay.log))))
    outcome.losses.mean().backward()
    executor.add_up_gradients()
    return {purpose: list(astuple(traffic)) for purpose, traffic in comm.bytes.items()}


def planned(name: str, ranks: int) -> tuple[bool, dict[str, list[int]]]:
    """Whether updates are shared, and the same of all ranks, foreseen by one."""
    replay, executor = _start(name, None)
    has_penalty = adds_to_losses(replay)
    plan = executor.prepare(replay.resolve(0, len(replay.log)))
    found = plan_segment(executor, plan, ranks, has_penalty=has_penalty)
    return found.is_shared, {purpose: list(astuple(t)) for purpose, t in found.traffic.items()}


def _start(name: str, comm: Comm | None) -> tuple[Replay, Any]:
    model, executor, options = RUNS[name]
    log = random_log(3, 60, 150, kinds=("AE", "talk"))  # few events meet
    torch.manual_seed(0)
    replay = Replay(log, build(model, width=8, kinds=log.kinds, options=options), comm=comm)
    return replay, EXECUTORS[executor](replay)


def main() -> None:
    torch.set_num_threads(1)
    with connect(os.environ) as comm:
        for name in RUNS:
            real = counted(comm, name)
            alike = counted(Supposed(comm.rank, comm.size), name) == real
            every = comm.gather_objects([real, alike], "test")
            if comm.rank == 0:
                shared, plan = planned(name, comm.size)
                print(json.dumps({"name": name, "shared": shared, "plan": plan, "every": every}))


if __name__ == "__main__":
    main()
