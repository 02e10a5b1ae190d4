"""Attention of nodes over their recent neighbours, in which nothing is projected one by one.

q^T (W m) is taken as (W^T q)^T m, and the weighted sum is projected, not what it sums: k times less
work for the same numbers.  On a processor one compiled loop gathers what it reads by row, and only
the shares of neighbours are kept for the way back; elsewhere, the same in tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import Function

from .kernels.attention import NODES, Backward, Grads, Kept, Reads, Weights, attend, attend_back
from .padding import PART, pad_columns, up
from .time_encoding import TimeEncoding


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
            *(self.skip.weight, self.skip.bias, self.heads, torch.is_grad_enabled()),
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
        query: Tensor,
        query_bias: Tensor,
        key: Tensor,
        value: Tensor,
        value_bias: Tensor,
        edge: Tensor,
        skip: Tensor,
        skip_bias: Tensor,
        heads: int,
        keep: bool,  # for the way back; asked here, it is never wanted
    ) -> Tensor:
        width, scale = table.shape[1], math.sqrt(heads / table.shape[1])
        layout = _Layout(width, len(frequency), known.shape[2], heads)
        first = pad_columns(torch.cat([query * scale, skip]))  # (2 width, v)
        back = first, layout.of(key, edge), layout.of(value, edge)
        biases = pad_columns(torch.stack([query_bias * scale, skip_bias])).flatten()  # (2 v,)
        rate, offset = layout.turns(frequency, bias)
        reads = Reads(
            layout.phi,
            *(_array(each) for each in (table, own, near, mask, seconds, known, rate, offset)),
        )
        room = len(own) if keep else NODES
        kept = [table.new_empty(room, width)]
        for size in (layout.total, near.shape[1], layout.total):
            kept.append(table.new_empty(room, heads, size))
        z = table.new_empty(len(own), width)
        both = pad_columns(first[:, :width].view(2, width, width).permute(2, 0, 1)).flatten(1)
        ways = both, biases, back[1], layout.by_head(back[2]), value_bias
        attend(reads, Weights(*map(_array, ways)), Kept(*map(_array, kept)), z.numpy())
        if keep:
            ctx.save_for_backward(table, *back, *kept)
            ctx.reads, ctx.layout, ctx.scale = reads, layout, scale
        return z

    @staticmethod
    def backward(ctx: Any, by_z: Tensor) -> tuple[Tensor | None, ...]:
        table, first, query, heard, *kept = ctx.saved_tensors
        layout, width = ctx.layout, table.shape[1]
        like = (table, first, first[:, 0], query, heard, heard[:, 0])
        grads = [torch.zeros_like(each, memory_format=torch.contiguous_format) for each in like]
        phase = torch.zeros(len(ctx.reads.rate), dtype=torch.float64)
        frequency = torch.zeros_like(phase if ctx.needs_input_grad[6] else phase[:0])
        attend_back(
            ctx.reads,
            Backward(*map(_array, (first, layout.by_head(query), heard))),
            Kept(*map(_array, kept)),
            _array(by_z),
            Grads(*(each.numpy() for each in (*grads, phase, frequency))),
        )
        by_table, by_first, by_bias, by_query, by_heard, by_heard_bias = grads
        by_first = by_first[:, :width]
        by_first[:width] *= ctx.scale
        by_bias[:width] *= ctx.scale
        by_key, by_edge = layout.parts(by_query)
        by_value, by_edge_too = layout.parts(by_heard)
        count = layout.num_frequencies
        return (
            *(by_table, None, None, None, None, None),
            frequency[:count] if len(frequency) else None,
            phase[:count].to(table.dtype),
            *(by_first[:width], by_bias[:width], by_key),
            *(by_value, by_heard_bias, by_edge.add_(by_edge_too)),
            *(by_first[width:], by_bias[width:], None, None),
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the kernels read a neighbour: [state, phi, what else is known], each part padded."""

    width: int
    num_frequencies: int
    num_known: int
    heads: int

    @property
    def phi(self) -> int:
        """Where phi begins."""
        return up(self.width, PART)

    @property
    def known(self) -> int:
        """Where what else is known begins."""
        return self.phi + up(self.num_frequencies, PART)

    @property
    def total(self) -> int:
        """The columns of all parts."""
        return up(self.known + self.num_known, 2 * PART)

    def of(self, states: Tensor, edge: Tensor) -> Tensor:
        """Weights (width, total), of weights of states and of [phi, what else is known]."""
        whole = states.new_zeros(len(states), self.total)
        count = self.num_frequencies
        whole[:, : self.width] = states
        whole[:, self.phi : self.phi + count] = edge[:, :count]
        whole[:, self.known : self.known + self.num_known] = edge[:, count:]
        return whole

    def by_head(self, whole: Tensor) -> Tensor:
        """The transpose (total, heads * h) of weights, each head's columns padded to a tile."""
        head = self.width // self.heads
        columns = whole.t().view(self.total, self.heads, head)
        return pad_columns(columns).flatten(1)

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


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.detach().contiguous().numpy()
