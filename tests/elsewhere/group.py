"""Ranks whose tensors are elsewhere: they travel by way of the CPU, over gloo."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from neutronstream.parallel import comm

from . import NAME


class ByTheCpu(comm.OverTorch):
    """torch.distributed, no part of which carries such tensors, for these too."""

    def _start_exchange(
        self, whole: Tensor, sent: list[int], found: Tensor, received: list[int], label: str
    ) -> Callable[[], object]:
        here = found.cpu()
        finish = super()._start_exchange(whole.cpu(), sent, here, received, label)
        return lambda: (finish(), found.copy_(here))


def register() -> None:
    """Henceforth `connect(..., device="elsewhere")` links ranks."""
    comm.BACKENDS[NAME] = comm.BACKENDS["cpu"]
    vars(comm)["OverTorch"] = ByTheCpu
