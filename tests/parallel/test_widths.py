"""Levels are as wide as the exact ones measured with pairwise conflict tests on the same logs.

The benchmark that prints the table is run here; its last line is compared with the exact columns.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from neutronstream.datasets.registry import VARIABLE

from ..data import SIX, data_folder, real_log

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "levels.py"

# DyRep at chunks of 50, 200, 1000 events, then DyGNN, over the first 20,000 events
EXACT = {
    "social_evolution": ((1.34, 1.40, 1.43), (1.11, 1.13, 1.13)),
    "github": ((1.32, 1.33, 1.33), (1.04, 1.04, 1.04)),
    "dnc": ((1.32, 1.33, 1.34), (1.10, 1.10, 1.10)),
    "uci": ((1.77, 1.79, 1.80), (1.06, 1.06, 1.06)),
    "reality_call": ((3.83, 4.41, 4.65), (1.87, 1.90, 1.91)),
}
MEAN_READS = {  # nodes that an event reads
    "social_evolution": (18.3, 14.9),
    "github": (53.4, 98.9),
    "dnc": (76.0, 76.0),
    "uci": (44.5, 44.5),
    "reality_call": (45.2, 45.2),
}


def benchmark() -> ModuleType:
    """benchmarks/levels.py as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_levels", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", EXACT)
def test_levels_are_as_wide_as_the_exact_ones(name: str) -> None:
    levels = benchmark()
    log = real_log(name, 20_000)
    for model in (0, 1):
        measure = (levels.dyrep_widths, levels.dygnn_widths)[model]
        widths, reads = measure(log, (50, 200, 1000))
        assert tuple(round(width, 2) for width in widths) == EXACT[name][model]
        assert round(reads, 1) == MEAN_READS[name][model]


def test_the_benchmark_prints_every_log_and_ends_with_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(data_folder()))
    monkeypatch.setattr(sys, "argv", ["levels.py", "--events", "300", "--chunks", "50"])
    benchmark().main()
    *table, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == [name for name in SIX for _ in range(2)]
    assert json.loads(last)["uci"]["DyRep"][0] >= 1.0
