"""Backends move what they were chosen by; see `run.py`."""

from __future__ import annotations

import torch

from neutronstream.parallel.backends import make_propagator
from neutronstream.parallel.backends.choose import choose
from neutronstream.parallel.ranks import Comm

from .graphs import power_law


def the_predicted_bytes_travel(comm: Comm) -> list[str]:
    snapshot = power_law(num_nodes=204)  # so that rows and columns divide by 2 and 3
    seen = []
    for estimate in choose([snapshot], comm.size, [6, 12]).estimates:
        propagator = make_propagator(estimate.backend, [snapshot], comm, **estimate.options)
        propagator.check(snapshot)
        before = sum(traffic.sent for traffic in comm.bytes.values())
        total = torch.zeros(())
        for width in (6, 12):
            x = torch.ones(len(propagator.own), width, requires_grad=True)
            total = total + propagator.apply(snapshot, x, "sum").sum()
        total.backward()  # type: ignore[no-untyped-call]
        moved = sum(traffic.sent for traffic in comm.bytes.values()) - before
        assert sum(comm.gather_objects(moved, "test")) == estimate.bytes, estimate
        seen.append(estimate.label)
    return seen


PROMISES = (the_predicted_bytes_travel,)
