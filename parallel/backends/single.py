"""The reference: one process holds every row."""

from __future__ import annotations

from torch import Tensor

from ...storage.snapshot import Snapshot
from ...storage.sparse import Normalisation
from ..ranks import ALONE, Comm
from .ownership import Ownership
from .propagator import Propagator
from .sparse import attend, heads_of, multiply


class SinglePropagator(Propagator):
    """All rows on one process; nothing travels."""

    name = "single"

    def __init__(self, ownership: Ownership, comm: Comm = ALONE) -> None:
        super().__init__(ownership, comm)
        if comm.size > 1:
            raise ValueError(f"backend `single` runs on one rank: got {comm.size}; choose another")

    def apply(
        self, snapshot: Snapshot, x: Tensor, how: Normalisation = "gcn", *, hop: int = 0
    ) -> Tensor:
        """A x: (V, d) -> (V, d)."""
        self.check(snapshot)
        return multiply(snapshot.matrix(how), x)

    def attend(
        self, snapshot: Snapshot, z: Tensor, receiver: Tensor, sender: Tensor, *, hop: int = 0
    ) -> Tensor:
        """Additive attention: (V, h, d) -> (V, h, d)."""
        self.check(snapshot)
        heads = heads_of(z.shape[1], z.shape[2])
        found = attend(snapshot.matrix("loops"), z.flatten(1), receiver, sender, heads)
        return found.view(z.shape)
