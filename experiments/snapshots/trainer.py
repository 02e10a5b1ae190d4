"""One run on snapshots, moved forward an epoch at a time.

    train      over the training steps in order; one optimiser step a window of `bptt` of them,
               the state goes on and gradients stop between two windows
    validate   with the weights held, the state of the whole past carried on through the part
    test       once, with the weights of the best epoch

Invariant: the weights and the optimiser's moments are all that an epoch leaves behind, so a run
that is killed and resumed equals one that never was, on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ...models.snapshots import SnapshotModel, State
from ...parallel import Comm
from ...parallel.backends import Propagator
from ...stream import Float64
from ..keeper import below, moments_of, set_moments, under
from ..report import to_plain
from .config import SnapshotConfig
from .data import SnapshotData
from .links import Links
from .tasks import Classes, Task, Values
from .traffic import Backend, Maker, Watch, bytes_of, work

NewModel: TypeAlias = Callable[[int, int], SnapshotModel]
"""Makes a model from the width of the features and that of its rows."""

_TASKS: dict[str, type[Task]] = {"links": Links, "values": Values, "classes": Classes}


@dataclass
class Done:
    """What a run has done so far; all of it goes into a checkpoint."""

    epoch: int = 0
    best: int | None = None  # the place in `epochs`
    seconds: float = 0.0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)  # traffic of the last epoch
    makers: list[Maker] = field(default_factory=list)  # in turn, where ranks or backend change


class SnapshotTrainer:
    """A model, its head, the optimiser and the best weights so far."""

    def __init__(
        self,
        data: SnapshotData,
        config: SnapshotConfig,
        propagator: Propagator,
        new_model: NewModel,
    ) -> None:
        self.data = data
        self.config = config
        self.propagator = propagator
        self.comm: Comm = propagator.comm
        self.task = _TASKS[data.kind](data, config, propagator)
        model = new_model(data.in_width(), config.width)
        width = model.width + config.skip * data.in_width()
        self.net = nn.ModuleDict({"model": model, "head": self.task.head(width)})
        self.net.to(getattr(torch, config.dtype))
        self.optimiser = torch.optim.Adam(
            self.net.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        self.done = Done()
        self.best: dict[str, Tensor] = {}
        self._inputs: dict[int, Tensor] = {}  # kept, so that a model may know them again

    @property
    def model(self) -> SnapshotModel:
        """The model without its head."""
        model = self.net["model"]
        assert isinstance(model, SnapshotModel)
        return model

    def warm_up(self, backend: Backend) -> None:
        """See every snapshot once, so that what is done once is no part of an epoch."""
        watch = Watch(self.comm)
        state: State = ()
        self.net.eval()
        with torch.no_grad():
            for step in range(self.data.val.stop):
                _, state = self._forward(step, state)
        set_up = bytes_of(self.comm.gather_objects(watch.end(), "balance"))
        if self.is_over and self.done.makers:
            return  # the epochs are those of others
        made, last = self.done.makers, self.done.makers[-1:]
        maker = Maker(
            self.done.epoch + 1,
            *(backend.name, self.comm.size, backend.reason, dict(backend.options)),
            [len(nodes) for nodes in self.propagator.ownership.rows],
            work(self.propagator, self.data, self.config.width),
            set_up,
        )
        if last and last[0].is_like(maker):
            maker.first = made.pop().first
        made.append(maker)

    def run_epoch(self) -> None:
        """Train for an epoch, validate, and keep the weights if they are the best so far."""
        began, watch = perf_counter(), Watch(self.comm)
        loss = self._train()
        moved = watch.end()
        trained = perf_counter()
        scores = self.task.measure(self.predict("val"), "val")
        self.done.epoch += 1
        figures = {
            "epoch": self.done.epoch,
            "train_loss": loss,
            **{f"val_{name}": value for name, value in scores.items() if name != "answers"},
            "train_seconds": trained - began,
            "seconds": perf_counter() - began,
        }
        self.done.ranks = self.comm.gather_objects(moved, "balance")
        figures["bytes"] = bytes_of(self.done.ranks)
        old = None if self.done.best is None else self.done.epochs[self.done.best][self._metric]
        figures["is_best"] = self.task.is_better(figures[self._metric], old)
        if figures["is_best"]:
            self.done.best = len(self.done.epochs)
            self.best = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.done.epochs.append(to_plain(figures))
        self.done.seconds += perf_counter() - began

    @property
    def is_over(self) -> bool:
        """Whether all epochs are done, or no better one is expected."""
        best = -1 if self.done.best is None else self.done.best
        waited = len(self.done.epochs) - 1 - best
        return self.done.epoch >= self.config.epochs or waited >= self.config.patience

    def load_best(self) -> None:
        """Take the weights of the best epoch."""
        if self.best:
            self.net.load_state_dict(self.best)

    def predict(self, part: str) -> dict[int, Float64]:
        """The answers of each step of a part, on every rank, with the weights held."""
        self.net.eval()
        steps: range = getattr(self.data, part)
        found = {}
        with torch.no_grad():
            state: State = ()
            for step in range(steps.stop):
                if not state and 0 < step < steps.start:
                    continue  # a model without a state has no past
                rows, state = self._forward(step, state)
                if step in steps:
                    found[step] = self.task.answer(self.net["head"], rows, step, part)
        return found

    def _train(self) -> float:
        """One pass over the training steps; the mean loss before each optimiser step."""
        self.net.train()
        state: State = ()
        total, answers, steps = 0.0, 0, self.data.train
        for first in range(steps.start, steps.stop, self.config.bptt):
            window = range(first, min(first + self.config.bptt, steps.stop))
            losses, counted = [], 0
            for step in window:
                rows, state = self._forward(step, state)
                loss, count = self.task.loss(self.net["head"], rows, step, self.done.epoch)
                losses.append(loss)
                counted += count
            state = self.model.detach(state)
            if not counted:  # on all ranks alike: nothing happened
                continue
            mean = torch.stack(losses).sum() / counted
            self.optimiser.zero_grad(set_to_none=True)
            mean.backward()  # type: ignore[no-untyped-call]
            self.propagator.sum_gradients(self.net.parameters())
            self.optimiser.step()
            value = float(self.propagator.total(mean))
            if not math.isfinite(value):
                advice = "the model diverges, try a smaller `learning_rate`"
                if not self.done.epoch and first == steps.start:  # nothing was learned yet
                    advice = "features or targets are too large for the numbers, scale them"
                raise ValueError(
                    f"the loss is {value} in epoch {self.done.epoch + 1} at step {first}: {advice}"
                )
            total, answers = total + value * counted, answers + counted
        return total / max(answers, 1)

    def _forward(self, step: int, state: State) -> tuple[Tensor, State]:
        snapshot = self.data.snapshots[step]
        if step not in self._inputs:
            inputs = self.propagator.inputs(snapshot)
            self._inputs[step] = inputs.to(getattr(torch, self.config.dtype))
        found = self.model(self.propagator, snapshot, self._inputs[step], state)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], tuple)):
            raise ValueError("a model must return its rows and a tuple of tensors, the next state")
        rows, state = found
        wanted = len(self.propagator.own), self.model.width
        if tuple(rows.shape) != wanted:
            raise ValueError(
                f"a model must return a row a node, of its `width`, {wanted}: got "
                f"{tuple(rows.shape)}"
            )
        if self.config.skip:
            assert snapshot.features is not None
            rows = torch.cat((rows, self.propagator.local(snapshot.features).to(rows.dtype)), 1)
        return rows, state

    @property
    def _metric(self) -> str:
        return f"val_{self.task.metric}"

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a later epoch sees."""
        tensors = under("net", self.net.state_dict()) | under("best", self.best)
        tensors |= under("optimiser", moments_of(self.optimiser))
        return tensors, {"progress": to_plain(asdict(self.done))}

    def from_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from what `to_checkpoint` gave."""
        self.net.load_state_dict(below("net", tensors))
        self.best = below("best", tensors)
        set_moments(self.optimiser, below("optimiser", tensors))
        self.done = Done(**meta["progress"])
        self.done.makers = [Maker(**maker) for maker in meta["progress"].get("makers", ())]


def mean_of(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing.

    >>> mean_of([1, 2]), mean_of([])
    (1.5, None)
    """
    known = list(values)
    return sum(known) / len(known) if known else None
