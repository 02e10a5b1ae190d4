"""Lazy message passing (RETEXO): stages trained one after the other, one exchange of rows each."""

from .asked import link_parts
from .clients import Clients, simulate_clients, tree_bytes
from .costs import NETWORKS, Network, Shape, end_to_end_bytes, lazy_bytes, traffic_ratio
from .delta import DeltaHalo, Stale
from .engine import LazyTrainer
from .part import Part
from .propagator import LazyPropagator
from .settings import LazySettings
from .twin import EndToEnd
from .windows import Drift, LazyWindows, link_trainer

__all__ = [
    "NETWORKS",
    "Clients",
    "DeltaHalo",
    "Drift",
    "EndToEnd",
    "LazyPropagator",
    "LazySettings",
    "LazyTrainer",
    "LazyWindows",
    "Network",
    "Part",
    "Shape",
    "Stale",
    "end_to_end_bytes",
    "lazy_bytes",
    "link_parts",
    "link_trainer",
    "simulate_clients",
    "traffic_ratio",
    "tree_bytes",
]
