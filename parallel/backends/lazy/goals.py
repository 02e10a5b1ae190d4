"""What a stage is trained for: the classes of nodes, or links (in `links.py`).

Invariant: the loss is a sum over all ranks divided by a number that all know, so that any number of
ranks learns from the same one; a rank that has nothing to learn from has a loss of 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....stream import Bool, Int64
from .gate import Gate
from .part import Part, Use
from .settings import LazySettings
from .stages import Drop, Inputs, Stage, dropout

Sample: TypeAlias = Callable[[int, int], Bool]
"""For a stage and a round, which of the training nodes take part."""


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """A stage, and all that this rank sees for it."""

    stage: int
    module: Stage
    inputs: Inputs  # for all own rows
    rows: Tensor  # (n + h, w) own and halo, as they came for the stage


class Goal(ABC):
    """What all stages of a trainer are trained for."""

    sizes: tuple[int, int, int]  # answers of all ranks to train on, to choose by and to test on
    settings: LazySettings

    @abstractmethod
    def lesson(self, view: View) -> Lesson:
        """What a stage learns from."""

    @abstractmethod
    def judge(self, view: View, use: Use) -> tuple[float, float]:
        """Right answers, and the sum of their losses, of this rank."""

    @abstractmethod
    def count(self) -> tuple[int, int, int]:
        """How many answers this rank gives, by use; those that two ranks give half each, twice."""

    def drop_of(self, stage: int, turn: int) -> Drop | None:
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

    def lesson(self, view: View) -> Lesson:
        """The training nodes."""
        return _ClassLesson(self, view)

    def judge(self, view: View, use: Use) -> tuple[float, float]:
        """How many nodes got their class, and the cross-entropy."""
        chosen = np.flatnonzero(getattr(self.part, use))
        with torch.no_grad():
            return judged(view.module(view.inputs.take(chosen)), self.labels(chosen))

    def count(self) -> tuple[int, int, int]:
        """Nodes by use."""
        return count_own(self.part)

    def labels(self, rows: Int64) -> Tensor:
        """The classes of own rows: (m,)."""
        return torch.from_numpy(self.part.labels[rows])


class _ClassLesson(Lesson):
    def __init__(self, goal: Classes, view: View) -> None:
        self.goal, self.view = goal, view
        self.rows = np.flatnonzero(goal.part.train)
        self.inputs, self.labels = view.inputs.take(self.rows), goal.labels(self.rows)
        self.share = len(self.rows) / goal.sizes[0]

    def loss(self, turn: int) -> Tensor:
        """Over all training nodes, or those that are sampled."""
        goal, view, inputs, labels = self.goal, self.view, self.inputs, self.labels
        count = goal.sizes[0]
        if goal.sample is not None:
            some = self.rows[goal.sample(view.stage, turn)[self.rows]]
            inputs, labels, count = view.inputs.take(some), goal.labels(some), len(some)
        return loss_of(view.module(inputs, goal.drop_of(view.stage, turn)), labels, count)


def count_nodes(part: Part, gate: Gate) -> tuple[int, int, int]:
    """How many nodes of all ranks are trained on, chosen by and tested on.

    Raises:
        ValueError: if there are none to train on or none to choose by.
    """
    return count_all(gate, count_own(part), "nodes")


def count_own(part: Part) -> tuple[int, int, int]:
    """How many own nodes are trained on, chosen by and tested on."""
    return int(part.train.sum()), int(part.val.sum()), int(part.test.sum())


def count_all(gate: Gate, own: tuple[int, int, int], what: str) -> tuple[int, int, int]:
    """The sums over the ranks of what each has to train on, to choose by and to test on.

    Raises:
        ValueError: if there is none to train on or none to choose by; it says of `what`.
    """
    train, val, test = gate.counts(torch.tensor(own)).tolist()
    if not train or not val:
        raise ValueError(
            f"some {what} must be trained on, and some chosen by: got {train} and {val}"
        )
    return train, val, test


def loss_of(scores: Tensor, labels: Tensor, count: int) -> Tensor:
    """This rank's part of the mean cross-entropy over `count` nodes; 0 if it has none of them."""
    return functional.cross_entropy(scores, labels, reduction="sum") / count


def judged(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """How many classes are right, and the sum of cross-entropies."""
    right = float((scores.argmax(1) == labels).sum())
    return right, float(functional.cross_entropy(scores, labels, reduction="sum"))
