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
        weights = {name: t.detach().numpy() for name, t in zip(names, tensors, strict=True)}
        base, log_prior = chain.base["embedding"].numpy(), drawing.log_prior.numpy()
        num_base = len(base)
        states = chain.table("embedding").numpy()
        divergence = np.empty(len(chain), base.dtype)
        known = elapsed.detach().numpy() + weights["structure.bias"]
        rows, counts, events = _events(chain, known, num_base)
        slots = _slots(len(rows), states)
        slots.state[: counts[1]] = base[rows[: counts[1]]]
        longest = int(np.diff(events.drawn).max(initial=0))
        kept = _kept(
            max(1, len(chain)) if keeps else 1,
            2 + 2 * longest,
            (len(drawing.tables), len(chain.neighbors)),
            len(log_prior),
            states,
        )
        scan_events(
            events,
            _weights(weights, log_prior),
            _padded([chain.links[name] for name in drawing.tables]),
            drawing.temperature,
            drawing.hard,
            *counts,
            states,
            slots,
            kept,
            keeps,
            divergence,
        )
        if keeps:
            ctx.save_for_backward(*tensors)
            ctx.names, ctx.drawing, ctx.log_prior = names, drawing, log_prior
            ctx.kept = counts, states, events, slots, kept
        # the arrays do not hold the tensors, which have the graph, which has the arrays
        return torch.from_numpy(states), torch.from_numpy(divergence)

    @staticmethod
    def backward(ctx: Any, by_states: Tensor, by_divergence: Tensor) -> tuple[Tensor | None, ...]:
        tensors = zip(ctx.names, ctx.saved_tensors, strict=True)
        weights = {name: t.detach().numpy() for name, t in tensors}
        (num_sampled, num_base), states, events, slots, kept = ctx.kept
        slopes = _slopes(len(events.ends), kept.share.shape[-1], slots.state)
        scan_events_back(
            events,
            _back_weights(weights, ctx.log_prior),
            ctx.drawing.temperature,
            num_sampled,
            num_base,
            states,
            slots,
            kept,
            by_states.contiguous().numpy(),
            by_divergence.contiguous().numpy(),
            slopes,
        )
        by = _by_weights(num_sampled, slots, kept, slopes)
        by_elapsed = torch.from_numpy(slopes.after)
        return (None, None, None, None, by_elapsed, *(by[name] for name in ctx.names))


def _events(chain: Chain, known: Floats, num_base: int) -> tuple[Int64, tuple[int, int], Events]:
    """The row of each slot, and the events with their rows numbered as slots.

    Of the rows that are read, those before the segment that are only sampled come first, then the
    rest of those before it; both are counted.  `known` (n, 2, width) is W_t dt and a bias.
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
    gumbel = -np.log(-np.log(chain.noise))
    events = Events(
        ends=slot[chain.ends],
        writes=chain.writes,
        written=slot[chain.writes],
        is_loop=chain.is_loop,
        indptr=chain.indptr,
        neighbors=slot[chain.neighbors],
        partner=chain.partner,
        link=chain.link,
        drawn=np.concatenate([[0], np.cumsum(chain.sampled_mask.sum(1))]),
        sampled=slot[sampled],
        gumbel=gumbel.astype(known.dtype).reshape(len(chain), 2, chain.noise.shape[1] // 2),
        elapsed=known,
    )
    return rows, counts, events


def _padded(tables: list[Floats]) -> tuple[Floats, ...]:
    """The tables and empty ones, up to four: the loop is compiled for a length."""
    return (*tables, *[tables[0][:0]] * (4 - len(tables)))


def _slots(count: int, like: Floats) -> Slots:
    def new(width: int) -> Floats:
        return np.empty((count, width), like.dtype)

    width = like.shape[1]
    return Slots(
        state=new(width),
        message=new(width),
        receiver=new(width),
        sender=new(width),
        inner=new(width),
        outer=new(width),
        moments=new(2),
        code=new(width),
    )


def _kept(n: int, rows: int, links: tuple[int, int], classes: int, like: Floats) -> Kept:
    """Room for `n` events of up to `rows` rows in f2, with `links` (p, r) in all."""

    def new(*shape: int) -> Floats:
        return np.empty((n, *shape), like.dtype)

    width, relations = like.shape[1], links[0]
    return Kept(
        outer=new(rows, width),
        moments=new(rows, 2),
        spread=new(2, width),
        mean=new(2, width),
        inner3=new(2, width),
        outer3=new(2, width),
        moments3=new(2, 2),
        pair=new(2, 3 * width),
        inner4=new(2, width),
        outer4=new(2, width),
        log_share=new(2, classes),
        share=new(2, classes),
        related=np.empty(links, like.dtype),
        weight=np.empty(links, like.dtype),
        chosen=np.empty((n, 2, relations, width), np.int32),
        heard=new(2, relations * width),
        before=new(2, width),
    )


def _slopes(n: int, classes: int, like: Floats) -> Slopes:
    def new() -> Floats:
        return np.empty((n, 2, width), like.dtype)

    width = like.shape[1]
    return Slopes(
        state=np.zeros_like(like),
        message=np.zeros_like(like),
        receiver=np.zeros_like(like),
        sender=np.zeros_like(like),
        first1=np.empty_like(like),
        second1=np.empty_like(like),
        first3=new(),
        second3=new(),
        first4=new(),
        second4=new(),
        logits=np.empty((n, 2, classes), like.dtype),
        after=new(),
        second2=np.zeros((width, width)),
        second2_bias=np.zeros(width),
        norms=np.zeros((3, 2, width)),
    )


def _across(weight: Floats) -> Floats:
    """A layer's weight as (inputs, outputs)."""
    return np.ascontiguousarray(weight.T)


