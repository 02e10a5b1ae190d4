"""Lazy message passing: a GNN trained stage by stage, with one exchange of rows a stage.

A stage is trained to its end on constants, frozen, and applied to all nodes; then boundary rows
cross once, and the next one is trained (RETEXO, arXiv 2302.13053; what is here follows its released
code).  It is greedy, so it finds other weights than end-to-end training does.  The loss is the sum
over all ranks' training nodes divided by their number in all, so that any number of ranks learns
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....stream import Bool, Int64
from ...comm import ALONE, Comm
from .costs import Shape
from .delta import DeltaHalo
from .gate import Gate
from .part import LocalGraph, Part, degrees
from .stages import (
    Inputs,
    Kind,
    Stage,
    count_parameters,
    dropout,
    flat_weights,
    gather_inputs,
    set_weights,
)

Payload = Literal["raw+hidden", "hidden", "logits"]
Sample = Callable[[int, int], Bool]
"""For a stage and a round, which of the training nodes take part."""


@dataclass(frozen=True)
class LazySettings:
    """How to train.

    `payload` says what crosses: `raw+hidden` the features of boundary nodes, then embeddings (the
    newer form); `hidden` and `logits` no features: stage 0 sees each node alone, and then
    embeddings or class scores cross (the older form, one stage more).
    """

    kind: Kind = "gcn"
    payload: Payload = "raw+hidden"
    hops: int = 2
    hidden: int = 64
    heads: int = 8
    rounds: int = 200
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    every: int = 1  # rounds between evaluations
    patience: int | None = None  # evaluations without a better one after which a stage ends
    seed: int = 0
    double: bool = False  # float64

    def __post_init__(self) -> None:
        if self.payload not in ("raw+hidden", "hidden", "logits"):
            raise ValueError(
                f"`payload` must be raw+hidden, hidden or logits: got {self.payload!r}"
            )
        if self.kind not in ("mlp", "gcn", "sage", "gat"):
            raise ValueError(f"`kind` must be mlp, gcn, sage or gat: got {self.kind!r}")
        if min(self.hops, self.rounds, self.every, self.hidden, self.heads) < 1:
            raise ValueError(
                "`hops`, `rounds`, `every`, `hidden` and `heads` must be at least 1: got "
                f"{self.hops}, {self.rounds}, {self.every}, {self.hidden} and {self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be a share below 1: got {self.dropout}")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of each stage."""
        alone: tuple[Kind, ...] = () if self.payload == "raw+hidden" else ("mlp",)
        return alone + (self.kind,) * self.hops

    @property
    def dtype(self) -> torch.dtype:
        """Of everything that is learned and sent."""
        return torch.float64 if self.double else torch.float32


def build_stages(settings: LazySettings, features: int, classes: int) -> list[Stage]:
    """The stages of a model, with weights that depend on the seed and the stage only."""
    stages: list[Stage] = []
    width, last = features, len(settings.kinds) - 1
    for place, kind in enumerate(settings.kinds):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed * 1_000 + place)
            is_last = place == last and settings.payload != "logits"
            made = Stage(
                *(kind, width, settings.hidden, classes), is_last=is_last, heads=settings.heads
            )
        stages.append(made.to(settings.dtype))
        width = classes if settings.payload == "logits" else made.width
    return stages


@dataclass
class History:
    """How a stage was trained; the same on every rank."""

    losses: list[float] = field(default_factory=list)  # of the rounds that were evaluated
    accuracies: list[float] = field(default_factory=list)  # on the nodes to choose by
    best: int = -1  # the evaluation whose weights were kept
    rounds: int = 0
    grown: bool = False  # went on from earlier weights


class Best:
    """The weights that chose best so far; the same on every rank, since all see the same sums."""

    def __init__(self, history: History, patience: int | None) -> None:
        self.history, self.patience = history, patience
        self.weights: list[Tensor] = []
        self._key = (-1.0, float("inf"))

    def see(self, accuracy: float, loss: float, stages: list[Stage]) -> bool:
        """Takes note of an evaluation; whether to go on."""
        right, least = self._key
        history = self.history
        # losses that differ by rounding only are equal, whatever the number of ranks
        if accuracy > right or (accuracy == right and loss < least * (1 - 1e-6)):
            self._key = accuracy, loss
            self.weights = [flat_weights(stage) for stage in stages]
            history.best = len(history.accuracies) - 1
        waited = len(history.accuracies) - 1 - history.best
        return self.patience is None or waited < self.patience


