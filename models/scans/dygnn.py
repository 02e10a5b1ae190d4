"""DyGNN's updates over a whole segment, with a backward pass written by hand.

The loops compute, event by event, the versions of every cell and the gradients of what stands
before each function; the gradients of the weights are then one matrix product each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from ...stream import Int64
from ..chain import Chain
from ..kernels.dygnn import (
    WAITING,
    Biases,
    Inputs,
    Slopes,
    Told,
    Trace,
    Versions,
    Weights,
    list_told,
    run_backward,
    run_forward,
)

if TYPE_CHECKING:
    from ..dygnn import DyGNN


TABLES = ("cell_head", "cell_tail", "hidden_head", "hidden_tail", "embedding")


def scan_dygnn(model: DyGNN, chain: Chain) -> dict[str, Tensor]:
    """The states, each (num_rows, width), of all five tables."""
    decay = chain.encoded["decay"]  # (n, 2)
    fade = model.fade(torch.from_numpy(chain.gap)).to(decay.dtype)
    states = _Scan.apply(  # type: ignore[no-untyped-call]
        *(chain, *_listed(chain, fade), decay),
        *(model.interact.weight, model.interact.bias, model.cells.short, model.cells.short_bias),
        *(model.cells.gates, model.cells.gates_bias, model.merge.weight, model.merge.bias),
        *(model.transfer_src.weight, model.transfer_src.bias),
        *(model.transfer_dst.weight, model.transfer_dst.bias, model.attention.weight),
    )
    return dict(zip(TABLES, states, strict=True))


def _listed(chain: Chain, fade: Tensor) -> tuple[Told, tuple[int, int, int], int]:
    """Whom events tell; where versions of heads, of tails and none begin; how many lists."""
    members, n = chain.members, len(chain)
    assert members is not None
    room = 2 * len(chain.neighbors)
    told = Told(
        *(members.ends, np.empty(4 * n + 1, np.int64), np.empty(room, np.int64)),
        np.empty(room, fade.numpy().dtype),
    )
    heads, tails, lists = list_told(
        *(members.ends, chain.indptr, members.neighbors, chain.is_src, fade.numpy()),
        np.zeros((2, _longest(members.indptr)), told.fade.dtype),
        *(told.indptr, told.slot, told.fade),
    )
    num_base = len(chain.base["embedding"])
    tail = num_base + n + heads
    count = heads + tails
    told = Told(told.ends, told.indptr, told.slot[:count], told.fade[:count])
    return told, (0, tail, tail + num_base + n + tails), lists


class _Scan(Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        told: Told,
        starts: tuple[int, int, int],
        lists: int,
        decay: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        members, base, n = chain.members, chain.base, len(chain)
        assert members is not None
        num_base, width = base["embedding"].shape
        cell, hidden, part, z = (decay.new_empty(starts[2], width) for _ in range(4))
        versions = Versions(
            *(cell.numpy(), hidden.numpy(), part.numpy(), z.numpy()),
            *(np.full(starts[2], -1), np.full(starts[2], WAITING)),
        )
        place = torch.zeros(3, chain.num_rows, dtype=torch.int64)  # versions of head, tail and z
        for role, name in enumerate(("head", "tail")):
            span = slice(starts[role], starts[role] + num_base)
            cell[span], hidden[span] = base[f"cell_{name}"], base[f"hidden_{name}"]
            place[role, :num_base] = torch.arange(span.start, span.stop)
        z[:num_base], place[2, :num_base] = base["embedding"], place[0, :num_base]
        trace = _trace(n, lists, len(told.slot), width, versions.z.dtype)
        run_forward(
            members.indptr,
            members.rows,
            chain.writes,
            told,
            decay.numpy(),
            _forward_weights(parameters),
            _biases(parameters),
            np.array(starts[:2]) + num_base,
            place.numpy(),
            np.empty((3, _longest(members.indptr)), np.int64),
            versions,
            trace,
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(decay, *parameters)
            ctx.kept = told, starts, num_base, place, versions, trace
        found = ((cell, 0), (cell, 1), (hidden, 0), (hidden, 1), (z, 2))
        return tuple(table.index_select(0, place[which]) for table, which in found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        decay, *parameters = ctx.saved_tensors
        told, starts, num_base, place, versions, trace = ctx.kept
        shape, dtype = versions.z.shape, versions.z.dtype
        width = shape[1]

        def given(*grads: tuple[Tensor | None, int]) -> Any:
            total = decay.new_zeros(shape)
            for grad, which in grads:
                if grad is not None:
                    total.index_add_(0, place[which], grad)
            return total.numpy()

        of_head, of_tail, of_hidden_head, of_hidden_tail, of_z = grads
        slopes = Slopes(
            given((of_head, 0), (of_tail, 1)),
            given((of_hidden_head, 0), (of_hidden_tail, 1)),
            given(),
            given((of_z, 2)),
        )
        found = (trace.told, trace.short, trace.gates, trace.news, trace.own)
        inputs = Inputs(*(np.empty_like(values) for values in found))
        run_backward(
            told,
            decay.numpy(),
            _backward_weights(parameters),
            np.array(starts[1:]),
            versions,
            trace,
            slopes,
            inputs,
            np.empty(_longest(told.indptr), dtype),
            np.empty(2 * width, dtype),
        )
        at, short, gates, news, own = (torch.from_numpy(a) for a in inputs)
        # heads, tails: what merging took from each version, and what it made
        spans = [slice(starts[role], starts[role + 1]) for role in range(2)]
        part, hidden = torch.from_numpy(slopes.part), torch.from_numpy(versions.hidden)
        z = torch.from_numpy(slopes.z)
        made = [z[span.start + num_base : span.stop].sum(0) for span in spans]
        e = torch.from_numpy(trace.told).view(-1, 2, width)
        return (
            *(None,) * 5,
            *(at.t() @ torch.from_numpy(trace.pair), at.sum(0)),
            *(_each_role(torch.from_numpy(trace.cell), short), short.sum(0)[:, None]),
            *(_each_role(torch.from_numpy(trace.entered), gates), gates.sum(0)[:, None]),
            torch.cat([part[span].t() @ hidden[span] for span in spans], 1),
            made[0] + made[1],
            *(news[:, 0].t() @ e[:, 0], news[:, 0].sum(0)),
            *(news[:, 1].t() @ e[:, 1], news[:, 1].sum(0)),
            own.t() @ torch.from_numpy(trace.asked),
        )


def _longest(indptr: Int64) -> int:
    return int(np.diff(indptr).max(initial=0))


def _each_role(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of weights (2, inputs, outputs) between (n, 2, inputs) and (n, 2, outputs)."""
    return torch.bmm(x.permute(1, 2, 0), grad.transpose(0, 1))