def _split(recurrence: Floats) -> tuple[Floats, Floats]:
    """A square matrix without its diagonal, and that."""
    rest = recurrence.copy()
    np.fill_diagonal(rest, 0.0)
    return rest, recurrence.diagonal().copy()


def _weights(w: Mapping[str, Floats], log_prior: Floats) -> Weights:
    def layers(name: str) -> Layers:
        bias = w[f"{name}.second.bias"]
        return Layers(
            first=_across(w[f"{name}.first.weight"]),
            first_bias=w[f"{name}.first.bias"],
            second=_across(w[f"{name}.second.weight"]),
            second_bias=bias,
            scale=w.get(f"{name}.norm.weight", bias),
            shift=w.get(f"{name}.norm.bias", bias),
        )

    own, other = np.split(w["f2.first.weight"], 2, axis=1)
    recurrence, memory = _split(_across(w["recurrence.weight"]))
    return Weights(
        f1=layers("f1"),
        f2=layers("f2"),
        f3=layers("f3"),
        f4=layers("f4"),
        own=_across(own),
        other=_across(other),
        tell=_across(w["neighbor.weight"]),
        tell_bias=w["neighbor.bias"],
        relation=_across(w["relation.weight"]),
        relation_bias=w["relation.bias"],
        structure=_across(w["structure.weight"]),
        recurrence=recurrence,
        memory=memory,
        log_prior=log_prior,
    )


def _back_weights(w: Mapping[str, Floats], log_prior: Floats) -> BackWeights:
    def layers(name: str) -> BackLayers:
        first, second = (
            np.ascontiguousarray(w[f"{name}.{layer}.weight"]) for layer in ("first", "second")
        )
        return BackLayers(first, second, w.get(f"{name}.norm.weight", w[f"{name}.second.bias"]))

    own, other = np.split(w["f2.first.weight"], 2, axis=1)
    recurrence, memory = _split(w["recurrence.weight"])
    return BackWeights(
        f1=layers("f1"),
        f2=layers("f2"),
        f3=layers("f3"),
        f4=layers("f4"),
        own=np.ascontiguousarray(own),
        other=np.ascontiguousarray(other),
        tell=np.ascontiguousarray(w["neighbor.weight"]),
        relation=np.ascontiguousarray(w["relation.weight"]),
        structure=np.ascontiguousarray(w["structure.weight"]),
        recurrence=recurrence,
        memory=memory,
        log_prior=log_prior,
    )


def _by_weights(num_sampled: int, slots: Slots, kept: Kept, slopes: Slopes) -> dict[str, Tensor]:
    """The gradient by every weight: one product of slopes with what the layer was given."""
    told = slice(num_sampled, None)

    def layer(name: str, slope: Floats, given: Floats) -> dict[str, Tensor]:
        by, x = (torch.from_numpy(a[: len(slope)]).flatten(0, -2) for a in (slope, given))
        return {f"{name}.weight": by.t() @ x, f"{name}.bias": by.sum(0)}

    def vector(values: Floats) -> Tensor:
        return torch.from_numpy(values.astype(slots.state.dtype))

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
        **layer("recurrence", slopes.after, kept.before),
        "f2.second.weight": vector(slopes.second2.T),
        "f2.second.bias": vector(slopes.second2_bias),
    }
    own = layer("f2.first", slopes.receiver[told], slots.code[told])
    other = layer("f2.first", slopes.sender, slots.code)
    first = torch.cat([own["f2.first.weight"], other["f2.first.weight"]], 1)
    found |= own | {"f2.first.weight": first}  # the bias is in the receiver's half only
    for name, (scale, shift) in zip(("f1", "f2", "f3"), slopes.norms, strict=True):
        found |= {f"{name}.norm.weight": vector(scale), f"{name}.norm.bias": vector(shift)}
    return found
