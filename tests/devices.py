"""Where tests run: on the CPU, and where a GPU is found on that as well, the same test bodies.

With NEUTRONSTREAM_TEST_DEVICE=elsewhere it is the device of `elsewhere` in place of a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from . import elsewhere

DEVICE = "NEUTRONSTREAM_TEST_DEVICE"


def _found() -> tuple[str, ...]:
    if os.environ.get(DEVICE) == elsewhere.NAME:
        elsewhere.load()
        return "cpu", elsewhere.NAME
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


DEVICES = _found()

_chosen = "cpu"


def chosen() -> str:
    """The device of the test that runs."""
    return _chosen


def use(device: str) -> str:
    """Makes it the device of this process, over ranks too."""
    global _chosen
    if device == elsewhere.NAME:
        from .elsewhere.group import register

        elsewhere.load()
        register()
    _chosen = device
    return device


@pytest.fixture(autouse=True)
def on_each_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test on the device for which it was generated."""
    global _chosen
    _chosen = getattr(request, "param", "cpu")
    yield
    _chosen = "cpu"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test on each device, where there is more than one."""
    if len(DEVICES) > 1:
        metafunc.parametrize("on_each_device", DEVICES, indirect=True)
