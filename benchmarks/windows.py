"""Do windows have the published geometry?

Fixed windows of the NeutronStream configurations (size and stride in events) must be as many as its
own generator makes; adaptive ones on social_evolution (50 to 300 events, stride a fifth) must have
the mean and median size that were measured with its rule, whose largest window is one longer.

    python benchmarks/windows.py

Answer (2026-11-30): yes: 388, 594 and 1,032 fixed windows; adaptive ones on social_evolution have a
mean of 76.98 and a median of 63 events, the means on the other four logs agree to the decimal.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter

import numpy as np
from common import finish  # type: ignore  # beside this file

from neutronstream.datasets import load
from neutronstream.stream import Window, adapt, slide

FIXED = {"dnc": (600, 100, 388), "uci": (600, 100, 594), "github": (120, 20, 1032)}
ADAPTIVE = {"social_evolution": (77, 63), "github": (58.6, None), "dnc": (62.6, None)} | {
    "uci": (55.1, None),
    "reality_call": (53.8, None),
}


def covers(windows: Sequence[Window], length: int) -> bool:
    """Whether the parts to predict are every event once, in order."""
    parts = [position for window in windows for position in window.test]
    return parts == list(range(length))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows: dict[str, dict[str, float | bool]] = {}
    for name, (size, stride, expected) in FIXED.items():
        log = load(name)
        windows = list(slide(log, size, stride))
        rows[f"fixed {name}"] = {
            "windows": len(windows),
            "expected": expected,
            "right": len(windows) == expected and covers(windows, len(log)),
        }
    for name, (mean, middle) in ADAPTIVE.items():
        log = load(name)
        start = perf_counter()
        windows = list(adapt(log, 50, 300, rate=0.2))
        taken = perf_counter() - start
        sizes = [len(window) for window in windows]
        found = float(np.mean(sizes)), float(np.median(sizes))
        rounding = 0.5 if float(mean).is_integer() else 0.0501  # as it was published
        right = abs(found[0] - mean) <= rounding and (middle is None or found[1] == middle)
        rows[f"adaptive {name}"] = {
            "windows": len(windows),
            "mean": round(found[0], 2),
            "expected_mean": mean,
            "median": found[1],
            "seconds": round(taken, 2),
            "right": right and covers(windows, len(log)),
        }
    for name, row in rows.items():
        print(f"{name:26}", "  ".join(f"{key} {value}" for key, value in row.items()))
    finish({"right": all(bool(row["right"]) for row in rows.values()), "rows": rows})


if __name__ == "__main__":
    main()
