"""Exact and fast training of dynamic graph neural networks on event streams.

    log = neutronstream.read_log("messages.csv")
    report = neutronstream.fit(log, neutronstream.TrainConfig(), "runs/messages")

The names here are loaded when they are first used, so that importing the package is cheap;
everything else lives in its folder: `neutronstream.stream`, `.storage`, `.models`, ...
"""

from typing import TYPE_CHECKING

from .experiments.lazily import opener as _opener

if TYPE_CHECKING:
    from .datasets import load, messages
    from .experiments.compare import compare
    from .experiments.config import TrainConfig
    from .experiments.fit import fit
    from .parallel import check_model
    from .storage import DynamicGraph
    from .stream import EventBatch, EventLog, read_log, slide

__all__ = [
    "DynamicGraph",
    "EventBatch",
    "EventLog",
    "TrainConfig",
    "__version__",
    "check_model",
    "compare",
    "fit",
    "load",
    "messages",
    "read_log",
    "slide",
]

__version__ = "0.1.0"

_HOMES = {
    "DynamicGraph": ".storage",
    "EventBatch": ".stream",
    "EventLog": ".stream",
    "TrainConfig": ".experiments.config",
    "check_model": ".parallel",
    "compare": ".experiments.compare",
    "fit": ".experiments.fit",
    "load": ".datasets",
    "messages": ".datasets",
    "read_log": ".stream",
    "slide": ".stream",
}

__getattr__ = _opener(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
