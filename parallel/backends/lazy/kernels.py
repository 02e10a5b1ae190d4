"""Loops over the numbers of rows: arrays in, preallocated arrays out."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ....storage.kernels import fold
from ....stream import Int64


@njit(cache=True, nogil=True, error_model="numpy")
def draw_kept(
    key: np.uint64,
    nodes: Int64,  # (u,)
    share: float,  # that is dropped
    x: npt.NDArray[Any],  # (u, w)
    skip_zeros: bool,
    out: npt.NDArray[Any],  # out, (u, w)
) -> None:
    """0 for a number that is dropped, else 1 / (1 - share); a function of key, node and column.

    Where x is 0 nothing need be drawn if nobody asks for its gradient.
    """
    least = np.uint64(share * 2.0**53)
    scale = out.dtype.type(1 / (1 - share))
    for row in range(x.shape[0]):
        here = fold(key, nodes[row])
        for column in range(x.shape[1]):
            out[row, column] = 0
            if skip_zeros and x[row, column] == 0:
                continue
            if fold(here, column) >> np.uint64(11) >= least:
                out[row, column] = scale
