"""Clusters of unlike workers and links, NeutronHeter-style; a reconstruction, see `propagator`."""

from .mapping import (
    Mapping,
    map_by_shares,
    map_by_tree,
    map_equal,
    map_nodes,
    refined,
    with_feedback,
)
from .migration import make_plan
from .plan import Load, Plan, Stage, busy_times, link_bytes
from .propagator import HeteroPropagator
from .resources import Group, Resources, measure, tree
from .simulate import PROFILES, Epoch, profile, run, tensor_parallel, vertex_parallel

__all__ = [
    "PROFILES",
    "Epoch",
    "Group",
    "HeteroPropagator",
    "Load",
    "Mapping",
    "Plan",
    "Resources",
    "Stage",
    "busy_times",
    "link_bytes",
    "make_plan",
    "map_by_shares",
    "map_by_tree",
    "map_equal",
    "map_nodes",
    "measure",
    "profile",
    "refined",
    "run",
    "tensor_parallel",
    "tree",
    "vertex_parallel",
    "with_feedback",
]
