"""Schedules and executors: how events that do not conflict are processed together, exactly."""

from .executor import Executor, Outcome
from .levels import LevelExecutor
from .schedule import Schedule, schedule
from .segment import Replay, Segment
from .sequential import SequentialExecutor
from .tape import Tape

EXECUTORS: dict[str, type[LevelExecutor] | type[SequentialExecutor]] = {
    "levels": LevelExecutor,
    "sequential": SequentialExecutor,
}

__all__ = [
    "EXECUTORS",
    "Executor",
    "LevelExecutor",
    "Outcome",
    "Replay",
    "Schedule",
    "Segment",
    "SequentialExecutor",
    "Tape",
    "schedule",
]
