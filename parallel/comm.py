"""Ranks: how many processes work on one job, and what they tell each other.

Few operations are left to MPI or torch.distributed: to gather the bytes of all ranks, to send each
rank its own, to send to one, and to part into groups.  All else is built on these here.  What ranks
of one host tell each other at one moment goes through memory that they share, if it is not too
much.  Sums are taken in the order of the ranks, so every rank gets the same bits, whatever carries
them.  A rank that waits sleeps, so more ranks than cores are no harm.  One rank alone is the
reference, and loads nothing of this.
"""

from __future__ import annotations

import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from time import sleep
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from .blackboard import Blackboard, create

Waits = Callable[[str], object]

TURNS = 1000  # looks at a pending operation before the first sleep: some 1 ms
FIRST_PAUSE, LONGEST_PAUSE = 2e-5, 1e-3  # seconds
TOLD_AFTER = 1.0  # seconds of waiting after which `waits` is told
LARGE = 2**20  # bytes: more than MPI moves in a few looks
FEW_SLEEPS = 100  # times as many quick looks for a large message, which moves only at a look


@dataclass(slots=True)
class Traffic:
    """What one rank moved for one purpose; payload only.

    For b bytes in all, o of them this rank's, on N ranks: `all_gather_rows` sends (N - 1) o and
    receives b - o, `reduce_scatter_rows` the other way round.  `all_reduce` does both, on N parts
    that differ by one element at most: 2 b (N - 1) / N each way if they are equal.
    `all_to_all_rows` sends and receives all but what a rank gives itself; a message to one rank
    counts where it is sent and where it is received.  `gather_objects` and `broadcast_bytes` gather
    8 bytes a rank, then the data.
    """

    calls: int = 0
    sent: int = 0
    received: int = 0


