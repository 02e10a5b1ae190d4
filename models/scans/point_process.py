"""The losses of a segment of a point process, straight from the rows of its states.

Nothing is gathered: the loops read each state where it stands, and their backward pass adds to the
gradient of written rows only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ..kernels.point_process import pair_losses, pair_losses_back
from ..pairs import Pairs


def losses_of_pairs(
    pairs: Pairs, states: Tensor, omega: Tensor, bias: Tensor, psi: Tensor, between: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses (n,), and intensities (n,) of what happened, without gradient.

    `states` is (num_rows, width); omega (kinds, width), c (kinds,), psi (kinds,) and M
    (kinds, width, width), or (0, 0, 0), are symmetrised.
    """
    result: tuple[Tensor, Tensor] = _Losses.apply(  # type: ignore[no-untyped-call]
        pairs, states, omega, bias, psi, between
    )
    return result


class _Losses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        pairs: Pairs,
        states: Tensor,
        omega: Tensor,
        bias: Tensor,
        psi: Tensor,
        between: Tensor,
    ) -> tuple[Tensor, Tensor]:
        n, (num_kinds, width) = len(pairs), omega.shape
        rows = np.concatenate([pairs.ends, pairs.other_src, pairs.other_dst], axis=1)
        valid = np.concatenate([pairs.other_src_valid, pairs.other_dst_valid], axis=1)
        held = (n, num_kinds) if len(between) else (0, 0)
        turned = states.new_empty(*held, 2, width).numpy()
        slope = states.new_empty(n, 1 + valid.shape[1], num_kinds)
        by_psi = states.new_empty(n, num_kinds)
        rate, losses = states.new_empty(n), states.new_empty(n)
        pair_losses(
            states.numpy(),
            rows,
            valid,
            pairs.kind,
            omega.contiguous().numpy(),
            bias.numpy(),
            psi.numpy(),
            between.contiguous().numpy(),
            turned,
            slope.numpy(),
            by_psi.numpy(),
            rate.numpy(),
            losses.numpy(),
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(states, omega, between)
            ctx.rows, ctx.num_base = rows, pairs.num_base
            ctx.kept = turned, slope, by_psi
        ctx.mark_non_differentiable(rate)
        return losses, rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, omega, between = ctx.saved_tensors
        turned, slope, by_psi = ctx.kept
        n, (num_kinds, width) = len(grad), omega.shape
        # numpy's zeros are fetched where they are touched: base rows stay untouched
        by_state = torch.from_numpy(np.zeros(states.shape, states.numpy().dtype))
        by_omega = states.new_empty(n, num_kinds, width)
        centred = states.new_empty(n if len(between) else 0, 2, width)
        by_turned = states.new_zeros(turned.shape)
        pair_losses_back(
            states.numpy(),
            ctx.rows,
            ctx.num_base,
            omega.contiguous().numpy(),
            between.contiguous().numpy(),
            turned,
            slope.numpy(),
            grad.contiguous().numpy(),
            by_state.numpy(),
            by_omega.numpy(),
            centred.numpy(),
            by_turned.numpy(),
        )
        by_between = None
        if len(between):
            each = by_turned.transpose(0, 1).flatten(1, 2)  # (kinds, 2 n, width)
            by_between = centred.flatten(0, 1).t() @ each
        by_bias = (slope.sum(1) * grad[:, None]).sum(0)
        return None, by_state, by_omega.sum(0), by_bias, grad @ by_psi, by_between
