"""Small logs on which scans go wrong first: ties, loops, a hub, hardly any event, late nodes."""

from __future__ import annotations

from ..naive import random_log

HOSTILE = {
    "ties": random_log(4, 60, 12, ties=1.0, loops=0.0, hub=0.0),
    "loops": random_log(5, 60, 9, loops=0.5),
    "only loops": random_log(6, 30, 5, loops=1.0),
    "loops and initial links": random_log(1, 100, 8, loops=0.4, num_initial=6),
    "a hub": random_log(7, 60, 30, hub=0.9),
    "two nodes": random_log(8, 30, 2),
    "one event": random_log(9, 1, 5),
    "late nodes": random_log(10, 60, 300, hub=0.0),
}
