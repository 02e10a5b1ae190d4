"""The one door through which anything of a rank's data goes out, and the book of what went.

Invariant: what is not allowed by name does not leave.  A message has a purpose; the purpose says
of which type it is, which shape, and, for rows, that each has an edge to the rank that it goes to.
Interior rows, labels, masks and unsummed gradients have no purpose, so they stay.  That is data
residency, not privacy: outputs, embeddings and summed gradients tell something of what made them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from ....stream import Int64
from ...ranks import Comm, Traffic
from .part import Part

Way = Literal["raw+hidden", "hidden", "logits", "end to end"]
T = TypeVar("T")

PURPOSES = ("setup", "feature", "embed", "embed gradient", "grad", "weights", "metric", "control")
"""What the books know; `embed gradient` only end to end, `feature` not if no features leave."""

FEW = 8  # numbers at most of a metric or a count

_ROWS: dict[Way, tuple[str, ...]] = {
    "raw+hidden": ("feature", "embed"),
    "hidden": ("embed",),
    "logits": ("embed",),
    "end to end": ("feature", "embed"),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One exchange as this rank had it: ranks wait for one another at its end."""

    purpose: str
    messages: int  # that this rank sent
    sent: int  # bytes, payload


class Gate:
    """What a rank may tell the others, for one way of training."""

    def __init__(
        self,
        comm: Comm,
        part: Part,
        way: Way,
        dtype: torch.dtype,
        rounded: torch.dtype | None = None,
    ) -> None:
        if way not in get_args(Way):
            raise ValueError(f"`payload` must be one of {', '.join(_ROWS)}: got {way!r}")
        if (part.rank, part.ownership.size) != (comm.rank, comm.size):
            raise ValueError(
                f"`part` must be that of {comm.name}: got that of rank {part.rank} of "
                f"{part.ownership.size}"
            )
        self.rank, self.size, self.way, self.dtype = comm.rank, comm.size, way, dtype
        self.rounded = rounded or dtype  # of gradients on their way
        self._comm, self._part = comm, part
        self.sent = dict.fromkeys(PURPOSES, 0)  # bytes, of this rank
        self.calls = dict.fromkeys(PURPOSES, 0)
        self.phases: list[Phase] = []
        self._neighbours = [set(part.boundary.given_to(r).tolist()) for r in range(comm.size)]

    def open_boundary(self, degree: Tensor) -> Tensor:
        """The degrees of the halo, after each rank has checked what is asked of it.

        Raises:
            ValueError: if a rank asks for a node that has no edge to it, as this rank knows.
        """
        boundary, each = self._part.boundary, [1] * self.size
        asked = torch.tensor(boundary.received)
        counts = self._to_all(asked, each, each, "setup").tolist()
        halo = torch.from_numpy(boundary.halo)
        wanted = self._to_all(halo, boundary.received, counts, "setup").numpy()
        expected = self._part.own[boundary.given]
        if counts != boundary.sent or not np.array_equal(wanted, expected):
            raise ValueError(
                f"rank {self.rank} is asked for {counts} rows by the ranks, but by the edges that "
                f"it knows it shares {boundary.sent}, or other ones: an edge must be known to the "
                "owners of both of its ends"
            )
        given = torch.from_numpy(boundary.given)
        return self._to_all(degree[given], boundary.sent, boundary.received, "setup")

    def rows(self, values: Tensor, purpose: str) -> Tensor:
        """Boundary rows of own ones, for the halo's: (n, d) -> (h, d); constants, no gradient."""
        boundary = self._part.boundary
        return self.some_rows(values, boundary.given, boundary.sent, boundary.received, purpose)

    def some_rows(
        self, values: Tensor, given: Int64, sent: list[int], received: list[int], purpose: str
    ) -> Tensor:
        """Rows `given` of own ones, `sent[r]` of them to rank r, for what the others send.

        Raises:
            ValueError: if the purpose, the type or a row is not allowed to leave.
        """
        if purpose not in _ROWS[self.way]:
            raise ValueError(
                f"`purpose` must be one of {', '.join(_ROWS[self.way])} for rows with "
                f"{self.way!r}: got {purpose!r}; this does not leave the rank"
            )
        self._typed(values, self.dtype, purpose)
        if values.dim() != 2 or len(values) != len(self._part.own):
            raise ValueError(
                f"`values` must be ({len(self._part.own)}, width): got {tuple(values.shape)}"
            )
        start = 0
        for to, count in enumerate(sent):
            going = set(given[start : start + count].tolist())
            if not going <= self._neighbours[to]:
                row = min(going - self._neighbours[to])
                raise ValueError(
                    f"node {self._part.own[row]} has no edge to rank {to}: its row must not leave "
                    f"rank {self.rank}"
                )
            start += count
        going_rows = values[torch.from_numpy(given)]
        return self._to_all(going_rows, sent, received, purpose)

    def row_gradients(self, gradient: Tensor) -> Tensor:
        """Gradients of the halo's rows, summed at their owners: (h, d) -> (n, d); end to end."""
        if self.way != "end to end":
            raise ValueError(f"gradients of rows do not leave a rank with {self.way!r}")
        boundary = self._part.boundary
        back = self._to_all(gradient, boundary.received, boundary.sent, "embed gradient")
        total = back.new_zeros((len(self._part.own), *back.shape[1:]))
        total.index_add_(0, torch.from_numpy(boundary.given), back)
        return total

    def flags(self, bits: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """A byte for each boundary row: whether it is sent this time."""
        self._typed(bits, torch.uint8, "control")
        limit = self._part.boundary.sent
        if any(count > most for count, most in zip(sent, limit, strict=True)):
            raise ValueError(f"`flags` must be at most a byte a boundary row: got {sent}")
        return self._to_all(bits, sent, received, "control")

    def gradients(self, flat: Tensor, parameters: int) -> Tensor:
        """The sum over the ranks of a stage's gradients, in one message: (parameters,).

        If gradients are `rounded` they are added up in that type, too.
        """
        self._typed(flat, self.dtype, "grad")
        if flat.shape != (parameters,):
            raise ValueError(
                f"`flat` must be a gradient of {parameters} parameters: got {tuple(flat.shape)}"
            )
        return self._sum(flat.to(self.rounded), "grad").to(self.dtype)

    def metrics(self, values: Tensor) -> Tensor:
        """Sums of a few losses or counts."""
        return self._few(values, torch.float64, "metric")

    def counts(self, values: Tensor) -> Tensor:
        """Sums of a few sizes."""
        return self._few(values, torch.int64, "control")

    def weights(self, flat: Tensor) -> Tensor:
        """Rank 0's weights of a stage, on every rank: (parameters,)."""
        self._typed(flat, self.dtype, "weights")
        sizes = [len(flat)] + [0] * (self.size - 1)
        own = flat if self.rank == 0 else flat[:0]
        messages = self.size - 1 if self.rank == 0 else 0
        return self._booked(
            "weights", messages, lambda: self._comm.all_gather_rows(own, sizes, "weights")
        )

    def _few(self, values: Tensor, dtype: torch.dtype, purpose: str) -> Tensor:
        self._typed(values, dtype, purpose)
        if values.dim() != 1 or len(values) > FEW:
            raise ValueError(f"a {purpose} is {FEW} numbers at most: got {tuple(values.shape)}")
        return self._sum(values, purpose)

    def _typed(self, values: Tensor, dtype: torch.dtype, purpose: str) -> None:
        if values.dtype != dtype:
            raise ValueError(f"`{purpose}` must be {dtype}: got {values.dtype}, which stays here")
        if values.requires_grad:
            raise ValueError(f"`{purpose}` must be constants: got values with a gradient")

    def _sum(self, values: Tensor, purpose: str) -> Tensor:
        return self._booked(
            purpose, 2 * (self.size - 1), lambda: self._comm.all_reduce(values.clone(), purpose)
        )

    def _to_all(self, rows: Tensor, sent: list[int], received: list[int], purpose: str) -> Tensor:
        messages = sum(count > 0 for to, count in enumerate(sent) if to != self.rank)
        return self._booked(
            purpose, messages, lambda: self._comm.all_to_all_rows(rows, sent, received, purpose)
        )

    def _booked(self, purpose: str, messages: int, act: Callable[[], T]) -> T:
        traffic = self._comm.bytes.setdefault(purpose, Traffic())
        before = traffic.sent
        found = act()
        sent = traffic.sent - before
        self.sent[purpose] += sent
        self.calls[purpose] += 1
        self.phases.append(Phase(purpose, messages, sent))
        return found

    def everyones_phases(self) -> list[list[Phase]]:
        """The phases of all ranks; for reports, beside the books."""
        own = [[phase.purpose, phase.messages, phase.sent] for phase in self.phases]
        gathered = self._comm.gather_objects(own, "reports")
        return [[Phase(*phase) for phase in phases] for phases in gathered]

    def everyones_bytes(self) -> dict[str, int]:
        """Bytes by purpose that all ranks sent; for reports, beside the books."""
        gathered = self._comm.gather_objects(self.sent, "reports")
        return {purpose: sum(sent[purpose] for sent in gathered) for purpose in PURPOSES}
