"""Dynamic GNNs: the API to define one, and published models, one a file."""

from collections.abc import Callable

from .base import DynamicGNN, Reads
from .dyrep import DyRep
from .views import Events, Level, Links, Nodes, Written

MODELS: dict[str, Callable[..., DynamicGNN]] = {"dyrep": DyRep}

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
