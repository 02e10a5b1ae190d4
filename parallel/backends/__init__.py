"""Backends that train full graphs over ranks, behind one operator."""

from .full_graph import FullGraph
from .ownership import Ownership
from .propagator import Propagator
from .registry import BACKENDS, make_propagator

__all__ = ["BACKENDS", "FullGraph", "Ownership", "Propagator", "make_propagator"]
