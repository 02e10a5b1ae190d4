"""The names that the folder offers."""

from __future__ import annotations

import doctest
import importlib

import pytest

from neutronstream import storage

MODULES = (*("checkpoint", "counter", "files", "graph", "kernels", "negatives", "oracle", "state"),)


def test_all_is_sorted_and_complete() -> None:
    assert storage.__all__ == sorted(storage.__all__)
    public = {n for n in vars(storage) if not n.startswith("_")} - set(MODULES)
    assert set(storage.__all__) == public


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"neutronstream.storage.{module}"))
    assert found.failed == 0
