"""Attention over recent neighbours, some nodes at a time: projections, softmax and what is heard.

A neighbour is read as [its state, phi of the time since, what else is known of the event], laid
side by side for as long as one node is attended to.  No neighbour is projected: a query is
projected onto what is read, and the weighted sum of that onto z.  For the way back shares, queries
and sums are kept, while what was read is read again, which takes no longer than to fetch it from
where it would stand by then.  The parts of what is read begin at multiples of 8 columns, its rows
at multiples of 64 bytes; what lies between is 0.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64
from .cosine import cosines, cosines_and_sines
from .tiles import UNCOUNTED, add_outer, add_rows, set_outer, set_rows, widen
from .transposes import turn
from .vectors import add_row, copy_row, dots

Floats = npt.NDArray[np.floating]

NODES = 48  # at a time


class Reads(NamedTuple):
    """What is read of r nodes, their neighbours and the events with them."""

    phi: int  # where phi begins in what is read; what is known follows it
    table: Floats  # (t, width)
    own: Int64  # (r,) rows of the table
    near: Int64  # (r, k)
    mask: Bool  # (r, k)
    seconds: Float64  # (r, k)
    known: Floats  # (r, k, x)
    num_base: int  # the first rows of the table, into which no gradient goes
    rate: Float64  # (w,) turns a second, padded
    offset: Float64  # (w,) turns; 1/4 where padded


class Weights(NamedTuple):
    """What is projected onto what, as the forward pass needs it; all that is padding is 0."""

    first: Floats  # (width, v) of own states onto query and z, width columns each
    bias: Floats  # (v,)
    query: Floats  # (width, p): a head's rows project its query onto what is read
    heard: Floats  # (p, heads * h): in a head's columns what is heard is projected onto z
    heard_bias: Floats  # (width,) where there are neighbours


class Layers(NamedTuple):
    """The weights (width, inputs) and biases of `Attention`, or their gradients."""

    query: Floats
    query_bias: Floats
    key: Floats
    value: Floats
    value_bias: Floats
    edge: Floats  # (width, [phi, what else is known])
    skip: Floats
    skip_bias: Floats


class Places(NamedTuple):
    """Where in what is read the inputs of `Layers.edge` stand."""

    phi: int
    frequencies: int  # how many
    known: int
    heads: int
    scale: float  # of queries


class Kept(NamedTuple):
    """What the way back wants to know of r nodes; if it is not wanted, of `NODES`, written over."""

    asked: Floats  # (r, width)
    query: Floats  # (r, heads, p)
    share: Floats  # (r, heads, k) of the real neighbours, which come first
    heard: Floats  # (r, heads, p)


class Room(NamedTuple):
    """Where n nodes at a time are worked on; what is padding is 0."""

    own: Floats  # (n, v) their states
    begin: Floats  # (n, v) query and z, or their gradients
    ends: Floats  # (n, h) of a head
    read: Floats  # (k, p) what is read of the neighbours of one of them
    sine: Floats  # (k, s) of the phases whose cosines are read
    score: Floats  # (2 heads, k)
    by_heard: Floats  # (n, heads, p); those from here on may be empty if no way back is gone
    by_query: Floats  # (n, heads, p)
    by_own: Floats  # (n, v)
    by_begin: Floats  # (n, v) of those whose states want a gradient
    tells: Floats  # (2 heads, v) by states: what a query tells of each, then what the sum does
    turned: Floats  # (2 heads, s) the same by sines
    by_read: Floats  # (k, v)
    shares: Floats  # (2 heads, k)
    learned: Int64  # (max(k, n),) rows that want a gradient
    places: Int64  # (k,) of real neighbours


class Backward(NamedTuple):
    """The transposes of `Weights`."""

    first: Floats  # (2 width, v)
    query: Floats  # (p, heads * h)
    heard: Floats  # (width, p)


class Grads(NamedTuple):
    """To be added to."""

    table: Floats  # (t, width)
    first: Floats  # (2 width, v)
    bias: Floats  # (2 width,)
    query: Floats  # (width, p)
    heard: Floats  # (width, p)
    heard_bias: Floats  # (width,)
    phase: Float64  # (w,) of the phase in radians
    frequency: Float64  # (w,), or (0,) if it is not wanted


@njit(cache=True, nogil=True)
def lay_out(own: Layers, place: Places, weights: Weights) -> None:
    """Fill `weights`, which are 0, from those of the layers."""
    width, phi, known = len(own.query), place.phi, place.known
    head, padded = width // place.heads, weights.heard.shape[1] // place.heads
    scale = own.query.dtype.type(place.scale)
    times = own.edge[:, : place.frequencies]
    others = own.edge[:, place.frequencies :]
    turn(own.query, weights.first)
    for c in range(width):
        for o in range(width):
            weights.first[c, o] *= scale
    turn(own.skip, weights.first[:, width:])
    for h in range(place.heads):
        rows, columns = slice(h * head, (h + 1) * head), slice(h * padded, (h + 1) * padded)
        turn(own.value[rows], weights.heard[:width, columns])
        turn(times[rows], weights.heard[phi:, columns])
        turn(others[rows], weights.heard[known:, columns])
    for o in range(width):
        weights.bias[o], weights.bias[width + o] = own.query_bias[o] * scale, own.skip_bias[o]
        weights.heard_bias[o] = own.value_bias[o]
    _join(own.key, own.edge, place, weights.query)


@njit(cache=True, nogil=True)
def lay_back(own: Layers, place: Places, weights: Backward) -> None:
    """The same of the transposes."""
    width, phi, known = len(own.query), place.phi, place.known
    head, padded = width // place.heads, weights.query.shape[1] // place.heads
    scale = own.query.dtype.type(place.scale)
    times = own.edge[:, : place.frequencies]
    others = own.edge[:, place.frequencies :]
    for o in range(width):
        for c in range(width):
            weights.first[o, c] = own.query[o, c] * scale
            weights.first[width + o, c] = own.skip[o, c]
    for h in range(place.heads):
        rows, columns = slice(h * head, (h + 1) * head), slice(h * padded, (h + 1) * padded)
        turn(own.key[rows], weights.query[:width, columns])
        turn(times[rows], weights.query[phi:, columns])
        turn(others[rows], weights.query[known:, columns])
    _join(own.value, own.edge, place, weights.heard)


@njit(cache=True, nogil=True)
def _join(states: Floats, edge: Floats, place: Places, into: Floats) -> None:
    """[states, times, what is known] of each row, where they stand in what is read."""
    for o in range(len(states)):
        for c in range(states.shape[1]):
            into[o, c] = states[o, c]
        for c in range(place.frequencies):
            into[o, np.uint64(place.phi + c)] = edge[o, c]
        for c in range(place.frequencies, edge.shape[1]):
            into[o, place.known + c - place.frequencies] = edge[o, c]


@njit(cache=True, nogil=True)
def take_apart(grads: Grads, place: Places, own: Layers) -> None:
    """Fill the gradients of the layers' weights."""
    width = len(own.query)
    scale = own.query.dtype.type(place.scale)
    for o in range(width):
        own.query_bias[o], own.skip_bias[o] = grads.bias[o] * scale, grads.bias[width + o]
        own.value_bias[o] = grads.heard_bias[o]
        for c in range(width):
            own.query[o, c] = grads.first[o, c] * scale
            own.skip[o, c] = grads.first[width + o, c]
            own.key[o, c], own.value[o, c] = grads.query[o, c], grads.heard[o, c]
        for c in range(own.edge.shape[1]):
            at = place.phi + c if c < place.frequencies else place.known + c - place.frequencies
            own.edge[o, c] = grads.query[o, at] + grads.heard[o, at]


