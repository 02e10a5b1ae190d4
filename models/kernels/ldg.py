"""The scan of LDG: a segment's events one after the other, forward and backward.

Of each version of a node f1, both halves of f2's first layer and the message are computed once, in
tables of which a row is called a slot.  Products that can wait are left to the caller: the forward
loop keeps what each layer was given, the backward loop what came back to it.  Only the weights of
f2's second layer, through which up to 130 rows of an event go, are summed up here, since these rows
would fill the memory.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64
from .elementary import exponential, sigmoid
from .perceptron import (
    BackLayers,
    Layers,
    activate,
    by_activation,
    by_norm,
    by_second,
    clear,
    elu,
    measure,
    normalise,
    pass_layers,
    spread,
)
from .tiles import add_outer, add_rows, widen

Floats = npt.NDArray[np.floating]
Int32 = npt.NDArray[np.int32]

EPSILON = 1e-7
TIED = np.int32(1 << 30)
"""Set in a place whose value stands in other places too."""

BLOCK = 64  # slots that are filled together


class Events(NamedTuple):
    """What each event reads and writes; `p` relations, `k` classes."""

    ends: Int64  # (n, 2) slots
    writes: Int64  # (2 n,) rows of states
    written: Int64  # (2 n,) their slots, or -1 where nothing reads them
    is_loop: Bool  # (n,)
    indptr: Int64  # (2 n + 1,)
    neighbors: Int64  # (r,) slots
    partner: Bool  # (r,)
    link: Int64  # (r,)
    drawn: Int64  # (n + 1,) where the context of each event begins in `sampled`
    sampled: Int64  # (c,) slots
    gumbel: Floats  # (n, 2, k)
    elapsed: Floats  # (n, 2, width) W_t dt and the bias of W_struct


class Weights(NamedTuple):
    """All weights as (inputs, outputs)."""

    f1: Layers
    f2: Layers  # its first layer is in `own` and `other`
    f3: Layers
    f4: Layers
    own: Floats  # (width, width)
    other: Floats  # (width, width)
    tell: Floats  # (width, width) W_h
    tell_bias: Floats  # (width,)
    relation: Floats  # (width, k)
    relation_bias: Floats  # (k,)
    structure: Floats  # (p width, width) W_struct
    recurrence: Floats  # (width, width) W_rec without its diagonal
    memory: Floats  # (width,) its diagonal: large, and so added last
    log_prior: Floats  # (k,)


class BackWeights(NamedTuple):
    """All weights as (outputs, inputs)."""

    f1: BackLayers
    f2: BackLayers
    f3: BackLayers
    f4: BackLayers
    own: Floats
    other: Floats
    tell: Floats
    relation: Floats
    structure: Floats
    recurrence: Floats
    memory: Floats  # (width,)
    log_prior: Floats  # (k,)


class Slots(NamedTuple):
    """Of each version that is read: the state, and what is made of it; each (slots, width)."""

    state: Floats
    message: Floats
    receiver: Floats  # the half of f2's first layer that sees the node itself
    sender: Floats  # that which sees a node of its context
    inner: Floats  # of f1
    outer: Floats  # of f1
    moments: Floats  # (slots, 2)
    code: Floats  # f1(z)


class Kept(NamedTuple):
    """What the way back needs of an event; n is 1 where nothing is kept, or nothing happens."""

    outer: Floats  # (n, rows, width) of f2: the pair's two rows, then two of each sampled node
    moments: Floats  # (n, rows, 2)
    spread: Floats  # (n, 2, width) the mean of f2's rows before its scale and shift
    mean: Floats  # (n, 2, width) after them
    inner3: Floats  # (n, 2, width)
    outer3: Floats
    moments3: Floats  # (n, 2, 2)
    pair: Floats  # (n, 2, 3 width) what f4 is given
    inner4: Floats  # (n, 2, width)
    outer4: Floats
    log_share: Floats  # (n, 2, k) logarithms of the softmax of the logits
    share: Floats  # (n, 2, k) the soft draw
    related: Floats  # (p, r) S of each link that is read
    weight: Floats  # (p, r) q
    chosen: Int32  # (n, 2, p, width) place of the greatest message, as in `choose`; or -1
    heard: Floats  # (n, 2, p width): h of the other end
    before: Floats  # (n, 2, width): z of this one


class Slopes(NamedTuple):
    """Gradients by what stands before each layer's activation."""

    state: Floats  # (slots, width), zeros
    message: Floats  # (slots, width), zeros
    receiver: Floats  # (slots, width), zeros
    sender: Floats  # (slots, width), zeros
    first1: Floats  # (slots, width) of f1
    second1: Floats
    first3: Floats  # (n, 2, width)
    second3: Floats
    first4: Floats
    second4: Floats
    logits: Floats  # (n, 2, k)
    after: Floats  # (n, 2, width) by what the sigmoid of each new state was given
    second2: Float64  # (width, width), zeros: by f2's second layer, (inputs, outputs)
    second2_bias: Float64  # (width,), zeros
    norms: Float64  # (3, 2, width), zeros: by scale and shift of f1, f2 and f3


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def fill_slots(w: Weights, slots: Slots, num_sampled: int, start: int, stop: int) -> None:
    """What is made of the states in [start, stop), of the first `num_sampled` what they need."""
    count = stop - start
    state, code = slots.state[start:stop], slots.code[start:stop]
    inner, outer = slots.inner[start:stop], slots.outer[start:stop]
    spread(w.f1.first_bias, inner, count)
    add_rows(w.f1.first, state, inner, count)
    pass_layers(w.f1, inner, outer, count)
    moments = slots.moments[start:stop]
    measure(outer, moments, count)
    normalise(outer, moments, w.f1.scale, w.f1.shift, code, count)
    sender = slots.sender[start:stop]
    clear(sender, count)
    add_rows(w.other, code, sender, count)
    if start >= num_sampled:
        receiver, message = slots.receiver[start:stop], slots.message[start:stop]
        spread(w.f2.first_bias, receiver, count)
        add_rows(w.own, code, receiver, count)
        spread(w.tell_bias, message, count)
        add_rows(w.tell, state, message, count)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def fill_context(
    receiver: Floats, sender: Floats, source: int, destination: int, sampled: Int64, inner: Floats
) -> None:
    """ELU of f2's first layer: the rows of u and v, then, of each sampled node, those with u, v."""
    widen()
    width = inner.shape[1]
    for c in range(width):
        inner[0, c] = elu(receiver[source, c] + sender[destination, c])
        inner[1, c] = elu(receiver[destination, c] + sender[source, c])
    for j in range(len(sampled)):
        node = sampled[j]
        for c in range(width):
            inner[2 * j + 2, c] = elu(receiver[source, c] + sender[node, c])
            inner[2 * j + 3, c] = elu(receiver[destination, c] + sender[node, c])


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def hear_context(
    w: Layers,
    inner: Floats,  # (rows, width) of `fill_context`
    count: int,  # of rows
    outer: Floats,  # out, (rows, width)
    moments: Floats,  # out, (rows, 2)
    weights: Floats,  # scratch, (rows, 2)
    total: Floats,  # out, (2, width): the mean of each end's rows, before scale and shift
    mean: Floats,  # out, (2, width): after them
    pair: Floats,  # out, (2, 3 width), the last third: the row with the partner
) -> None:
    """Second layer and norm of f2, for the context of both ends."""
    widen()
    width, zero = inner.shape[1], inner.dtype.type(0)
    spread(w.second_bias, outer, count)
    add_rows(w.second, inner, outer, count)
    activate(outer, count)
    measure(outer, moments, count)
    # the mean of (row - mean) / deviation over the rows of an end, as one product
    share = inner.dtype.type(1) / inner.dtype.type(count // 2)
    less_u, less_v = zero, zero
    for r in range(count):
        weights[r, r % 2] = share * moments[r, 1]
        weights[r, 1 - r % 2] = zero
    for r in range(0, count, 2):
        less_u += weights[r, 0] * moments[r, 0]
        less_v += weights[r + 1, 1] * moments[r + 1, 0]
    clear(total, len(total))
    add_outer(weights, outer, total, count)
    for side in range(2):
        for c in range(width):
            hat = (outer[side, c] - moments[side, 0]) * moments[side, 1]
            pair[side, 2 * width + c] = hat * w.scale[c] + w.shift[c]
            total[side, c] -= less_v if side else less_u
            mean[side, c] = total[side, c] * w.scale[c] + w.shift[c]


@njit(cache=True, nogil=True, error_model="numpy")
def draw(
    logits: Floats,  # (2, k)
    gumbel: Floats,  # (2, k)
    log_prior: Floats,  # (k,)
    temperature: float,
    hard: bool,
    fresh: Floats,  # out, (2, p): S of both directions
    log_share: Floats,  # out, (2, k)
    share: Floats,  # out, (2, k)
) -> float:
    """Draw S; the divergence of the softmax from the prior, the mean of both directions."""
    classes, relations = logits.shape[1], fresh.shape[1]
    divergence = 0.0
    for side in range(2):
        top, best, total, noisy = -np.inf, 0, 0.0, -np.inf
        for k in range(classes):
            top = max(top, np.float64(logits[side, k]))
            if np.float64(logits[side, k] + gumbel[side, k]) > noisy:
                noisy, best = np.float64(logits[side, k] + gumbel[side, k]), k
        for k in range(classes):
            total += math.exp(logits[side, k] - top)
        log_total = math.log(total) + top
        total = 0.0
        for k in range(classes):
            log = logits[side, k] - log_total
            log_share[side, k] = log
            divergence += 0.5 * math.exp(log) * (log - log_prior[k])
            total += math.exp((np.float64(logits[side, k] + gumbel[side, k]) - noisy) / temperature)
        for k in range(classes):
            power = math.exp((np.float64(logits[side, k] + gumbel[side, k]) - noisy) / temperature)
            share[side, k] = power / total
        for r in range(relations):
            k = classes - relations + r
            fresh[side, r] = (1.0 if k == best else 0.0) if hard else share[side, k]
    return divergence


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def weigh(related: Floats, weight: Floats) -> None:
    """The weights q of one list from its row of S; 0 where a link is not related."""
    of = related.dtype.type
    zero, least = of(0), of(EPSILON)
    total, sums = 0.0, 0.0
    for j in range(len(related)):
        total += np.float64(related[j])
    scale = of(1) / (of(total) + least)
    for j in range(len(related)):
        power = exponential(related[j] * scale)
        weight[j] = power if related[j] > least else zero
    for j in range(len(related)):
        sums += np.float64(weight[j])
    scale = of(1) / (of(sums) + least)
    for j in range(len(related)):
        weight[j] *= scale


@njit(cache=True, nogil=True, error_model="numpy")
def choose(
    message: Floats,  # (slots, width)
    neighbors: Int64,  # (k,) slots of one list
    weight: Floats,  # (k,)
    best: Floats,  # scratch, (width,)
    chosen: Int32,  # out, (width,): the first place of the greatest message; `TIED` if others equal
    heard: Floats,  # out, (width,): its sigmoid, or 0
) -> None:
    """What the related neighbours of a list say."""
    best[:] = -np.inf
    chosen[:] = -1
    for j in range(len(neighbors)):
        q, node, place = weight[j], neighbors[j], np.int32(j)
        if q > 0.0:
            for c in range(len(best)):
                m, top, held = q * message[node, c], best[c], chosen[c]
                tied = held | TIED if m == top else held
                greater = (m > top) | (m != m)  # NaN is the greatest
                chosen[c] = place if greater else tied
                best[c] = m if greater else top
    zero = best.dtype.type(0)
    for c in range(len(best)):
        heard[c] = sigmoid(best[c]) if chosen[c] >= 0 else zero


@njit(cache=True, nogil=True)
def made_by(written: Int64, event: int) -> tuple[int, int]:
    """The span of the slots that an event makes: its own rows stand side by side."""
    source, destination = int(written[2 * event]), int(written[2 * event + 1])
    if source >= 0:
        return source, max(source, destination) + 1
    return destination, destination + (destination >= 0)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def scan_events(
    events: Events,
    w: Weights,
    links: tuple[Floats, ...],  # p tables (links,), changed, and perhaps more
    temperature: float,
    hard: bool,
    num_sampled: int,  # slots of states before the segment that are only sampled; they come first
    num_base: int,  # all slots of states before the segment
    states: Floats,  # (rows, width), changed
    slots: Slots,  # the states of the first `num_base` are given, the rest made
    kept: Kept,
    keeps: bool,
    divergence: Floats,  # out, (n,)
) -> None:
    """All updates of a segment, event after event."""
    width, p, n = states.shape[1], len(kept.related), len(events.ends)
    both = events.ends.shape[1]  # 2: as a constant it would have loops unrolled and calls copied
    inner, weights = np.empty_like(kept.outer[0]), np.empty_like(kept.moments[0])
    after, node = np.empty_like(kept.mean[0]), np.empty_like(kept.mean[0])
    logits, fresh = np.empty_like(kept.share[0]), np.empty((2, p), states.dtype)
    best = np.empty(width, states.dtype)
    for start in range(0, num_sampled, BLOCK):
        fill_slots(w, slots, num_sampled, start, min(start + BLOCK, num_sampled))
    for start in range(num_sampled, num_base, BLOCK):
        fill_slots(w, slots, num_sampled, start, min(start + BLOCK, num_base))
    for i in range(n):
        at = i if keeps else 0
        # S of the event
        sampled = events.sampled[events.drawn[i] : events.drawn[i + 1]]
        u, v = events.ends[i, 0], events.ends[i, 1]
        fill_context(slots.receiver, slots.sender, u, v, sampled, inner)
        pair, mean = kept.pair[at], kept.mean[at]
        hear_context(
            w.f2,
            inner,
            2 * len(sampled) + 2,
            kept.outer[at],
            kept.moments[at],
            weights,
            kept.spread[at],
            mean,
            pair,
        )
        spread(w.f3.first_bias, kept.inner3[at], both)
        add_rows(w.f3.first, mean, kept.inner3[at], both)
        pass_layers(w.f3, kept.inner3[at], kept.outer3[at], both)
        measure(kept.outer3[at], kept.moments3[at], both)
        normalise(kept.outer3[at], kept.moments3[at], w.f3.scale, w.f3.shift, node, both)
        for side in range(both):
            for c in range(width):
                pair[side, c] = node[side, c]
                pair[side, width + c] = node[1 - side, c]
        spread(w.f4.first_bias, kept.inner4[at], both)
        add_rows(w.f4.first, pair, kept.inner4[at], both)
        pass_layers(w.f4, kept.inner4[at], kept.outer4[at], both)
        spread(w.relation_bias, logits, both)
        add_rows(w.relation, kept.outer4[at], logits, both)
        divergence[i] = draw(
            logits,
            events.gumbel[i],
            w.log_prior,
            temperature,
            hard,
            fresh,
            kept.log_share[at],
            kept.share[at],
        )
        # what the neighbours say
        heard = kept.heard[at]
        for side in range(both):
            a, b = events.indptr[2 * i + side], events.indptr[2 * i + side + 1]
            for r in range(p):
                related, weight = kept.related[r, a:b], kept.weight[r, a:b]
                for j in range(a, b):
                    own = events.partner[j]
                    related[j - a] = fresh[side, r] if own else links[r][events.link[j]]
                weigh(related, weight)
                choose(
                    slots.message,
                    events.neighbors[a:b],
                    weight,
                    best,
                    kept.chosen[at, side, r],
                    heard[1 - side, r * width : (r + 1) * width],
                )
        for side in range(1 if events.is_loop[i] else 0, both):  # a loop keeps the destination's S
            for j in range(events.indptr[2 * i + side], events.indptr[2 * i + side + 1]):
                if events.partner[j]:
                    for r in range(p):
                        links[r][events.link[j]] = fresh[side, r]
        # the states after it; a small sum is rounded less than one that starts with a large term
        before = kept.before[at]
        for side in range(both):
            for c in range(width):
                before[side, c] = slots.state[events.ends[i, side], c]
        clear(after, both)
        add_rows(w.structure, heard, after, both)
        clear(node, both)
        add_rows(w.recurrence, before, node, both)
        for side in range(both):
            for c in range(width):
                large = events.elapsed[i, side, c] + w.memory[c] * before[side, c]
                after[side, c] = sigmoid(after[side, c] + node[side, c] + large)
        for side in range(both):
            row, slot = events.writes[2 * i + side], events.written[2 * i + side]
            for c in range(width):
                states[row, c] = after[side, c]
                if slot >= 0:
                    slots.state[slot, c] = after[side, c]
        start, stop = made_by(events.written, i)
        if start < stop:
            fill_slots(w, slots, num_sampled, start, stop)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def fill_slots_back(
    w: BackWeights,
    slots: Slots,
    slopes: Slopes,
    by_code: Floats,  # scratch, (rows, width)
    num_sampled: int,
    start: int,
    stop: int,
) -> None:
    """Back through f1, from the gradients by receivers and senders in [start, stop)."""
    count = stop - start
    clear(by_code, count)
    if start >= num_sampled:
        add_rows(w.own, slopes.receiver[start:stop], by_code, count)
    add_rows(w.other, slopes.sender[start:stop], by_code, count)
    by_norm(
        w.f1.scale,
        by_code,
        slots.outer[start:stop],
        slots.moments[start:stop],
        slopes.second1[start:stop],
        count,
        slopes.norms[0, 0],
        slopes.norms[0, 1],
    )
    by_second(
        w.f1,
        slopes.second1[start:stop],
        slots.inner[start:stop],
        slopes.first1[start:stop],
        count,
    )


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def hear_back(
    message: Floats,  # (slots, width)
    neighbors: Int64,  # (k,) slots of one list, like what follows
    weight: Floats,  # (k,)
    chosen: Int32,  # (width,)
    by_best: Floats,  # (width,)
    by_message: Floats,  # (slots, width), added to
    by_weight: Floats,  # out, (k,)
) -> None:
    """Back through the greatest of the weighted messages; equal ones share its gradient."""
    by_weight[:] = 0.0
    for c in range(len(chosen)):
        if chosen[c] < 0:
            continue
        j = chosen[c] & ~TIED
        if j == chosen[c]:
            by_message[neighbors[j], c] += weight[j] * by_best[c]
            by_weight[j] += message[neighbors[j], c] * by_best[c]
            continue
        best, count = weight[j] * message[neighbors[j], c], 0
        for k in range(len(neighbors)):
            if weight[k] > 0.0 and weight[k] * message[neighbors[k], c] == best:
                count += 1
        for k in range(len(neighbors)):
            if weight[k] > 0.0 and weight[k] * message[neighbors[k], c] == best:
                by_message[neighbors[k], c] += weight[k] * by_best[c] / count
                by_weight[k] += message[neighbors[k], c] * by_best[c] / count


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def weigh_back(related: Floats, weight: Floats, by_weight: Floats, partner: Bool) -> float:
    """Back through `weigh`: the gradient by the S that the event drew."""
    mean, total, along, own = 0.0, EPSILON, 0.0, 0.0
    for j in range(len(related)):
        mean += weight[j] * by_weight[j]
        total += related[j]
    for j in range(len(related)):
        by_power = weight[j] * (by_weight[j] - mean)
        along += by_power * related[j]
        if partner[j]:
            own += by_power
    count = 0
    for j in range(len(related)):
        count += partner[j]
    return own / total - count * along / (total * total)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_back(
    by_fresh: Float64,  # (2, p)
    by_divergence: float,
    log_prior: Floats,  # (k,)
    temperature: float,
    log_share: Floats,  # (2, k)
    share: Floats,  # (2, k)
    by_logits: Floats,  # out, (2, k)
) -> None:
    """Back through the soft draw, whose gradient a hard one has too, and the divergence."""
    classes, relations = share.shape[1], by_fresh.shape[1]
    skipped = classes - relations
    for side in range(2):
        mean, divergence = 0.0, 0.0
        for k in range(classes):
            if k >= skipped:
                mean += by_fresh[side, k - skipped] * share[side, k]
            log = np.float64(log_share[side, k])
            divergence += math.exp(log) * (log - log_prior[k])
        for k in range(classes):
            by_share = by_fresh[side, k - skipped] if k >= skipped else 0.0
            log = np.float64(log_share[side, k])
            by_log = math.exp(log) * (log - log_prior[k] - divergence)
            by_logits[side, k] = (
                share[side, k] * (by_share - mean) / temperature + 0.5 * by_divergence * by_log
            )


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"}, error_model="numpy")
def hear_context_back(
    scale: Floats,  # (width,)
    by_mean: Floats,  # (2, width)
    by_pair: Floats,  # (2, 3 width), the last third
    outer: Floats,  # (rows, width)
    moments: Floats,  # (rows, 2)
    count: int,  # of rows
    total: Floats,  # (2, width), the mean of each end's rows before scale and shift
    given: Floats,  # scratch, (4, width)
    slope: Floats,  # out, (rows, width): by the result of f2's second layer, before its ELU
    by_scale: Float64,  # (width,), added to
    by_shift: Float64,
) -> None:
    """Back through norm and ELU of f2, for the context of both ends."""
    widen()
    of, width = outer.dtype.type, outer.shape[1]
    zero, one = of(0), of(1)
    each, share = one / of(count // 2), one / of(width)
    for side in range(2):
        mean, inverse = moments[side, 0], moments[side, 1]
        for c in range(width):
            along = by_mean[side, c] * each
            edge = by_pair[side, 2 * width + c]
            by_scale[c] += by_mean[side, c] * total[side, c]
            by_scale[c] += edge * ((outer[side, c] - mean) * inverse)
            by_shift[c] += by_mean[side, c] + edge
            given[side, c] = (along + edge) * scale[c]
            given[2 + side, c] = along * scale[c]
    for r in range(count):
        which = r if r < 2 else 2 + r % 2
        mean, inverse = moments[r, 0], moments[r, 1]
        sums, along = zero, zero
        for c in range(width):
            sums += given[which, c]
            along += given[which, c] * (outer[r, c] - mean)
        sums, along = sums * share, along * share * inverse * inverse
        for c in range(width):
            back = given[which, c] - sums - (outer[r, c] - mean) * along
            slope[r, c] = back * inverse * (min(outer[r, c], zero) + one)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def fill_context_back(
    slope: Floats,  # (rows, width) of f2's first layer, after its ELU; changed
    inner: Floats,  # (rows, width) of `fill_context`
    source: int,
    destination: int,
    sampled: Int64,
    sides: Floats,  # (rows, 2) of [1, 0], [0, 1], [1, 0] ...
    by_receiver: Floats,  # (slots, width), added to
    by_sender: Floats,  # (slots, width), added to
    given: Floats,  # scratch, (2, width) or more
) -> None:
    """Back through f2's first layer, to the slots that it read."""
    widen()
    width, count = slope.shape[1], 2 * len(sampled) + 2
    by_activation(inner, slope, count)
    ends = given[:2]
    clear(ends, len(ends))
    add_outer(sides, slope, ends, count)
    for c in range(width):
        by_receiver[source, c] += ends[0, c]
        by_receiver[destination, c] += ends[1, c]
        by_sender[destination, c] += slope[0, c]
        by_sender[source, c] += slope[1, c]
    for j in range(len(sampled)):
        node = sampled[j]
        for c in range(width):
            by_sender[node, c] += slope[2 * j + 2, c] + slope[2 * j + 3, c]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def scan_events_back(
    events: Events,
    w: BackWeights,
    temperature: float,
    num_sampled: int,
    num_base: int,
    states: Floats,
    slots: Slots,
    kept: Kept,
    by_states: Floats,  # (rows, width)
    by_divergence: Floats,  # (n,)
    slopes: Slopes,
) -> None:
    """The gradient of `scan_events`, from the last event to the first."""
    width, p, n = states.shape[1], len(kept.related), len(events.ends)
    both = events.ends.shape[1]
    one = states.dtype.type(1)
    longest = 0
    for i in range(2 * n):
        longest = max(longest, events.indptr[i + 1] - events.indptr[i])
    inner, slope = np.empty_like(kept.outer[0]), np.empty_like(kept.outer[0])
    first_slope = np.empty_like(slope)
    by_weight2 = np.empty((width, width), states.dtype)
    by_bias2 = np.empty((1, width), states.dtype)
    by_code = np.empty((BLOCK, width), states.dtype)
    by_heard, by_pair = np.empty_like(kept.heard[0]), np.empty_like(kept.pair[0])
    by_new, by_mean = np.empty_like(kept.mean[0]), np.empty_like(kept.mean[0])
    by_node, by_fresh = np.empty_like(by_mean), np.empty((2, p))
    ones, sides = np.ones((len(inner), 1), states.dtype), np.zeros((len(inner), 2), states.dtype)
    for r in range(len(sides)):
        sides[r, r % 2] = 1.0
    given, by_weight = np.empty((4, width), states.dtype), np.empty(longest, states.dtype)
    for i in range(n - 1, -1, -1):
        # from the states after the event
        start, stop = made_by(events.written, i)
        if start < stop:
            fill_slots_back(w, slots, slopes, by_code, num_sampled, start, stop)
            # apart from what is there, which is large: each addition to it would be rounded
            clear(by_node, both)
            add_rows(w.f1.first, slopes.first1[start:stop], by_node, stop - start)
            add_rows(w.tell, slopes.message[start:stop], by_node, stop - start)
        for side in range(both):
            row, slot = events.writes[2 * i + side], events.written[2 * i + side]
            for c in range(width):
                by_new[side, c] = by_states[row, c]
                if slot >= 0:
                    by_new[side, c] += slopes.state[slot, c] + by_node[slot - start, c]
                z = states[row, c]
                slopes.after[i, side, c] = by_new[side, c] * z * (one - z)
        clear(by_heard, both)
        add_rows(w.structure, slopes.after[i], by_heard, both)
        clear(by_new, both)
        add_rows(w.recurrence, slopes.after[i], by_new, both)
        u, v = events.ends[i, 0], events.ends[i, 1]
        for c in range(width):
            slopes.state[u, c] += by_new[0, c] + w.memory[c] * slopes.after[i, 0, c]
            slopes.state[v, c] += by_new[1, c] + w.memory[c] * slopes.after[i, 1, c]
        # from what the neighbours said
        for side in range(both):
            a, b = events.indptr[2 * i + side], events.indptr[2 * i + side + 1]
            for r in range(p):
                span = slice(r * width, (r + 1) * width)
                back, heard = by_heard[1 - side, span], kept.heard[i, 1 - side, span]
                for c in range(width):
                    back[c] *= heard[c] * (one - heard[c])
                hear_back(
                    slots.message,
                    events.neighbors[a:b],
                    kept.weight[r, a:b],
                    kept.chosen[i, side, r],
                    back,
                    slopes.message,
                    by_weight[: b - a],
                )
                by_fresh[side, r] = weigh_back(
                    kept.related[r, a:b],
                    kept.weight[r, a:b],
                    by_weight[: b - a],
                    events.partner[a:b],
                )
        # from S of the event
        draw_back(
            by_fresh,
            np.float64(by_divergence[i]),
            w.log_prior,
            temperature,
            kept.log_share[i],
            kept.share[i],
            slopes.logits[i],
        )
        second4, first4 = slopes.second4[i], slopes.first4[i]
        clear(second4, both)
        add_rows(w.relation, slopes.logits[i], second4, both)
        by_activation(kept.outer4[i], second4, both)
        by_second(w.f4, second4, kept.inner4[i], first4, both)
        clear(by_pair, both)
        add_rows(w.f4.first, first4, by_pair, both)
        for side in range(both):
            for c in range(width):
                by_node[side, c] = by_pair[side, c] + by_pair[1 - side, width + c]
        second3, first3 = slopes.second3[i], slopes.first3[i]
        by_norm(
            w.f3.scale,
            by_node,
            kept.outer3[i],
            kept.moments3[i],
            second3,
            both,
            slopes.norms[2, 0],
            slopes.norms[2, 1],
        )
        by_second(w.f3, second3, kept.inner3[i], first3, both)
        clear(by_mean, both)
        add_rows(w.f3.first, first3, by_mean, both)
        sampled = events.sampled[events.drawn[i] : events.drawn[i + 1]]
        count = 2 * len(sampled) + 2
        hear_context_back(
            w.f2.scale,
            by_mean,
            by_pair,
            kept.outer[i],
            kept.moments[i],
            count,
            kept.spread[i],
            given,
            slope,
            slopes.norms[1, 0],
            slopes.norms[1, 1],
        )
        clear(by_bias2, len(by_bias2))
        add_outer(ones, slope, by_bias2, count)
        for c in range(width):
            slopes.second2_bias[c] += by_bias2[0, c]
        fill_context(slots.receiver, slots.sender, u, v, sampled, inner)
        clear(by_weight2, width)
        add_outer(inner, slope, by_weight2, count)
        for a in range(width):
            for c in range(width):
                slopes.second2[a, c] += by_weight2[a, c]
        clear(first_slope, count)
        add_rows(w.f2.second, slope, first_slope, count)
        fill_context_back(
            first_slope, inner, u, v, sampled, sides, slopes.receiver, slopes.sender, given
        )
    for start in range(0, num_sampled, BLOCK):
        stop = min(start + BLOCK, num_sampled)
        fill_slots_back(w, slots, slopes, by_code, num_sampled, start, stop)
    for start in range(num_sampled, num_base, BLOCK):
        stop = min(start + BLOCK, num_base)
        fill_slots_back(w, slots, slopes, by_code, num_sampled, start, stop)
