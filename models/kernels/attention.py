"""Loops of attention over recent neighbours, which gather what they read and keep only the shares.

A neighbour is read as [its state, phi of the time since, what else is known of the event], laid
side by side for as long as one node is attended to.  Nothing is projected here: queries come in
already projected onto what is read, and what is heard goes out to be projected, so that a neighbour
costs a few products of vectors and its cosines.  Parts begin at multiples of 8 columns, rows of the
arrays at multiples of 64 bytes: vectors that straddle cache lines take half as long again.  What
lies between is 0.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool, Float64, Int64
from .cosine import cosines, cosines_and_sines
from .tiles import widen

Floats = npt.NDArray[np.floating]

FAST = {"reassoc", "contract", "nsz"}  # sums in any order, or they would not be vectorised
BLOCK = 4  # neighbours at a time; in the last block those that are too many have share 0


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
    s: float, first: Floats, t: float, second: Floats, i: int, h: int, out: Floats
) -> None:
    """Add `first[i, h]` times `s` and `second[i, h]` times `t`."""
    widen()
    for c in range(len(out)):
        out[c] += s * first[i, h, c] + t * second[i, h, c]


@njit(cache=True, nogil=True)
def attend(
    table: Floats,  # (t, width)
    rows: Int64,  # (r, k) of `table`: the neighbours of each node
    mask: Bool,  # (r, k)
    seconds: Float64,  # (r, k)
    known: Floats,  # (r, k, x)
    rate: Float64,  # (w,) turns a second, padded
    offset: Float64,  # (w,) turns; 1/4 where padded
    phi: int,  # where phi begins in what is read; what is known follows it
    query: Floats,  # (r, heads, p)
    read: Floats,  # scratch, (k up to a multiple of `BLOCK`, p) of 0
    share: Floats,  # out, (r, heads, k): of masked ones 0
    heard: Floats,  # out, (r, heads, p): the mean of what is read, by shares
) -> None:
    """The softmax over neighbours of query and what is read, and the mean of that by shares."""
    widen()
    k, heads, more = rows.shape[1], query.shape[1], phi + len(rate)
    at, score = np.empty(k, np.int64), np.empty((heads, len(read)), table.dtype)
    for i in range(len(rows)):
        count = 0
        for j in range(k):
            if mask[i, j]:
                at[count] = j
                for c in range(table.shape[1]):
                    read[count, c] = table[rows[i, j], c]
                cosines(seconds[i, j], rate, offset, read, count, phi)
                for c in range(known.shape[2]):
                    read[count, np.uint64(more + c)] = known[i, j, c]
                count += 1
        for j in range(count, count + -count % BLOCK):
            for c in range(read.shape[1]):
                read[j, c] = 0
        for h in range(heads):
            for j in range(k):
                share[i, h, j] = 0
            for c in range(heard.shape[2]):
                heard[i, h, c] = 0
            for j in range(0, count, BLOCK):
                inner(query, i, h, read, j, score)
            highest, total = -np.inf, 0.0
            for j in range(count):
                highest = max(highest, score[h, j])
            for j in range(count):
                value = math.exp(score[h, j] - highest)
                score[h, j] = value
                total += value
            for j in range(count):
                score[h, j] /= total
                share[i, h, at[j]] = score[h, j]
            for j in range(count, len(read)):
                score[h, j] = 0
            for j in range(0, count, BLOCK):
                add_four(score, h, read, j, heard, i)


@njit(cache=True, nogil=True)
def attend_back(
    table: Floats,  # as in `attend`, down to `read`
    rows: Int64,
    mask: Bool,
    seconds: Float64,
    known: Floats,
    rate: Float64,
    offset: Float64,
    phi: int,
    query: Floats,
    read: Floats,
    share: Floats,  # as `attend` left it
    grad: Floats,  # (r, heads, p) of `heard`
    by_table: Floats,  # to be added to, (t, width)
    by_query: Floats,  # out, (r, heads, p)
    by_phase: Float64,  # to be added to, (w,): of the phase in radians
    by_frequency: Float64,  # to be added to, (w,), or (0,) if it is not wanted
) -> None:
    """The gradients of `attend`; none goes into times and what is known of events."""
    widen()
    k, heads, more = rows.shape[1], query.shape[1], phi + len(rate)
    at, by_score = np.empty(k, np.int64), np.empty((heads, len(read)), table.dtype)
    sine, slope = np.empty((k, len(rate)), table.dtype), np.empty(len(rate), table.dtype)
    by_read = np.empty(more, table.dtype)
    for i in range(len(rows)):
        count = 0
        for j in range(k):
            if mask[i, j]:
                at[count] = j
                for c in range(table.shape[1]):
                    read[count, c] = table[rows[i, j], c]
                cosines_and_sines(seconds[i, j], rate, offset, read, count, phi, sine)
                for c in range(known.shape[2]):
                    read[count, np.uint64(more + c)] = known[i, j, c]
                count += 1
        for j in range(count, count + -count % BLOCK):
            for c in range(read.shape[1]):
                read[j, c] = 0
        for h in range(heads):
            for c in range(by_query.shape[2]):
                by_query[i, h, c] = 0
            for j in range(0, count, BLOCK):
                inner(grad, i, h, read, j, by_score)
            mean = 0.0
            for j in range(count):
                mean += by_score[h, j] * share[i, h, at[j]]
            for j in range(count):
                by_score[h, j] = share[i, h, at[j]] * (by_score[h, j] - mean)
            for j in range(count, len(read)):
                by_score[h, j] = 0
            for j in range(0, count, BLOCK):
                add_four(by_score, h, read, j, by_query, i)
        for c in range(len(rate)):
            slope[c] = 0
        for j in range(count):
            row = rows[i, at[j]]
            for c in range(len(by_read)):
                by_read[c] = 0
            for h in range(heads):
                add_both(by_score[h, j], query, share[i, h, at[j]], grad, i, h, by_read)
            for c in range(table.shape[1]):
                by_table[row, c] += by_read[c]
            for c in range(len(rate)):
                by_read[np.uint64(phi + c)] *= -sine[j, c]
                slope[c] += by_read[np.uint64(phi + c)]
            for c in range(len(by_frequency)):
                by_frequency[c] += seconds[i, at[j]] * by_read[np.uint64(phi + c)]
        for c in range(len(rate)):
            by_phase[c] += slope[c]
