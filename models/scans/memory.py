"""Scans of memories: GRU, or a linear layer under tanh, of both ends of every event (TGN, JODIE).

An end takes in [own memory, the other's, what it is told].  The part of the weights that is told
something is applied to all events at once beforehand, as it needs no state; what is left is a
product of [own, other's] with one matrix an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function

from ...stream import Int64
from ..chain import Chain
from ..kernels.memory import (
    by_level,
    gru_backward,
    gru_forward,
    gru_weights,
    tanh_backward,
    tanh_forward,
)
from ..padding import LANES, PART, up
from ..rows import product
from ..threads import added, spans, together

LEAST = 1_600_000  # ends x width x width whose products are worth a thread


def scan_gru(chain: Chain, memory: Tensor, told: Tensor, cell: nn.GRUCell) -> Tensor:
    """Memories (num_rows, width) from those before (b, width), `told` (n, 2, told).

    The message of an end is [own memory, the other's, what it is told].
    """
    weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    states: Tensor = _Gru.apply(chain, memory, told, *weights)  # type: ignore[no-untyped-call]
    return states


def scan_tanh(
    chain: Chain, state: Tensor, told: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """States (num_rows, width) from those before (b, width), `told` (n, 2, told).

    `weights` (width, 2 width + told) of [own, other's, told] and `biases` (width,) are those of
    both ends, or of source and destination.
    """
    width = state.shape[1]
    pairs = list(zip(weights, biases, strict=True))
    if len(pairs) == 1:
        known = product(told, weights[0][:, 2 * width :], biases[0])
    else:
        sides = [product(told[:, s], w[:, 2 * width :], b) for s, (w, b) in enumerate(pairs)]
        known = torch.stack(sides, dim=1)  # (n, 2, width)
    weight = torch.stack([w[:, : 2 * width] for w in weights])  # (1 or 2, width, 2 width)
    states: Tensor = _Tanh.apply(chain, state, known, weight)  # type: ignore[no-untyped-call]
    return states


def _table(chain: Chain, base: Tensor) -> Tensor:
    table = base.new_empty(chain.num_rows, base.shape[1])
    table[: len(base)] = base
    return table


def _both(chain: Chain, table: Tensor) -> Tensor:
    """[own, other's] of every end, (n, 2, 2 width)."""
    own = table[torch.from_numpy(chain.ends)]  # (n, 2, width)
    return torch.cat([own, own.flip(1)], dim=-1)


def _parts(chain: Chain) -> tuple[Int64, ...]:
    """The events of each thread, in log order."""
    return chain.parts or (np.arange(len(chain)),)


def _levels(chain: Chain, events: Int64) -> tuple[Int64, Int64]:
    """Some of the events level by level, and where levels begin."""
    order, starts = np.empty(len(events), np.int64), np.empty(len(events) + 1, np.int64)
    depth = np.zeros(chain.num_rows, np.int64)
    count = by_level(*_some(chain, events), depth, order, starts)
    return events[order], starts[: count + 1]


def _some(chain: Chain, events: Int64) -> tuple[Int64, Int64]:
    """The ends of some of the events (p, 2), and the rows that they write (2 p,)."""
    return chain.ends[events], chain.writes.reshape(-1, 2)[events].ravel()


class _Gru(Function):
    """Gates stand in the order [new's own part, reset, renew, new], the last three side by side."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        base: Tensor,
        told: Tensor,
        into: Tensor,
        back: Tensor,
        bias_in: Tensor,
        bias_back: Tensor,
    ) -> Tensor:
        table, width = _table(chain, base), base.shape[1]
        three = up(3 * width, LANES)
        total = up(width + three, LANES)
        own, bias = base.new_zeros(width, total), base.new_zeros(total)
        own[:, :width] = back[2 * width :].t()
        own[:, width : 4 * width] = into[:, :width].t()
        own[:, width : 3 * width] += back[: 2 * width].t()
        bias[:width] = bias_back[2 * width :]
        bias[width : 4 * width] = bias_in
        bias[width : 3 * width] += bias_back[: 2 * width]
        rest = base.new_zeros(into.shape[1] - width, three)
        rest[:, : 3 * width] = into[:, width:].t()
        parts = [_levels(chain, events) for events in _parts(chain)]
        stops = np.cumsum([0, *(2 * len(order) for order, _ in parts)]).tolist()
        cuts = [slice(a, b) for a, b in pairwise(stops)]  # of ends, in the order of the parts
        read = base.new_zeros(2 * len(chain), up(into.shape[1] + 1, PART))
        gates = base.new_empty(2 * len(chain), total)
        lists = table.numpy(), chain.ends, chain.writes
        given = told.detach().contiguous().numpy()
        weights = own.numpy(), rest[:width].numpy(), rest[width:].numpy(), bias.numpy()
        kept = read.numpy(), gates.numpy()

        def of(part: int) -> None:
            reads, gate = (each[cuts[part]] for each in kept)
            gru_forward(*lists, *parts[part], given, *weights, reads, gate)

        together([partial(of, part) for part in range(len(parts))])
        ctx.chain, ctx.parts, ctx.cuts = chain, parts, cuts
        ctx.save_for_backward(into, back, read, gates)
        return table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        into, back, read, gates = ctx.saved_tensors
        chain: Chain = ctx.chain
        parts: list[tuple[Int64, Int64]] = ctx.parts
        cuts: list[slice] = ctx.cuts
        width, columns = grad.shape[1], into.shape[1]
        own = grad.new_zeros(4 * width, up(width, LANES))
        own[:width, :width] = back[2 * width :]
        own[width:, :width] = into[:, :width]
        own[width : 3 * width, :width] += back[: 2 * width]
        other = grad.new_zeros(3 * width, up(width, LANES))
        other[:, :width] = into[:, width : 2 * width]
        slopes = torch.empty_like(gates)  # a graph may be gone through twice
        grad = grad.clone(memory_format=torch.contiguous_format)
        lists = grad.numpy(), chain.ends, chain.writes
        kept = [each.numpy() for each in (read, gates, slopes)]
        tail = grad.new_zeros(3 * width, up(columns - 2 * width, LANES))
        tail[:, : columns - 2 * width] = into[:, 2 * width :]
        ways = own.numpy(), other.numpy()
        size = len(slopes) if ctx.needs_input_grad[2] else 0
        by_placed = grad.new_zeros(size, tail.shape[1])

        def of(part: int) -> None:
            gru_backward(*lists, *parts[part], *ways, *(each[cuts[part]] for each in kept))

        together([partial(of, part) for part in range(len(parts))])
        # what is left is apart, whatever hangs together
        even = spans(len(slopes), 1 + LEAST // width**2)
        dtype = kept[0].dtype
        sums = [np.zeros((3 * width, read.shape[1]), dtype) for _ in even]
        own_sums = [np.zeros((width, width), dtype) for _ in even]
        told, into_told = tail.numpy(), by_placed.numpy()

        def weigh(part: int, cut: slice) -> None:
            found = sums[part], own_sums[part], into_told[cut]
            gru_weights(kept[0][cut], kept[2][cut], told, *found)

        together([partial(weigh, part, cut) for part, cut in enumerate(even)])
        by_three, by_part = (torch.from_numpy(added(each)) for each in (sums, own_sums))
        by_back = torch.cat([by_three[: 2 * width, :width], by_part])
        by_bias = torch.cat([by_three[: 2 * width, columns], slopes[:, :width].sum(0)])
        by_told = None
        if ctx.needs_input_grad[2]:
            by_told = grad.new_empty(len(chain), 2, columns - 2 * width)
            order = torch.from_numpy(np.concatenate([order for order, _ in parts]))
            by_told[order] = by_placed.view(-1, 2, tail.shape[1])[..., : columns - 2 * width]
        return (
            *(None, None, by_told, by_three[:, :columns].contiguous(), by_back),
            *(by_three[:, columns].contiguous(), by_bias),
        )


class _Tanh(Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, base: Tensor, known: Tensor, weight: Tensor) -> Tensor:
        table = _table(chain, base)
        across = weight.transpose(1, 2).contiguous().detach().numpy()
        states, told = table.numpy(), known.detach().numpy()

        def of(ends: Int64, writes: Int64, told: npt.NDArray[Any]) -> None:
            tanh_forward(states, ends, writes, told, across)

        if not chain.parts:
            of(chain.ends, chain.writes, told)
        else:
            together([partial(of, *_some(chain, part), told[part]) for part in chain.parts])
        ctx.chain = chain
        ctx.save_for_backward(table, weight)
        return table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor]:
        table, weight = ctx.saved_tensors
        chain: Chain = ctx.chain
        slopes = table.new_empty(len(chain), 2, table.shape[1])
        grad = grad.clone(memory_format=torch.contiguous_format)
        given, found = (table.numpy(), grad.numpy()), slopes.numpy()
        back = weight.contiguous().numpy()

        def of(ends: Int64, writes: Int64, into: npt.NDArray[Any]) -> None:
            tanh_backward(*given, ends, writes, back, into)

        if not chain.parts:
            of(chain.ends, chain.writes, found)
        else:
            into = [np.empty_like(found[part]) for part in chain.parts]
            pairs = zip(chain.parts, into, strict=True)
            together([partial(of, *_some(chain, part), own) for part, own in pairs])
            found[np.concatenate(chain.parts)] = np.concatenate(into)
        both = _both(chain, table)
        if len(weight) == 1:
            by_weight = (slopes.flatten(0, 1).t() @ both.flatten(0, 1))[None]
        else:
            by_weight = torch.bmm(slopes.permute(1, 2, 0), both.transpose(0, 1))
        return None, None, slopes, by_weight
