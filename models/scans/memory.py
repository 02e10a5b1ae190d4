"""Scans of memories: GRU, or a linear layer under tanh, of both ends of every event (TGN, JODIE).

An end takes in [own memory, the other's, what it is told].  Nothing stands between events and the
loops that autograd would have to see: a code of time is made where it is read, and its gradient
where that of weights is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function

from ...stream import Float64, Int64
from ..chain import Chain
from ..kernels.memory import (
    gru_backward,
    gru_forward,
    gru_weights,
    gru_whole,
    in_batches,
    lay_back,
    lay_out,
    lay_side,
    take_apart,
    tanh_backward,
    tanh_forward,
    tanh_weights,
)
from ..padding import LANES, array, up
from ..threads import added, spans, together

Batches = tuple[Int64, Int64]  # events (n,) batch by batch, and where batches begin (b + 1,)
LEAST = 1_600_000  # ends x width x width whose products are worth a thread


class Times(NamedTuple):
    """When, and in which code, the ends of events are told the time."""

    seconds: Float64  # (n, 2)
    frequency: Tensor  # (t,) radians a second
    phase: Tensor  # (t,) radians


def scan_gru(
    chain: Chain, name: str, known: Tensor, cell: nn.GRUCell, times: Times | None = None
) -> Tensor:
    """Memories (num_rows, width) of the chain's table of that name.

    The message of an end is [own memory, the other's, what it is told]: what is `known` (n, 2, x),
    or to both ends (n, 1, x), then the code of its time, if there is one.
    """
    if times is None:
        nothing = known.new_empty(0)
        times = Times(np.zeros((len(chain), 2)), nothing, nothing)
    weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    states: Tensor = _Gru.apply(  # type: ignore[no-untyped-call]
        chain, name, known, times.seconds, times.frequency, times.phase, *weights
    )
    return states


def scan_tanh(
    chain: Chain, name: str, told: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """States (num_rows, width) of the chain's table of that name, `told` (n, 2, told).

    `weights` (width, 2 width + told) of [own, other's, told] and `biases` (width,) are those of
    both ends, or of source and destination.
    """
    states: Tensor = _Tanh.apply(chain, name, told, *weights, *biases)  # type: ignore[no-untyped-call]
    return states


def _cut(chain: Chain) -> tuple[list[Batches], list[slice]]:
    """The batches of each thread, and the span of its events among those of all in that order."""
    parts = [_batches(chain, events) for events in chain.parts or (None,)]
    stops = list(accumulate((len(order) for order, _ in parts), initial=0))
    return parts, [slice(a, b) for a, b in pairwise(stops)]


def _order(parts: Sequence[Batches]) -> Int64:
    """All events in that order."""
    return parts[0][0] if len(parts) == 1 else np.concatenate([order for order, _ in parts])


def _batches(chain: Chain, events: Int64 | None) -> Batches:
    """Some of the events, or all, batch by batch."""
    ends, writes = chain.ends, chain.writes
    if events is not None:
        ends, writes = ends[events], writes.reshape(-1, 2)[events].ravel()
    order, starts = np.empty(len(ends), np.int64), np.empty(len(ends) + 1, np.int64)
    count = in_batches(ends, writes, np.full(chain.num_rows, -1), order, starts)
    return order if events is None else events[order], starts[: count + 1]


class _Gru(Function):
    """Gates stand in the order [new's own part, reset, renew, new], the last three side by side."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        name: str,
        known: Tensor,
        seconds: Float64,
        frequency: Tensor,
        phase: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        table = chain.table(name)
        width = table.shape[1]
        into, back, bias_in, bias_back = (array(each, table.dtype) for each in weights)
        size = into.shape[1] - 2 * width
        part, three = up(width, LANES), up(3 * width, LANES)
        dtype = into.dtype
        laid = (
            *(np.empty((width, part + three), dtype), np.empty((width, three), dtype)),
            *(np.empty((size, three), dtype), np.empty((1, part + three), dtype)),
        )
        lay_out(into, back, bias_in, bias_back, *laid)
        parts, events = _cut(chain)
        cuts = [slice(2 * cut.start, 2 * cut.stop) for cut in events]  # of ends
        read = np.empty((2 * len(chain), up(size + 2 * width + 1, LANES)), dtype)
        gates = np.empty((2 * len(chain), part + three), dtype)
        lists = table.numpy(), chain.ends, chain.writes
        rate, offset = (array(each, torch.float64) / math.tau for each in (frequency, phase))
        told = array(known, table.dtype), seconds, rate, offset

        def of(place: int) -> None:
            cut = cuts[place]
            gru_forward(*lists, *parts[place], *told, *laid, read[cut], gates[cut])

        together([partial(of, place) for place in range(len(parts))])
        ctx.chain, ctx.parts, ctx.cuts, ctx.num_base = chain, parts, cuts, len(chain.base[name])
        ctx.told, ctx.shape = (seconds, rate, offset), known.shape
        ctx.types = frequency.dtype, phase.dtype
        ctx.save_for_backward(torch.from_numpy(read), torch.from_numpy(gates), *weights)
        return torch.from_numpy(table.numpy())  # the chain's has no graph, which has the chain

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        read, gates, *weights = (array(each, grad.dtype) for each in ctx.saved_tensors)
        into, back, *_ = weights
        chain: Chain = ctx.chain
        parts: list[Batches] = ctx.parts
        cuts: list[slice] = ctx.cuts
        num_base: int = ctx.num_base
        seconds, rate, offset = ctx.told
        for_known, for_rate, for_phase = (ctx.needs_input_grad[place] for place in (2, 4, 5))
        width, dtype = grad.shape[1], into.dtype
        size, part = into.shape[1] - 2 * width, up(width, LANES)
        times = len(rate) if for_rate or for_phase else 0
        count = size if for_known else times  # the last of what is told, which want a gradient
        ways = np.empty((7 * width, part), dtype)
        told = np.empty((3 * width, up(count, LANES)), dtype)
        lay_back(into, back, ways, told, count)
        more = np.empty((chain.num_rows - num_base, width), dtype)
        lists = (
            *(array(grad, grad.dtype), more, np.zeros(len(more), np.bool_)),
            *(chain.ends, chain.writes),
        )
        even = spans(len(gates), 1 + LEAST // width**2)
        whole = len(even) == 1  # no other thread waits for weights of its own
        sums = len(parts) if whole else len(even)
        by_three = np.zeros((sums, 3 * width, read.shape[1]), dtype)
        by_part = np.zeros((sums, width, up(width + 1, LANES)), dtype)
        tail = min(size + width, read.shape[1] - by_part.shape[2])
        by_known = np.empty((len(chain), 2, ctx.shape[2] if for_known else 0), dtype)
        by_phase, by_rate = np.zeros((sums, times)), np.zeros((sums, times if for_rate else 0))
        codes = seconds, rate, offset, told
        slopes = np.empty((0 if whole else len(gates), gates.shape[1]), dtype)

        def found(place: int) -> tuple[npt.NDArray[Any], ...]:
            return by_three[place], by_part[place], by_known, by_phase[place], by_rate[place]

        def of(place: int) -> None:
            cut = cuts[place]
            given = *lists, *parts[place], ways, size, read[cut], gates[cut]
            if whole:
                gru_whole(*given, part, tail, *codes, *found(place))
            else:
                gru_backward(*given, slopes[cut])

        together([partial(of, place) for place in range(len(parts))])
        if not whole:  # what is left is apart, whatever hangs together
            order = _order(parts)

            def weigh(place: int, cut: slice) -> None:
                kept = read[cut], slopes[cut], part, tail, order, cut.start
                gru_weights(*kept, *codes, *found(place))

            together([partial(weigh, place, cut) for place, cut in enumerate(even)])
        grads = [np.empty_like(each) for each in weights]
        take_apart(by_three, by_part, size, tail, *grads)
        given = torch.from_numpy(by_known) if for_known else None
        if given is not None and ctx.shape[1] == 1:
            given = given.sum(1, keepdim=True)
        of_rate, of_phase = (
            torch.from_numpy(added(list(each))).to(dtype) if wanted else None
            for each, dtype, wanted in zip(
                (by_rate, by_phase), ctx.types, (for_rate, for_phase), strict=True
            )
        )
        return None, None, given, None, of_rate, of_phase, *map(torch.from_numpy, grads)


class _Tanh(Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, name: str, told: Tensor, *layers: Tensor) -> Tensor:
        table = chain.table(name)
        width = table.shape[1]
        given = [array(each, table.dtype) for each in layers]
        weights, biases = given[: len(given) // 2], given[len(given) // 2 :]
        inputs, dtype = weights[0].shape[1] + 1, weights[0].dtype
        forth = np.empty((len(weights), inputs, up(width, LANES)), dtype)
        back = np.empty((len(weights), width, up(2 * width, LANES)), dtype)
        for place, side in enumerate(zip(weights, biases, strict=True)):
            lay_side(*side, forth[place], back[place])
        parts, cuts = _cut(chain)
        read = np.empty((2, len(chain), up(inputs, LANES)), dtype)
        lists = table.numpy(), chain.ends, chain.writes
        known = array(told, table.dtype)

        def of(place: int) -> None:
            tanh_forward(*lists, *parts[place], known, forth, read[:, cuts[place]])

        together([partial(of, place) for place in range(len(parts))])
        ctx.chain, ctx.parts, ctx.cuts, ctx.num_base = chain, parts, cuts, len(chain.base[name])
        ctx.save_for_backward(table, *map(torch.from_numpy, (read, back)), *layers)
        return torch.from_numpy(table.numpy())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        table, read, back, *layers = (array(each, grad.dtype) for each in ctx.saved_tensors)
        chain: Chain = ctx.chain
        parts: list[Batches] = ctx.parts
        cuts: list[slice] = ctx.cuts
        width, weights = grad.shape[1], layers[: len(layers) // 2]
        slopes = np.empty((2, len(chain), width), table.dtype)
        more = np.empty((chain.num_rows - ctx.num_base, width), table.dtype)
        lists = (
            *(table, array(grad, grad.dtype), more, np.zeros(len(more), np.bool_)),
            *(chain.ends, chain.writes),
        )

        def of(place: int) -> None:
            tanh_backward(*lists, *parts[place], back, slopes[:, cuts[place]])

        together([partial(of, place) for place in range(len(parts))])
        even = spans(len(chain), 1 + LEAST // width**2)
        sums = np.empty((len(even), len(weights), width, read.shape[2]), table.dtype)

        def weigh(place: int, cut: slice) -> None:
            tanh_weights(read[:, cut], slopes[:, cut], sums[place])

        together([partial(weigh, place, cut) for place, cut in enumerate(even)])
        found, size = added(list(sums)), weights[0].shape[1]
        by_told = None
        if ctx.needs_input_grad[2]:
            by_told = grad.new_empty(len(chain), 2, size - 2 * width)
            order = torch.from_numpy(_order(parts))
            for side in range(2):
                weight = weights[side % len(weights)][:, 2 * width :]
                by_told[order, side] = torch.from_numpy(slopes[side] @ weight)
        by_weights = [torch.from_numpy(each[:, :size].copy()) for each in found]
        by_biases = [torch.from_numpy(each[:, size].copy()) for each in found]
        return None, None, by_told, *by_weights, *by_biases
