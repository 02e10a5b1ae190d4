"""The end-to-end twin: the same stages, trained together, with an exchange a layer and round.

It is what lazy training is compared with.  Forward, boundary rows cross; backward, their gradients
go back and are added up at the owners (a linear map and its adjoint).  The inputs of the first
stage are constants here too, and are fetched once.  With one stage it is lazy training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....stream import Bool
from ...ranks import ALONE, Comm
from .costs import Shape
from .engine import (
    Best,
    History,
    accuracy_of,
    build_stages,
    evaluate,
    flat_gradients,
    make_optimiser,
    open_graph,
    set_gradients,
)
from .gate import Gate
from .goals import count_nodes, judged, loss_of
from .part import Part
from .settings import LazySettings
from .stages import LOCAL, count_parameters, dropout, flat_weights, gather_inputs, set_weights


class EndToEnd:
    """Trains a part's stages at once, together with the other ranks; `payload` is raw+hidden."""

    def __init__(self, part: Part, settings: LazySettings, comm: Comm = ALONE) -> None:
        if settings.payload != "raw+hidden":
            raise ValueError(
                f"end to end features and embeddings cross: got payload {settings.payload!r}"
            )
        if part.pairs is not None or settings.local_steps > 1 or settings.rounding != "none":
            raise ValueError(
                "end to end learns classes, by exact gradients of every round: give a part without "
                "links, `local_steps` 1 and `rounding` none"
            )
        self.part, self.settings = part, settings
        self.gate = Gate(comm, part, "end to end", settings.dtype)
        self.graph = open_graph(part, self.gate)
        self.sizes = count_nodes(part, self.gate)
        self.stages = build_stages(settings, part.features.shape[1], part.num_classes)
        for stage in self.stages[:-1]:
            stage.head = None  # none is trained alone
        self.history = History()
        own = torch.from_numpy(part.features).to(settings.dtype)
        halo = own[:0] if settings.kind in LOCAL else self.gate.rows(own, "feature")
        self._first = gather_inputs(settings.kind, self.graph, own, halo)

    def scores(self, mask: Bool | None = None, turn: int | None = None) -> Tensor:
        """The class scores of own nodes, or of those of a mask; with dropout in a round: (m, C)."""
        inputs, settings = self._first, self.settings
        for place, stage in enumerate(self.stages):
            drop = None if turn is None else dropout(settings.dropout, settings.seed, place, turn)
            if place + 1 < len(self.stages):
                own = stage.hidden(inputs, drop)
                kind = settings.kinds[place + 1]
                halo = own[:0] if kind in LOCAL else _rows(self.gate, own)
                inputs = gather_inputs(kind, self.graph, own, halo, self.part.snapshots)
                continue
            if mask is not None:
                inputs = inputs.take(np.flatnonzero(mask))
            return stage(inputs, drop)  # type: ignore[no-any-return]
        raise AssertionError("there is at least one stage")

    def train(self) -> History:
        """Trains for the rounds of the settings; the weights that chose best are kept."""
        settings, gate, part = self.settings, self.gate, self.part
        for stage in self.stages:
            set_weights(stage, gate.weights(flat_weights(stage)))
        best = Best(self.history, settings.patience)
        used = [p for stage in self.stages for p in stage.parameters()]
        optimiser = make_optimiser(self.stages, settings)
        parameters = sum(p.numel() for p in used)
        labels = torch.from_numpy(part.labels)
        for turn in range(settings.rounds):
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of(self.scores(part.train, turn), labels[part.train], self.sizes[0])
            loss.backward()  # type: ignore[no-untyped-call]
            set_gradients(self.stages, gate.gradients(flat_gradients(self.stages), parameters))
            optimiser.step()
            self.history.rounds += 1
            if (turn + 1) % settings.every == 0 or turn + 1 == settings.rounds:
                with torch.no_grad():
                    scores = self.scores(part.val)
                if not evaluate(
                    *(gate, self.history, best, loss, judged(scores, labels[part.val])),
                    *(self.sizes, self.stages),
                ):
                    break
        for stage, weights in zip(self.stages, best.weights, strict=True):
            set_weights(stage, weights)
        return self.history

    def predict(self) -> Tensor:
        """The class scores of own nodes: (n, C); one exchange a layer."""
        with torch.no_grad():
            return self.scores()

    def accuracy(self, mask: Bool) -> float:
        """The share of right answers among all ranks' nodes of a mask of own ones: (n,)."""
        return accuracy_of(self.gate, self.predict(), self.part, mask)

    @property
    def shape(self) -> Shape:
        """As that of `LazyTrainer`."""
        stages, history = self.stages, self.history
        crosses = [kind not in LOCAL for kind in self.settings.kinds]
        return Shape(
            ranks=self.gate.size,
            boundary_rows=len(self.part.boundary.given),
            sent_first=self.part.features.shape[1] * crosses[0],
            widths=tuple(s.width for s, c in zip(stages, crosses[1:], strict=False) if c),
            parameters=tuple(count_parameters(stage) for stage in stages),
            rounds=(history.rounds,) * len(stages),
            evaluations=(len(history.accuracies),) * len(stages),
            itemsize=8 if self.settings.double else 4,
        )


def _rows(gate: Gate, own: Tensor) -> Tensor:
    """The halo's rows, with the way back for their gradients: (n, d) -> (h, d)."""
    found: Tensor = _Rows.apply(own, gate)  # type: ignore[no-untyped-call]
    return found


class _Rows(torch.autograd.Function):
    """own rows -> halo rows; backward halo gradients -> sums at the owners."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, gate: Gate) -> Tensor:
        ctx.gate = gate
        return gate.rows(own.detach(), "embed")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.gate.row_gradients(grads[0].contiguous()), None
