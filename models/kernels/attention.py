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

Floats = npt.NDArray[np.floating]

FAST = {"reassoc", "contract", "nsz"}  # sums in any order, or they would not be vectorised
NODES = 32  # at a time
BLOCK = 4  # neighbours at a time; in the last block those that are too many are 0


class Reads(NamedTuple):
    """What is read of r nodes, their neighbours and the events with them."""

    phi: int  # where phi begins in what is read; what is known follows it
    table: Floats  # (t, width)
    own: Int64  # (r,) rows of the table
    near: Int64  # (r, k)
    mask: Bool  # (r, k)
    seconds: Float64  # (r, k)
    known: Floats  # (r, k, x)
    rate: Float64  # (w,) turns a second, padded
    offset: Float64  # (w,) turns; 1/4 where padded


class Weights(NamedTuple):
    """What is projected onto what, as the forward pass needs it; all that is padding is 0."""

    first: Floats  # (width, 2 v) of own states onto query and z, v columns each
    bias: Floats  # (2 v,)
    query: Floats  # (width, p): a head's rows project its query onto what is read
    heard: Floats  # (p, heads * h): in a head's columns what is heard is projected onto z
    heard_bias: Floats  # (width,) where there are neighbours


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


@njit(cache=True, nogil=True, fastmath=FAST)
def inner(vectors: Floats, i: int, h: int, read: Floats, j: int, out: Floats) -> None:
    """The products of `vectors[i, h]` with four rows of `read` from `j`, in `out[h, j:]`."""
    widen()
    zero = read.dtype.type(0)
    t0, t1, t2, t3 = zero, zero, zero, zero
    for c in range(read.shape[1]):
        x = vectors[i, h, c]
        t0 += x * read[j, c]
        t1 += x * read[j + 1, c]
        t2 += x * read[j + 2, c]
        t3 += x * read[j + 3, c]
    out[h, j], out[h, j + 1], out[h, j + 2], out[h, j + 3] = t0, t1, t2, t3


@njit(cache=True, nogil=True, fastmath=FAST)
def add_four(scale: Floats, h: int, read: Floats, j: int, out: Floats, i: int) -> None:
    """Add four rows of `read` from `j`, times `scale[h, j:]`, to `out[i, h]`."""
    widen()
    s0, s1, s2, s3 = scale[h, j], scale[h, j + 1], scale[h, j + 2], scale[h, j + 3]
    for c in range(read.shape[1]):
        first = s0 * read[j, c] + s1 * read[j + 1, c]
        out[i, h, c] += first + (s2 * read[j + 2, c] + s3 * read[j + 3, c])


@njit(cache=True, nogil=True, fastmath=FAST)
def add_both(
    s: float, first: Floats, i: int, t: float, second: Floats, j: int, h: int, out: Floats
) -> None:
    """Add `first[i, h]` times `s` and `second[j, h]` times `t`."""
    widen()
    for c in range(len(out)):
        out[c] += s * first[i, h, c] + t * second[j, h, c]


