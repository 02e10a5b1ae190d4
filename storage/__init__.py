"""The dynamic graph, snapshots of it, node state, negative samples and checkpoints."""

from .checkpoint import has_checkpoint, read_checkpoint, write_checkpoint
from .counter import uniform
from .discretise import discretise
from .files import write_whole
from .graph import Direction, DynamicGraph, Links, Neighborhood, Rests
from .negatives import NegativeSampler, Role
from .oracle import OracleGraph, compare
from .signals import Scale, signal_snapshots
from .snapshot import Snapshot
from .sparse import SparseMatrix
from .state import Fill, Mark, NodeState

__all__ = [
    "Direction",
    "DynamicGraph",
    "Fill",
    "Links",
    "Mark",
    "NegativeSampler",
    "Neighborhood",
    "NodeState",
    "OracleGraph",
    "Rests",
    "Role",
    "Scale",
    "Snapshot",
    "SparseMatrix",
    "compare",
    "discretise",
    "has_checkpoint",
    "read_checkpoint",
    "signal_snapshots",
    "uniform",
    "write_checkpoint",
    "write_whole",
]
