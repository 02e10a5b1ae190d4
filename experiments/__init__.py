"""What a person runs: fit a model on a log, report on it, look at a log, the command line.

The names here are loaded when they are first used, so that `neutronstream --help` stays quick.
`fit` itself is `neutronstream.fit`: here that name is its module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .baselines import EdgeBank, Popularity, RecentPartner
    from .config import TrainConfig, load_config, to_toml
    from .metrics import BinaryMetric, LinkMetrics, RankingMetric
    from .report import write_report
    from .snapshots import (
        SnapshotConfig,
        SnapshotData,
        data_of_snapshots,
        fit_snapshots,
        load_snapshot_config,
    )
    from .split import Split, split_log

__all__ = [
    "BinaryMetric",
    "EdgeBank",
    "LinkMetrics",
    "Popularity",
    "RankingMetric",
    "RecentPartner",
    "SnapshotConfig",
    "SnapshotData",
    "Split",
    "TrainConfig",
    "data_of_snapshots",
    "fit_snapshots",
    "load_config",
    "load_snapshot_config",
    "split_log",
    "to_toml",
    "write_report",
]

_HOMES = {
    "BinaryMetric": ".metrics",
    "EdgeBank": ".baselines",
    "LinkMetrics": ".metrics",
    "Popularity": ".baselines",
    "RankingMetric": ".metrics",
    "RecentPartner": ".baselines",
    "SnapshotConfig": ".snapshots",
    "SnapshotData": ".snapshots",
    "Split": ".split",
    "TrainConfig": ".config",
    "data_of_snapshots": ".snapshots",
    "fit_snapshots": ".snapshots",
    "load_config": ".config",
    "load_snapshot_config": ".snapshots",
    "split_log": ".split",
    "to_toml": ".config",
    "write_report": ".report",
}


def __getattr__(name: str) -> Any:
    """The public name, loaded from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