@njit(cache=True, nogil=True)
def attend(reads: Reads, weights: Weights, kept: Kept, z: Floats) -> None:
    """z (r, width): own states projected, and over heads the mean of neighbours by softmax."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, rate, offset = reads
    width, k, heads, across = (
        table.shape[1],
        near.shape[1],
        kept.query.shape[1],
        kept.query.shape[2],
    )
    head, more = width // heads, phi + len(rate)
    padded = weights.heard.shape[1] // heads
    dtype, heard_bias = table.dtype, weights.heard_bias
    asked, query, share, heard = kept
    bias = weights.bias
    begin_at = weights.first.shape[1] // 2  # where z begins
    own, begin = np.empty((NODES, width), dtype), np.empty((NODES, 2 * begin_at), dtype)
    at, score = np.empty(k, np.int64), np.empty((heads, k + -k % BLOCK), dtype)
    read, ends = np.zeros((k + -k % BLOCK, across), dtype), np.empty((NODES, padded), dtype)
    for start in range(0, len(own_rows), NODES):
        n = min(NODES, len(own_rows) - start)
        place = start % len(query)  # 0 if the last ones are written over
        for b in range(n):
            row = own_rows[start + b]
            for c in range(width):
                own[b, c] = table[row, c]
            for c in range(len(bias)):
                begin[b, c] = bias[c]
        add_rows(weights.first, own, begin, n)
        for b in range(n):
            for c in range(width):
                asked[place + b, c] = begin[b, c]
            for h in range(heads):
                for c in range(across):
                    query[place + b, h, c] = 0
                    heard[place + b, h, c] = 0
                for j in range(k):
                    share[place + b, h, j] = 0
        for h in range(heads):
            columns = slice(h * head, (h + 1) * head)
            add_rows(weights.query[columns], begin[:, columns], query[place : place + n, h], n)
        for b in range(n):
            i, count = start + b, 0
            for j in range(k):
                if mask[i, j]:
                    at[count] = j
                    row = near[i, j]
                    for c in range(width):
                        read[count, c] = table[row, c]
                    cosines(seconds[i, j], rate, offset, read, count, phi)
                    for c in range(known.shape[2]):
                        read[count, np.uint64(more + c)] = known[i, j, c]
                    count += 1
            for j in range(count, count + -count % BLOCK):
                for c in range(across):
                    read[j, c] = 0
            for h in range(heads):
                for j in range(0, count, BLOCK):
                    inner(query, place + b, h, read, j, score)
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
                for j in range(count, score.shape[1]):
                    score[h, j] = 0
                for j in range(0, count, BLOCK):
                    add_four(score, h, read, j, heard, place + b)
            for c in range(width):
                z[i, c] = begin[b, np.uint64(begin_at + c)]
                if count:
                    z[i, c] += heard_bias[c]
        for h in range(heads):
            for b in range(n):
                for c in range(padded):
                    ends[b, c] = 0
            projection = weights.heard[:, h * padded : (h + 1) * padded]
            add_rows(projection, heard[place : place + n, h], ends, n)
            for b in range(n):
                for c in range(head):
                    z[start + b, np.uint64(h * head + c)] += ends[b, c]


@njit(cache=True, nogil=True)
def attend_back(
    reads: Reads,
    weights: Backward,
    kept: Kept,
    by_z: Floats,  # (r, width)
    grads: Grads,
) -> None:
    """The gradients of `attend`; none goes into times and what is known of events."""
    widen()
    phi, table, own_rows, near, mask, seconds, known, rate, offset = reads
    width, k, heads, across = (
        table.shape[1],
        near.shape[1],
        kept.query.shape[1],
        kept.query.shape[2],
    )
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
    at, by_score = np.empty(k, np.int64), np.empty((heads, k + -k % BLOCK), dtype)
    read, by_read = np.zeros((k + -k % BLOCK, across), dtype), np.empty(more, dtype)
    sine, slope = np.empty((k, len(rate)), dtype), np.empty(len(rate), dtype)
    for start in range(0, len(own_rows), NODES):
        n = min(NODES, len(own_rows) - start)
        for b in range(n):
            row = own_rows[start + b]
            for c in range(width):
                own[b, c] = table[row, c]
                by_begin[b, np.uint64(width + c)] = by_z[start + b, c]
            for h in range(heads):
                for c in range(across):
                    by_heard[b, h, c] = 0
                    by_query[b, h, c] = 0
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
                    row = near[i, j]
                    for c in range(width):
                        read[count, c] = table[row, c]
                    cosines_and_sines(seconds[i, j], rate, offset, read, count, phi, sine)
                    for c in range(known.shape[2]):
                        read[count, np.uint64(more + c)] = known[i, j, c]
                    count += 1
            for j in range(count, count + -count % BLOCK):
                for c in range(across):
                    read[j, c] = 0
            for h in range(heads):
                for j in range(0, count, BLOCK):
                    inner(by_heard, b, h, read, j, by_score)
                mean = 0.0
                for j in range(count):
                    mean += by_score[h, j] * share[i, h, at[j]]
                for j in range(count):
                    by_score[h, j] = share[i, h, at[j]] * (by_score[h, j] - mean)
                for j in range(count, by_score.shape[1]):
                    by_score[h, j] = 0
                for j in range(0, count, BLOCK):
                    add_four(by_score, h, read, j, by_query, b)
            for c in range(len(rate)):
                slope[c] = 0
            for j in range(count):
                row = near[i, at[j]]
                for c in range(more):
                    by_read[c] = 0
                for h in range(heads):
                    scale = share[i, h, at[j]]
                    add_both(by_score[h, j], query, i, scale, by_heard, b, h, by_read)
                for c in range(width):
                    by_table[row, c] += by_read[c]
                for c in range(len(rate)):
                    by_read[np.uint64(phi + c)] *= -sine[j, c]
                    slope[c] += by_read[np.uint64(phi + c)]
                for c in range(len(by_frequency)):
                    by_frequency[c] += seconds[i, at[j]] * by_read[np.uint64(phi + c)]
            for c in range(len(rate)):
                by_phase[c] += slope[c]
            if count:
                for c in range(width):
                    by_heard_bias[c] += by_z[i, c]
        for h in range(heads):
            for b in range(n):
                for c in range(padded):
                    by_asked[b, c] = 0
            add_rows(weights.query[:, h * padded : (h + 1) * padded], by_query[:, h], by_asked, n)
            columns = slice(h * head, (h + 1) * head)
            add_outer(asked[start : start + n, columns], by_query[:, h], of_query[columns], n)
            for b in range(n):
                for c in range(head):
                    by_begin[b, np.uint64(h * head + c)] = by_asked[b, c]
        for b in range(n):
            for c in range(wide):
                by_own[b, c] = 0
            for c in range(2 * width):
                by_bias[c] += by_begin[b, c]
        add_rows(weights.first, by_begin, by_own, n)
        add_outer(by_begin, own, by_first, n)
        for b in range(n):
            row = own_rows[start + b]
            for c in range(width):
                by_table[row, c] += by_own[b, c]