class Pending:
    """A tensor on its way: `wait` gives it, once it is there."""

    def __init__(self, tensor: Tensor, wait: Callable[[], object]) -> None:
        self._tensor = tensor
        self._wait: Callable[[], object] | None = wait

    def wait(self) -> Tensor:
        """The tensor, whole; a second call gives it again."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        return self._tensor


class Comm(ABC):
    """The ranks of a job, seen from one of them; every rank must make the same calls in turn."""

    def __init__(self, rank: int, size: int, waits: Waits | None = None) -> None:
        self.rank = rank
        self.size = size
        self.bytes: dict[str, Traffic] = {}
        self._waits = waits
        self._calls = 0

    @property
    def name(self) -> str:
        """What a log line of this rank begins with: `rank 2 of 4`."""
        return f"rank {self.rank} of {self.size}"

    @property
    def shares_memory(self) -> bool:
        """Whether small messages to all ranks go through memory that all of them see."""
        return False

    def all_reduce(self, tensor: Tensor, purpose: str) -> Tensor:
        """The same tensor, now the sum over the ranks; it must be contiguous."""
        if not tensor.is_contiguous():
            raise ValueError(f"`tensor` must be contiguous: got strides {tensor.stride()}")
        if self.size == 1:
            self._count(purpose, 0, 0)
            return tensor
        flat = tensor.detach().view(-1)
        sizes = parts(len(flat), self.size)
        own = self.reduce_scatter_rows(flat, sizes, purpose)
        self._gather_into(flat, own, sizes, purpose)
        return tensor

    def all_gather_rows(self, own: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
        """The rows of all ranks (sum of `sizes`, ...), of which this one gave `sizes[rank]`."""
        if len(sizes) != self.size or len(own) != sizes[self.rank]:
            raise ValueError(
                f"`sizes` must give the rows of each of {self.size} ranks, {len(own)} of them "
                f"on rank {self.rank}: got {list(sizes)}"
            )
        whole = own.new_empty((sum(sizes), *own.shape[1:]))
        self._gather_into(whole, own.detach(), sizes, purpose)
        return whole

    def reduce_scatter_rows(self, whole: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
        """This rank's rows of the sum over the ranks: the adjoint of `all_gather_rows`."""
        if len(sizes) != self.size or len(whole) != sum(sizes):
            raise ValueError(
                f"`sizes` must cut {len(whole)} rows for {self.size} ranks: got {list(sizes)}"
            )
        whole = whole.detach().contiguous()
        found = whole.new_empty((self.size, sizes[self.rank], *whole.shape[1:]))
        row = _row_bytes(whole)
        own = sizes[self.rank] * row
        self._count(purpose, sum(sizes) * row - own, (self.size - 1) * own)
        counts = [size * row for size in sizes]
        self._scatter(_as_bytes(whole), counts, _as_bytes(found), self._label(purpose))
        total = found[0]
        for other in found[1:]:
            total += other
        return total

    def all_to_all_rows(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> Tensor:
        """The rows that the ranks sent to this one, in rank order: `received[r]` from rank r.

        Of `rows`, the first `sent[0]` go to rank 0, the next `sent[1]` to rank 1, and so on.
        """
        return self.start_all_to_all(rows, sent, received, purpose).wait()

    def start_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> Pending:
        """`all_to_all_rows` begun; every rank must begin the same exchanges in the same order."""
        whole, found = self._prepare(rows, sent, received, purpose)
        out, back, label = _scaled(sent, whole), _scaled(received, whole), self._label(purpose)
        wait = self._start_exchange(_as_bytes(whole), out, _as_bytes(found), back, label)
        return Pending(found, wait)

    def _prepare(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], purpose: str
    ) -> tuple[Tensor, Tensor]:
        """The rows as they are sent, and room for those that come; both are counted."""
        if not len(sent) == len(received) == self.size or sum(sent) != len(rows):
            raise ValueError(
                f"`sent` must cut {len(rows)} rows for {self.size} ranks and `received` give as "
                f"many counts: got {list(sent)} and {list(received)}"
            )
        whole = rows.detach().contiguous()
        found = whole.new_empty((sum(received), *whole.shape[1:]))
        row, own = _row_bytes(whole), self.rank
        self._count(purpose, (len(whole) - sent[own]) * row, (len(found) - received[own]) * row)
        return whole, found

    def start_send(self, rows: Tensor, to: int, purpose: str, tag: int = 0) -> Pending:
        """Sends a tensor to another rank, which must `start_receive` it with the same tag."""
        rows = rows.detach().contiguous()
        self._count(purpose, rows.numel() * rows.element_size(), 0)
        label = f"`{purpose}` (to rank {to})"
        return Pending(rows, self._start_send(_as_bytes(rows), to, tag, label))

    def start_receive(
        self, shape: Sequence[int], dtype: torch.dtype, source: int, purpose: str, tag: int = 0
    ) -> Pending:
        """The tensor that rank `source` sends; messages of one tag arrive in order."""
        found = torch.empty(tuple(shape), dtype=dtype)
        self._count(purpose, 0, found.numel() * found.element_size())
        label = f"`{purpose}` (from rank {source})"
        wait = self._start_receive(_as_bytes(found), source, tag, label)
        return Pending(found, wait)

    def group(self, color: int) -> Comm:
        """The ranks that gave the same `color`, in their order, as ranks of their own.

        Every rank must call it.  What a group moves is counted in the ledger of the whole job.
        """
        colors = self.gather_objects(color, "groups")
        members = [rank for rank, other in enumerate(colors) if other == color]
        part = self._group(members, colors)
        part.bytes = self.bytes
        return part

    def gather_objects(self, value: Any, purpose: str) -> list[Any]:
        """The values of all ranks, in their order; anything that JSON can hold."""
        given = json.dumps(value).encode()
        return [json.loads(found) for found in self._gather_bytes(given, purpose)]

    def broadcast_bytes(self, data: bytes | None, purpose: str, root: int = 0) -> bytes:
        """The bytes that rank `root` gave; what the others give is not looked at."""
        given = data if self.rank == root and data is not None else b""
        return self._gather_bytes(given, purpose)[root]

    def barrier(self, purpose: str = "barrier") -> None:
        """Returns when every rank has come here."""
        self._gather_bytes(b"", purpose)

    def _gather_bytes(self, given: bytes, purpose: str) -> list[bytes]:
        length = torch.tensor([len(given)])
        sizes = self.all_gather_rows(length, [1] * self.size, purpose).tolist()
        own = torch.from_numpy(np.frombuffer(bytearray(given), np.uint8))
        whole = self.all_gather_rows(own, sizes, purpose).numpy()
        ends = list(accumulate(sizes))
        return [whole[end - n : end].tobytes() for n, end in zip(sizes, ends, strict=True)]

    def _gather_into(self, whole: Tensor, own: Tensor, sizes: Sequence[int], purpose: str) -> None:
        row = _row_bytes(whole)
        mine = sizes[self.rank] * row
        self._count(purpose, (self.size - 1) * mine, sum(sizes) * row - mine)
        counts = [size * row for size in sizes]
        self._gather(_as_bytes(own.contiguous()), _as_bytes(whole), counts, self._label(purpose))

    def _count(self, purpose: str, sent: int, received: int) -> None:
        traffic = self.bytes.setdefault(purpose, Traffic())
        traffic.calls += 1
        traffic.sent += sent
        traffic.received += received

    def _label(self, purpose: str) -> str:
        """The same on all ranks, if they make the same calls."""
        self._calls += 1
        return f"`{purpose}` (exchange {self._calls})"

    def _wait(self, done: Callable[[], bool], label: str, turns: float = TURNS) -> None:
        """Looks until it is done: in quick `turns` at first, then with ever longer sleeps."""
        slept, pause, told, turn = 0.0, FIRST_PAUSE, False, 0
        while not done():
            turn += 1
            if turn < turns:
                os.sched_yield()
                continue
            sleep(pause)
            slept, pause = slept + pause, min(1.2 * pause, LONGEST_PAUSE)
            if slept > TOLD_AFTER and not told and self._waits is not None:
                told = True
                self._waits(label)
        if told and self._waits is not None:
            self._waits("")

    @abstractmethod
    def _gather(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        """Fills `whole` with the bytes of all ranks, `counts` of each."""

    @abstractmethod
    def _scatter(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        """Sends `counts[r]` of the bytes of `whole` to rank r; fills `found` in rank order.

        `counts` are the same on all ranks.
        """

    @abstractmethod
    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        """Begins to send `sent[r]` of the bytes of `whole` to rank r, and to fill `found` with

        the `received[r]` from it, in rank order; the answer waits for the end of both.
        """

    def _start_send(self, data: Tensor, to: int, tag: int, label: str) -> Callable[[], object]:
        """Begins to send bytes to a rank; the answer waits until `data` may be changed."""
        raise ValueError(f"{label}: one rank alone has none to send to: got rank {to}")

    def _start_receive(
        self, data: Tensor, source: int, tag: int, label: str
    ) -> Callable[[], object]:
        """Begins to fill `data` with the bytes that a rank sends; the answer waits for them."""
        raise ValueError(f"{label}: one rank alone has none to receive from: got rank {source}")

    def _group(self, members: list[int], colors: list[int]) -> Comm:
        """These ranks as a `Comm` of their own; `colors` says which groups there are."""
        return Alone()

    @abstractmethod
    def abort(self, code: int) -> None:
        """Ends this process at once, and with it the job."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what the ranks share."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Ranks that end well end together: one that waits in MPI's own end would burn a core."""
        if kind is None:
            self.barrier("end")
            self.close()


class Alone(Comm):
    """The one rank of a job without others."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _gather(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        whole.copy_(own)

    def _scatter(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        found.copy_(whole)

    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        found.copy_(whole)
        return lambda: None

    def abort(self, code: int) -> None:
        os._exit(code)

    def close(self) -> None:
        """Nothing is shared."""


ALONE = Alone()


class Linked(Comm):
    """Ranks that are linked by messages, and on one host by memory; abstract in the messages."""

    _board: Blackboard | None = None

    @property
    def shares_memory(self) -> bool:
        return self._board is not None

    def share_memory(self) -> None:
        """Henceforth ranks meet in memory, if all of them see the same."""
        path = create(self.size) if self.rank == 0 else ""
        try:
            board, path = None, str(self.gather_objects(path, "start")[0])
            with suppress(OSError):
                board = Blackboard(path, self.rank, self.size)
            names = self.gather_objects(None if board is None else board.name, "start")
        finally:
            if self.rank == 0 and path:
                os.unlink(path)
        if board is not None and set(names) == {board.name}:
            self._board = board

    def _gather(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        board = self._board_for(whole, max(counts))
        if board is None:
            self._send_to_all(own, whole, counts, label)
            return
        mine, found, start = own.numpy(), whole.numpy(), 0
        board.post(label, (0, mine))
        self._meet(board, label)
        for rank, count in enumerate(counts):
            stop = start + count
            found[start:stop] = mine if rank == self.rank else board.read(rank, 0, count)
            start = stop

    def _scatter(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        board = self._board_for(whole, len(whole))
        if board is None:
            self._send_each(whole, counts, found, label)
            return
        given, parts = whole.numpy(), found.numpy().reshape(self.size, -1)
        own = span_of(self.rank, counts)
        board.post(label, (0, given[: own.start]), (own.stop, given[own.stop :]))
        self._meet(board, label)
        for rank, part in enumerate(parts):
            mine = rank == self.rank
            part[:] = given[own] if mine else board.read(rank, own.start, counts[self.rank])

    def _board_for(self, data: Tensor, num_bytes: int) -> Blackboard | None:
        """The memory to meet in, if there is room for so many bytes of this data from a rank."""
        board = self._board
        fits = board is not None and data.device.type == "cpu" and num_bytes <= board.room
        return board if fits else None

    def _meet(self, board: Blackboard, label: str) -> None:
        """Waits until all ranks have come to this exchange; messages under way move on."""
        for rank in range(self.size):
            if not board.is_there(rank):
                self._wait(lambda other=rank: board.is_there(other) or self._move(), label)  # type: ignore[misc]
        own = board.name_of(self.rank)
        for rank in range(self.size):
            if (other := board.name_of(rank)) != own:
                raise ValueError(
                    f"the ranks make different calls: rank {rank} is at {other}, rank {self.rank} "
                    f"at {own}; every rank must make the same calls in the same order"
                )

    def _move(self) -> bool:
        """Gives messages under way a push where they need it; always False."""
        return False

    @abstractmethod
    def _send_to_all(self, own: Tensor, whole: Tensor, counts: list[int], label: str) -> None:
        """`_gather`, by messages."""

    @abstractmethod
    def _send_each(self, whole: Tensor, counts: list[int], found: Tensor, label: str) -> None:
        """`_scatter`, by messages."""


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # why, has been said; MPI would add to it
        self._world.Abort(code)

    def close(self) -> None:
        self._world.Free()


class OverTorch(Linked):
    """Ranks that talk through torch.distributed: gloo for the CPU, nccl for CUDA."""

    def __init__(
        self, rank: int, size: int, store: Any, *, cuda: bool = False, waits: Waits | None = None
    ) -> None:
        from torch import distributed

        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
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
        if not data.is_cuda:  # there the stream waits, and this process need not
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

    >>> connect({}).size
    1
    """
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        if size == 1:
            return Alone()
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        is_master = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = TCPStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), size, is_master)
        return _sharing(OverTorch(rank, size, store, cuda=device.startswith("cuda"), waits=waits))
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
    if over == "torch" or device.startswith("cuda"):
        return _sharing(_torch_over(comm, cuda=device.startswith("cuda"), waits=waits))
    return _sharing(comm)


