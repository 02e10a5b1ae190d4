"""Chebyshev filters, and what the recurrent models that are made of them have in common.

Parameters are named as in torch_geometric's and torch_geometric_temporal's layers, so that the
weights of one fit the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from .base import SnapshotModel
from .constants import Constants
from .filters import take_weights


class ChebyshevFilter(nn.Module):
    """The sum over k of W_k T_k(L) x, and b; torch_geometric's `ChebConv`.

    It takes the terms T_k(L) x, which several filters share.
    """

    def __init__(self, in_width: int, width: int, orders: int) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(in_width, width, bias=False) for _ in range(orders))
        self.bias = nn.Parameter(torch.zeros(width))
        for lin in self.lins:
            nn.init.xavier_uniform_(lin.weight)  # type: ignore[arg-type]

    def forward(self, terms: Sequence[Tensor]) -> Tensor:
        """`orders` terms (n, in) -> (n, width)."""
        found: Tensor = self.bias
        for lin, term in zip(self.lins, terms, strict=True):
            found = found + lin(term)
        return found


class ChebyshevModel(SnapshotModel):
    """A recurrent model of filters with `orders` terms, torch_geometric_temporal's K.

    A filter reaches `orders` - 1 steps along the edges; normalisation is symmetric.
    """

    def __init__(self, in_width: int, width: int, *, orders: int = 2) -> None:
        super().__init__()
        if orders < 1:
            raise ValueError(f"`orders` must be at least 1 Chebyshev polynomial: got {orders}")
        self.width = width
        self.orders = orders
        self._constants = Constants()  # terms of x
        self._add_gates(in_width)

    def _add_gates(self, in_width: int) -> None:
        """Declares the model's parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define `_add_gates`")

    @classmethod
    def from_geometric_temporal(cls, layer: Any) -> Self:
        """The model that a layer of torch_geometric_temporal is, with its weights."""
        model = cls(layer.in_channels, layer.out_channels, orders=layer.K)
        return take_weights(model, layer, normalization="sym", bias=True)
