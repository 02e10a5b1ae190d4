"""Snapshots: train a model on those of a log, a signal or a static graph, over a backend.

The names here are loaded when they are first used, so that `neutronstream --help` stays quick.
"""

from typing import TYPE_CHECKING

from ..lazily import opener as _opener

if TYPE_CHECKING:
    from .config import SnapshotConfig, load_snapshot_config
    from .data import SnapshotData, data_of_snapshots
    from .fit import fit_snapshots

__all__ = [
    "SnapshotConfig",
    "SnapshotData",
    "data_of_snapshots",
    "fit_snapshots",
    "load_snapshot_config",
]

_HOMES = {
    "SnapshotConfig": ".config",
    "SnapshotData": ".data",
    "data_of_snapshots": ".data",
    "fit_snapshots": ".fit",
    "load_snapshot_config": ".config",
}

__getattr__ = _opener(__name__, _HOMES)
