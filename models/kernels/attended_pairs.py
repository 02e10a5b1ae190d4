"""What is lost on pairs of attended nodes, with its gradients, a few events at a time.

The way back of some events follows at once, while what is kept of them is still close; for that
the weight of each loss must be known beforehand.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Bool
from .attention import (
    NODES,
    Backward,
    Grads,
    Kept,
    Reads,
    Room,
    Weights,
    attend_some,
    attend_some_back,
)
from .pairs import lose, lose_back
from .tiles import UNCOUNTED, widen

Floats = npt.NDArray[np.floating]


class Decoder(NamedTuple):
    """The weights of `lose`."""

    source: Floats  # (width, v): transposed, and columns up to whole tiles
    destination: Floats  # (width, v)
    bias: Floats  # (v,) of both
    final: Floats  # (width,)
    final_bias: Floats  # (1,)


class DecoderBackward(NamedTuple):
    """Those of `lose_back`: not transposed."""

    source: Floats  # (width, v)
    destination: Floats  # (width, v)


class DecoderGrads(NamedTuple):
    """To be added to."""

    source: Floats  # (width, width)
    destination: Floats  # (width, width)
    bias: Floats  # (width,)
    final: Floats  # (1 + width,): the bias last


class PairRoom(NamedTuple):
    """Where some events at a time are worked on."""

    nodes: Room
    kept: Kept
    rows: Floats  # (some x (1 + m), width) z of their nodes
    by_rows: Floats  # (some x (1 + m), v)
    z: Floats  # the same numbers, (some, 1 + m, width)
    by_z: Floats  # (some, 1 + m, v)
    hidden: Floats  # (m, some, v)
    slopes: Floats  # (some, m)
    pairs: Floats  # (2, EVENTS, v) for those of `lose` and `lose_back`


def events_at_once(beside: int) -> int:
    """How many events are attended to together, with `beside` nodes each.

    >>> events_at_once(3), events_at_once(100)
    (16, 1)
    """
    return max(1, NODES // beside)


@njit(cache=True, nogil=True, **UNCOUNTED)
def learn(
    reads: Reads,  # of n x (1 + m) nodes: source, destination and m - 1 corrupted ones of an event
    valid: Bool,  # (n, m - 1) which of the corrupted ones count
    weights: Weights,
    ways: Backward,
    decoder: Decoder,
    decoder_ways: DecoderBackward,
    pull: Floats,  # (n,) the weight of each loss
    room: PairRoom,
    loss: Floats,  # out, (n,)
    grads: Grads,
    decoder_grads: DecoderGrads,
) -> None:
    """The loss of each event, and the gradients of their sum by weight."""
    widen()
    nodes, kept, rows, by_rows, z, by_z, hidden, slopes, pairs = room
    n, m, some = len(valid), 1 + valid.shape[1], len(z)
    for start in range(0, n, some):
        stop = min(start + some, n)
        count, first = stop - start, start * (1 + m)
        here = count * (1 + m)
        attend_some(reads, first, here, weights, kept, 0, nodes, rows)
        src, dst = z[:count, 0], z[:count, 1:]
        lose(
            src,
            dst,
            valid[start:stop],
            decoder.source,
            decoder.destination,
            decoder.bias,
            decoder.final,
            decoder.final_bias,
            hidden,
            slopes,
            loss[start:stop],
            pairs[0],
        )
        lose_back(
            src,
            dst,
            decoder_ways.source,
            decoder_ways.destination,
            decoder.final,
            hidden,
            slopes,
            pull[start:stop],
            by_z[:count, 0],
            by_z[:count, 1:],
            decoder_grads.source,
            decoder_grads.destination,
            decoder_grads.bias,
            decoder_grads.final,
            pairs,
        )
        attend_some_back(reads, first, here, ways, kept, 0, nodes, by_rows, grads)
