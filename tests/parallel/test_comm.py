"""The same promises on one rank, on 2 and 4 of mpiexec, and on 2 that talk through gloo."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from neutronstream.parallel.blackboard import STRICT
from neutronstream.parallel.comm import connect
from neutronstream.parallel.gather import gather_rows
from neutronstream.parallel.ranks import ALONE, Alone, Comm

from ..ranks import finish, start
from . import comm_promises

SCRIPT = Path(comm_promises.__file__)


@pytest.mark.parametrize("promise", comm_promises.PROMISES, ids=lambda p: p.__name__)
def test_alone(promise: Callable[[Comm], None]) -> None:
    promise(Alone())


@pytest.mark.parametrize(
    ("launcher", "count", "kinds"),
    [
        ("mpiexec", 2, {"mpi": "OverMPI", "torch": "OverTorch"}),
        ("mpiexec", 4, {"mpi": "OverMPI"}),
        ("torchrun", 2, {"torch": "OverTorch"}),
    ],
)
def test_all_promises_hold_on_every_rank(launcher: str, count: int, kinds: dict[str, str]) -> None:
    code, out, err = finish(start(launcher, count, SCRIPT, *kinds))
    assert code == 0, err
    for line, kind in zip(out.splitlines(), kinds.values(), strict=True):
        found = json.loads(line)
        assert found["kinds"] == [kind] * count
        assert found["shared"] == [platform.machine() in STRICT] * count
        assert found["held"] == [promise.__name__ for promise in comm_promises.PROMISES]


def test_a_process_alone_loads_neither_mpi_nor_torch_distributed() -> None:
    code = (
        "import sys\nfrom neutronstream.parallel.comm import connect\n"
        "before = 'torch.distributed.distributed_c10d' in sys.modules\n"
        "assert connect({'PMI_RANK': '0', 'PMI_SIZE': '1'}).size == connect({}).size == 1\n"
        "assert 'mpi4py' not in sys.modules\n"
        "assert before == ('torch.distributed.distributed_c10d' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_one_rank_are_not_copied() -> None:
    own = torch.zeros(3, 2, requires_grad=True)
    assert gather_rows(ALONE, own, [3], "rows") is own


def test_a_launcher_of_another_mpi_is_refused() -> None:
    with pytest.raises(ValueError, match="started 3 ranks, but MPI knows of 1: this mpiexec"):
        connect({"OMPI_COMM_WORLD_SIZE": "3"})
