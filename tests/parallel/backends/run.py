"""Runs the promises of a module on every rank; rank 0 prints which held, as lines of JSON.

    PYTHONPATH=src:. mpiexec -n 4 python tests/parallel/backends/run.py 2,3,4 MODULE [PROMISE ...]

A promise is a function of one rank's `Comm` that asserts for itself; the module lists them in
`PROMISES`.  What it returns goes into the line, as rank 0 has it.  To start a process costs more
than most promises, so those of fewer ranks are kept by the first of the ranks there are.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from neutronstream.parallel.comm import connect
from neutronstream.parallel.ranks import Comm
from tests.ranks import finish, start

Promise = Callable[[Comm], Any]


def held_on_ranks(
    counts: Sequence[int], module: str, *promises: Promise, launcher: str = "mpiexec"
) -> list[dict[str, Any]]:
    """For each count what the promises returned, by name, once all held on so many ranks."""
    names = [promise.__name__ for promise in promises]
    told = ",".join(map(str, counts))
    job = start(launcher, max(counts), Path(__file__), told, module, *names)
    code, out, err = finish(job, 400)
    assert code == 0, out + err
    lines = [line for line in out.splitlines() if line.startswith('{"ranks"')]
    everything: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [found.pop("ranks") for found in everything] == list(counts)
    for found in everything:
        assert found and (not names or list(found) == names)
    return everything


def main() -> None:
    torch.set_num_threads(1)
    counts = [int(count) for count in sys.argv[1].split(",")]
    module = importlib.import_module(sys.argv[2])
    wanted = sys.argv[3:]
    kept = [p for p in module.PROMISES if not wanted or p.__name__ in wanted]
    with connect(os.environ) as ranks:
        try:
            for count in counts:
                comm = ranks if count == ranks.size else ranks.group(int(ranks.rank < count))
                if ranks.rank < count:
                    found = {promise.__name__: promise(comm) for promise in kept}
                    if ranks.rank == 0:
                        print(json.dumps({"ranks": count} | found), flush=True)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            ranks.abort(1)  # the others may wait for this rank


if __name__ == "__main__":
    main()