@njit(cache=True, nogil=True, **UNCOUNTED, error_model="numpy")
def attend_some(
    reads: Reads,
    start: int,
    n: int,
    weights: Weights,
    kept: Kept,  # out
    place: int,  # where they begin in `kept`
    room: Room,
    z: Floats,  # out, (n, width)
) -> None:
    """z of n nodes: own states projected, and over heads the mean of neighbours by softmax."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, _, rate, offset = reads
    k, heads = near.shape[1], kept.query.shape[1]
    width, more = table.shape[1], phi + len(rate)
    head, padded = width // heads, weights.heard.shape[1] // heads
    heard_bias, bias = weights.heard_bias, weights.bias
    asked, query, share, heard = kept
    own, begin, ends, read, score = room.own, room.begin, room.ends, room.read, room.score
    for b in range(n):
        copy_row(table, own_rows[start + b], own, b, width)
        for c in range(len(bias)):
            begin[b, c] = bias[c]
    add_rows(weights.first, own, begin, n)
    for b in range(n):
        copy_row(begin, b, asked, place + b, width)
    for h in range(heads):
        columns = slice(h * head, (h + 1) * head)
        set_rows(weights.query[columns], begin[:, columns], query[place : place + n, h], n)
    for b in range(n):
        i, count = start + b, 0
        for j in range(k):
            if mask[i, j]:
                copy_row(table, near[i, j], read, count, width)
                cosines(seconds[i, j], rate, offset, read, count, phi)
                for c in range(known.shape[2]):
                    read[count, np.uint64(more + c)] = known[i, j, c]
                count += 1
        dots(query[place + b], read, score, count)
        for h in range(heads):
            highest, total = -np.inf, 0.0
            for j in range(count):
                highest = max(highest, score[h, j])
            for j in range(count):
                value = math.exp(score[h, j] - highest)
                score[h, j] = value
                total += value
            for j in range(count):
                score[h, j] /= total
                share[place + b, h, j] = score[h, j]
        set_rows(read[:count], score, heard[place + b], heads)
        for c in range(width):
            z[b, c] = begin[b, np.uint64(width + c)]
        if count:
            for c in range(width):
                z[b, c] += heard_bias[c]
    for h in range(heads):
        projection = weights.heard[:, h * padded : (h + 1) * padded]
        set_rows(projection, heard[place : place + n, h], ends, n)
        for b in range(n):
            for c in range(head):
                z[b, np.uint64(h * head + c)] += ends[b, c]


@njit(cache=True, nogil=True, **UNCOUNTED, fastmath={"contract"})
def attend_some_back(
    reads: Reads,
    start: int,
    n: int,
    weights: Backward,
    kept: Kept,
    place: int,  # where they begin in `kept`
    room: Room,
    by_z: Floats,  # (n, width)
    grads: Grads,
) -> None:
    """The gradients of `attend_some`; none goes into times and what is known of events."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, num_base, rate, offset = reads
    k, heads = near.shape[1], kept.query.shape[1]
    width, rates, more = table.shape[1], len(rate), phi + len(rate)
    head, padded = width // heads, weights.query.shape[1] // heads
    asked, query, share, heard = kept
    by_table, by_first, by_bias, of_query, of_heard, by_heard_bias, by_phase, by_frequency = grads
    own, by_begin, by_asked, read, sine, scale = room[:6]
    by_heard, by_query, by_own, by_own_begin, tells, turned, by_read, shares = room[6:14]
    learned, places = room.learned, room.places
    for b in range(n):
        copy_row(table, own_rows[start + b], own, b, width)
        for c in range(width):
            by_begin[b, np.uint64(width + c)] = by_z[b, c]
    for h in range(heads):
        columns = slice(h * head, (h + 1) * head)
        by_ends = by_z[:n, columns]
        set_rows(weights.heard[columns], by_ends, by_heard[:, h], n)
        add_outer(by_ends, heard[place : place + n, h], of_heard[columns], n)
    for b in range(n):
        i, at, count = start + b, place + b, 0
        for j in range(k):
            if mask[i, j]:
                places[count] = j
                copy_row(table, near[i, j], read, count, width)
                cosines_and_sines(seconds[i, j], rate, offset, read, count, phi, sine)
                for c in range(known.shape[2]):
                    read[count, np.uint64(more + c)] = known[i, j, c]
                count += 1
        dots(by_heard[b], read, scale, count)
        for h in range(heads):
            mean = 0.0
            for j in range(count):
                weight = share[at, h, j]
                mean += scale[h, j] * weight
                scale[heads + h, j] = weight
            for j in range(count):
                scale[h, j] = scale[heads + h, j] * (scale[h, j] - mean)
            copy_row(query[at], h, tells, h, width)
            copy_row(by_heard[b], h, tells, heads + h, width)
        set_rows(read[:count], scale, by_query[b], heads)
        written = 0
        for j in range(count):
            row = near[i, places[j]]
            if row >= num_base:
                for h in range(2 * heads):
                    shares[h, written] = scale[h, j]
                learned[written] = row
                written += 1
        set_outer(shares[:, :written], tells, by_read, 2 * heads)
        for j in range(written):
            add_row(by_read, j, by_table, learned[j], width)
        set_rows(sine[:count], scale, turned, 2 * heads)
        for h in range(heads):
            for c in range(rates):
                asks = query[at, h, np.uint64(phi + c)] * turned[h, c]
                says = by_heard[b, h, np.uint64(phi + c)] * turned[np.uint64(heads + h), c]
                by_phase[c] -= asks + says
        if len(by_frequency):
            for j in range(count):
                for h in range(heads):
                    for c in range(rates):
                        told = scale[h, j] * query[at, h, phi + c]
                        told += scale[heads + h, j] * by_heard[b, h, phi + c]
                        by_frequency[c] -= seconds[i, places[j]] * (sine[j, c] * told)
        if count:
            for c in range(width):
                by_heard_bias[c] += by_z[b, c]
    for h in range(heads):
        set_rows(weights.query[:, h * padded : (h + 1) * padded], by_query[:, h], by_asked, n)
        columns = slice(h * head, (h + 1) * head)
        add_outer(asked[place : place + n, columns], by_query[:, h], of_query[columns], n)
        for b in range(n):
            for c in range(head):
                by_begin[b, np.uint64(h * head + c)] = by_asked[b, c]
    written = 0
    for b in range(n):
        for c in range(2 * width):
            by_bias[c] += by_begin[b, c]
        if own_rows[start + b] >= num_base:
            copy_row(by_begin, b, by_own_begin, written, 2 * width)
            learned[written] = own_rows[start + b]
            written += 1
    set_rows(weights.first, by_own_begin, by_own, written)
    add_outer(by_begin[:, : 2 * width], own, by_first, n)
    for b in range(written):
        add_row(by_own, b, by_table, learned[b], width)


@njit(cache=True, nogil=True, **UNCOUNTED)
def attend(reads: Reads, weights: Weights, kept: Kept, room: Room, z: Floats) -> None:
    """z (r, width) of all nodes."""
    for start in range(0, len(reads.own), NODES):
        n = min(NODES, len(reads.own) - start)
        place = start % len(kept.query)  # 0 if the last ones are written over
        attend_some(reads, start, n, weights, kept, place, room, z[start : start + n])


@njit(cache=True, nogil=True, **UNCOUNTED)
def attend_back(
    reads: Reads, weights: Backward, kept: Kept, room: Room, by_z: Floats, grads: Grads
) -> None:
    """The gradients of `attend`, of `by_z` (r, width)."""
    for start in range(0, len(reads.own), NODES):
        n = min(NODES, len(reads.own) - start)
        by_some = by_z[start : start + n]
        attend_some_back(reads, start, n, weights, kept, start, room, by_some, grads)
