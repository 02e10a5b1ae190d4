"""One optimiser step on a whole graph, the same on every backend.

Invariant: the loss is the sum over all ranks' training nodes divided by their number in all; the
mean of the ranks' means would be another objective wherever training nodes lie unevenly.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ...models.snapshots import SnapshotModel
from ...storage.snapshot import Snapshot
from ...stream import Bool
from .propagator import Propagator


class FullGraph:
    """Node classification on one graph: `step` takes one full-graph step."""

    def __init__(
        self,
        propagator: Propagator,
        model: SnapshotModel,
        snapshot: Snapshot,
        train: Bool,  # (V,) the nodes that are learned from
        optimiser: torch.optim.Optimizer,
    ) -> None:
        if snapshot.target is None:
            raise ValueError("the snapshot must have a `target`, one class a node, to learn")
        if not train.any():
            raise ValueError("`train` must name at least one node")
        self.propagator, self.model, self.snapshot = propagator, model, snapshot
        self.optimiser = optimiser
        self._x = propagator.inputs(snapshot).to(next(model.parameters()).dtype)
        self._target = propagator.local(snapshot.target)
        self._train = propagator.local(train).nonzero().squeeze(1)  # (m,) rows
        self._num_train = int(train.sum())

    def step(self) -> float:
        """One step of the optimiser; the loss before it, over all ranks."""
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        logits, _ = self.model(self.propagator, self.snapshot, self._x)
        loss = self.loss(logits)
        loss.backward()  # type: ignore[no-untyped-call]
        self.propagator.sum_gradients(self.model.parameters())
        self.optimiser.step()
        return float(self.propagator.total(loss))

    def loss(self, logits: Tensor) -> Tensor:
        """This rank's part of the mean cross-entropy; 0, with a gradient, if it trains no node."""
        kept = functional.cross_entropy(
            logits.index_select(0, self._train), self._target[self._train], reduction="sum"
        )
        return kept / self._num_train

    def predict(self) -> Tensor:
        """The outputs for all nodes, on every rank: (V, width)."""
        self.model.eval()
        with torch.no_grad():
            logits, _ = self.model(self.propagator, self.snapshot, self._x)
        return self.propagator.gather(logits)
