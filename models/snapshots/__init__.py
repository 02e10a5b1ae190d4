"""Models of snapshots: static and recurrent GNNs, written against one operator."""

from .base import SnapshotModel, State
from .gat import GAT
from .gcn import GCN
from .operator import Propagator
from .sage import SAGE

__all__ = ["GAT", "GCN", "SAGE", "Propagator", "SnapshotModel", "State"]
