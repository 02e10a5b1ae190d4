"""Attention of nodes over their recent neighbours, in which nothing is projected one by one.

q^T (W m) is taken as (W^T q)^T m, and the weighted sum is projected, not what it sums: k times less
work for the same numbers.  On a processor one compiled loop gathers what it reads by row, and only
the shares of neighbours are kept for the way back; elsewhere, the same in tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function

from .kernels.attention import BLOCK, attend, attend_back
from .time_encoding import TimeEncoding

LINE = 8  # parts begin at multiples of this many columns, rows at multiples of twice as many
CHUNK = 640  # nodes at a time: what is made for them stays in the caches


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
            *(self.query.weight, self.query.bias, self.key.weight),
            *(self.value.weight, self.value.bias, self.edge.weight),
            *(self.skip.weight, self.skip.bias, self.heads),
        )
        return z.view(*own.shape, table.shape[1])


class _Attend(Function):
    """z (r, width) of nodes in rows (r,) and their neighbours in rows (r, k) of a table."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        own_rows: Tensor,
        rows: Tensor,
        mask: Tensor,
        seconds: Tensor,
        known: Tensor,
        frequency: Tensor,
        bias: Tensor,
        query: Tensor,
        query_bias: Tensor,
        key: Tensor,
        value: Tensor,
        value_bias: Tensor,
        edge: Tensor,
        skip: Tensor,
        skip_bias: Tensor,
        heads: int,
    ) -> Tensor:
        own, width = table.index_select(0, own_rows), table.shape[1]
        scale = math.sqrt(heads / width)
        first = torch.cat([query * scale, skip])
        start = torch.addmm(torch.cat([query_bias * scale, skip_bias]), own, first.t())
        asked, z = start.split(width, dim=1)  # both (r, width)
        has_any = mask.any(1).to(own.dtype)
        z.addr_(has_any, value_bias)
        layout = _Layout(width, len(frequency), known.shape[2])
        near, far = layout.of(key, edge), layout.of(value, edge)  # onto what is read, and from it
        rate, offset = layout.turns(frequency, bias)
        read = own.new_zeros(_up(rows.shape[1], BLOCK), layout.total)
        arrays = [_array(each) for each in (table, rows, mask, seconds, known, rate, offset)]
        needs_grad = any(ctx.needs_input_grad)
        room = len(own) if needs_grad else min(len(own), CHUNK)
        queries, heard = own.new_empty(2, room, heads, layout.total)
        share = own.new_empty(room, heads, rows.shape[1])
        for part in _chunks(len(own)):
            at = part if needs_grad else slice(0, part.stop - part.start)
            for h, head in enumerate(_heads(width, heads)):
                torch.mm(asked[part, head], near[head], out=queries[at, h])
            attend(
                *(arrays[0], *(a[part] for a in arrays[1:5]), *arrays[5:], layout.phi),
                *(each.numpy() for each in (queries[at], read, share[at], heard[at])),
            )
            for h, head in enumerate(_heads(width, heads)):
                z[part, head].addmm_(heard[at, h], far[head].t())
        if needs_grad:
            ctx.save_for_backward(
                *(table, own, own_rows, first, asked, has_any, near, far, queries, heard, share)
            )
            ctx.layout, ctx.arrays, ctx.read, ctx.scale = layout, arrays, read, scale
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        table, own, own_rows, first, asked, has_any, *more = ctx.saved_tensors
        near, far, queries, heard, share = more
        layout, arrays, width, heads = ctx.layout, ctx.arrays, own.shape[1], share.shape[1]
        by_start = own.new_empty(len(own), 2 * width)
        by_asked, by_z = by_start.split(width, dim=1)
        by_z.copy_(grad)
        by_table = torch.zeros_like(table)
        by_near, by_far = torch.zeros_like(near), torch.zeros_like(far)
        count = layout.num_frequencies
        by_phase = np.zeros(len(arrays[5]))
        by_frequency = np.zeros(len(by_phase) if ctx.needs_input_grad[6] else 0)
        by_heard, by_query = own.new_empty(2, min(len(own), CHUNK), heads, layout.total)
        for part in _chunks(len(own)):
            size = part.stop - part.start
            for h, head in enumerate(_heads(width, heads)):
                torch.mm(by_z[part, head], far[head], out=by_heard[:size, h])
                by_far[head].addmm_(by_z[part, head].t(), heard[part, h])
            attend_back(
                *(arrays[0], *(a[part] for a in arrays[1:5]), *arrays[5:], layout.phi),
                *(each.numpy() for each in (queries[part], ctx.read, share[part])),
                *(each.numpy() for each in (by_heard, by_table, by_query)),
                *(by_phase, by_frequency),
            )
            for h, head in enumerate(_heads(width, heads)):
                torch.mm(by_query[:size, h], near[head].t(), out=by_asked[part, head])
                by_near[head].addmm_(asked[part, head].t(), by_query[:size, h])
        by_table.index_add_(0, own_rows, by_start @ first)
        by_first, by_bias = by_start.t() @ own, by_start.sum(0)
        by_first[:width] *= ctx.scale
        by_bias[:width] *= ctx.scale
        by_key, by_edge = layout.parts(by_near)
        by_value, by_edge_too = layout.parts(by_far)
        return (
            *(by_table, None, None, None, None, None),
            torch.from_numpy(by_frequency[:count]) if len(by_frequency) else None,
            torch.from_numpy(by_phase[:count]).to(own.dtype),
            *(by_first[:width], by_bias[:width], by_key),
            *(by_value, has_any @ by_z, by_edge.add_(by_edge_too)),
            *(by_first[width:], by_bias[width:], None),
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the kernels read a neighbour: [state, phi, what else is known], each part padded."""

    width: int
    num_frequencies: int
    num_known: int

    @property
    def phi(self) -> int:
        """Where phi begins."""
        return _up(self.width, LINE)

    @property
    def known(self) -> int:
        """Where what else is known begins."""
        return self.phi + _up(self.num_frequencies, LINE)

    @property
    def total(self) -> int:
        """The columns of all parts."""
        return _up(self.known + self.num_known, 2 * LINE)

    def of(self, states: Tensor, edge: Tensor) -> Tensor:
        """Weights (width, total), of weights of states and of [phi, what else is known]."""
        whole = states.new_zeros(len(states), self.total)
        count = self.num_frequencies
        whole[:, : self.width] = states
        whole[:, self.phi : self.phi + count] = edge[:, :count]
        whole[:, self.known : self.known + self.num_known] = edge[:, count:]
        return whole

    def parts(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        """What `of` was made of."""
        time = whole[:, self.phi : self.phi + self.num_frequencies]
        known = whole[:, self.known : self.known + self.num_known]
        return whole[:, : self.width], torch.cat([time, known], dim=1)

    def turns(self, frequency: Tensor, bias: Tensor) -> Tensor:
        """Turns a second, and at 0; where padded, such that the cosine is 0."""
        both = torch.zeros(2, self.known - self.phi, dtype=torch.float64)
        both[1] = 0.25
        both[0, : len(frequency)] = frequency / math.tau
        both[1, : len(bias)] = bias / math.tau
        return both


def _up(size: int, multiple: int) -> int:
    return size + -size % multiple


def _chunks(size: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]


def _heads(width: int, heads: int) -> list[slice]:
    """The columns of each head."""
    return [slice(start, start + width // heads) for start in range(0, width, width // heads)]


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.detach().contiguous().numpy()
