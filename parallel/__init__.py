"""Schedules and executors: how events that do not conflict are processed together, exactly."""

from collections.abc import Callable as _Callable
from typing import Any as _Any

from .batch import BatchExecutor
from .checks import Check, CheckReport, check_model
from .executor import Executor, Outcome
from .fused import FusedExecutor, automatic
from .levels import LevelExecutor
from .ranks import Comm
from .replay import Replay
from .schedule import Schedule, schedule
from .segment import Consistency, Segment
from .sequential import SequentialExecutor
from .stages import STAGES, Stages
from .tape import Tape

EXECUTORS: dict[str, _Callable[[Replay], Executor[_Any]]] = {
    "auto": automatic,
    "batch": BatchExecutor,
    "fused": FusedExecutor,
    "levels": LevelExecutor,
    "sequential": SequentialExecutor,
}

__all__ = [
    "EXECUTORS",
    "STAGES",
    "BatchExecutor",
    "Check",
    "CheckReport",
    "Comm",
    "Consistency",
    "Executor",
    "FusedExecutor",
    "LevelExecutor",
    "Outcome",
    "Replay",
    "Schedule",
    "Segment",
    "SequentialExecutor",
    "Stages",
    "Tape",
    "automatic",
    "check_model",
    "schedule",
]
