"""Dynamic GNNs: the API to define one, and published models, one a file."""

from collections.abc import Callable as _Callable

from .base import DynamicGNN, Reads
from .dyrep import DyRep
from .views import Events, Level, Links, Nodes, Written

MODELS: dict[str, _Callable[..., DynamicGNN]] = {"dyrep": DyRep}

__all__ = [
    "MODELS",
    "DyRep",
    "DynamicGNN",
    "Events",
    "Level",
    "Links",
    "Nodes",
    "Reads",
    "Written",
]
