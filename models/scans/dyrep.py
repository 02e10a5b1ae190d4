"""DyRep's recurrence over a whole segment, with a backward pass written by hand.

The loops compute, event by event, what a state is given and the gradient by that; the gradients of
the weights are then one matrix product each, over all events and all messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
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
from ..threads import added, together


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
        num_base, width = chain.base["embedding"].shape
        keeps = any(ctx.needs_input_grad)
        states = chain.table("embedding").numpy()
        slot = np.empty(chain.num_rows, np.int64)
        count = number_rows(chain.neighbors, chain.before, slot)
        sent = np.empty((2, count, width), states.dtype)  # states that are told, and messages
        into = np.empty((2 * width, width), states.dtype)
        into[:width], into[width:] = structure.numpy().T, recurrence.numpy().T
        own = into[width:].diagonal().copy()
        np.fill_diagonal(into[width:], 0.0)
        weights = Weights(into, own, tell.numpy().T.copy(), tell_bias.numpy())
        send_base(states, num_base, slot, weights.tell, weights.tell_bias, *sent)
        parts = [chain.take(events) for events in chain.parts] or [chain]
        lists = [Lists(p.indptr, p.neighbors, p.before, p.partner, p.link) for p in parts]
        kept = [Kept(slot, *sent, *_room(part, width, keeps, states.dtype)) for part in parts]
        told = (elapsed + bias).numpy()

        def of(place: int) -> None:
            part = parts[place]
            scan_events(
                *(part.kind, part.ends, part.writes, part.is_loop),
                *(lists[place], chain.links["attention"], intensity, weights),
                told[chain.parts[place]] if chain.parts else told,
                states,
                kept[place],
                keeps,
                np.empty(len(part.neighbors)),
            )

        together([partial(of, place) for place in range(len(parts))])
        if keeps:
            ctx.save_for_backward(structure, recurrence, tell)
            ctx.order = np.concatenate(chain.parts) if chain.parts else None
            ctx.parts, ctx.lists, ctx.num_base = parts, lists, num_base
            ctx.states, ctx.kept = states, kept
        # the array must not hold the tensor: that has the graph, which has the array
        return torch.from_numpy(states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts: list[Chain] = ctx.parts
        kept: list[Kept] = ctx.kept
        structure, recurrence, tell = ctx.saved_tensors
        width, stops = grad.shape[1], np.cumsum([0, *map(len, parts)]).tolist()
        by_state = grad[ctx.num_base :].clone(memory_format=torch.contiguous_format).numpy()
        form = kept[0].messages.shape  # of rows before the segment several parts may be told
        by_message = [np.zeros(form, by_state.dtype) for _ in parts]
        by_sum = grad.new_empty(stops[-1], 2, width)  # part by part
        layers = torch.cat([structure, recurrence], 1).numpy(), tell.numpy()

        def of(place: int) -> None:
            part, own = parts[place], by_sum[stops[place] : stops[place + 1]].numpy()
            scan_events_back(
                *(part.ends, part.writes, ctx.lists[place], *layers, ctx.states, kept[place]),
                *(ctx.num_base, by_state, by_message[place], own),
            )

        together([partial(of, place) for place in range(len(parts))])
        flat = by_sum.flatten(0, 1)  # (2 n, width)
        inputs = [torch.from_numpy(each.inputs) for each in kept]
        whole = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        by_into = flat.t() @ whole.flatten(0, 1)  # (width, 2 width)
        message = torch.from_numpy(added(by_message))
        by_elapsed = by_sum
        if ctx.order is not None:
            by_elapsed = torch.empty_like(by_sum)
            by_elapsed[torch.from_numpy(ctx.order)] = by_sum
        return (
            *(None, None, by_elapsed, by_into[:, :width], by_into[:, width:], flat.sum(0)),
            *(message.t() @ torch.from_numpy(kept[0].senders), message.sum(0)),
        )


def _room(chain: Chain, width: int, keeps: bool, dtype: Any) -> tuple[npt.NDArray[Any], ...]:
    """What `Kept` has of each event and list, to be filled."""
    held, listed = len(chain) if keeps else 1, len(chain.neighbors) + GROUP
    return (
        np.empty((held, 2, 2 * width), dtype),
        np.zeros(listed, np.int32),
        np.full(listed, np.nan, dtype),
        np.empty((held, 2, width), np.int32),
    )
