"""What a person runs: fit a model on a log, report on it, look at a log, the command line.

The names here are loaded when they are first used, so that `neutronstream --help` stays quick.
`fit` itself is `neutronstream.fit`: here that name is its module.
"""

from typing import TYPE_CHECKING

from .lazily import opener as _opener

if TYPE_CHECKING:
    from .baselines import EdgeBank, Popularity, RecentPartner
    from .config import TrainConfig, load_config
    from .metrics import BinaryMetric, LinkMetrics, RankingMetric
    from .report import write_report
    from .settings import to_toml
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
    "to_toml": ".settings",
    "write_report": ".report",
}

__getattr__ = _opener(__name__, _HOMES)
