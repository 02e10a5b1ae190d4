"""How wide arrays are made for compiled products, which take whole tiles of columns at once."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

PART = 8  # columns that are loaded together without straddling cache lines
LANES = 16  # columns that a product makes at once at least, if not one by one
TILE = 64  # columns of what products make at once


def up(size: int, multiple: int) -> int:
    """The next multiple, or `size` if it is one."""
    return size + -size % multiple


def tiled(size: int) -> int:
    """How many columns products make most quickly where `size` are wanted."""
    return up(size, TILE if size > TILE // 2 else PART)


def pad_columns(x: Tensor) -> Tensor:
    """`x` (..., width) with columns of zeros up to whole tiles."""
    return F.pad(x, (0, tiled(x.shape[-1]) - x.shape[-1])).contiguous()
