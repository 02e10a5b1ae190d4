"""The decoder of pairs that TGN's authors and the benchmarks after them use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


def pair_logits(
    src: Tensor, dst: Tensor, source: nn.Linear, destination: nn.Linear, final: nn.Linear
) -> Tensor:
    """W_3 relu(W_1 z_src + W_2 z_dst) of sources (n, 1, width) and destinations (n, m, width).

    The result is (n, m).
    """
    logit: Tensor = _Pairs.apply(  # type: ignore[no-untyped-call]
        *(src.squeeze(1), dst, source.weight, source.bias),
        *(destination.weight, destination.bias, final.weight, final.bias),
    )
    return logit


class _Pairs(Function):
    """By hand, since its parts are so small that most of their time is the way between them."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        dst: Tensor,
        source: Tensor,
        source_bias: Tensor,
        destination: Tensor,
        destination_bias: Tensor,
        final: Tensor,
        final_bias: Tensor,
    ) -> Tensor:
        flat = dst.flatten(0, 1)  # (n m, width)
        first = torch.addmm(source_bias + destination_bias, src, source.t())
        hidden = torch.mm(flat, destination.t()).view(*dst.shape[:2], -1)
        hidden = hidden.add_(first.unsqueeze(1)).relu_()
        ctx.save_for_backward(src, flat, source, destination, final, hidden)
        return torch.addmv(final_bias, hidden.flatten(0, 1), final[0]).view(dst.shape[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        src, dst, source, destination, final, hidden = ctx.saved_tensors
        by_hidden = (grad.unsqueeze(-1) * final[0]).mul_(hidden > 0)  # (n, m, width)
        by_first, by_each = by_hidden.sum(1), by_hidden.flatten(0, 1)
        by_bias = by_first.sum(0)
        return (
            *(by_first @ source, (by_each @ destination).view(*grad.shape, -1)),
            *(by_first.t() @ src, by_bias, by_each.t() @ dst, by_bias),
            *((grad.flatten() @ hidden.flatten(0, 1)).unsqueeze(0), grad.sum().view(1)),
        )