def _sharing(comm: Linked) -> Linked:
    comm.share_memory()
    return comm


def _torch_over(mpi: OverMPI, *, cuda: bool, waits: Waits | None) -> OverTorch:
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
    return OverTorch(mpi.rank, mpi.size, store, cuda=cuda, waits=waits)


def gather_rows(comm: Comm, own: Tensor, sizes: Sequence[int], purpose: str) -> Tensor:
    """`all_gather_rows` with gradients: those of a row are summed over the ranks that used it.

    Its backward is an exchange too, so every rank must reach it.
    """
    if comm.size == 1:
        return own
    gathered: Tensor = _GatherRows.apply(own, comm, tuple(sizes), purpose)  # type: ignore[no-untyped-call]
    return gathered


class _GatherRows(torch.autograd.Function):
    """x -> A x, where A gathers the rows of all ranks; backward y -> A^T y."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, comm: Comm, sizes: tuple[int, ...], purpose: str) -> Tensor:
        ctx.how = comm, sizes, purpose
        return comm.all_gather_rows(own, sizes, purpose)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        comm, sizes, purpose = ctx.how
        return comm.reduce_scatter_rows(grads[0], sizes, f"{purpose}, gradients"), None, None, None


Fact = str | int | float | bool | None


def agree(comm: Comm, facts: Mapping[str, Fact]) -> None:
    """Checks that all ranks hold the same facts, say the checksum of the log and the seed.

    Raises:
        ValueError: on every rank and with the same words, if one differs from the first rank.

    >>> agree(Alone(), {"seed": 1})
    """
    everyone = comm.gather_objects(dict(facts), "facts")
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for fact in sorted(first.keys() | other.keys()):
            if json.dumps(first.get(fact)) != json.dumps(other.get(fact)):
                raise ValueError(
                    f"the ranks differ in {fact}: {first.get(fact)!r} on rank 0, "
                    f"{other.get(fact)!r} on rank {rank}; give every rank the same files, "
                    "settings and packages"
                )


def parts(length: int, count: int) -> list[int]:
    """`count` parts of a length, as even as can be.

    >>> parts(10, 4)
    [3, 3, 2, 2]
    """
    return [length // count + (part < length % count) for part in range(count)]


def span_of(rank: int, sizes: Sequence[int]) -> slice:
    """Where a rank's rows stand among those of all, of which each has `sizes[rank]`.

    >>> span_of(1, [2, 3])
    slice(2, 5, None)
    """
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def _scaled(counts: Sequence[int], rows: Tensor) -> list[int]:
    """Rows as bytes."""
    return [count * _row_bytes(rows) for count in counts]


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * rows.shape[1:].numel()


def _as_bytes(tensor: Tensor) -> Tensor:
    if not tensor.numel():  # numpy's empty arrays have strides that torch does not view as bytes
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.view(-1).view(torch.uint8)


def _array(data: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The same bytes as MPI takes them."""
    if data.device.type != "cpu":
        raise ValueError(
            f"MPI carries tensors of the CPU only: got one on {data.device}; "
            "`connect` with that device"
        )
    return data.numpy()
