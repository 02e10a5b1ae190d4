"""The decoder of pairs that TGN's authors and the benchmarks after them use."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from .kernels.pairs import EVENTS, lose, lose_back
from .padding import pad_columns
from .rows import product
from .time_encoding import can_compile


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
        first = product(src, source, source_bias + destination_bias)
        hidden = product(flat, destination).view(*dst.shape[:2], len(destination))
        hidden = hidden.add_(first.unsqueeze(1)).relu_()
        ctx.save_for_backward(src, flat, source, destination, final, hidden)
        return product(hidden.flatten(0, 1), final, final_bias).view(dst.shape[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        src, dst, source, destination, final, hidden = ctx.saved_tensors
        by_hidden = (grad.unsqueeze(-1) * final[0]).mul_(hidden > 0)  # (n, m, width)
        by_first, by_each = by_hidden.sum(1), by_hidden.flatten(0, 1)
        by_bias = by_first.sum(0)
        return (
            *(by_first @ source, (by_each @ destination).view(*grad.shape, destination.shape[1])),
            *(by_first.t() @ src, by_bias, by_each.t() @ dst, by_bias),
            *((grad.flatten() @ hidden.flatten(0, 1)).unsqueeze(0), grad.sum().view(1)),
        )


def pair_losses(
    src: Tensor,
    dst: Tensor,
    other: Tensor,
    valid: Tensor,
    source: nn.Linear,
    destination: nn.Linear,
    final: nn.Linear,
) -> Tensor:
    """Binary cross-entropy of the logits of `src` (n, 1, width) with `dst` (n, 1, width), and the

    mean of that with `other` (n, m, width), corrupted, over those that are `valid` (n, m): (n,).
    """
    layers = (source, destination, final)
    weights = [each for layer in layers for each in (layer.weight, layer.bias)]
    ends = torch.cat([dst, other], dim=1)
    if can_compile(src.device, src.dtype):
        loss: Tensor = _Losses.apply(
            *(src.squeeze(1).contiguous(), ends, valid.contiguous(), *weights)
        )  # type: ignore[no-untyped-call]
        return loss
    logit = pair_logits(src, ends, *layers)
    wrong = torch.where(valid, F.softplus(logit[:, 1:]), 0.0).sum(1)
    return F.softplus(-logit[:, 0]) + wrong / valid.sum(1).clamp(min=1)


class _Losses(Function):
    """Compiled, with the slopes of the losses taken on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        src: Tensor,
        dst: Tensor,
        valid: Tensor,
        source: Tensor,
        source_bias: Tensor,
        destination: Tensor,
        destination_bias: Tensor,
        final: Tensor,
        final_bias: Tensor,
    ) -> Tensor:
        n, m = dst.shape[:2]
        weights = torch.stack([source, destination])
        ways = pad_columns(weights.transpose(1, 2))  # (2, width, v)
        hidden = src.new_empty(m, n, ways.shape[2])
        slopes, losses = torch.empty_like(dst[:, :, 0]), src.new_empty(n)
        bias = pad_columns(source_bias + destination_bias)
        given = (src, dst, valid, ways[0], ways[1], bias, final[0], final_bias)
        room = src.new_empty(EVENTS, ways.shape[2])
        lose(*(each.detach().numpy() for each in (*given, hidden, slopes, losses, room)))
        ctx.save_for_backward(src, dst, weights, final, hidden, slopes)
        return losses

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor | None, ...]:
        src, dst, weights, final, hidden, slopes = ctx.saved_tensors
        n, m, width = dst.shape
        ways = pad_columns(weights)  # (2, width, v)
        by_src, by_dst = src.new_empty(n, ways.shape[2]), src.new_empty(n, m, ways.shape[2])
        by_weights, by_bias = torch.zeros_like(weights), src.new_zeros(width)
        by_final, room = src.new_zeros(width + 1), src.new_empty(2, EVENTS, ways.shape[2])
        lose_back(
            *(each.detach().numpy() for each in (src, dst, ways[0], ways[1], final[0])),
            *(each.numpy() for each in (hidden, slopes, by_loss.contiguous(), by_src, by_dst)),
            *(each.numpy() for each in (by_weights[0], by_weights[1], by_bias, by_final, room)),
        )
        return (
            *(by_src[:, :width], by_dst[:, :, :width], None),
            *(by_weights[0], by_bias, by_weights[1], by_bias),
            *(by_final[:width].unsqueeze(0), by_final[width:]),
        )
