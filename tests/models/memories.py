"""What models with a memory (TGN, JODIE) are tested on: a real log, features, initial links."""

from __future__ import annotations

import numpy as np

from neutronstream.stream import EventLog

from ..data import real_log
from ..naive import random_log


def with_features(log: EventLog, width: int = 3, *, step: int = 0) -> EventLog:
    """The log with random features, and with `step` seconds between events if that is not 0."""
    events = log.events
    features = np.random.default_rng(0).normal(size=(len(log), width)).astype(np.float32)
    return EventLog.from_arrays(
        *(events.src, events.dst, np.arange(len(log)) * step if step else events.time),
        kind=[log.kinds[code] for code in events.kind],
        features=features,
    )


LOGS = {
    "uci": real_log("uci", 200),
    "loops, ties, kinds, features": with_features(
        random_log(1, 120, 12, loops=0.2, kinds=("talk", "call", "mail"))
    ),
    "initial links": random_log(2, 120, 15, num_initial=12),
}
