"""What is learned from the rows that a model gives: links, values or classes.

Invariant: what is asked at a step is a function of (data, seed, step, epoch) alone, so every rank
knows all of it and answers its own part; the loss is the sum over all ranks' parts divided by the
number of answers in all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...parallel.backends import Propagator
from ...stream import Float64
from .config import SnapshotConfig
from .data import SnapshotData

Outputs = Mapping[int, Float64]  # of each step, what was answered


class Task(ABC):
    """One task: it makes the head of a network, its loss and its scores."""

    metric: ClassVar[str]  # by which epochs are compared
    higher: ClassVar[bool] = False  # whether more of it is better
    words: ClassVar[str]  # what is scored, in a sentence
    undefined: ClassVar[str]  # why the metric may be no number

    def __init__(self, data: SnapshotData, config: SnapshotConfig, propagator: Propagator) -> None:
        self.data = data
        self.config = config
        self.propagator = propagator

    @abstractmethod
    def head(self, width: int) -> nn.Module:
        """What turns the rows of a model into answers."""

    @abstractmethod
    def loss(self, head: nn.Module, rows: Tensor, step: int, epoch: int) -> tuple[Tensor, int]:
        """The sum over this rank's answers, and how many answers all ranks give."""

    @abstractmethod
    def answer(self, head: nn.Module, rows: Tensor, step: int, part: str) -> Float64:
        """The answers of all ranks, on every rank: (answers, ...)."""

    @abstractmethod
    def measure(self, outputs: Outputs, part: str) -> dict[str, float]:
        """The scores of the answers."""

    @abstractmethod
    def baselines(self, part: str) -> dict[str, dict[str, float]]:
        """The scores of what needs no training, by name."""

    def is_better(self, new: float, old: float | None) -> bool:
        """Whether a figure is strictly better than the best so far; NaN never is."""
        if new != new:
            return False
        return old is None or (new > old if self.higher else new < old)


class Values(Task):
    """The value of each node at the next step: mean squared error."""

    metric = "mse"
    words = "errors are in deviations of the training part, a node and step each"
    undefined = "an error is too large for a number"

    def head(self, width: int) -> nn.Module:
        """(n, width) -> (n, 1)."""
        return nn.Linear(width, 1)

    def loss(self, head: nn.Module, rows: Tensor, step: int, epoch: int) -> tuple[Tensor, int]:
        """The sum of squared errors of this rank's nodes, and how many nodes there are."""
        target = self.propagator.local(self._target(step)).to(rows.dtype)
        error = self._predict(head, rows, step) - target
        return (error**2).sum(), self.data.num_nodes

    def answer(self, head: nn.Module, rows: Tensor, step: int, part: str) -> Float64:
        """(V,) the predicted values."""
        found = self.propagator.gather(self._predict(head, rows, step))
        return found.double().numpy()

    def measure(self, outputs: Outputs, part: str) -> dict[str, float]:
        """`mse` and `mae` in the scale of training, and `mae_in_units`, that of the data."""
        scale = self.data.scale
        found = np.stack([outputs[step] for step in sorted(outputs)])  # (steps, V)
        wanted = np.stack([self._target(step) for step in sorted(outputs)]).astype(np.float64)
        with np.errstate(over="ignore"):  # an error that is too large is infinite
            scores = {
                "mse": float(((found - wanted) ** 2).mean()),
                "mae": float(np.abs(found - wanted).mean()),
            }
            if scale is not None:
                apart = np.abs(scale.undo(found) - scale.undo(wanted))
                scores["mae_in_units"] = float(apart.mean())
        return scores | {"answers": found.size}

    def baselines(self, part: str) -> dict[str, dict[str, float]]:
        """`persistence`, the last value; `mean`, that of each node over the training part."""
        steps = getattr(self.data, part)
        learned = np.stack([self._target(step) for step in self.data.train])
        mean: Float64 = learned.astype(np.float64).mean(axis=0)  # (V,)
        known: dict[str, dict[int, Float64]] = {
            "mean": {step: mean for step in steps},
        }
        if self.data.last is not None:
            last = {step: self._last(step).astype(np.float64) for step in steps}
            known = {"persistence": last} | known
        return {name: self.measure(outputs, part) for name, outputs in known.items()}

    def _predict(self, head: nn.Module, rows: Tensor, step: int) -> Tensor:
        found: Tensor = head(torch.relu(rows))[:, 0]  # (n,)
        if self.config.residual:
            found = found + self.propagator.local(self._last(step)).to(rows.dtype)
        return found

    def _target(self, step: int) -> np.ndarray[Any, Any]:
        target = self.data.snapshots[step].target
        assert target is not None
        return target

    def _last(self, step: int) -> np.ndarray[Any, Any]:
        """(V,) the value before the one that is wanted."""
        features = self.data.snapshots[step].features
        assert features is not None and self.data.last is not None
        return np.ascontiguousarray(features[:, self.data.last])


class Classes(Task):
    """The class of each node of one graph: accuracy."""

    metric = "accuracy"
    higher = True
    words = "a node is right if its class has the highest output"
    undefined = "no node is in it"

    def head(self, width: int) -> nn.Module:
        """(n, width) -> (n, classes)."""
        return nn.Linear(width, self.data.num_classes)

    def loss(self, head: nn.Module, rows: Tensor, step: int, epoch: int) -> tuple[Tensor, int]:
        """The sum of cross-entropies of this rank's training nodes, and how many there are."""
        train = self.propagator.local(self.data.masks["train"])
        target = self.propagator.local(self._labels())
        logits = self._logits(head, rows)
        found = functional.cross_entropy(logits[train], target[train], reduction="sum")
        return found, int(self.data.masks["train"].sum())

    def answer(self, head: nn.Module, rows: Tensor, step: int, part: str) -> Float64:
        """(V,) the classes."""
        found: Tensor = self._logits(head, rows).detach()
        return self.propagator.gather(found).argmax(1).double().numpy()

    def measure(self, outputs: Outputs, part: str) -> dict[str, float]:
        """`accuracy` over the nodes of the part."""
        (found,) = outputs.values()
        mask = self.data.masks[part]
        right = found[mask] == self._labels()[mask]
        return {"accuracy": float(right.mean()), "answers": int(mask.sum())}

    def baselines(self, part: str) -> dict[str, dict[str, float]]:
        """`majority`, the class of most training nodes."""
        most = np.bincount(self._labels()[self.data.masks["train"]]).argmax()
        return {"majority": self.measure({0: np.full(self.data.num_nodes, float(most))}, part)}

    def _logits(self, head: nn.Module, rows: Tensor) -> Tensor:
        found: Tensor = head(torch.relu(rows))
        return found

    def _labels(self) -> np.ndarray[Any, Any]:
        target = self.data.snapshots[0].target
        assert target is not None
        return target
