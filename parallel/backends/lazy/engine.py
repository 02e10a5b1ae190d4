"""Lazy message passing: a GNN trained stage by stage, with one exchange of rows a stage.

A stage is trained to its end on constants, frozen, and applied to all nodes; then boundary rows
cross once, and the next one is trained (RETEXO, arXiv 2302.13053; what is here follows its released
code).  It is greedy, so it finds other weights than end-to-end training does.  The loss is the sum
over all ranks' training nodes divided by their number in all, so that any number of ranks learns
the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ....stream import Bool, Int64
from ...ranks import ALONE, Comm
from .costs import Shape
from .delta import DeltaHalo, Stale
from .gate import Gate
from .goals import Classes, Goal, Sample, View
from .links import Links, PairHead
from .part import USES, LocalGraph, Part, Use, degrees
from .settings import ROUNDED, LazySettings
from .stages import (
    LOCAL,
    Inputs,
    Stage,
    count_parameters,
    flat_weights,
    gather_inputs,
    set_weights,
)


def build_stages(settings: LazySettings, features: int, classes: int) -> list[Stage]:
    """The stages of a model, with weights that depend on the seed and the stage only.

    Without classes each has a head that scores pairs.
    """
    stages: list[Stage] = []
    width, last = features, len(settings.kinds) - 1
    came = features  # width of the rows that came last
    for place, kind in enumerate(settings.kinds):
        came = came if kind in LOCAL else width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed * 1_000 + place)
            is_last = place == last and (settings.payload != "logits" or kind == "gru")
            made = Stage(
                *(kind, width, settings.hidden, classes),
                is_last=is_last and (classes > 0 or kind == "gru"),
                heads=settings.heads,
            )
            if not classes:
                made.head = PairHead(made.width, came)
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
        late: Collection[int] = (),
    ) -> None:
        if sample is not None and (settings.local_steps > 1 or part.pairs is not None):
            raise ValueError("`sample` is for classes, and for `local_steps` of 1: leave it out")
        if late and delta is None:
            raise ValueError("`late` ranks need a `delta`, which keeps the rows that came before")
        if any(not 0 <= rank < comm.size for rank in late):
            raise ValueError(f"`late` must be ranks below {comm.size}: got {sorted(late)}")
        self.part, self.settings = part, settings
        rounded = ROUNDED[settings.rounding]
        self.gate = Gate(comm, part, settings.payload, settings.dtype, rounded)
        self.graph = open_graph(part, self.gate)
        self.goal: Goal = (
            Classes(part, self.gate, settings, sample)
            if part.pairs is None
            else Links(part, self.graph, self.gate, settings)
        )
        self.sizes = self.goal.sizes
        classes = 0 if part.pairs is not None else part.num_classes
        self.stages = build_stages(settings, part.features.shape[1], classes)
        self.histories: dict[int, History] = {}  # of the stages trained here
        self.done = 0  # how many stages have been trained, or taken over, on these inputs
        self.evaluations = [0] * len(self.stages)
        self.rounds = [0] * len(self.stages)
        self.sums = [0] * len(self.stages)  # of gradients
        self.late = frozenset(late)
        self.stale: dict[int, Stale] = {}  # by stage: of this rank's halo, if ranks are late
        self._delta = delta
        self._inputs: list[Inputs] = []  # of each stage so far, for all own rows
        self._rows: list[Tensor] = []  # own and halo, as they came for the stage: (n + h, w)
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
        module = self.stages[stage]
        grown = stage in self._known
        if not grown:
            set_weights(module, self.gate.weights(flat_weights(module)))
            self._known.add(stage)
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        history = self._rounds(self._view(stage), rounds or self.settings.rounds)
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
        if kind in LOCAL:
            # a pair's other end is known by the last row that came
            self._rows[stage:] = [self._rows[stage - 1] if stage else own]
            return gather_inputs(kind, self.graph, own, own[:0], self.part.snapshots)
        halo = self.exchange(stage, own)
        self._rows[stage:] = [torch.cat((own, halo)) if self.part.pairs is not None else own]
        return gather_inputs(kind, self.graph, own, halo)

    def exchange(self, stage: int, own: Tensor) -> Tensor:
        """The halo's rows of a stage's inputs: (n, d) -> (h, d)."""
        purpose = "feature" if stage == 0 else "embed"
        if self._delta is None:
            return self.gate.rows(own, purpose)
        found, stale = self._delta.exchange(
            *(self.gate, self.part, own, stage, purpose), late=self.late
        )
        if self.late:
            self.stale[stage] = stale
        return found

    def _apply(self, module: Stage, inputs: Inputs) -> Tensor:
        """What the next stage gets, for all own nodes."""
        with torch.no_grad():
            return module(inputs) if self.settings.payload == "logits" else module.hidden(inputs)

    def _view(self, stage: int) -> View:
        return View(stage, self.stages[stage], self._inputs[stage], self._rows[stage])

    def _rounds(self, view: View, rounds: int) -> History:
        settings, gate, stage, module = self.settings, self.gate, view.stage, view.module
        history = History()
        best = Best(history, settings.patience)
        optimiser = make_optimiser([module], settings)
        parameters = count_parameters(module)
        lesson = self.goal.lesson(view)
        start = flat_weights(module)  # the same on all ranks
        for turn in range(rounds):
            is_last = turn + 1 == rounds
            optimiser.zero_grad(set_to_none=True)
            loss = lesson.loss(turn)
            if settings.local_steps == 1:
                loss.backward()  # type: ignore[no-untyped-call]
                set_gradients([module], gate.gradients(flat_gradients([module]), parameters))
                optimiser.step()
                self.sums[stage] += 1
            else:
                if lesson.share:
                    (loss / lesson.share).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                if is_last or (turn + 1) % settings.local_steps == 0:
                    change = (flat_weights(module) - start) * lesson.share
                    start = start + gate.gradients(change, parameters)
                    set_weights(module, start)
                    self.sums[stage] += 1
            history.rounds += 1
            if is_last or (turn + 1) % settings.every == 0:
                found = self.goal.judge(view, "val")
                if not evaluate(gate, history, best, loss, found, self.sizes, [module]):
                    break
        set_weights(module, best.weights[0])
        self.rounds[stage] += history.rounds
        self.evaluations[stage] += len(history.accuracies)
        return history

    def predict(self) -> Tensor:
        """The class scores of own nodes: (n, C); of the last stage that is done."""
        if self.part.pairs is not None:
            raise ValueError("links are asked for, not classes: `score` pairs")
        stage = self._newest()
        with torch.no_grad():
            scores: Tensor = self.stages[stage](self._inputs[stage])
        return scores

    def embed(self) -> Tensor:
        """The rows that the last stage that is done gives own nodes: (n, width)."""
        stage = self._newest()
        with torch.no_grad():
            return self.stages[stage].hidden(self._inputs[stage])

    def score(self, src: Int64, dst: Int64) -> Tensor:
        """(m,) of pairs of nodes of this rank's window, by the last stage that is done.

        Node v at the s-th of T snapshots of V nodes is s V + v.

        Raises:
            ValueError: if classes are asked for, or this rank has not what a pair needs: one end
                of its own, and the other's row.
        """
        if not isinstance(self.goal, Links):
            raise ValueError("classes are asked for, not links: `predict` them")
        ends = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        return self.goal.score(self._view(self._newest()), *ends)

    def accuracy(self, which: Bool | Use) -> float:
        """The share of right answers over all ranks.

        Of nodes: those of a mask of own ones (n,), or of a use.  Of links of a use: how many of its
        `local` negatives a link is scored above, on average.
        """
        if isinstance(which, str) and self.part.pairs is None:
            which = getattr(self.part, which)
        if isinstance(which, str):
            return self._judge(which)[0]
        if self.part.pairs is not None:
            raise ValueError(f"`which` must be one of {', '.join(USES)} for links: got a mask")
        return accuracy_of(self.gate, self.predict(), self.part, which)

    def loss(self, use: Use = "val") -> float:
        """The mean loss of the last stage that is done, over all ranks."""
        return self._judge(use)[1]

    def _judge(self, use: Use) -> tuple[float, float]:
        view, count = self._view(self._newest()), self.sizes[USES.index(use)]
        sums = torch.tensor(self.goal.judge(view, use), dtype=torch.float64)
        right, wrong = self.gate.metrics(sums).tolist()
        return (right / count, wrong / count) if count else (float("nan"), float("nan"))

    def _newest(self) -> int:
        if not self.done:
            raise ValueError("there is nothing to predict with: train a stage first")
        return self.done - 1

    @property
    def inference(self) -> list[dict[str, Tensor]]:
        """Weights of each stage as they are used after training: without auxiliary heads, but for
        those whose scores are sent on."""
        kept = self.settings.payload == "logits"
        return [
            {
                name: value
                for name, value in stage.state_dict().items()
                if kept or stage is self.stages[-1] or not name.startswith("head.")
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
        widths = [self.part.num_classes if logits else stage.width for stage in self.stages]
        crosses = [kind not in LOCAL for kind in settings.kinds]  # the inputs of a stage
        return Shape(
            ranks=self.gate.size,
            boundary_rows=len(self.part.boundary.given),
            sent_first=self.part.features.shape[1] if crosses[0] else 0,
            widths=tuple(w for w, c in zip(widths, crosses[1:done], strict=False) if c),
            parameters=tuple(count_parameters(stage) for stage in self.stages)[:done],
            rounds=tuple(self.sums[:done]),
            evaluations=tuple(self.evaluations[:done]),
            itemsize=8 if settings.double else 4,
            grad_itemsize=self.gate.rounded.itemsize,
        )


def open_graph(part: Part, gate: Gate) -> LocalGraph:
    """The part's graph, with the degrees that its halo has in the whole."""
    found = gate.open_boundary(torch.from_numpy(degrees(part)))
    return LocalGraph(part, found.numpy())


def evaluate(
    gate: Gate,
    history: History,
    best: Best,
    loss: Tensor,
    judged: tuple[float, float],
    sizes: tuple[int, int, int],
    stages: list[Stage],
) -> bool:
    """Sums losses and right answers over the ranks; whether to go on."""
    sums = gate.metrics(torch.tensor([float(loss.detach()), *judged], dtype=torch.float64))
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
