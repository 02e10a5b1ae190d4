"""Attention over recent neighbours, some nodes at a time: projections, softmax and what is heard.

A neighbour is read as [its state, phi of the time since, what else is known of the event], laid
side by side for as long as one node is attended to.  No neighbour is projected: a query is
projected onto what is read, and the weighted sum of that onto z.  For the way back shares, queries
and sums are kept, while what was read is read again.  The parts of what is read begin at multiples
of 8 columns, its rows at multiples of 64 bytes; what lies between is 0.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64
from .cosine import cosines, cosines_and_sines
from .tiles import add_outer, add_rows, widen
from .vectors import add_row, clear, copy_row, dots

Floats = npt.NDArray[np.floating]

NODES = 32  # at a time


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
    """What the backward pass wants to know of r nodes; without one, of `NODES`, written over."""

    asked: Floats  # (r, width)
    query: Floats  # (r, heads, p)
    share: Floats  # (r, heads, k), 0 where masked
    heard: Floats  # (r, heads, p)


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
    width, heads = len(own.query), place.heads
    head, padded = width // heads, weights.heard.shape[1] // heads
    scale = own.query.dtype.type(place.scale)
    for o in range(width):
        column = o // head * padded + o % head
        weights.bias[o], weights.bias[width + o] = own.query_bias[o] * scale, own.skip_bias[o]
        weights.heard_bias[o] = own.value_bias[o]
        for c in range(width):
            weights.first[c, o] = own.query[o, c] * scale
            weights.first[c, width + o] = own.skip[o, c]
            weights.query[o, c] = own.key[o, c]
            weights.heard[c, column] = own.value[o, c]
        for c in range(own.edge.shape[1]):
            at = place.phi + c if c < place.frequencies else place.known + c - place.frequencies
            weights.query[o, at] = own.edge[o, c]
            weights.heard[at, column] = own.edge[o, c]


@njit(cache=True, nogil=True)
def lay_back(own: Layers, place: Places, weights: Backward) -> None:
    """The same of the transposes."""
    width, heads = len(own.query), place.heads
    head, padded = width // heads, weights.query.shape[1] // heads
    scale = own.query.dtype.type(place.scale)
    for o in range(width):
        column = o // head * padded + o % head
        for c in range(width):
            weights.first[o, c] = own.query[o, c] * scale
            weights.first[width + o, c] = own.skip[o, c]
            weights.query[c, column] = own.key[o, c]
            weights.heard[o, c] = own.value[o, c]
        for c in range(own.edge.shape[1]):
            at = place.phi + c if c < place.frequencies else place.known + c - place.frequencies
            weights.query[at, column] = own.edge[o, c]
            weights.heard[o, at] = own.edge[o, c]


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


@njit(cache=True, nogil=True, error_model="numpy")
def attend(reads: Reads, weights: Weights, kept: Kept, z: Floats) -> None:
    """z (r, width): own states projected, and over heads the mean of neighbours by softmax."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, _, rate, offset = reads
    k, heads, across = near.shape[1], kept.query.shape[1], kept.query.shape[2]
    width = table.shape[1]
    head, more = width // heads, phi + len(rate)
    padded = weights.heard.shape[1] // heads
    dtype, heard_bias = table.dtype, weights.heard_bias
    asked, query, share, heard = kept
    bias = weights.bias
    own, begin = np.empty((NODES, width), dtype), np.empty((NODES, len(bias)), dtype)
    at, score = np.empty(k, np.int64), np.empty((heads, k), dtype)
    read, ends = np.zeros((k, across), dtype), np.empty((NODES, padded), dtype)
    for start in range(0, len(own_rows), NODES):
        n = min(NODES, len(own_rows) - start)
        place = start % len(query)  # 0 if the last ones are written over
        for b in range(n):
            copy_row(table, own_rows[start + b], own, b, width)
            for c in range(len(bias)):
                begin[b, c] = bias[c]
        add_rows(weights.first, own, begin, n)
        clear(query[place : place + n])
        clear(heard[place : place + n])
        clear(share[place : place + n])
        for b in range(n):
            copy_row(begin, b, asked, place + b, width)
        for h in range(heads):
            columns = slice(h * head, (h + 1) * head)
            add_rows(weights.query[columns], begin[:, columns], query[place : place + n, h], n)
        for b in range(n):
            i, count = start + b, 0
            for j in range(k):
                if mask[i, j]:
                    at[count] = j
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
                    share[place + b, h, at[j]] = score[h, j]
            add_rows(read[:count], score, heard[place + b], heads)
            for c in range(width):
                z[i, c] = begin[b, np.uint64(width + c)]
            if count:
                for c in range(width):
                    z[i, c] += heard_bias[c]
        for h in range(heads):
            clear(ends)
            projection = weights.heard[:, h * padded : (h + 1) * padded]
            add_rows(projection, heard[place : place + n, h], ends, n)
            for b in range(n):
                for c in range(head):
                    z[start + b, np.uint64(h * head + c)] += ends[b, c]


