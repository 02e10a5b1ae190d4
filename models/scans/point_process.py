"""The losses of a segment of a point process, straight from the rows of its states.

Nothing is gathered: the loops read each state where it stands, and their backward pass adds to the
gradient of written rows only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ..kernels.point_process import pair_losses, pair_losses_back
from ..pairs import Pairs
from ..threads import added, spans, together

LEAST = 256  # events that are worth a thread


def losses_of_pairs(
    pairs: Pairs,
    states: Tensor,
    omega: Tensor,
    bias: Tensor,
    psi: Tensor,
    interaction: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Losses (n,), and intensities (n,) of what happened, without gradient.

    `states` is (num_rows, width); omega (kinds, 2 width), c and psi (kinds,) and M (kinds, width,
    width) are made the same for a pair and its reverse.
    """
    result: tuple[Tensor, Tensor] = _Losses.apply(  # type: ignore[no-untyped-call]
        pairs, states, omega, bias, psi, interaction
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
        interaction: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        n, num_kinds, width = len(pairs), len(bias), states.shape[1]
        rows = pairs.rows
        valid = np.concatenate([pairs.other_src_valid, pairs.other_dst_valid], axis=1)
        both = omega.numpy()
        sums = (both[:, :width] + both[:, width:]) / 2  # (kinds, width)
        between, held = np.empty((0, 0, 0), both.dtype), (0, 0)
        if interaction is not None:
            one_way, held = interaction.numpy(), (n, num_kinds)
            between = np.ascontiguousarray(one_way + one_way.transpose(0, 2, 1)) / 2
        turned = np.empty((*held, 2, width), both.dtype)
        slope = np.empty((n, 1 + valid.shape[1], num_kinds), both.dtype)
        by_psi = np.empty((n, num_kinds), both.dtype)
        rate, losses = states.new_empty(n), states.new_empty(n)
        z, of_event = states.numpy(), (rows, valid, pairs.kind)
        weights = sums, bias.numpy(), psi.numpy(), between
        found = slope, by_psi, rate.numpy(), losses.numpy()
        cuts = spans(n, LEAST)

        def of(cut: slice) -> None:
            pair_losses(
                *(z, *(each[cut] for each in of_event), *weights),
                *(turned[cut], *(each[cut] for each in found)),
            )

        together([partial(of, cut) for cut in cuts])
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(states)
            ctx.rows, ctx.num_base = rows, pairs.num_base
            ctx.kept, ctx.cuts = (sums, between, turned, slope, by_psi), cuts
        ctx.mark_non_differentiable(rate)
        return losses, rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (states,) = ctx.saved_tensors
        sums, between, turned, slope, by_psi = ctx.kept
        n, (num_kinds, width) = len(grad), sums.shape
        z, pull = states.detach().numpy(), grad.contiguous().numpy()
        # zeros that are fetched where they are touched: base rows stay untouched
        by_state = [np.zeros(states.shape, sums.dtype) for _ in ctx.cuts]
        by_omega = np.empty((n, num_kinds, width), sums.dtype)
        centred = np.empty((n if len(between) else 0, 2, width), sums.dtype)
        by_turned = np.zeros(turned.shape, sums.dtype)

        def of(part: int, cut: slice) -> None:
            pair_losses_back(
                *(z, ctx.rows[cut], ctx.num_base, sums, between),
                *(turned[cut], slope[cut], pull[cut], by_state[part]),
                *(by_omega[cut], centred[cut], by_turned[cut]),
            )

        together([partial(of, part, cut) for part, cut in enumerate(ctx.cuts)])
        by_between = None
        if len(between):
            each = torch.from_numpy(by_turned).transpose(0, 1).flatten(1, 2)  # (kinds, 2 n, width)
            by_between = torch.from_numpy(centred).flatten(0, 1).t() @ each
            by_between = (by_between + by_between.transpose(1, 2)) / 2
        by_states = torch.from_numpy(added(by_state, ctx.num_base))
        by_sums = torch.from_numpy(by_omega).sum(0) / 2
        by_bias = torch.from_numpy(slope.sum(1).T @ pull)
        return (
            *(None, by_states, torch.cat([by_sums, by_sums], 1)),
            *(by_bias, torch.from_numpy(pull @ by_psi), by_between),
        )
