"""Attention of nodes over their recent neighbours, in which nothing is projected one by one.

q^T (W m) is taken as (W^T q)^T m, and the weighted sum is projected, not what it sums: k times less
work for the same numbers.  On a processor one compiled loop gathers what it reads by row, and only
the shares of neighbours are kept for the way back; elsewhere, the same in tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    Weights,
    attend,
    attend_back,
    lay_back,
    lay_out,
    take_apart,
)
from .padding import LANES, PART, tiled, up
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
        around = Near(*map(array, (own, near, mask, seconds, known)))
        found = Attended(table, around, (frequency, bias), layers, heads, keep)
        if keep:
            ctx.found = found
            ctx.save_for_backward(table, frequency, bias, *layers)
        return torch.from_numpy(found.z)

    @staticmethod
    def backward(ctx: Any, by_z: Tensor) -> tuple[Tensor | None, ...]:
        table, _, _, *layers = ctx.saved_tensors
        by_table, *grads = ctx.found.back(table, layers, array(by_z), ctx.needs_input_grad[6])
        return by_table, None, None, None, None, None, *grads, None, None


class Near(NamedTuple):
    """Nodes and their neighbours, in rows of a table."""

    own: Int64  # (r,)
    near: Int64  # (r, k)
    mask: Bool  # (r, k)
    seconds: Float64  # (r, k)
    known: npt.NDArray[Any]  # (r, k, x)


class Attended:
    """z (r, width) of nodes, and what the way back wants to know of them."""

    def __init__(
        self,
        table: Tensor,
        around: Near,
        times: tuple[Tensor, Tensor],  # frequency and bias of phi
        layers: Sequence[Tensor],  # those of `Layers`
        heads: int,
        keep: bool,
    ) -> None:
        width, k = table.shape[1], around.near.shape[1]
        count, more = len(times[0]), around.known.shape[2]
        phi = up(width, PART)
        known = phi + up(count, PART)
        total = up(known + more, LANES)
        self.place = Places(phi, count, known, heads, math.sqrt(heads / width))
        turns = np.zeros((2, known - phi))  # turns a second and at 0, where padded of cosine 0
        turns[1] = 0.25
        for row, each in zip(turns, times, strict=True):
            row[:count] = each.detach().numpy()
            row[:count] /= math.tau
        values: npt.NDArray[Any] = table.detach().numpy()
        self.reads = Reads(phi, values, *around, *turns)
        self.total, self.padded = total, heads * tiled(width // heads)

        first = up(2 * width, LANES)
        weights = Weights(
            *(_zeros(values, width, first), _zeros(values, first), _zeros(values, width, total)),
            *(_zeros(values, total, self.padded), _zeros(values, width)),
        )
        lay_out(Layers(*map(array, layers)), self.place, weights)
        size = len(around.own) if keep else NODES
        asked, query, share, heard = (
            np.empty((size, *shape), values.dtype)
            for shape in ((width,), (heads, total), (heads, k), (heads, total))
        )
        self.kept = Kept(asked, query, share, heard)
        self.z: npt.NDArray[Any] = np.empty((len(around.own), width), values.dtype)
        attend(self.reads, weights, self.kept, self.z)

    def back(
        self, table: Tensor, layers: Sequence[Tensor], by_z: npt.NDArray[Any], learned: bool
    ) -> list[Tensor | None]:
        """The gradients of the table, of frequency if `learned` and bias, and of the layers.

        Of `by_z` (r, width or more) the first columns are read.
        """
        width, total, z = table.shape[1], self.total, self.z
        first = 2 * width, up(width, LANES)
        ways = Backward(
            *(_zeros(z, *first), _zeros(z, total, self.padded), _zeros(z, width, total))
        )
        lay_back(Layers(*map(array, layers)), self.place, ways)
        phase = np.zeros(len(self.reads.rate))
        frequency = np.zeros(len(phase) if learned else 0)
        grads = Grads(
            *(_zeros(z, *table.shape), _zeros(z, *first), _zeros(z, 2 * width)),
            *(_zeros(z, width, total), _zeros(z, width, total), _zeros(z, width)),
            *(phase, frequency),
        )
        attend_back(self.reads, ways, self.kept, by_z, grads)
        apart = [torch.empty_like(layer) for layer in layers]
        take_apart(grads, self.place, Layers(*(each.numpy() for each in apart)))
        count = self.place.frequencies
        return [
            torch.from_numpy(grads.table),
            torch.from_numpy(frequency[:count]) if learned else None,
            torch.from_numpy(phase[:count]).to(table.dtype),
            *apart,
        ]


def _zeros(like: npt.NDArray[Any], *shape: int) -> npt.NDArray[Any]:
    return np.zeros(shape, like.dtype)


def array(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor's values, which stand in memory without gaps."""
    values: npt.NDArray[Any] = tensor.detach().contiguous().numpy()
    return values
