"""What the benchmarks share: how they time, what they say of the machine, and their last line.

Two ways of doing a thing are timed in turn, A B A B ..., and compared pair by pair, so that what
else the machine does meets both; the median of the pairs' ratios is the answer.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numba
import numpy as np
import torch

import neutronstream

SIX = ("social_evolution", "github", "dnc", "uci", "reality_call", "slashdot_reply")
"""The logs of the NeutronStream paper."""


def machine(seed: int | None = None) -> dict[str, Any]:
    """Versions, cores, load and seed: what a figure depends on beside the code."""
    try:
        own = version("neutronstream")
    except PackageNotFoundError:
        own = f"{neutronstream.__version__} (not installed)"
    return {
        "neutronstream": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
        "platform": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "seed": seed,
    }


def seconds(act: Callable[[], object]) -> float:
    """How long one call takes."""
    start = perf_counter()
    act()
    return perf_counter() - start


def paired(
    a: Callable[[], object], b: Callable[[], object], pairs: int
) -> tuple[float, float, list[float]]:
    """Median seconds of `a` and of `b`, and the ratio a / b of each pair, run A B A B ..."""
    times = [(seconds(a), seconds(b)) for _ in range(pairs)]
    return (
        median(first for first, _ in times),
        median(second for _, second in times),
        [first / second for first, second in times],
    )


def slope(values: Mapping[int, float] | list[float]) -> float:
    """The least-squares growth of the values by one step."""
    if isinstance(values, Mapping):
        places, heights = list(values), list(values.values())
    else:
        places, heights = list(range(len(values))), values
    return float(np.polyfit(places, heights, 1)[0])


def resident() -> float:
    """MiB of memory that this process holds now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def finish(result: Mapping[str, Any], seed: int | None = None) -> None:
    """Print the last line: the result and the machine as one JSON object."""
    print(json.dumps({**result, "machine": machine(seed)}, allow_nan=False))
