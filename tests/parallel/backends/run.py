"""Runs the promises of a module on every rank; rank 0 prints which held, as a line of JSON.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/backends/run.py MODULE [PROMISE ...]

A promise is a function of one rank's `Comm` that asserts for itself; the module lists them in
`PROMISES`.  What it returns goes into the line, as rank 0 has it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neutronstream.parallel.comm import Comm, connect
from tests.ranks import finish, start

Promise = Callable[[Comm], Any]


def held_on_ranks(
    count: int, module: str, *promises: Promise, launcher: str = "mpiexec"
) -> dict[str, Any]:
    """What the promises returned, by name, after all of them held on so many ranks."""
    names = [promise.__name__ for promise in promises]
    job = start(launcher, count, Path(__file__), module, *names)
    code, out, err = finish(job, 240)
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert found.pop("ranks") == count
    assert not names or list(found) == names
    assert found
    return found


def main() -> None:
    torch.set_num_threads(1)
    module = importlib.import_module(sys.argv[1])
    promises: tuple[Promise, ...] = module.PROMISES
    wanted = sys.argv[2:]
    found: dict[str, Any] = {}
    with connect(os.environ) as comm:
        for promise in promises:
            if not wanted or promise.__name__ in wanted:
                try:
                    found[promise.__name__] = promise(comm)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    comm.abort(1)  # the others may wait for this rank
        if comm.rank == 0:
            print(json.dumps({"ranks": comm.size} | found))


if __name__ == "__main__":
    main()
