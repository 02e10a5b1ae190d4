"""The ranks that this process was started with, linked by MPI or by torch.distributed.

Nothing else imports either of them.  What ranks say to each other stands in `ranks.py`, what goes
through shared memory in `linked.py`; here are the messages.  One rank alone loads neither.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Literal

import numpy as np
from torch import Tensor

from .linked import Linked
from .ranks import TURNS, Alone, Comm, Waits

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # of torch.distributed, by device
LARGE = 2**20  # bytes: more than MPI moves in a few looks
FEW_SLEEPS = 100  # times as many quick looks for a large message, which moves only at a look


class OverMPI(Linked):
    """Ranks that `mpiexec` started; tensors on the CPU go straight through their buffers."""

    def __init__(self, waits: Waits | None = None) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"  # one thread of a rank talks to the others
        from mpi4py import MPI

        self._take(MPI.COMM_WORLD.Dup(), waits)

    def _take(self, world: Any, waits: Waits | None) -> None:
        self._world = world
        super().__init__(world.rank, world.size, waits)

    def _send_to_all(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        mine, all_of_it = _array(own), [_array(whole), counts]
        self._carry(lambda: self._world.Iallgatherv(mine, all_of_it), len(whole), label)

    def _send_each(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        out, back = [_array(whole), counts], [_array(found), [counts[self.rank]] * self.size]
        self._carry(lambda: self._world.Ialltoallv(out, back), len(whole), label)

    def _move(self) -> bool:
        self._world.Iprobe()
        return False

    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        request = self._world.Ialltoallv([_array(whole), sent], [_array(found), received])
        total = len(whole) + len(found)
        return lambda: self._finish(request, total, label)

    def _start_send(self, data: Tensor, to: int, tag: int, label: str) -> Callable[[], object]:
        request = self._world.Isend(_array(data), to, tag)
        return lambda: self._finish(request, len(data), label)

    def _start_receive(
        self, data: Tensor, source: int, tag: int, label: str
    ) -> Callable[[], object]:
        request = self._world.Irecv(_array(data), source, tag)
        return lambda: self._finish(request, len(data), label)

    def _finish(self, request: Any, total: int, label: str) -> None:
        """Large messages move only while they are looked at."""
        self._wait(request.Test, label, FEW_SLEEPS * TURNS if total > LARGE else TURNS)

    def _group(self, members: list[int], colors: list[int]) -> Comm:
        part = object.__new__(OverMPI)
        part._take(self._world.Split(colors[self.rank], self.rank), self._waits)
        return part

    def _carry(self, start: Callable[[], Any], total: int, label: str) -> None:
        """MPI moves data only while it is looked at: ranks meet first, and then do not sleep.

        `total` must be the same on all ranks, or some would meet and others not.
        """
        if total > LARGE:
            self._wait(self._world.Ibarrier().Test, label)
        self._wait(start().Test, label, inf if total > LARGE else TURNS)

    def abort(self, code: int) -> None:
        from mpi4py import MPI

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # why, has been said; MPI would add to it
        MPI.COMM_WORLD.Abort(code)  # of a copy of it MPICH does not pass the code on

    def close(self) -> None:
        self._world.Free()


class OverTorch(Linked):
    """Ranks that talk through torch.distributed: gloo for the CPU, nccl for CUDA."""

    def __init__(
        self, rank: int, size: int, store: Any, backend: str, waits: Waits | None = None
    ) -> None:
        from torch import distributed

        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
        self._distributed = distributed
        self._ranks: Any = None  # the process group: all
        self._members = list(range(size))  # in the numbers of torch.distributed
        super().__init__(rank, size, waits)

    def _send_to_all(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        # gloo gathers only parts of one length
        everyone = [len(own)] * self.size
        self._start_exchange(own.repeat(self.size), everyone, whole, counts, label)()

    def _send_each(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        received = [counts[self.rank]] * self.size
        self._start_exchange(whole, counts, found, received, label)()

    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        work = self._distributed.all_to_all_single(
            found, whole, received, sent, group=self._ranks, async_op=True
        )
        return lambda: self._finish(work, whole, label)

    def _start_send(self, data: Tensor, to: int, tag: int, label: str) -> Callable[[], object]:
        work: Any = self._distributed.isend(data, self._members[to], group=self._ranks, tag=tag)
        return lambda: (work.wait(), data)  # gloo cannot be asked whether it is done

    def _start_receive(
        self, data: Tensor, source: int, tag: int, label: str
    ) -> Callable[[], object]:
        work: Any = self._distributed.irecv(data, self._members[source], group=self._ranks, tag=tag)
        return lambda: (work.wait(), data)

    def _finish(self, work: Any, data: Tensor, label: str) -> None:
        if data.device.type == "cpu":  # else the stream waits, and this process need not
            self._wait(work.is_completed, label)
        work.wait()

    def _group(self, members: list[int], colors: list[int]) -> Comm:
        part = object.__new__(OverTorch)
        Comm.__init__(part, members.index(self.rank), len(members), self._waits)
        part._distributed = self._distributed
        part._members = [self._members[rank] for rank in members]
        for color in sorted(set(colors)):  # every rank takes part in making every group
            ranks = [self._members[r] for r, other in enumerate(colors) if other == color]
            made = self._distributed.new_group(ranks)
            if color == colors[self.rank]:
                part._ranks = made
        return part

    def abort(self, code: int) -> None:
        os._exit(code)

    def close(self) -> None:
        self._distributed.destroy_process_group(self._ranks)


def connect(
    environ: Mapping[str, str],
    *,
    device: str = "cpu",
    over: Literal["mpi", "torch"] | None = None,
    waits: Waits | None = None,
) -> Comm:
    """The ranks that this process was started with: by mpiexec, by torchrun, or alone.

    With a CUDA `device` ranks of mpiexec talk through torch.distributed, as they do with `over`
    "torch".  `waits` is told what this rank waits for when that takes a second, and "" after it.

    Raises:
        ValueError: if nothing carries tensors of the device, or mpiexec is not that of mpi4py.
        ImportError: if mpiexec started ranks and mpi4py is missing.

    >>> connect({}).size
    1
    """
    kind = device.partition(":")[0]
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        if size == 1:
            return Alone()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        is_master = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = TCPStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), size, is_master)
        return _sharing(OverTorch(rank, size, store, _backend(kind), waits))
    sizes = [environ[name] for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE") if name in environ]
    if "1" in sizes or not (sizes or "PMIX_RANK" in environ):
        return Alone()
    try:
        comm = OverMPI(waits)
    except ImportError as error:
        raise ImportError(
            f"mpiexec started {sizes[0] if sizes else 'several'} ranks, but mpi4py cannot be "
            f"loaded ({error}): install it with `pip install 'neutronstream[mpi]'`"
        ) from error
    if sizes and comm.size != int(sizes[0]):
        raise ValueError(
            f"mpiexec started {sizes[0]} ranks, but MPI knows of {comm.size}: this mpiexec is "
            "not of the MPI that mpi4py was built for; use the one beside `python`"
        )
    if comm.size == 1:
        return Alone()
    if over == "torch" or kind != "cpu":
        return _sharing(_torch_over(comm, _backend(kind), waits))
    return _sharing(comm)


def _sharing(comm: Linked) -> Linked:
    comm.share_memory()
    return comm


def _backend(kind: str) -> str:
    if kind not in BACKENDS:
        raise ValueError(
            f"ranks cannot share states on {kind!r}: give each of them a device of "
            f"{', '.join(BACKENDS)}, or run one process"
        )
    return BACKENDS[kind]


def _torch_over(mpi: OverMPI, backend: str, waits: Waits | None) -> OverTorch:
    """torch.distributed among the ranks of MPI; on one host nothing listens to the outside."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host = socket.gethostname()
    local = len(set(mpi.gather_objects(host, "start"))) == 1
    address, listener = "127.0.0.1" if local else host, None
    if local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if mpi.rank == 0:
        listener = socket.create_server((address, 0))
    found = [address, listener.getsockname()[1]] if listener is not None else None
    address, port = mpi.gather_objects(found, "start")[0]
    own: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
    store = TCPStore(address, port, mpi.size, mpi.rank == 0, **own)
    return OverTorch(mpi.rank, mpi.size, store, backend, waits)


def _array(data: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The same bytes as MPI takes them."""
    if data.device.type != "cpu":
        raise ValueError(
            f"MPI carries tensors of the CPU only: got one on {data.device}; "
            "`connect` with that device"
        )
    return data.numpy()
