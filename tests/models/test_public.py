"""The names that the folder offers."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest

from neutronstream import models

MODULES = ("base", "dyrep", "views")


def test_all_is_sorted_and_complete() -> None:
    public = {
        name
        for name, value in vars(models).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(models.__all__) == public
    order = sorted(models.__all__, key=lambda name: (not name.isupper(), name))  # constants first
    assert list(models.__all__) == order


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"neutronstream.models.{module}"))
    assert found.failed == 0
