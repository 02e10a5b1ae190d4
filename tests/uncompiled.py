"""Runs tests again with their loops in plain Python, where what compilation hides would show."""

from __future__ import annotations

import os
import subprocess
import sys

from .data import ROOT
from .devices import DEVICE


def run_uncompiled(*arguments: str) -> str:
    """What pytest says of the tests that `arguments` choose; fails if one of them fails."""
    environ = {name: value for name, value in os.environ.items() if name != DEVICE}
    environ |= {"NUMBA_DISABLE_JIT": "1", "CUDA_VISIBLE_DEVICES": ""}  # loops are for CPUs
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
