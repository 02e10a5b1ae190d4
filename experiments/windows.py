"""Which windows a configuration moves over a log."""

from __future__ import annotations

from collections.abc import Iterator

from ..stream import EventLog, Window, adapt, grow, slide, suggest_window, tumble
from .config import TrainConfig


def windows_of(log: EventLog, config: TrainConfig) -> Iterator[Window]:
    """The windows of `config` over `log`, with the suggested size where it names none.

    Raises:
        ValueError: if size and stride do not fit the log.
    """
    if config.window == "adaptive":
        return adapt(log, config.down, config.up, rate=config.rate)
    size, stride = config.size, config.stride
    if size is None:
        size, stride = suggest_window(log)
    elif stride is None:
        stride = size
    if config.window == "tumbling":
        return tumble(log, size)
    if config.window == "growing":
        return grow(log, size, stride)
    return slide(log, size, stride)
