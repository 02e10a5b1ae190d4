"""The learned half of a graph convolution, applied to what the operator has sent along the edges.

Parameters are named as in torch_geometric's layers, so that the weights of one fit the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


class Convolution(nn.Module):
    """W A x + b, given A x: (n, in) -> (n, width); torch_geometric's `GCNConv`."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, spread: Tensor) -> Tensor:
        """(n, in) -> (n, width)."""
        return self.lin(spread) + self.bias  # type: ignore[no-any-return]


def take_weights(
    model: Model, layer: nn.Module, names: Mapping[str, str] | None = None, **wanted: Any
) -> Model:
    """The model with the weights of a layer of PyTorch Geometric Temporal, in its precision.

    Parameters go by the layer's names without a leading underscore, or by what `names` says.
    `wanted` are attributes that the layer must have for both to be the same model.

    Raises:
        ValueError: if one of them is another.
    """
    for name, value in wanted.items():
        if getattr(layer, name) != value:
            raise ValueError(
                f"`layer` must have {name}={value!r}, which is all that is built here: got "
                f"{getattr(layer, name)!r}"
            )
    weights = {
        (names or {}).get(name, name.removeprefix("_")): value
        for name, value in layer.state_dict().items()
    }
    model.to(next(layer.parameters()).dtype).load_state_dict(weights)
    return model
