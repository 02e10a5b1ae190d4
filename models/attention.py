"""Attention of nodes over their recent neighbours, in which nothing is projected one by one.

q^T (W m) is taken as (W^T q)^T m, and the weighted sum is projected, not what it sums: k times less
work for the same numbers.  On a processor one compiled loop gathers what it reads by row, and only
the shares of neighbours are kept for the way back; elsewhere, the same in tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function

from ..stream import Bool, Float64, Int64
from .kernels.attention import (
    NODES,
    Backward,
    Grads,
    Kept,
    Layers,
    Places,
    Reads,
    Room,
    Weights,
    attend,
    attend_back,
    lay_back,
    lay_out,
    take_apart,
)
from .padding import LANES, PART, array, tiled, up
from .threads import added, spans, together
from .time_encoding import TimeEncoding

LEAST = 1_000_000  # nodes x width x width that are worth a thread


class Attention(nn.Module):
    """W_s s_i + over heads, sum over j of a_ij (W_v s_j + W_e e_ij), a_ij the softmax over j of

    (W_q s_i)^T (W_k s_j + W_e e_ij) / sqrt(width of a head), where e_ij = [phi(t_ij), what else is
    known]: `TransformerConv` of torch_geometric (Shi et al., IJCAI 2021).  W_k has no bias, which
    would add the same to all j.
    """

    def __init__(self, width: int, edge_width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`: got {width} and {heads}")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.edge = nn.Linear(edge_width, width, bias=False)
        self.skip = nn.Linear(width, width)

    def forward(self, own: Tensor, near: Tensor, edges: Tensor, mask: Tensor) -> Tensor:
        """(n, m, width) of nodes, their neighbours (n, m, k, ...) and which of these are real."""
        n, m, width = own.shape
        head = width // self.heads
        near, edges = near.flatten(0, 1), edges.flatten(0, 1)  # (n m, k, width or edge width)
        real = mask.flatten(0, 1).unsqueeze(1)  # (n m, 1, k)

        def of_heads(weight: Tensor) -> Tensor:
            return weight.view(self.heads, head, -1)

        query = self.query(own).view(n * m, self.heads, head) / math.sqrt(head)
        rates = [  # (n m, heads, k)
            torch.einsum("rhc,hcd->rhd", query, of_heads(layer.weight)) @ read.transpose(1, 2)
            for layer, read in ((self.key, near), (self.edge, edges))
        ]
        lowest = torch.finfo(own.dtype).min
        share = torch.softmax((rates[0] + rates[1]).masked_fill(~real, lowest), dim=-1)
        share = share * real  # of a node without neighbours nothing is left
        parts = [
            torch.einsum("rhd,hcd->rhc", share @ read, of_heads(layer.weight)).reshape(n, m, width)
            for layer, read in ((self.value, near), (self.edge, edges))
        ]
        has_any = mask.any(-1, keepdim=True).to(own.dtype)
        heard = parts[0] + parts[1] + has_any * self.value.bias
        z: Tensor = heard + self.skip(own)
        return z

    def layers(self) -> tuple[Tensor, ...]:
        """The tensors of `Layers`."""
        return (
            *(self.query.weight, self.query.bias, self.key.weight),
            *(self.value.weight, self.value.bias, self.edge.weight),
            *(self.skip.weight, self.skip.bias),
        )

    def of_rows(
        self,
        table: Tensor,
        own: Tensor,
        near: Tensor,
        mask: Tensor,
        time: TimeEncoding,
        seconds: Tensor,
        known: Tensor,
    ) -> Tensor:
        """`forward` of nodes and neighbours in rows (n, m) and (n, m, k) of a table, compiled.

        `known` (n, m, k, x) is what follows the code of `seconds` (n, m, k) in the edges; there
        goes no gradient into it.
        """
        z: Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
            *(table, own.flatten(), near.flatten(0, 1), mask.flatten(0, 1)),
            *(seconds.flatten(0, 1), known.flatten(0, 1), time.frequency(), time.bias),
            *(*self.layers(), self.heads, torch.is_grad_enabled()),
        )
        return z.view(*own.shape, table.shape[1])


class _Attend(Function):
    """z (r, width) of nodes in rows (r,) and their neighbours in rows (r, k) of a table."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        own: Tensor,
        near: Tensor,
        mask: Tensor,
        seconds: Tensor,
        known: Tensor,
        frequency: Tensor,
        bias: Tensor,
        *given: Any,  # the tensors of `Layers`, heads, and whether to keep what the way back wants
    ) -> Tensor:
        *layers, heads, keep = given  # asked here, a gradient is never wanted
        around = Near(array(own), array(near), array(mask), array(seconds), array(known), 0)
        cuts = spans(len(own), 1 + LEAST // table.shape[1] ** 2)
        laid = Laid(table, around, (frequency, bias), layers, heads, cuts)
        z: npt.NDArray[Any] = np.empty((len(own), laid.width), laid.dtype)
        kept = [laid.kept(len(reads.own) if keep else NODES) for reads in laid.reads]

        def of(part: int) -> None:
            room = laid.room(NODES, back=False)
            attend(laid.reads[part], laid.weights, kept[part], room, z[cuts[part]])

        together([partial(of, part) for part in range(len(cuts))])
        if keep:
            ctx.kept = laid, cuts, kept
            ctx.save_for_backward(table, frequency, bias, *layers)
        return torch.from_numpy(z)

    @staticmethod
    def backward(ctx: Any, by_z: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # of which autograd says if they are not what they were
        laid, cuts, kept = ctx.kept
        ways, slopes, learned = laid.ways(), array(by_z), ctx.needs_input_grad[6]
        grads = [laid.grads(learned) for _ in cuts]

        def of(part: int) -> None:
            room = laid.room(NODES, back=True)
            attend_back(laid.reads[part], ways, kept[part], room, slopes[cuts[part]], grads[part])

        together([partial(of, part) for part in range(len(cuts))])
        by_table, *found = laid.gradients(grads, learned)
        return by_table, None, None, None, None, None, *found, None, None


class Near(NamedTuple):
    """Nodes and their neighbours, in rows of a table."""

    own: Int64  # (r,)
    near: Int64  # (r, k)
    mask: Bool  # (r, k)
    seconds: Float64  # (r, k)
    known: npt.NDArray[Any]  # (r, k, x)
    num_base: int = 0  # the first rows of the table, which want no gradient


class Laid:
    """Nodes to be attended to, and the weights to do it with, laid out for the loops.

    The nodes of each of `cuts` may be attended to in a thread of their own.
    """

    def __init__(
        self,
        table: Tensor,
        around: Near,
        times: tuple[Tensor, Tensor],  # frequency and bias of phi
        layers: Sequence[Tensor],  # those of `Layers`
        heads: int,
        cuts: Sequence[slice],  # of the nodes
    ) -> None:
        width, self.k = table.shape[1], around.near.shape[1]
        count, more = len(times[0]), around.known.shape[2]
        phi = up(width, PART)
        known, self.total = phi + count, up(phi + count + more, LANES)
        if up(known, PART) + more <= self.total:  # whole vectors of cosines, where there is room
            known = up(known, PART)
        self.width = width
        self.padded = heads * tiled(width // heads)
        self.place = Places(phi, count, known, heads, math.sqrt(heads / width))
        turns = np.zeros((2, known - phi))  # turns a second and at 0, where padded of cosine 0
        turns[1] = 0.25
        for row, each in zip(turns, times, strict=True):
            row[:count] = each.detach().numpy()
            row[:count] /= math.tau
        values: npt.NDArray[Any] = table.detach().numpy()
        self.dtype = values.dtype
        self.reads = [
            Reads(
                *(phi, values, around.own[cut], around.near[cut], around.mask[cut]),
                *(around.seconds[cut], around.known[cut], around.num_base, turns[0], turns[1]),
            )
            for cut in cuts
        ]
        first = up(2 * width, LANES)
        self.weights = Weights(
            *(self.zeros(width, first), self.zeros(first), self.zeros(width, self.total)),
            *(self.zeros(self.total, self.padded), self.zeros(width)),
        )
        self.layers = Layers(*map(array, layers))
        lay_out(self.layers, self.place, self.weights)

    def zeros(self, *shape: int) -> npt.NDArray[Any]:
        """As the table's numbers are."""
        return np.zeros(shape, self.dtype)

    def kept(self, count: int) -> Kept:
        """Room for what the way back wants to know of some nodes."""
        heads, width = self.place.heads, self.width
        shapes = (width,), (heads, self.total), (heads, self.k), (heads, self.total)
        return Kept(*(np.empty((count, *shape), self.dtype) for shape in shapes))

    def room(self, count: int, *, back: bool) -> Room:
        """Where so many nodes at a time are worked on, on the way `back` too."""
        heads, total, width, k = self.place.heads, self.total, self.width, self.k
        wide, across, rates = up(width, LANES), up(2 * width, LANES), len(self.reads[0].rate)
        ends, sines, both = self.padded // heads, up(rates, LANES), 2 * heads
        n = count if back else 0
        return Room(
            *(self.zeros(count, wide), self.zeros(count, across), self.zeros(count, ends)),
            *(self.zeros(k, total), self.zeros(k if back else 0, sines), self.zeros(both, k)),
            *(self.zeros(n, heads, total), self.zeros(n, heads, total), self.zeros(n, wide)),
            *(self.zeros(n, across), self.zeros(both, wide), self.zeros(both, sines)),
            *(self.zeros(k, wide), self.zeros(both, k)),
            *(np.empty(max(k, n), np.int64), np.empty(k, np.int64)),
        )

    def ways(self) -> Backward:
        """The weights for the way back."""
        first = 2 * self.width, up(self.width, LANES)
        ways = Backward(
            *(self.zeros(*first), self.zeros(self.total, self.padded)),
            self.zeros(self.width, self.total),
        )
        lay_back(self.layers, self.place, ways)
        return ways

    def grads(self, learned: bool) -> Grads:
        """Gradients of 0; that of frequency is wanted if it is `learned`."""
        width, total, rates = self.width, self.total, len(self.reads[0].rate)
        return Grads(
            *(self.zeros(*self.reads[0].table.shape), self.zeros(2 * width, up(width, LANES))),
            *(self.zeros(2 * width), self.zeros(width, total), self.zeros(width, total)),
            *(self.zeros(width), np.zeros(rates), np.zeros(rates if learned else 0)),
        )

    def gradients(self, parts: Sequence[Grads], learned: bool) -> list[Tensor | None]:
        """Those of the table, of frequency if it is learned and bias, and of the layers."""
        table, *others = zip(*parts, strict=True)
        grads = Grads(added(table, self.reads[0].num_base), *map(added, others))
        apart = Layers(*map(np.empty_like, self.layers))
        take_apart(grads, self.place, apart)
        count = self.place.frequencies
        return [
            torch.from_numpy(grads.table),
            torch.from_numpy(grads.frequency[:count]) if learned else None,
            torch.from_numpy(grads.phase[:count].astype(self.dtype)),
            *map(torch.from_numpy, apart),
        ]
