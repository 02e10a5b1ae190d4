"""Ranks: how many processes work on one job, and what they tell each other.

A few operations are left to those that link ranks (`comm.py`): to gather the bytes of all, to send
each its own, to send to one, and to part into groups.  All else is built on these here.  Sums are
taken in the order of the ranks, so every rank gets the same bits, whatever carries them.  A rank
that waits sleeps, so more ranks than cores are no harm.  One rank alone is the reference.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import sleep
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .spans import parts

Waits = Callable[[str], object]

TURNS = 1000  # looks at a pending operation before the first sleep: some 1 ms
FIRST_PAUSE, LONGEST_PAUSE = 2e-5, 1e-3  # seconds
TOLD_AFTER = 1.0  # seconds of waiting after which `waits` is told


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


def _scaled(counts: Sequence[int], rows: Tensor) -> list[int]:
    """Rows as bytes."""
    return [count * _row_bytes(rows) for count in counts]


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * rows.shape[1:].numel()


def _as_bytes(tensor: Tensor) -> Tensor:
    if not tensor.numel():  # numpy's empty arrays have strides that torch does not view as bytes
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.view(-1).view(torch.uint8)
