"""The names that the folder offers."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest

from neutronstream import parallel

MODULES = ("executor", "kernels", "levels", "schedule", "segment", "sequential", "tape")


def test_all_is_sorted_and_complete() -> None:
    public = {
        name
        for name, value in vars(parallel).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(parallel.__all__) == public
    order = sorted(parallel.__all__, key=lambda name: (not name.isupper(), name))  # constants first
    assert list(parallel.__all__) == order


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"neutronstream.parallel.{module}"))
    assert found.failed == 0
