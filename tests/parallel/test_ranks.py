"""Every rank computes the same run from the same log, bit for bit, on 1, 2 and 4 ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neutronstream.datasets.registry import VARIABLE

from ..data import ROOT, data_folder

SCRIPT = Path(__file__).with_name("on_ranks.py")


def on_ranks(count: int) -> dict[str, Any]:
    """What the script printed, run on `count` ranks."""
    beside = Path(sys.executable).parent  # the mpich wheel puts mpiexec beside python
    mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    assert mpiexec is not None, "mpiexec is missing: install the extra `mpi` (mpi4py and mpich)"
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [mpiexec, "-n", str(count), sys.executable, str(SCRIPT)],
        env=os.environ | {"PYTHONPATH": path, VARIABLE: str(data_folder())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return on_ranks(1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_ranks_hold_the_same_bits(count: int, alone: dict[str, Any]) -> None:
    found = alone if count == 1 else on_ranks(count)
    assert found["ranks"] == count
    assert found["same"] is True
    assert found["losses"] == alone["losses"]
