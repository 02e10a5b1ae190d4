"""Events in order: logs, the files they come from, and the windows that slide over them."""

from .errors import CheckpointError, LeakError, LogError, ModelError, NeutronStreamError, OrderError
from .events import (
    TICKS_PER_SECOND,
    Bool,
    EventBatch,
    EventLog,
    Float32,
    Float64,
    Int64,
    TimeUnit,
    UInt8,
    map_densely,
)
from .read import read_links, read_log
from .windows import Window, adapt, grow, slide, suggest_window, tumble

__all__ = [
    "TICKS_PER_SECOND",
    "Bool",
    "CheckpointError",
    "EventBatch",
    "EventLog",
    "Float32",
    "Float64",
    "Int64",
    "LeakError",
    "LogError",
    "ModelError",
    "NeutronStreamError",
    "OrderError",
    "TimeUnit",
    "UInt8",
    "Window",
    "adapt",
    "grow",
    "map_densely",
    "read_links",
    "read_log",
    "slide",
    "suggest_window",
    "tumble",
]
