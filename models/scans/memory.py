"""Scans of memories: GRU, or a linear layer under tanh, of both ends of every event (TGN, JODIE).

An end takes in [own memory, the other's, what it is told].  The part of the weights that is told
something is applied to all events at once beforehand, as it needs no state; what is left is a
product of [own, other's] with one matrix an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from ..chain import Chain
from ..kernels.memory import gru_backward, gru_forward, tanh_backward, tanh_forward
from ..rows import product


def scan_gru(chain: Chain, memory: Tensor, told: Tensor, cell: nn.GRUCell) -> Tensor:
    """Memories (num_rows, width) from those before (b, width), `told` (n, 2, told).

    The message of an end is [own memory, the other's, what it is told].
    """
    width = memory.shape[1]
    into, back = cell.weight_ih, cell.weight_hh
    bias = torch.cat(
        [
            cell.bias_ih[: 2 * width] + cell.bias_hh[: 2 * width],
            cell.bias_ih[2 * width :],
            cell.bias_hh[2 * width :],
        ]
    )
    own, other = into[:, :width], into[:, width : 2 * width]
    weight = torch.cat(
        [
            torch.cat([own[: 2 * width] + back[: 2 * width], own[2 * width :], back[2 * width :]]),
            torch.cat([other, torch.zeros_like(memory[:1]).expand(width, width)]),
        ],
        dim=1,
    )  # (4 width, 2 width)
    tail = torch.cat([into[:, 2 * width :], into.new_zeros(width, told.shape[-1])])
    known = product(told, tail, bias)  # (n, 2, 4 width)
    keeps = torch.is_grad_enabled() and (known.requires_grad or weight.requires_grad)
    states: Tensor = _Gru.apply(chain, memory, known, weight, keeps)  # type: ignore[no-untyped-call]
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


class _Gru(Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, base: Tensor, known: Tensor, weight: Tensor, keeps: bool
    ) -> Tensor:
        table = _table(chain, base)
        gates = known.new_empty(len(chain) if keeps else 1, *known.shape[1:])
        across = weight.t().contiguous()
        gru_forward(
            table.numpy(),
            chain.ends,
            chain.writes,
            known.detach().numpy(),
            across.detach().numpy(),
            gates.numpy(),
        )
        ctx.chain = chain
        ctx.save_for_backward(table, weight, gates)
        return table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor, None]:
        table, weight, gates = ctx.saved_tensors
        chain: Chain = ctx.chain
        slopes = gates.clone()  # a graph may be gone through twice
        gru_backward(
            table.numpy(),
            grad.clone(memory_format=torch.contiguous_format).numpy(),
            chain.ends,
            chain.writes,
            weight.contiguous().numpy(),
            slopes.numpy(),
        )
        by_weight = slopes.flatten(0, 1).t() @ _both(chain, table).flatten(0, 1)
        return None, None, slopes, by_weight, None


class _Tanh(Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, base: Tensor, known: Tensor, weight: Tensor) -> Tensor:
        table = _table(chain, base)
        across = weight.transpose(1, 2).contiguous()
        tanh_forward(
            table.numpy(),
            chain.ends,
            chain.writes,
            known.detach().numpy(),
            across.detach().numpy(),
        )
        ctx.chain = chain
        ctx.save_for_backward(table, weight)
        return table

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor]:
        table, weight = ctx.saved_tensors
        chain: Chain = ctx.chain
        slopes = table.new_empty(len(chain), 2, table.shape[1])
        tanh_backward(
            table.numpy(),
            grad.clone(memory_format=torch.contiguous_format).numpy(),
            chain.ends,
            chain.writes,
            weight.contiguous().numpy(),
            slopes.numpy(),
        )
        both = _both(chain, table)
        if len(weight) == 1:
            by_weight = (slopes.flatten(0, 1).t() @ both.flatten(0, 1))[None]
        else:
            by_weight = torch.bmm(slopes.permute(1, 2, 0), both.transpose(0, 1))
        return None, None, slopes, by_weight
