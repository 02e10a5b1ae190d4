"""Memory that a step has freed is kept for the next, unless somebody has said otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is asked")

STEPS = """
import resource
import numpy as np
from neutronstream.parallel.heap import keep_freed_memory
kept = {kept}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(4):
    before = faults()
    arrays = [np.ones(2_500_000) for _ in range(4)]  # of 20 MB each
    del arrays
    found = faults() - before
print(kept, found)
"""


def run(kept: str, **environ: str) -> tuple[str, int]:
    """Whether memory is kept, and the pages that the system gives for the fourth step."""
    plain = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"} | environ
    command = [sys.executable, "-c", STEPS.format(kept=kept)]
    out = subprocess.run(command, env=plain, check=True, capture_output=True, text=True).stdout
    first, count = out.split()
    return first, int(count)


def test_what_a_step_has_freed_the_next_one_takes_without_asking_the_system() -> None:
    kept, pages = run("keep_freed_memory() and keep_freed_memory()")
    _, without = run("False")
    assert kept == "True"
    assert pages < 100 < 1_000 < without


def test_who_has_set_malloc_is_left_alone() -> None:
    assert run("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="100000")[0] == "False"
    assert run("keep_freed_memory()", GLIBC_TUNABLES="glibc.malloc.arena_max=2")[0] == "False"
