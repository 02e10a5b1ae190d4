"""Starts a script on several ranks, the way a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from neutronstream.datasets.registry import VARIABLE

from .data import ROOT, data_folder


def command(launcher: str, count: int) -> list[str]:
    """What starts `count` ranks of this Python with `launcher`, mpiexec or torchrun."""
    if launcher == "torchrun":
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        return [sys.executable, *run]
    beside = Path(sys.executable).parent  # the mpich wheel puts mpiexec beside python
    mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    assert mpiexec is not None, "mpiexec is missing: install the extra `mpi` (mpi4py and mpich)"
    return [mpiexec, "-n", str(count), sys.executable]


def start(launcher: str, count: int, script: Path, *arguments: object) -> subprocess.Popen[str]:
    """The launcher, started; its output is text in pipes."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return subprocess.Popen(
        [*command(launcher, count), str(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path, VARIABLE: str(data_folder())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a job; it is killed if it takes longer."""
    try:
        out, err = job.communicate(timeout=seconds)
    finally:
        job.kill()
    return job.returncode, out, err
