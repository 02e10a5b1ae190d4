"""Lazy training of the snapshots of a dynamic graph, a window at a time.

The snapshots of a window are trained together: one exchange a stage for all of them.  Between
trainings the weights are frozen, and rows cross only where something has changed; when the newest
window is predicted badly the last stage is trained again, which needs no row, and if that does not
help, all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ....storage.counter import uniform
from ....storage.snapshot import Snapshot
from ...ranks import ALONE, Comm
from ..ownership import Ownership
from .asked import link_parts
from .delta import DeltaHalo
from .engine import LazyTrainer
from .part import Part
from .settings import LazySettings
from .stages import Stage

Act = Literal["none", "top", "all"]


@dataclass
class Drift:
    """When to train again: a loss above `1 + tolerance` times the mean so far, or every `period`
    windows."""

    tolerance: float = 0.1
    period: int | None = None
    windows: int = 0
    mean: float = 0.0  # of the losses that were good enough

    def is_bad(self, loss: float) -> bool:
        """Whether a loss is too far above the mean of the earlier ones."""
        return self.windows > 0 and not loss <= (1 + self.tolerance) * self.mean

    def is_due(self) -> bool:
        """Whether this window is one of those at which everything is trained."""
        return self.windows == 0 or (self.period is not None and self.windows % self.period == 0)

    def see(self, loss: float) -> None:
        """Takes note of the loss that a window was left with."""
        self.windows += 1
        self.mean += (loss - self.mean) / self.windows


class LazyWindows:
    """Trains on one window after the other; every rank does the same steps."""

    def __init__(
        self,
        settings: LazySettings,
        comm: Comm = ALONE,
        *,
        eps: float = 0.0,
        drift: Drift | None = None,
        top_rounds: int | None = None,
    ) -> None:
        self.settings, self.comm = settings, comm
        self.drift = drift or Drift()
        self.delta = DeltaHalo(eps)
        self.trainer: LazyTrainer | None = None  # of the newest window
        self._top_rounds = top_rounds
        self._stages: list[Stage] | None = None

    def step(self, parts: Sequence[Part], *, late: Collection[int] = ()) -> Act:
        """Takes in a window, this rank's part of each snapshot; says what was trained for it.

        The rows of `late` ranks do not come in time, as all ranks agree: the last ones that did
        stand for them, and `trainer.stale` counts them.
        """
        due = self._stages is None or self.drift.is_due()
        trainer = self.open(parts, adopt=not due, late=late)
        act: Act = "all" if due else "none"
        if not due and self.drift.is_bad(trainer.loss()):
            act = "top"
            trainer.train_stage(len(trainer.stages) - 1, rounds=self._top_rounds)
            if self.drift.is_bad(trainer.loss()):
                act = "all"
        if act == "all":
            trainer.train()
        self._stages = trainer.stages
        self.drift.see(trainer.loss())
        return act

    def open(
        self, parts: Sequence[Part], *, adopt: bool = True, late: Collection[int] = ()
    ) -> LazyTrainer:
        """A window's trainer with the weights so far.

        To `adopt` them is to work out what they give here: rows cross where they have changed.
        """
        part = Part.of_window(parts)
        self.trainer = LazyTrainer(part, self.settings, self.comm, delta=self.delta, late=late)
        if self._stages is not None and adopt:
            self.trainer.adopt(self._stages)
        elif self._stages is not None:
            self.trainer.begin_from(self._stages)
        return self.trainer


def link_trainer(
    snapshots: Sequence[Snapshot],
    settings: LazySettings,
    comm: Comm = ALONE,
    *,
    ownership: Ownership | None = None,
    names: int = 32,
    undirected: bool = False,
    val_ratio: float = 0.15,
    test_ratio: float = 0.15,
) -> LazyTrainer:
    """A trainer of the links of the next snapshot, on all snapshots as one window.

    Nodes are dealt out one by one, if no `ownership` is given.  Each gets `names` random features
    more, a function of the settings' seed and the node, by which it is told from others; the rest
    is as in `link_parts`.
    """
    if not snapshots:
        raise ValueError("`snapshots` must hold at least 4: got none")
    num_nodes = snapshots[0].num_nodes
    if ownership is None:
        ownership = Ownership.round_robin(num_nodes, comm.size)
    drawn = uniform(settings.seed, "names", np.arange(num_nodes), names)
    random = ((2 * drawn - 1) * np.sqrt(3 / max(names, 1))).astype(np.float32)
    given = []
    for place, snapshot in enumerate(snapshots):
        if snapshot.features is None and not names:
            raise ValueError(f"snapshot {place} must have `features`, if nodes have no `names`")
        parts = [random] if snapshot.features is None else [snapshot.features, random]
        given.append(replace(snapshot, features=np.concatenate(parts, axis=1)))
    ratios = {"val_ratio": val_ratio, "test_ratio": test_ratio}
    parts_of_rank = link_parts(given, ownership, comm.rank, undirected=undirected, **ratios)
    return LazyTrainer(Part.of_window(parts_of_rank), settings, comm)
