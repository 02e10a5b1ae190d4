"""LDG's recurrence over a whole segment, with a backward pass written by hand.

The loops compute, event by event, what each layer is given and the gradient by what it gives; the
gradients of the weights are then one matrix product each, over all events or all versions of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from ...stream import Int64
from ..chain import Chain
from ..kernels.ldg import (
    BackWeights,
    Events,
    Kept,
    Slopes,
    Slots,
    Weights,
    scan_events,
    scan_events_back,
)
from ..kernels.perceptron import BackLayers, Layers

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How relations are drawn."""

    tables: tuple[str, ...]  # the link tables, one a relation
    temperature: float
    hard: bool
    log_prior: Tensor  # (k,) float64


def scan_ldg(
    chain: Chain, drawing: Drawing, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The states (num_rows, width) of a chain, and the divergence (n,) of each event's draw.

    The link tables are changed in place.  `weights` are those of an `LDG` by its names, without
    those that no update reads.
    """
    elapsed = chain.encoded["elapsed"]
    tensors = [elapsed, *weights.values()]
    keeps = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    states, divergence = _Scan.apply(  # type: ignore[no-untyped-call]
        chain, drawing, tuple(weights), keeps, *tensors
    )
    return states, divergence


class _Scan(Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        drawing: Drawing,
        names: tuple[str, ...],
        keeps: bool,
        elapsed: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = dict(zip(names, (t.detach() for t in tensors), strict=True))
        base = chain.base["embedding"]
        num_base, width = base.shape
        states = base.new_empty(chain.num_rows, width)
        states[:num_base] = base
        rows, counts, events = _events(
            chain, elapsed.detach() + weights["structure.bias"], num_base
        )
        num_slots, first = len(rows), counts[1]
        slots = Slots(*(_empty(base, num_slots, size) for size in (*(width,) * 6, 2, width)))
        slots.state[:first] = base.numpy()[rows[:first]]
        shapes = _kept_shapes(chain, events, width, drawing, keeps)
        kept = Kept(
            *(_empty(base, *shape) for shape in shapes),
            np.empty((shapes[0][0], 2, len(drawing.tables), width), np.int32),
            _empty(base, shapes[0][0], 2, (len(drawing.tables) + 1) * width),
        )
        divergence = base.new_empty(len(chain))
        log_prior = drawing.log_prior.numpy()
        # without the tensors that are handed out: these hold the graph, which holds what is kept
        made = states.detach().numpy()
        scan_events(
            *(events, _weights(weights, log_prior)),
            _padded([chain.links[name] for name in drawing.tables]),
            *(drawing.temperature, drawing.hard, *counts, made, slots, kept),
            divergence.detach().numpy(),
        )
        if keeps:
            ctx.save_for_backward(*tensors)
            ctx.names, ctx.drawing, ctx.log_prior = names, drawing, log_prior
            ctx.kept = counts, made, events, slots, kept
        return states, divergence

    @staticmethod
    def backward(ctx: Any, by_states: Tensor, by_divergence: Tensor) -> tuple[Tensor | None, ...]:
        weights = dict(zip(ctx.names, (t.detach() for t in ctx.saved_tensors), strict=True))
        counts, states, events, slots, kept = ctx.kept
        (num_slots, width), n = slots.state.shape, len(events.ends)
        like, classes = by_states, kept.share.shape[-1]
        slopes = Slopes(
            *(_zeros(like, num_slots, width) for _ in range(4)),
            *(_empty(like, num_slots, width) for _ in range(2)),
            *(_empty(like, n, 2, width) for _ in range(4)),
            *(_empty(like, n, 2, classes), _empty(like, n, 2, width)),
            *(_zeros(like, width, width), _zeros(like, 1, width), np.zeros((3, 2, width))),
        )
        scan_events_back(
            *(events, _back_weights(weights, ctx.log_prior), ctx.drawing.temperature),
            *(*counts, states, slots, kept, by_states.contiguous().numpy()),
            *(by_divergence.contiguous().numpy(), slopes),
        )
        by = _by_weights(counts[0], slots, kept, slopes)
        by_elapsed = torch.from_numpy(slopes.after)
        return (None, None, None, None, by_elapsed, *(by[name] for name in ctx.names))


def _padded(tables: list[Floats]) -> tuple[Floats, ...]:
    """The tables and others without rows, up to four: the loop is compiled for a length."""
    return (*tables, *[tables[0][:0]] * (4 - len(tables)))


def _empty(like: Tensor, *shape: int) -> Floats:
    made: Floats = like.new_empty(shape).numpy()
    return made


def _zeros(like: Tensor, *shape: int) -> Floats:
    made: Floats = like.new_zeros(shape).numpy()
    return made


def _events(chain: Chain, elapsed: Tensor, num_base: int) -> tuple[Int64, tuple[int, int], Events]:
    """The row of each slot, and the events with their rows numbered as slots.

    Of the rows that are read, those before the segment that are only sampled come first, then the
    rest of those before it; both are counted.
    """
    sampled = chain.sampled[chain.sampled_mask]
    order = np.zeros(chain.num_rows, np.int8)  # 1: only sampled, 2: read in other ways too
    order[sampled] = 1
    order[num_base:] *= 2
    order[chain.ends] = order[chain.neighbors] = 2
    only = np.flatnonzero(order == 1)
    rows = np.concatenate([only, np.flatnonzero(order == 2)])
    counts = len(only), len(only) + int((order[:num_base] == 2).sum())
    slot = np.full(chain.num_rows, -1)
    slot[rows] = np.arange(len(rows))
    drawn = np.concatenate([[0], np.cumsum(chain.sampled_mask.sum(1))])
    noise = torch.from_numpy(chain.noise)
    gumbel = -torch.log(-torch.log(noise)).to(elapsed.dtype).view(len(chain), 2, -1)
    events = Events(
        *(slot[chain.ends], chain.writes, slot[chain.writes], chain.is_loop, chain.indptr),
        *(slot[chain.neighbors], chain.partner, chain.link, drawn, slot[sampled]),
        *(gumbel.numpy(), elapsed.contiguous().numpy()),
    )
    return rows, counts, events


def _kept_shapes(
    chain: Chain, events: Events, width: int, drawing: Drawing, keeps: bool
) -> list[tuple[int, ...]]:
    """The shapes of `Kept` up to `weight`."""
    n, classes = len(chain) if keeps else 1, len(drawing.log_prior)
    rows = 2 + 2 * int(np.diff(events.drawn).max(initial=0))
    ends, links = (n, 2, width), (len(drawing.tables), len(chain.neighbors))
    return [
        *((n, rows, width), (n, rows, 2), ends, ends, ends, ends, (n, 2, 2)),
        *((n, 2, 3 * width), ends, ends, (n, 2, classes), (n, 2, classes), links, links),
    ]


def _across(weight: Tensor) -> Floats:
    """A layer's weight as (inputs, outputs)."""
    turned: Floats = weight.t().contiguous().numpy()
    return turned


def _weights(w: Mapping[str, Tensor], log_prior: Floats) -> Weights:
    own, other = w["f2.first.weight"].chunk(2, dim=1)
    layers = []
    for name in ("f1", "f2", "f3", "f4"):
        bias = w[f"{name}.second.bias"]
        scale, shift = (w.get(f"{name}.norm.{which}", bias) for which in ("weight", "bias"))
        first = _across(w[f"{name}.first.weight"])
        layers.append(
            Layers(
                *(first, w[f"{name}.first.bias"].numpy(), _across(w[f"{name}.second.weight"])),
                *(bias.numpy(), scale.numpy(), shift.numpy()),
            )
        )
    weigh_in = torch.cat([w["structure.weight"], w["recurrence.weight"]], dim=1)
    return Weights(
        *(*layers, _across(own), _across(other)),
        *(_across(w["neighbor.weight"]), w["neighbor.bias"].numpy()),
        *(_across(w["relation.weight"]), w["relation.bias"].numpy()),
        *(_across(weigh_in), log_prior),
    )


def _back_weights(w: Mapping[str, Tensor], log_prior: Floats) -> BackWeights:
    own, other = w["f2.first.weight"].chunk(2, dim=1)
    layers = []
    for name in ("f1", "f2", "f3", "f4"):
        first, second = (w[f"{name}.{layer}.weight"].contiguous() for layer in ("first", "second"))
        scale = w.get(f"{name}.norm.weight", w[f"{name}.second.bias"])
        layers.append(BackLayers(first.numpy(), second.numpy(), scale.numpy()))
    weigh_in = torch.cat([w["structure.weight"], w["recurrence.weight"]], dim=1)
    return BackWeights(
        *(*layers, own.contiguous().numpy(), other.contiguous().numpy()),
        *(w["neighbor.weight"].contiguous().numpy(), w["relation.weight"].contiguous().numpy()),
        *(weigh_in.numpy(), log_prior),
    )


def _by_weights(num_sampled: int, slots: Slots, kept: Kept, slopes: Slopes) -> dict[str, Tensor]:
    """The gradient by every weight: one product of slopes with what the layer was given."""
    told = slice(num_sampled, None)

    def layer(name: str, slope: Floats, given: Floats) -> dict[str, Tensor]:
        by, x = (torch.from_numpy(a).flatten(0, -2) for a in (slope, given))
        return {f"{name}.weight": by.t() @ x, f"{name}.bias": by.sum(0)}

    dtype = torch.from_numpy(slots.state).dtype
    found = {
        **layer("f1.first", slopes.first1, slots.state),
        **layer("f1.second", slopes.second1, slots.inner),
        **layer("f3.first", slopes.first3, kept.mean),
        **layer("f3.second", slopes.second3, kept.inner3),
        **layer("f4.first", slopes.first4, kept.pair),
        **layer("f4.second", slopes.second4, kept.inner4),
        **layer("relation", slopes.logits, kept.outer4),
        **layer("neighbor", slopes.message[told], slots.state[told]),
        **layer("structure", slopes.after, kept.heard),
    }
    own = layer("f2.first", slopes.receiver[told], slots.code[told])
    other = layer("f2.first", slopes.sender, slots.code)
    first = torch.cat([own["f2.first.weight"], other["f2.first.weight"]], 1)
    found |= own | {"f2.first.weight": first}  # the bias is in the receiver's half only
    found["f2.second.weight"] = torch.from_numpy(slopes.second2).t()
    found["f2.second.bias"] = torch.from_numpy(slopes.second2_bias).squeeze(0)
    both, width = found["structure.weight"], slots.state.shape[1]
    found["structure.weight"] = both[:, :-width]
    found["recurrence.weight"] = both[:, -width:]
    norms = torch.from_numpy(slopes.norms).to(dtype)
    for name, (scale, shift) in zip(("f1", "f2", "f3"), norms, strict=True):
        found[f"{name}.norm.weight"], found[f"{name}.norm.bias"] = scale, shift
    return found