class LazyTrainer:
    """Trains a part's stages, together with the trainers of the other ranks.

    Every rank must call the same methods in the same order, also one that has no nodes.
    """

    def __init__(
        self,
        part: Part,
        settings: LazySettings,
        comm: Comm = ALONE,
        *,
        sample: Sample | None = None,
        delta: DeltaHalo | None = None,
    ) -> None:
        self.part, self.settings = part, settings
        self.gate = Gate(comm, part, settings.payload, settings.dtype)
        self.graph = open_graph(part, self.gate)
        self.sizes = count_nodes(part, self.gate)
        self.stages = build_stages(settings, part.features.shape[1], part.num_classes)
        self.histories: dict[int, History] = {}  # of the stages trained here
        self.done = 0  # how many stages have been trained, or taken over, on these inputs
        self.evaluations = [0] * len(self.stages)
        self.rounds = [0] * len(self.stages)
        self._sample, self._delta = sample, delta
        self._inputs: list[Inputs] = []  # of each stage so far, for all own rows
        self._output: Tensor | None = None  # of the last one done
        self._known: set[int] = set()  # stages whose weights all ranks have

    def train(self) -> None:
        """Trains all stages, one after the other."""
        for stage in range(len(self.stages)):
            self.train_stage(stage)

    def train_stage(self, stage: int, *, rounds: int | None = None) -> History:
        """Fetches the inputs of a stage, trains it and freezes it.

        Stages must come in order.  One that was trained, or taken over, goes on from its weights
        and on the inputs that it had, so no row crosses; those above it must be trained again.
        """
        if stage > self.done:
            raise ValueError(f"`stage` must be at most {self.done}, the next one: got {stage}")
        if stage == len(self._inputs):
            self._inputs.append(self._fetch(stage))
        module, inputs = self.stages[stage], self._inputs[stage]
        grown = stage in self._known
        if not grown:
            set_weights(module, self.gate.weights(flat_weights(module)))
            self._known.add(stage)
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        history = self._rounds(stage, module, inputs, rounds or self.settings.rounds)
        history.grown = grown
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        self.histories[stage] = history
        self._finish(stage)
        return history

    def adopt(self, stages: list[Stage]) -> None:
        """Takes over stages that were trained on another graph: one exchange each, no training.

        What they predict, `predict` then gives; a stage can be trained on from there.
        """
        self.begin_from(stages)
        for stage in range(len(stages)):
            self._inputs[stage:] = [self._fetch(stage)]
            self._finish(stage)

    def begin_from(self, stages: list[Stage]) -> None:
        """Takes over the weights of stages that all ranks hold, to be trained on; none travels."""
        for stage, (module, other) in enumerate(zip(self.stages, stages, strict=True)):
            set_weights(module, flat_weights(other))
            for parameter in module.parameters():
                parameter.requires_grad_(False)
            self._known.add(stage)

    def _finish(self, stage: int) -> None:
        """The outputs of a stage that is done; what was built on earlier ones is out of date."""
        self._inputs = self._inputs[: stage + 1]
        self._output = self._apply(self.stages[stage], self._inputs[stage])
        self.done = stage + 1

    def _fetch(self, stage: int) -> Inputs:
        """The inputs of a stage: one exchange, unless it sees each node alone."""
        kind = self.settings.kinds[stage]
        if stage == 0:
            own = torch.from_numpy(self.part.features).to(self.settings.dtype)
        else:
            assert self._output is not None
            own = self._output
        if kind == "mlp":
            return gather_inputs(kind, self.graph, own, own[:0])
        halo = self.exchange(stage, own)
        return gather_inputs(kind, self.graph, own, halo)

    def exchange(self, stage: int, own: Tensor) -> Tensor:
        """The halo's rows of a stage's inputs: (n, d) -> (h, d)."""
        purpose = "feature" if stage == 0 else "embed"
        if self._delta is None:
            return self.gate.rows(own, purpose)
        return self._delta.exchange(self.gate, self.part, own, stage, purpose)

    def _apply(self, module: Stage, inputs: Inputs) -> Tensor:
        """What the next stage gets, for all own nodes."""
        with torch.no_grad():
            return module(inputs) if self.settings.payload == "logits" else module.hidden(inputs)

    def _rounds(self, stage: int, module: Stage, inputs: Inputs, rounds: int) -> History:
        settings, gate = self.settings, self.gate
        history = History()
        best = Best(history, settings.patience)
        optimiser = make_optimiser([module], settings)
        rows, parameters = np.flatnonzero(self.part.train), count_parameters(module)
        learn, labels = inputs.take(rows), self._labels(rows)
        chosen = np.flatnonzero(self.part.val)
        judge, judged = inputs.take(chosen), self._labels(chosen)
        count = self.sizes[0]
        for turn in range(rounds):
            if self._sample is not None:
                mask = self._sample(stage, turn)[rows]
                some = np.flatnonzero(mask)
                learn, labels, count = inputs.take(rows[some]), self._labels(rows[some]), len(some)
            optimiser.zero_grad(set_to_none=True)
            drop = dropout(settings.dropout, settings.seed, stage, turn)
            loss = loss_of(module(learn, drop), labels, count)
            loss.backward()  # type: ignore[no-untyped-call]
            set_gradients([module], gate.gradients(flat_gradients([module]), parameters))
            optimiser.step()
            history.rounds += 1
            if (turn + 1) % settings.every == 0 or turn + 1 == rounds:
                with torch.no_grad():
                    scores = module(judge)
                if not evaluate(gate, history, best, loss, scores, judged, self.sizes, [module]):
                    break
        set_weights(module, best.weights[0])
        self.rounds[stage] += history.rounds
        self.evaluations[stage] += len(history.accuracies)
        return history

    def _labels(self, rows: Int64) -> Tensor:
        return torch.from_numpy(self.part.labels[rows])

    def predict(self) -> Tensor:
        """The class scores of own nodes: (n, C); of the last stage that is done."""
        if not self.done:
            raise ValueError("there is nothing to predict with: train a stage first")
        stage = self.done - 1
        with torch.no_grad():
            scores: Tensor = self.stages[stage](self._inputs[stage])
        return scores

    def accuracy(self, mask: Bool) -> float:
        """The share of right answers among all ranks' nodes of a mask of own ones: (n,)."""
        return accuracy_of(self.gate, self.predict(), self.part, mask)

    @property
    def inference(self) -> list[dict[str, Tensor]]:
        """Weights of each stage as they are used after training: without auxiliary classifiers,
        but for those whose scores are sent on."""
        kept = self.settings.payload == "logits"
        return [
            {
                name: value
                for name, value in stage.state_dict().items()
                if kept or stage.is_last or not name.startswith("head.")
            }
            for stage in self.stages
        ]

    @property
    def shape(self) -> Shape:
        """What the formulas of `costs` want to know of the run so far.

        Its boundary is this rank's part of it: those of all ranks add up.
        """
        settings = self.settings
        done = self.done
        logits = settings.payload == "logits"
        widths = (self.part.num_classes if logits else stage.width for stage in self.stages)
        return Shape(
            ranks=self.gate.size,
            boundary_rows=len(self.part.boundary.given),
            sent_first=self.part.features.shape[1] if settings.payload == "raw+hidden" else 0,
            widths=tuple(widths)[: done - 1],
            parameters=tuple(count_parameters(stage) for stage in self.stages)[:done],
            rounds=tuple(self.rounds[:done]),
            evaluations=tuple(self.evaluations[:done]),
            itemsize=8 if settings.double else 4,
        )


