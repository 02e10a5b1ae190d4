"""What a stage is trained for: the classes of nodes, or links (in `links.py`).

Invariant: the loss is a sum over all ranks divided by a number that all know, so that any number of
ranks learns from the same one; a rank that has nothing to learn from has a loss of 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....stream import Bool, Int64
from .gate import Gate
from .part import USES, Part, Use
from .settings import LazySettings
from .stages import Inputs, Stage, dropout

Sample: TypeAlias = Callable[[int, int], Bool]
"""For a stage and a round, which of the training nodes take part."""


class Goal(ABC):
    """What all stages of a trainer are trained for."""

    sizes: tuple[int, int, int]  # answers of all ranks to train on, to choose by and to test on
    settings: LazySettings

    @abstractmethod
    def lesson(self, stage: int, module: Stage, inputs: Inputs, rows: Tensor) -> Lesson:
        """What a stage learns from, given its inputs and the rows that came for it: (n + h, w)."""

    @abstractmethod
    def judge(self, module: Stage, inputs: Inputs, rows: Tensor, use: Use) -> tuple[float, float]:
        """Right answers, and the sum of their losses, of this rank."""

    @abstractmethod
    def count(self) -> tuple[int, int, int]:
        """How many answers this rank gives, by use; those that two ranks give half each, twice."""

    def drop_of(self, stage: int, turn: int) -> Callable[[Tensor, Int64], Tensor] | None:
        """The dropout of a round."""
        return dropout(self.settings.dropout, self.settings.seed, stage, turn)


class Lesson(ABC):
    """A stage, and what it is taught."""

    share: float  # of the weight of all ranks' answers that this rank's have

    @abstractmethod
    def loss(self, turn: int) -> Tensor:
        """This rank's part of the loss of a round."""


class Classes(Goal):
    """Mean cross-entropy of the classes of nodes."""

    def __init__(
        self, part: Part, gate: Gate, settings: LazySettings, sample: Sample | None = None
    ) -> None:
        self.part, self.settings, self.sample = part, settings, sample
        self.sizes = count_nodes(part, gate)

    def lesson(self, stage: int, module: Stage, inputs: Inputs, rows: Tensor) -> Lesson:
        """The training nodes."""
        return _ClassLesson(self, stage, module, inputs)

    def judge(self, module: Stage, inputs: Inputs, rows: Tensor, use: Use) -> tuple[float, float]:
        """How many nodes got their class, and the cross-entropy."""
        chosen = np.flatnonzero(getattr(self.part, use))
        with torch.no_grad():
            return judged(module(inputs.take(chosen)), self.labels(chosen))

    def count(self) -> tuple[int, int, int]:
        """Nodes by use."""
        train, val, test = (int(getattr(self.part, use).sum()) for use in USES)
        return train, val, test

    def labels(self, rows: Int64) -> Tensor:
        """The classes of own rows: (m,)."""
        return torch.from_numpy(self.part.labels[rows])


class _ClassLesson(Lesson):
    def __init__(self, goal: Classes, stage: int, module: Stage, inputs: Inputs) -> None:
        self.goal, self.stage, self.module, self.whole = goal, stage, module, inputs
        self.rows = np.flatnonzero(goal.part.train)
        self.inputs, self.labels = inputs.take(self.rows), goal.labels(self.rows)
        self.share = len(self.rows) / goal.sizes[0]

    def loss(self, turn: int) -> Tensor:
        """Over all training nodes, or those that are sampled."""
        goal, inputs, labels, count = self.goal, self.inputs, self.labels, self.goal.sizes[0]
        if goal.sample is not None:
            some = self.rows[goal.sample(self.stage, turn)[self.rows]]
            inputs, labels, count = self.whole.take(some), goal.labels(some), len(some)
        return loss_of(self.module(inputs, goal.drop_of(self.stage, turn)), labels, count)


def count_nodes(part: Part, gate: Gate) -> tuple[int, int, int]:
    """How many nodes of all ranks are trained on, chosen by and tested on.

    Raises:
        ValueError: if there are none to train on or none to choose by.
    """
    own = torch.tensor([int(mask.sum()) for mask in (part.train, part.val, part.test)])
    train, val, test = gate.counts(own).tolist()
    if not train or not val:
        raise ValueError(
            f"some nodes must be trained on, and some chosen by: got {train} and {val}"
        )
    return train, val, test


def loss_of(scores: Tensor, labels: Tensor, count: int) -> Tensor:
    """This rank's part of the mean cross-entropy over `count` nodes; 0 if it has none of them."""
    return functional.cross_entropy(scores, labels, reduction="sum") / count


def judged(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """How many classes are right, and the sum of cross-entropies."""
    right = float((scores.argmax(1) == labels).sum())
    return right, float(functional.cross_entropy(scores, labels, reduction="sum"))
