"""The scan of DyRep: a segment's events one after the other, forward and backward.

What is one matrix product over all events is left to the caller: the forward loop keeps what each
event's products were given, the backward loop what came back to them.  `EPSILON`, the attention and
the intensity are those of `links.py`, which computes the same for a level of padded lists.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64
from .elementary import exponential, sigmoid
from .links import EPSILON
from .tiles import add_rows

Floats = npt.NDArray[np.floating]
Int32 = npt.NDArray[np.int32]

TIED = np.int32(1 << 30)
"""Set in a place whose value stands in other places too."""

GROUP = 4
"""Neighbours that are read at a time."""


class Lists(NamedTuple):
    """The links of both ends of every event."""

    indptr: Int64  # (2 n + 1,)
    neighbors: Int64  # (r,) rows
    before: Bool  # (r,)
    partner: Bool  # (r,)
    link: Int64  # (r,) rows of the attention


class Intensity(NamedTuple):
    """What an intensity is made of, the same for a pair and its reverse."""

    omega: Float64  # (kinds, width)
    bias: Float64  # (kinds,)
    psi: Float64  # (kinds,)
    between: Float64  # (kinds, width, width), or (0, 0, 0) without an interaction


class Weights(NamedTuple):
    """Layers, each (inputs, outputs)."""

    into: Floats  # (2 width, width) W_struct over W_rec, without the diagonal of the latter
    own: Floats  # (width,) that diagonal
    tell: Floats  # (width, width) W_h
    tell_bias: Floats  # (width,)


class Kept(NamedTuple):
    """What the way back needs beside the states."""

    slot: Int64  # (rows,) where the message of a row stands, or -1
    senders: Floats  # (slots, width) the states that have one
    messages: Floats  # (slots, width)
    inputs: Floats  # (n, 2, 2 width) h of the other end, then z of this one
    heard: Int32  # (r + `GROUP`,) as in `listen`
    share: Floats  # (r + `GROUP`,) likewise
    chosen: Int32  # (n, 2, width) as in `choose`, or -1 of an end that hears nothing


@njit(cache=True, nogil=True)
def number_rows(neighbors: Int64, before: Bool, slot: Int64) -> int:
    """Number the rows that are read as neighbours in `slot` (rows,), in order; the rest are -1."""
    slot[:] = -1
    for j in range(len(neighbors)):
        if before[j]:
            slot[neighbors[j]] = 0
    count = 0
    for row in range(len(slot)):
        if slot[row] == 0:
            slot[row] = count
            count += 1
    return count


@njit(cache=True, nogil=True)
def send_base(
    states: Floats,  # (rows, width)
    num_base: int,
    slot: Int64,  # (rows,)
    tell: Floats,  # (width, width) W_h transposed
    tell_bias: Floats,  # (width,)
    senders: Floats,  # out, (slots, width): the states that have a message
    messages: Floats,  # out, (slots, width)
) -> None:
    """The messages of base rows, which are the first ones."""
    count = 0
    for row in range(num_base):
        if slot[row] >= 0:
            for c in range(states.shape[1]):
                senders[count, c] = states[row, c]
                messages[count, c] = tell_bias[c]
            count += 1
    add_rows(tell, senders, messages, count)


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def pair_rate(
    z_u: Floats,  # (width,)
    z_v: Floats,  # (width,)
    kind: int,
    intensity: Intensity,
) -> float:
    """The intensity of a kind between two states."""
    omega, bias, psi, between = intensity
    width = len(z_u)
    g = bias[kind]
    for c in range(width):
        g += omega[kind, c] * (np.float64(z_u[c]) + np.float64(z_v[c]))
    if len(between):
        for a in range(width):
            inner = 0.0
            for b in range(width):
                inner += between[kind, a, b] * (np.float64(z_v[b]) - 0.5)
            g += (np.float64(z_u[a]) - 0.5) * inner
    ratio = min(max(g / psi[kind], -75.0), 75.0)
    rate: float = psi[kind] * (max(ratio, 0.0) + math.log1p(math.exp(-abs(ratio))))
    return rate


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def listen(
    attention: Floats,  # (links,)
    lists: Lists,
    slot: Int64,  # (rows,) where the message of a row stands
    a: int,  # the list is [a, b)
    b: int,
    power: Float64,  # scratch, (k,)
    heard: Int32,  # out from a on: where the messages stand that are heard before the event
    share: Floats,  # out from a on: their weights, the softmax of the attention
) -> int:
    """How many messages an end hears.

    They are filled up to whole groups with weights that are not numbers: the product is greater
    than nothing.  The next list may overwrite these.
    """
    _, neighbors, before, _, link = lists
    count = 0
    for j in range(a, b):
        if before[j]:
            power[count] = attention[link[j]]
            heard[a + count] = slot[neighbors[j]]
            count += 1
    total = 0.0
    for j in range(count):
        power[j] = exponential(power[j])
        total += power[j]
    scale = 1.0 / (total + EPSILON)
    for j in range(count):
        share[a + j] = power[j] * scale
    for j in range(count, count + -count % GROUP):
        share[a + j] = np.nan
        heard[a + j] = 0
    return count


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def renew(
    attention: Floats,  # (links,), changed
    link: Int64,  # (r,)
    before: Bool,  # (r,)
    partner: Bool,  # (r,)
    a: int,  # the list is [a, b) of them
    b: int,
    rate: float,
) -> None:
    """Algorithm 1: the row of S after an event with one of its nodes, whose links are all given."""
    count, others, rest = 0, 0, 0.0
    for j in range(a, b):
        count += before[j]
        if before[j] and not partner[j]:
            others += 1
            rest += attention[link[j]]
    met = 0
    for j in range(a, b):
        met += partner[j]
    if met == 0:
        return
    shift = 1.0 / count - 1.0 / (b - a) if count else 0.0
    own = 1.0 / (b - a) + rate
    scale = 1.0 / (met * own + (rest - others * shift) + EPSILON)
    for j in range(a, b):
        old = np.float64(attention[link[j]]) - shift
        attention[link[j]] = scale * (own if partner[j] else old * before[j])


@njit(cache=True, nogil=True)
def greatest(
    messages: Floats,  # (slots, width)
    heard: Int32,  # (r,), as in `listen`
    share: Floats,  # (r,)
    a: int,  # the list is the `count` from a on
    count: int,
    best: Floats,  # out, (width,)
) -> None:
    """The greatest of the weighted messages of a list, -inf of an empty one.

    What is not a number is not looked at: so are groups filled up.
    """
    best[:] = -np.inf
    for j in range(a, a + count, GROUP):
        q0, q1, q2, q3 = share[j], share[j + 1], share[j + 2], share[j + 3]
        r0, r1, r2, r3 = heard[j], heard[j + 1], heard[j + 2], heard[j + 3]
        for c in range(len(best)):
            top = best[c]
            m0, m1 = q0 * messages[r0, c], q1 * messages[r1, c]
            m2, m3 = q2 * messages[r2, c], q3 * messages[r3, c]
            top = m0 if m0 > top else top
            top = m1 if m1 > top else top
            top = m2 if m2 > top else top
            best[c] = m3 if m3 > top else top


@njit(cache=True, nogil=True)
def choose(
    messages: Floats,  # (slots, width) and so on, as in `greatest`
    heard: Int32,
    share: Floats,
    a: int,
    count: int,
    best: Floats,  # out, (width,)
    chosen: Int32,  # out, (width,): the first place where it stands; with `TIED` if others do
) -> None:
    """The same, and where it comes from."""
    best[:] = -np.inf
    for j in range(a, a + count, GROUP):
        q0, q1, q2, q3 = share[j], share[j + 1], share[j + 2], share[j + 3]
        r0, r1, r2, r3 = heard[j], heard[j + 1], heard[j + 2], heard[j + 3]
        p0, p1, p2, p3 = np.int32(j), np.int32(j + 1), np.int32(j + 2), np.int32(j + 3)
        for c in range(len(best)):
            top, held = best[c], chosen[c]
            m0, m1 = q0 * messages[r0, c], q1 * messages[r1, c]
            m2, m3 = q2 * messages[r2, c], q3 * messages[r3, c]
            held = p0 if m0 > top else (held | TIED if m0 == top else held)
            top = m0 if m0 > top else top
            held = p1 if m1 > top else (held | TIED if m1 == top else held)
            top = m1 if m1 > top else top
            held = p2 if m2 > top else (held | TIED if m2 == top else held)
            top = m2 if m2 > top else top
            chosen[c] = p3 if m3 > top else (held | TIED if m3 == top else held)
            best[c] = m3 if m3 > top else top


@njit(cache=True, nogil=True, error_model="numpy")
def squash(x: Floats, y: Floats) -> None:
    """Sigmoids of x (width,), in the first places of y."""
    for c in range(len(x)):
        y[c] = sigmoid(x[c])


@njit(cache=True, nogil=True, fastmath={"contract"})
def scan_events(
    kind: Int64,  # (n,)
    ends: Int64,  # (n, 2) rows
    writes: Int64,  # (2 n,) rows
    is_loop: Bool,  # (n,)
    lists: Lists,
    attention: Floats,  # (links,), changed
    intensity: Intensity,
    weights: Weights,
    elapsed: Floats,  # (n, 2, width) W_t dt and the bias of W_struct
    states: Floats,  # (rows, width): base rows are given, the others made
    kept: Kept,  # out, but for the slots and the messages of base rows
    keeps: bool,  # whether there will be a way back; else nothing is kept but what is read again
    power: Float64,  # scratch, as long as the longest list
) -> None:
    """Equation 4 and algorithm 1, event after event.

    What a state gives to itself, the diagonal of W_rec, is large beside the rest and is added last:
    the sum over inputs is then rounded at its own size, and rounding goes on into all later states.
    """
    width = states.shape[1]
    indptr, _, before, partner, link = lists
    slot, senders, messages, inputs, heard, share, chosen = kept
    into, own, tell, tell_bias = weights
    best, after = np.empty_like(states[0]), np.empty_like(states[:2])
    told = np.empty_like(after)
    selected = np.empty(width, np.int32)
    for i in range(len(kind)):
        given = inputs[i if keeps else 0]
        meets = False
        for side in range(2):
            a, b = indptr[2 * i + side], indptr[2 * i + side + 1]
            count = listen(attention, lists, slot, a, b, power, heard, share)
            for j in range(a, b):
                meets |= partner[j]
            if count:
                selected[:] = (
                    a  # a place of the list, whatever is compared: nothing is more than nan
                )
                if keeps:
                    choose(messages, heard, share, a, count, best, selected)
                else:
                    greatest(messages, heard, share, a, count, best)
                squash(best, given[1 - side])
            else:
                given[1 - side, :width] = 0.0
                selected[:] = -1
            for c in range(width if keeps else 0):
                chosen[i, side, c] = selected[c]
            for c in range(width):
                given[side, width + c] = states[ends[i, side], c]
        if meets:
            rate = pair_rate(given[0, width:], given[1, width:], kind[i], intensity)
            for side in range(1 if is_loop[i] else 0, 2):  # of a loop the destination's row stands
                a, b = indptr[2 * i + side], indptr[2 * i + side + 1]
                renew(attention, link, before, partner, a, b, rate)
        after[:] = 0.0
        add_rows(into, given, after, 2)
        made = writes[2 * i], writes[2 * i + 1]
        for side in range(2):
            for c in range(width):
                large = elapsed[i, side, c] + own[c] * given[side, width + c]
                after[side, c] = sigmoid(after[side, c] + large)
            states[made[side]] = after[side]
        if slot[made[0]] >= 0 or slot[made[1]] >= 0:
            for c in range(width):
                told[0, c] = tell_bias[c]
                told[1, c] = tell_bias[c]
            add_rows(tell, after, told, 2)
            for side in range(2):
                at = slot[made[side]]
                for c in range(width if at >= 0 else 0):
                    senders[at, c] = after[side, c]
                    messages[at, c] = told[side, c]


@njit(cache=True, nogil=True, fastmath={"contract"})
def scan_events_back(
    ends: Int64,  # (n, 2) and so on, as in `scan_events`
    writes: Int64,
    lists: Lists,
    into: Floats,  # (width, 2 width) W_struct beside W_rec, (outputs, inputs)
    tell: Floats,  # (width, width) W_h, (outputs, inputs)
    states: Floats,
    kept: Kept,
    num_base: int,
    by_state: Floats,  # (2 n, width), changed: by the written rows
    by_message: Floats,  # out, (slots, width), zeros
    by_sum: Floats,  # out, (n, 2, width): by what the sigmoid of each new state was given
) -> None:
    """The gradient of `scan_events`, from the last event to the first."""
    width = states.shape[1]
    slot, _, messages, inputs, heard, share, chosen = kept
    one = states.dtype.type(1)
    back, pair = np.empty_like(inputs[0]), np.empty_like(states[:2])
    told = np.empty_like(pair)
    for i in range(len(ends) - 1, -1, -1):
        to_send = False
        for side in range(2):
            row = writes[2 * i + side]
            pair[side] = by_state[row - num_base]
            if slot[row] >= 0:
                told[side] = by_message[slot[row]]
                to_send = True
            else:
                told[side] = 0.0
        if to_send:
            add_rows(tell, told, pair, 2)
        for side in range(2):
            row = writes[2 * i + side]
            for c in range(width):
                z = states[row, c]
                by_sum[i, side, c] = pair[side, c] * z * (one - z)
        back[:] = 0.0
        add_rows(into, by_sum[i], back, 2)
        for side in range(2):
            row = ends[i, side]
            if row >= num_base:
                for c in range(width):
                    by_state[row - num_base, c] += back[side, width + c]
            if chosen[i, side, 0] < 0:
                continue
            for c in range(width):
                h = inputs[i, 1 - side, c]
                back[1 - side, c] *= h * (one - h)
            for c in range(width):
                place, pull = chosen[i, side, c], back[1 - side, c]
                if place & TIED:
                    stop = lists.indptr[2 * i + side + 1]
                    divide(messages, heard, share, place ^ TIED, stop, c, pull, by_message)
                else:
                    by_message[heard[place], c] += share[place] * pull


@njit(cache=True, nogil=True)
def divide(
    messages: Floats,  # (slots, width) and so on, as in `greatest`
    heard: Int32,
    share: Floats,
    first: int,  # where the greatest stands first
    stop: int,  # where the list ends
    c: int,
    pull: float,  # the gradient by it
    by_message: Floats,  # (slots, width), changed
) -> None:
    """Give the gradient by one greatest message to all that equal it, in equal parts."""
    best = share[first] * messages[heard[first], c]
    count = 0
    for j in range(first, stop):
        count += share[j] * messages[heard[j], c] == best
    for j in range(first, stop):
        if share[j] * messages[heard[j], c] == best:
            by_message[heard[j], c] += share[j] * pull / by_message.dtype.type(count)
