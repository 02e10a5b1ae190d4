"""Some ranks transform rows, others propagate columns (NeutronTask, PVLDB 18(6))."""

from .engine import DecoupledGraph
from .pipeline import SnapshotPipeline
from .propagator import TaskPropagator
from .roles import Roles
from .schedule import Speeds, Work, Workload, assign_ranks, measure_speeds, predict_work

__all__ = [
    "DecoupledGraph",
    "Roles",
    "SnapshotPipeline",
    "Speeds",
    "TaskPropagator",
    "Work",
    "Workload",
    "assign_ranks",
    "measure_speeds",
    "predict_work",
]
