"""Tensors are made where states are: models run on a device that refuses those of the CPU.

It stands in for a GPU, which has the same rules; `make test-device` runs more tests there.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .. import elsewhere
from .test_ranks import on_ranks

pytestmark = pytest.mark.skipif(
    elsewhere.compiler() is None, reason="no C++ compiler, which makes the device"
)


def test_models_run_on_a_device_that_is_not_the_cpu_and_a_tensor_left_behind_is_named() -> None:
    command = [sys.executable, "-m", "tests.device_job"]
    job = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    found = json.loads(job.stdout)
    forgetful = found.pop("Forgetful")
    assert len(found) == 13
    assert not any(found.values()), "\n".join(found.values())
    assert "make tensors where the given ones are" in forgetful


@pytest.mark.parametrize("executor", ["levels", "batch"])
def test_ranks_with_such_devices_give_what_one_process_gives(executor: str) -> None:
    found = on_ranks(2, executor, "mpiexec", "dyrep,jodie,ldg,tgn", "1", elsewhere.NAME)
    assert found["worst"][0] <= 1e-12, found["worst"]
    assert found["same"] is True
    assert {"scores", "gradients"} <= found["moved"][0].keys()
