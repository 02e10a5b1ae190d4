"""DyRep's recurrence over a whole segment, with a backward pass written by hand.

The loops compute, event by event, what a state is given and the gradient by that; the gradients of
the weights are then one matrix product each, over all events and all messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ..chain import Chain
from ..kernels.dyrep import (
    GROUP,
    Intensity,
    Kept,
    Lists,
    Weights,
    number_rows,
    scan_events,
    scan_events_back,
    send_base,
)


def scan_dyrep(
    chain: Chain,
    intensity: Intensity,
    structure: Tensor,
    recurrence: Tensor,
    bias: Tensor,
    tell: Tensor,
    tell_bias: Tensor,
) -> Tensor:
    """The states (num_rows, width) of a chain whose attention is renewed in place.

    The weights are W_struct, W_rec, their bias, W_h and b_h, as their layers hold them.
    """
    elapsed = chain.encoded["elapsed"]
    states: Tensor = _Scan.apply(  # type: ignore[no-untyped-call]
        chain, intensity, elapsed, structure, recurrence, bias, tell, tell_bias
    )
    return states


class _Scan(Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        intensity: Intensity,
        elapsed: Tensor,
        structure: Tensor,
        recurrence: Tensor,
        bias: Tensor,
        tell: Tensor,
        tell_bias: Tensor,
    ) -> Tensor:
        base = chain.base["embedding"]
        num_base, width = base.shape
        n, keeps = len(chain), any(ctx.needs_input_grad)
        states = np.empty((chain.num_rows, width), base.numpy().dtype)
        states[:num_base] = base.numpy()
        slot = np.empty(chain.num_rows, np.int64)
        count = number_rows(chain.neighbors, chain.before, slot)
        held = n if keeps else 1
        kept = Kept(
            slot,
            np.empty((count, width), states.dtype),
            np.empty((count, width), states.dtype),
            np.empty((held, 2, 2 * width), states.dtype),
            np.zeros(len(chain.neighbors) + GROUP, np.int32),
            np.full(len(chain.neighbors) + GROUP, np.nan, states.dtype),
            np.empty((held, 2, width), np.int32),
        )
        into = np.empty((2 * width, width), states.dtype)
        into[:width], into[width:] = structure.numpy().T, recurrence.numpy().T
        own = into[width:].diagonal().copy()
        np.fill_diagonal(into[width:], 0.0)
        weights = Weights(into, own, tell.numpy().T.copy(), tell_bias.numpy())
        send_base(
            states, num_base, slot, weights.tell, weights.tell_bias, kept.senders, kept.messages
        )
        lists = Lists(chain.indptr, chain.neighbors, chain.before, chain.partner, chain.link)
        scan_events(
            chain.kind,
            chain.ends,
            chain.writes,
            chain.is_loop,
            lists,
            chain.links["attention"],
            intensity,
            weights,
            (elapsed + bias).numpy(),
            states,
            kept,
            keeps,
            np.empty(len(chain.neighbors)),
        )
        if keeps:
            ctx.save_for_backward(structure, recurrence, tell)
            ctx.chain, ctx.lists, ctx.num_base = chain, lists, num_base
            ctx.states, ctx.kept = states, kept
        # the array must not hold the tensor: that has the graph, which has the array
        return torch.from_numpy(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        chain: Chain = ctx.chain
        kept: Kept = ctx.kept
        structure, recurrence, tell = ctx.saved_tensors
        width = grad.shape[1]
        by_state = grad[ctx.num_base :].clone(memory_format=torch.contiguous_format)
        by_message = grad.new_zeros(kept.messages.shape)
        by_sum = grad.new_empty(len(chain), 2, width)
        scan_events_back(
            chain.ends,
            chain.writes,
            ctx.lists,
            torch.cat([structure, recurrence], 1).numpy(),
            tell.numpy(),
            ctx.states,
            kept,
            ctx.num_base,
            by_state.numpy(),
            by_message.numpy(),
            by_sum.numpy(),
        )
        flat = by_sum.flatten(0, 1)  # (2 n, width)
        by_into = flat.t() @ torch.from_numpy(kept.inputs).flatten(0, 1)  # (width, 2 width)
        return (
            *(None, None, by_sum, by_into[:, :width], by_into[:, width:], flat.sum(0)),
            *(by_message.t() @ torch.from_numpy(kept.senders), by_message.sum(0)),
        )
