"""Arrays for compiled products: tensors' values, in rows that are whole tiles of columns wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

PART = 8  # columns that are loaded together without straddling cache lines
LANES = 16  # columns that a product makes at once at least, if not one by one
TILE = 64  # columns of what products make at once


def array(tensor: Tensor, dtype: torch.dtype | None = None) -> npt.NDArray[Any]:
    """The values of a tensor on a CPU, as they are or in a type; they stand without gaps."""
    given = tensor if dtype is None else tensor.detach().to(dtype)
    return np.ascontiguousarray(given.numpy(force=True))


def up(size: int, multiple: int) -> int:
    """The next multiple, or `size` if it is one."""
    return size + -size % multiple


def tiled(size: int) -> int:
    """How many columns products make most quickly where `size` are wanted."""
    return up(size, TILE if size > TILE // 2 else PART)


def pad_columns(x: Tensor) -> Tensor:
    """`x` (..., width) with columns of zeros up to whole tiles."""
    return F.pad(x, (0, tiled(x.shape[-1]) - x.shape[-1])).contiguous()
