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
from ..attention import Attended, Near, array
from ..kernels.pairs import lose, lose_back
from ..padding import LANES, up
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
) -> Tensor:
    """Losses (n,), as `pair_losses` has them, of nodes event by event: [source, destination, and

    m corrupted ones], of which those count that are `valid` (n, m).  `layers` are those of
    `Attention`, and `decoder` weight and bias of source, destination and final layer.
    """
    losses: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
        *(table, near, valid, heads, torch.is_grad_enabled(), frequency, bias, *layers, *decoder)
    )
    return losses


class _Losses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        near: Near,
        valid: Bool,
        heads: int,
        keep: bool,
        frequency: Tensor,
        bias: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        layers, decoder = weights[:-6], weights[-6:]
        n, beside, width = len(valid), 2 + valid.shape[1], table.shape[1]
        cuts = spans(n, 1 + LEAST // width**2)
        nodes = [slice(beside * cut.start, beside * cut.stop) for cut in cuts]
        found = Attended(table, near, (frequency, bias), layers, heads, keep, nodes)
        source, source_bias, destination, destination_bias, final, final_bias = map(array, decoder)
        given = (
            *(_wide(source.T), _wide(destination.T)),
            *(_wide((source_bias + destination_bias)[None])[0], final[0], final_bias),
        )
        across, dtype = up(width, LANES), source.dtype
        hidden = [np.empty((beside - 1, cut.stop - cut.start, across), dtype) for cut in cuts]
        slopes, losses = np.empty((n, beside - 1), dtype), np.empty(n, dtype)

        def of(part: int) -> None:
            cut, z = cuts[part], found.attend(part).reshape(-1, beside, width)
            lose(
                *(z[:, 0], z[:, 1:], valid[cut], *given),
                *(hidden[part], slopes[cut], losses[cut]),
            )

        together([partial(of, part) for part in range(len(cuts))])
        if keep:
            ctx.kept = found, cuts, hidden, slopes
            ctx.save_for_backward(table, *weights)
        return torch.from_numpy(losses)

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        _, *weights = ctx.saved_tensors
        found, cuts, hidden, slopes = ctx.kept
        layers, decoder = weights[:-6], weights[-6:]
        source, _, destination, _, final, _ = map(array, decoder)
        width, across, pull = len(source), hidden[0].shape[2], array(by_loss)
        beside = 1 + slopes.shape[1]
        ways, way = (_wide(source), _wide(destination)), found.back(layers, ctx.needs_input_grad[5])
        sizes = (width, width), (width, width), (width,), (width + 1,)
        grads = [tuple(np.zeros(size, source.dtype) for size in sizes) for _ in cuts]

        def of(part: int) -> None:
            cut = cuts[part]
            z = found.z[found.cuts[part]].reshape(-1, beside, width)  # of no event too
            by_z = np.empty((*z.shape[:2], across), source.dtype)
            lose_back(
                *(z[:, 0], z[:, 1:], *ways, final[0], hidden[part], slopes[cut], pull[cut]),
                *(by_z[:, 0], by_z[:, 1:].transpose(1, 0, 2), *grads[part]),
            )
            way.of(part, by_z.reshape(len(by_z) * beside, across))

        together([partial(of, part) for part in range(len(cuts))])
        by_table, *by_layers = way.gradients()
        by_source, by_destination, by_bias, by_final = (
            torch.from_numpy(added(each)) for each in zip(*grads, strict=True)
        )
        return (
            *(by_table, None, None, None, None, *by_layers),
            *(by_source, by_bias, by_destination, by_bias.clone()),
            *(by_final[:width].unsqueeze(0), by_final[width:]),
        )


def _wide(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`weight` with columns of zeros, as many as products make at once."""
    wide = np.zeros((len(weight), up(weight.shape[1], LANES)), weight.dtype)
    wide[:, : weight.shape[1]] = weight
    return wide
