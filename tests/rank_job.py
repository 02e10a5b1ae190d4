"""A job in which one rank does something at some moment; `test_rank_faults.py` starts it.

    mpiexec -n 4 python tests/rank_job.py kill 2 0.5

A fourth word is the witness's patience. With `light` as the last the ranks only pass the time, and
load neither torch nor MPI.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from neutronstream.experiments.guard import Guard, guarded


def act(what: str) -> None:
    """What befalls the rank; `work` takes long and lets no other thread of it run."""
    os.write(1, b"now\n")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise RuntimeError("the reason")
    elif what == "sleep":
        time.sleep(100)
    elif what == "vanish":
        os._exit(0)
    elif what == "leave":
        sys.exit(3)
    elif what in ("early", "depart"):
        sys.exit()
    elif what == "work":
        sum(range(10**9))  # one instruction of the interpreter


def passing_time() -> None:
    time.sleep(0.01)


def train(guard: Guard, turn: Callable[[Callable[[], None]], None], seed: int) -> None:
    """Turns with an exchange each, as in training."""
    import torch

    from neutronstream.parallel.ranks import agree

    torch.set_num_threads(1)
    with guard.connected(os.environ) as comm:
        agree(comm, {"seed": seed})
        grads = torch.ones(300_000)

        def step() -> None:
            comm.all_reduce(grads.clone(), "gradients")

        turn(step)


def main() -> None:
    what, who, after, patience = sys.argv[1], *map(float, sys.argv[2:5])
    with guarded(os.environ, patience) as guard:
        os.write(1, f"rank {guard.rank} {os.getpid()}\n".encode())  # at once, or lines mix

        def turn(step: Callable[[], None]) -> None:
            began, number, acted = time.monotonic(), 0, False
            while what not in ("end", "all") or number < 50:
                number += 1
                step()
                if what == "end" or acted or guard.rank != who:
                    continue
                if what != "all" and time.monotonic() - began > after:
                    acted = True
                    act(what)
            if what == "all":
                raise RuntimeError("the reason of all")

        if what == "early" and guard.rank == who:
            act(what)
        if "light" in sys.argv:
            turn(passing_time)
        else:
            train(guard, turn, seed=guard.rank if what == "differ" else 0)


if __name__ == "__main__":
    main()
