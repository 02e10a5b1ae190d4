"""Ranks that are linked by messages, and on one host by memory.

What ranks of one host tell each other at one moment goes through memory that they share, if it is
not too much; all else goes by messages, which `comm.py` carries.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import suppress

from torch import Tensor

from .blackboard import Blackboard, create
from .ranks import Comm
from .spans import span_of


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