@njit(cache=True, nogil=True, fastmath={"contract"})
def attend_back(
    reads: Reads,
    weights: Backward,
    kept: Kept,
    by_z: Floats,  # (r, width)
    grads: Grads,
) -> None:
    """The gradients of `attend`; none goes into times and what is known of events."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, num_base, rate, offset = reads
    k, heads, across = near.shape[1], kept.query.shape[1], kept.query.shape[2]
    width, rates = table.shape[1], len(rate)
    head, more = width // heads, phi + len(rate)
    padded = weights.query.shape[1] // heads
    dtype = table.dtype
    asked, query, share, heard = kept
    by_table, by_first, by_bias, of_query, of_heard, by_heard_bias, by_phase, by_frequency = grads
    wide = weights.first.shape[1]
    own, by_own = np.zeros((NODES, wide), dtype), np.empty((NODES, wide), dtype)
    by_begin, by_asked = np.empty((NODES, 2 * width), dtype), np.empty((NODES, padded), dtype)
    by_heard = np.empty((NODES, heads, across), dtype)
    by_query = np.empty((NODES, heads, across), dtype)
    at, scale = np.empty(k, np.int64), np.empty((2 * heads, k), dtype)
    read, by_read = np.zeros((k, across), dtype), np.empty((k, wide), dtype)
    learned, shares = np.empty(max(k, NODES), np.int64), np.empty((2 * heads, k), dtype)
    by_own_begin = np.empty((NODES, 2 * width), dtype)
    # by states and by sines: what a query tells of each, then what the sum does
    tells = np.zeros((2 * heads, wide), dtype)
    sine = np.zeros((k, rates + -rates % 16), dtype)
    turned = np.empty((2 * heads, sine.shape[1]), dtype)
    for start in range(0, len(own_rows), NODES):
        n = min(NODES, len(own_rows) - start)
        clear(by_heard)
        clear(by_query)
        for b in range(n):
            copy_row(table, own_rows[start + b], own, b, width)
            for c in range(width):
                by_begin[b, np.uint64(width + c)] = by_z[start + b, c]
        for h in range(heads):
            columns = slice(h * head, (h + 1) * head)
            by_ends = by_z[start : start + n, columns]
            add_rows(weights.heard[columns], by_ends, by_heard[:, h], n)
            add_outer(by_ends, heard[start : start + n, h], of_heard[columns], n)
        for b in range(n):
            i, count = start + b, 0
            for j in range(k):
                if mask[i, j]:
                    at[count] = j
                    copy_row(table, near[i, j], read, count, width)
                    cosines_and_sines(seconds[i, j], rate, offset, read, count, phi, sine)
                    for c in range(known.shape[2]):
                        read[count, np.uint64(more + c)] = known[i, j, c]
                    count += 1
            dots(by_heard[b], read, scale, count)
            for h in range(heads):
                mean = 0.0
                for j in range(count):
                    weight = share[i, h, at[j]]
                    mean += scale[h, j] * weight
                    scale[heads + h, j] = weight
                for j in range(count):
                    scale[h, j] = scale[heads + h, j] * (scale[h, j] - mean)
                copy_row(query[i], h, tells, h, width)
                copy_row(by_heard[b], h, tells, heads + h, width)
            add_rows(read[:count], scale, by_query[b], heads)
            written = 0
            for j in range(count):
                if near[i, at[j]] >= num_base:
                    for h in range(2 * heads):
                        shares[h, written] = scale[h, j]
                    learned[written] = near[i, at[j]]
                    written += 1
            clear(by_read)
            add_outer(shares[:, :written], tells, by_read, 2 * heads)
            for j in range(written):
                add_row(by_read, j, by_table, learned[j], width)
            clear(turned)
            add_rows(sine[:count], scale, turned, 2 * heads)
            for h in range(heads):
                for c in range(rates):
                    asks = query[i, h, np.uint64(phi + c)] * turned[h, c]
                    says = by_heard[b, h, np.uint64(phi + c)] * turned[np.uint64(heads + h), c]
                    by_phase[c] -= asks + says
            if len(by_frequency):
                for j in range(count):
                    for h in range(heads):
                        for c in range(rates):
                            told = scale[h, j] * query[i, h, phi + c]
                            told += scale[heads + h, j] * by_heard[b, h, phi + c]
                            by_frequency[c] -= seconds[i, at[j]] * (sine[j, c] * told)
            if count:
                for c in range(width):
                    by_heard_bias[c] += by_z[i, c]
        for h in range(heads):
            clear(by_asked)
            add_rows(weights.query[:, h * padded : (h + 1) * padded], by_query[:, h], by_asked, n)
            columns = slice(h * head, (h + 1) * head)
            add_outer(asked[start : start + n, columns], by_query[:, h], of_query[columns], n)
            for b in range(n):
                for c in range(head):
                    by_begin[b, np.uint64(h * head + c)] = by_asked[b, c]
        clear(by_own)
        written = 0
        for b in range(n):
            for c in range(2 * width):
                by_bias[c] += by_begin[b, c]
            if own_rows[start + b] >= num_base:
                copy_row(by_begin, b, by_own_begin, written, 2 * width)
                learned[written] = own_rows[start + b]
                written += 1
        add_rows(weights.first, by_own_begin, by_own, written)
        add_outer(by_begin, own, by_first, n)
        for b in range(written):
            add_row(by_own, b, by_table, learned[b], width)
