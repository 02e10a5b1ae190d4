"""Tensors are made where states are: models run on a device that refuses those of the CPU.

It stands in for a GPU, which has the same rules; `make test-device` runs more tests there.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .. import elsewhere


def test_models_run_on_a_device_that_is_not_the_cpu_and_a_tensor_left_behind_is_named() -> None:
    if elsewhere.compiler() is None:
        pytest.skip("no C++ compiler, which makes the device")
    command = [sys.executable, "-m", "tests.device_job"]
    job = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(job.stdout)
    forgetful = found.pop("Forgetful")
    assert len(found) == 13
    assert not any(found.values()), "\n".join(found.values())
    assert "make tensors where the given ones are" in forgetful
