"""Schedules and executors: how events that do not conflict are processed together, exactly."""

from typing import Any as _Any

from .batch import BatchExecutor
from .checks import Check, CheckReport, check_model
from .executor import Executor, Outcome
from .levels import LevelExecutor
from .replay import Replay
from .schedule import Schedule, schedule
from .segment import Consistency, Segment
from .sequential import SequentialExecutor
from .tape import Tape

EXECUTORS: dict[str, type[Executor[_Any]]] = {
    "batch": BatchExecutor,
    "levels": LevelExecutor,
    "sequential": SequentialExecutor,
}

__all__ = [
    "EXECUTORS",
    "BatchExecutor",
    "Check",
    "CheckReport",
    "Consistency",
    "Executor",
    "LevelExecutor",
    "Outcome",
    "Replay",
    "Schedule",
    "Segment",
    "SequentialExecutor",
    "Tape",
    "check_model",
    "schedule",
]
