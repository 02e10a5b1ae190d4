"""The losses of a segment of TGN, straight from the rows of its memories: attention and decoder.

Nothing is gathered, and between rows and losses nothing is recorded but what the loops want back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from ...stream import Bool
from ..attention import Laid, Near
from ..kernels.attended_pairs import (
    Decoder,
    DecoderBackward,
    DecoderGrads,
    PairRoom,
    events_at_once,
    learn,
)
from ..kernels.attention import NODES, attend
from ..kernels.pairs import EVENTS, lose
from ..padding import LANES, array, up
from ..threads import added, spans, together

LEAST = 320_000  # events x width x width that are worth a thread


def losses_of_rows(
    table: Tensor,
    near: Near,
    valid: Bool,
    frequency: Tensor,
    bias: Tensor,
    layers: tuple[Tensor, ...],
    heads: int,
    decoder: tuple[Tensor, ...],
    weight: float,
) -> Tensor:
    """Losses (n,), as `pair_losses` has them, of nodes event by event: [source, destination, and

    m corrupted ones], of which those count that are `valid` (n, m).  `layers` are those of
    `Attention`, and `decoder` weight and bias of source, destination and final layer.  Going back
    is quickest if all losses count `weight`.
    """
    keep = torch.is_grad_enabled()
    losses: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
        *(table, near, valid, heads, weight, keep, frequency, bias, *layers, *decoder)
    )
    return losses


class _Losses(Function):
    """Compiled, with the gradients taken on the way forward, as of losses of equal weight."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        near: Near,
        valid: Bool,
        heads: int,
        weight: float,
        keep: bool,
        frequency: Tensor,
        bias: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        learner = _Learner(table, near, valid, heads, (frequency, bias), weights)
        if not keep:
            return torch.from_numpy(learner.losses())
        pull = np.full(len(valid), weight, learner.laid.dtype)
        losses, found = learner.learn(pull, _learns(ctx))
        ctx.kept = learner, pull, found
        ctx.save_for_backward(table, *weights)
        return torch.from_numpy(losses)

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        learner, supposed, grads = ctx.kept
        ctx.kept = learner, supposed, None  # autograd copies what others hold
        pull = array(by_loss)
        alike = len(pull) and (pull == pull[0]).all()
        if grads is None or not alike:
            _ = ctx.saved_tensors  # of which autograd says if they are not what they were
            _, grads = learner.learn(supposed if alike else pull, _learns(ctx))
        if alike and pull[0] != supposed[0]:
            grads = [None if each is None else each * (pull[0] / supposed[0]) for each in grads]
        by_table, *others = grads
        return by_table, None, None, None, None, None, *others


def _learns(ctx: Any) -> bool:
    return bool(ctx.needs_input_grad[6])  # frequency


class _Learner:
    """Events with all that their losses depend on."""

    def __init__(
        self,
        table: Tensor,
        near: Near,
        valid: Bool,
        heads: int,
        times: tuple[Tensor, Tensor],
        weights: tuple[Tensor, ...],
    ) -> None:
        self.decoder_weights = tuple(map(array, weights[-6:]))
        width, self.valid = table.shape[1], valid
        self.cuts = spans(len(valid), 1 + LEAST // width**2)
        self.beside = 2 + valid.shape[1]
        nodes = [slice(self.beside * cut.start, self.beside * cut.stop) for cut in self.cuts]
        self.laid = Laid(table, near, times, weights[:-6], heads, nodes)
        source, source_bias, destination, destination_bias, final, final_bias = self.decoder_weights
        self.decoder = Decoder(
            *(_wide(source.T), _wide(destination.T)),
            *(_wide((source_bias + destination_bias)[None])[0], final[0], final_bias),
        )

    def losses(self) -> npt.NDArray[Any]:
        """Of each event (n,)."""
        laid, decoder = self.laid, self.decoder
        losses = np.empty(len(self.valid), laid.dtype)

        def of(part: int, cut: slice) -> None:
            reads, count = laid.reads[part], cut.stop - cut.start
            rows = np.empty((len(reads.own), laid.width), laid.dtype)
            room = laid.room(NODES, back=False)
            attend(reads, laid.weights, laid.kept(NODES), room, rows)
            z = rows.reshape(count, self.beside, laid.width)
            hidden = np.empty((self.beside - 1, count, len(decoder.bias)), laid.dtype)
            slopes = np.empty((count, self.beside - 1), laid.dtype)
            found = hidden, slopes, losses[cut]
            first = np.empty((EVENTS, len(decoder.bias)), laid.dtype)
            lose(z[:, 0], z[:, 1:], self.valid[cut], *decoder, *found, first)

        together([partial(of, part, cut) for part, cut in enumerate(self.cuts)])
        return losses

    def learn(
        self, pull: npt.NDArray[Any], learned: bool
    ) -> tuple[npt.NDArray[Any], list[Tensor | None]]:
        """The same, and the gradients of their sum by the weights `pull` (n,): of the table, of

        frequency if it is `learned`, of bias, and of all weights.
        """
        laid = self.laid
        losses, ways = np.empty(len(self.valid), laid.dtype), laid.ways()
        back = DecoderBackward(_wide(self.decoder_weights[0]), _wide(self.decoder_weights[2]))
        grads = [laid.grads(learned) for _ in self.cuts]
        sizes = (laid.width, laid.width), (laid.width, laid.width), (laid.width,), (laid.width + 1,)
        decoder_grads = [DecoderGrads(*(laid.zeros(*size) for size in sizes)) for _ in self.cuts]

        def of(part: int, cut: slice) -> None:
            given = self.valid[cut], laid.weights, ways, self.decoder, back, pull[cut]
            learn(
                laid.reads[part],
                *given,
                self._room(),
                losses[cut],
                grads[part],
                decoder_grads[part],
            )

        together([partial(of, part, cut) for part, cut in enumerate(self.cuts)])
        source, destination, both, final = (
            torch.from_numpy(added(each)) for each in zip(*decoder_grads, strict=True)
        )
        return losses, [
            *laid.gradients(grads, learned),
            *(source, both, destination, both.clone()),
            *(final[: laid.width].unsqueeze(0), final[laid.width :]),
        ]

    def _room(self) -> PairRoom:
        laid, beside, across = self.laid, self.beside, len(self.decoder.bias)
        some = events_at_once(beside)
        count = some * beside
        rows, by_rows = (np.empty((count, w), laid.dtype) for w in (laid.width, across))
        return PairRoom(
            laid.room(count, back=True),
            laid.kept(count),
            rows,
            by_rows,
            rows.reshape(some, beside, laid.width),
            by_rows.reshape(some, beside, across),
            np.empty((beside - 1, some, across), laid.dtype),
            np.empty((some, beside - 1), laid.dtype),
            np.empty((2, EVENTS, across), laid.dtype),
        )


def _wide(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`weight` with columns of zeros, as many as products make at once."""
    wide = np.zeros((len(weight), up(weight.shape[1], LANES)), weight.dtype)
    wide[:, : weight.shape[1]] = weight
    return wide
