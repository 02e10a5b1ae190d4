"""Named logs and static graphs of published data sets, and messages with a known structure."""

from .messages import messages
from .registry import Dataset, describe, load, names
from .signals import Signal, load_signal, signal_names
from .static import StaticGraph, graph_names, load_graph, random_split

__all__ = [
    "Dataset",
    "Signal",
    "StaticGraph",
    "describe",
    "graph_names",
    "load",
    "load_graph",
    "load_signal",
    "messages",
    "names",
    "random_split",
    "signal_names",
]
