"""Tensor parallelism: every rank multiplies the whole graph with some columns (NeutronTP)."""

from .chunks import Chunk, Route, plan_route
from .propagator import TensorPropagator
from .split import Layout, Part, deal, gather, split
from .trace import Step, exposed_bytes

__all__ = [
    "Chunk",
    "Layout",
    "Part",
    "Route",
    "Step",
    "TensorPropagator",
    "deal",
    "exposed_bytes",
    "gather",
    "plan_route",
    "split",
]
