"""Pairs scored by two layers, and what is lost on them, some events at a time.

An event's own pair stands first, then its corrupted ones; its loss is binary cross-entropy, the
mean over those that are real added to that of its own.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool
from .tiles import add_outer, add_rows, widen

Floats = npt.NDArray[np.floating]

EVENTS = 32  # at a time


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def rectify(hidden: Floats, j: int, i: int, final: Floats) -> np.floating:
    """The product of `final` with `hidden[j, i]`, of which what is below 0 becomes 0."""
    widen()
    total = zero = final.dtype.type(0)
    for c in range(len(final)):
        value = max(hidden[j, i, c], zero)
        hidden[j, i, c] = value
        total += value * final[c]
    return total


@njit(cache=True, nogil=True)
def lose(
    src: Floats,  # (n, width)
    dst: Floats,  # (n, m, width)
    valid: Bool,  # (n, m - 1) of all but the first
    source: Floats,  # (width, v): transposed, and columns up to whole tiles
    destination: Floats,  # (width, v)
    bias: Floats,  # (v,) of both
    final: Floats,  # (width,)
    final_bias: Floats,  # (1,)
    hidden: Floats,  # out, (m, n, v) after the relu
    by_logit: Floats,  # out, (n, m): the slope of the loss
    loss: Floats,  # out, (n,)
    first: Floats,  # (EVENTS, v) to work in
) -> None:
    """The loss of each event, and its slope with respect to the logits of its pairs."""
    widen()
    n, m = dst.shape[:2]
    for start in range(0, n, EVENTS):
        count = min(EVENTS, n - start)
        for b in range(count):
            for c in range(len(bias)):
                first[b, c] = bias[c]
        add_rows(source, src[start : start + count], first, count)
        for b in range(count):
            loss[start + b] = 0
        for j in range(m):
            for b in range(count):
                for c in range(len(bias)):
                    hidden[j, start + b, c] = first[b, c]
            stop = start + count
            add_rows(destination, dst[start:stop, j], hidden[j, start:stop], count)
            for b in range(count):
                i = start + b
                logit = float(rectify(hidden, j, i, final) + final_bias[0])
                share = 1.0
                if j:
                    real = 0
                    for other in range(m - 1):
                        real += valid[i, other]
                    share = valid[i, j - 1] / max(real, 1)
                sign = 1.0 if j else -1.0  # of what makes it worse
                tail = math.exp(-abs(logit))
                loss[i] += share * (max(sign * logit, 0.0) + math.log1p(tail))
                risen = 1 / (1 + tail)
                slope = risen if sign * logit > 0 else tail * risen
                by_logit[i, j] = share * sign * slope


@njit(cache=True, nogil=True)
def lose_back(
    src: Floats,  # as in `lose`
    dst: Floats,
    source: Floats,  # (width, v): not transposed
    destination: Floats,  # (width, v)
    final: Floats,
    hidden: Floats,
    by_logit: Floats,
    by_loss: Floats,  # (n,)
    by_src: Floats,  # out, (n, v)
    by_dst: Floats,  # out, (n, m, v)
    by_source: Floats,  # to be added to, (width, width)
    by_destination: Floats,  # to be added to, (width, width)
    by_bias: Floats,  # to be added to, (width,)
    by_final: Floats,  # to be added to, (1 + width,): the bias last
    room: Floats,  # (2, EVENTS, >= width) to work in
) -> None:
    """The gradients of `lose`."""
    widen()
    n, m, width = dst.shape
    zero = src.dtype.type(0)
    by_first, by_hidden = room[0, :, :width], room[1, :, :width]
    for start in range(0, n, EVENTS):
        count, stop = min(EVENTS, n - start), min(start + EVENTS, n)
        for b in range(count):
            for c in range(width):
                by_first[b, c] = 0
            for c in range(by_src.shape[1]):
                by_src[start + b, c] = 0
        for j in range(m):
            for b in range(count):
                i = start + b
                slope = by_loss[i] * by_logit[i, j]
                by_final[width] += slope
                for c in range(width):
                    value = hidden[j, i, c]
                    by_final[c] += slope * value
                    part = slope * final[c] if value > zero else zero
                    by_hidden[b, c] = part
                    by_first[b, c] += part
                for c in range(by_dst.shape[2]):
                    by_dst[i, j, c] = 0
            add_rows(destination, by_hidden, by_dst[start:stop, j], count)
            add_outer(by_hidden, dst[start:stop, j], by_destination, count)
        add_rows(source, by_first, by_src[start:stop], count)
        add_outer(by_first, src[start:stop], by_source, count)
        for b in range(count):
            for c in range(width):
                by_bias[c] += by_first[b, c]
