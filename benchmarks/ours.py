"""One of our models as the benchmarks of speed train it: a step is what its peers' steps are."""

from __future__ import annotations

from typing import Any

import torch
from peers import WIDTH  # type: ignore  # beside this file

from neutronstream.models import build
from neutronstream.parallel import EXECUTORS, Executor, Replay
from neutronstream.stream import EventLog


class Ours:
    """One of our models over a log."""

    def __init__(self, log: EventLog, name: str, consistency: str = "exact") -> None:
        torch.manual_seed(0)
        width = WIDTH if name == "tgn" else 64
        options = {"time_from": "neighbor"} if name == "tgn" else {}  # as torch_geometric has it
        model = build(name, width=width, kinds=log.kinds, options=options)
        self.replay = Replay(log, model, consistency=consistency)  # type: ignore[arg-type]
        kind = "batch" if consistency == "batch" else "auto"
        self.executor: Executor[Any] = EXECUTORS[kind](self.replay)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step(self, start: int, stop: int) -> None:
        """Learn these events."""
        plan = self.executor.prepare(self.replay.resolve(start, stop))
        self.optimiser.zero_grad()
        outcome = self.executor.run(plan)
        outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.replay.model.constrain()
        outcome.commit()