def open_graph(part: Part, gate: Gate) -> LocalGraph:
    """The part's graph, with the degrees that its halo has in the whole."""
    found = gate.open_boundary(torch.from_numpy(degrees(part)))
    return LocalGraph(part, found.numpy())


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


def evaluate(
    gate: Gate,
    history: History,
    best: Best,
    loss: Tensor,
    scores: Tensor,
    labels: Tensor,
    sizes: tuple[int, int, int],
    stages: list[Stage],
) -> bool:
    """Sums losses and right answers over the ranks; whether to go on."""
    right = float((scores.argmax(1) == labels).sum())
    wrong = float(functional.cross_entropy(scores, labels, reduction="sum"))
    sums = gate.metrics(torch.tensor([float(loss.detach()), right, wrong], dtype=torch.float64))
    history.losses.append(float(sums[0]))
    history.accuracies.append(float(sums[1]) / sizes[1])
    return best.see(history.accuracies[-1], float(sums[2]) / sizes[1], stages)


def accuracy_of(gate: Gate, scores: Tensor, part: Part, mask: Bool) -> float:
    """The share of right answers among all ranks' nodes of a mask; nan if there are none."""
    rows = torch.from_numpy(np.flatnonzero(mask))
    right = scores[rows].argmax(1) == torch.from_numpy(part.labels)[rows]
    sums = torch.tensor([float(right.sum()), float(len(rows))], dtype=torch.float64)
    good, count = gate.metrics(sums).tolist()
    return good / count if count else float("nan")


def make_optimiser(stages: list[Stage], settings: LazySettings) -> torch.optim.Optimizer:
    """A fresh one: nothing of an earlier stage lives on in it."""
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    return torch.optim.Adam(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def flat_gradients(stages: list[Stage]) -> Tensor:
    """The gradients of all parameters in one row; one that is missing is 0."""
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
        for stage in stages
        for p in stage.parameters()
    ]
    return torch.cat(parts)


def set_gradients(stages: list[Stage], flat: Tensor) -> None:
    """The inverse of `flat_gradients`."""
    parameters = [p for stage in stages for p in stage.parameters()]
    parts = torch.split(flat, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)
