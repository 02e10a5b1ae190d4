"""Counter-based randomness: a number is a pure function of its key, so nothing has to be restored.

A key is folded from words (a seed, a name, a position ...) by `kernels.fold`, one after the other
(the idea of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from ..stream.events import Float64, Int64
from . import kernels


@lru_cache(maxsize=1024)
def key_of(*words: int | str) -> np.uint64:
    """The key of these integers (taken modulo 2**64) and texts, in this order."""
    key = np.uint64(0)
    with np.errstate(over="ignore"):  # uint64 wraps on purpose; the interpreter would warn
        for word in words:
            if isinstance(word, str):
                word = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
            key = np.uint64(kernels.fold(key, np.uint64(word % 2**64)))
    return key


def uniform(seed: int, name: str, positions: Int64, columns: int) -> Float64:
    """Numbers inside (0, 1), (n, columns): each a function of seed, name, position and column.

    >>> a, b = uniform(0, "noise", np.array([7, 8]), 2), uniform(0, "noise", np.array([8]), 3)
    >>> bool((a[1] == b[0, :2]).all())
    True
    """
    drawn = np.empty((len(positions), columns))
    with np.errstate(over="ignore"):  # uint64 wraps on purpose
        kernels.fill_uniform(key_of(seed, name), np.asarray(positions, np.int64), drawn)
    return drawn
