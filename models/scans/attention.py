"""The losses of a segment of TGN, straight from the rows of its memories: attention and decoder.

Nothing is gathered, and between rows and losses nothing is recorded but what the loops want back.
"""

from __future__ import annotations

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
        found = Attended(table, near, (frequency, bias), layers, heads, keep)
        n, m, width = len(valid), 1 + valid.shape[1], table.shape[1]
        z = found.z.reshape(n, 1 + m, width)
        source, source_bias, destination, destination_bias, final, final_bias = map(array, decoder)
        across = up(width, LANES)
        hidden = np.empty((m, n, across), z.dtype)
        slopes, losses = np.empty((n, m), z.dtype), np.empty(n, z.dtype)
        lose(
            *(z[:, 0], z[:, 1:], valid, _wide(source.T), _wide(destination.T)),
            *(_wide((source_bias + destination_bias)[None])[0], final[0], final_bias),
            *(hidden, slopes, losses),
        )
        if keep:
            ctx.kept = found, z, hidden, slopes
            ctx.save_for_backward(table, *weights)
        return torch.from_numpy(losses)

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        table, *weights = ctx.saved_tensors
        found, z, hidden, slopes = ctx.kept
        layers, decoder = weights[:-6], weights[-6:]
        n, pairs, width = z.shape
        source, _, destination, _, final, _ = map(array, decoder)
        by_z = np.empty((n, pairs, hidden.shape[2]), z.dtype)
        by_source, by_destination = torch.zeros(2, width, width, dtype=table.dtype)
        by_bias, by_final = torch.zeros(width, dtype=table.dtype), table.new_zeros(width + 1)
        lose_back(
            *(z[:, 0], z[:, 1:], _wide(source), _wide(destination), final[0], hidden, slopes),
            *(array(by_loss), by_z[:, 0], by_z[:, 1:].transpose(1, 0, 2)),
            *(each.numpy() for each in (by_source, by_destination, by_bias, by_final)),
        )
        grads = found.back(
            table, layers, by_z.reshape(n * pairs, hidden.shape[2]), ctx.needs_input_grad[5]
        )
        return (
            *(grads[0], None, None, None, None, *grads[1:]),
            *(by_source, by_bias, by_destination, by_bias.clone()),
            *(by_final[:width].unsqueeze(0), by_final[width:]),
        )


def _wide(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`weight` with columns of zeros, as many as products make at once."""
    wide = np.zeros((len(weight), up(weight.shape[1], LANES)), weight.dtype)
    wide[:, : weight.shape[1]] = weight
    return wide