def _trace(n: int, lists: int, shares: int, width: int, dtype: np.dtype[Any]) -> Trace:
    def new(*shape: int) -> Any:
        return np.empty(shape, dtype)

    return Trace(
        *(new(n, 2 * width), new(n, 2 * width), new(n, 2, width), new(n, 2, width)),
        *(new(n, 2, 2 * width), new(n, 2, 4 * width), new(n, 2, 2 * width)),
        *(new(lists, width), new(lists, width), new(shares)),
        *(np.empty((n, 2), np.int64), np.empty(lists, np.int64), np.empty(shares, np.int64)),
    )


def _forward_weights(parameters: Sequence[Tensor]) -> Weights:
    interact, _, short, _, gates, _, merge, _, src, _, dst, _, attention = parameters
    return _arrays(
        interact.t(),
        short,
        gates,
        merge.view(len(merge), 2, -1).permute(1, 2, 0),
        torch.stack([src.t(), dst.t()]),
        attention.t(),
    )


def _backward_weights(parameters: Sequence[Tensor]) -> Weights:
    interact, _, short, _, gates, _, merge, _, src, _, dst, _, attention = parameters
    return _arrays(
        interact,
        short.transpose(1, 2),
        gates.transpose(1, 2),
        merge.view(len(merge), 2, -1).transpose(0, 1),
        torch.stack([src, dst]),
        attention,
    )


def _arrays(*weights: Tensor) -> Weights:
    return Weights(*(weight.detach().contiguous().numpy() for weight in weights))


def _biases(parameters: Sequence[Tensor]) -> Biases:
    _, interact, _, short, _, gates, _, merge, _, src, _, dst, _ = parameters
    biases = (interact, short[:, 0], gates[:, 0], merge, torch.stack([src, dst]))
    return Biases(*(bias.detach().contiguous().numpy() for bias in biases))
