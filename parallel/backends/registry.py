"""Backends by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ...storage.snapshot import Snapshot
from ...stream.errors import did_you_mean
from ..comm import ALONE, Comm
from .propagator import Propagator

_HOMES = {
    "single": ("single", "SinglePropagator"),
    "tensor": ("tensor", "TensorPropagator"),
    "task": ("task", "TaskPropagator"),
    "halo": ("halo", "HaloPropagator"),
    "broadcast": ("broadcast", "BroadcastPropagator"),
    "hetero": ("hetero", "HeteroPropagator"),
    "lazy": ("lazy", "LazyPropagator"),
}

BACKENDS = tuple(_HOMES)
"""The names that `make_propagator` knows."""


def make_propagator(
    name: str, snapshots: Sequence[Snapshot], comm: Comm = ALONE, **options: Any
) -> Propagator:
    """The backend of that name for these snapshots, on the ranks of `comm`.

    Raises:
        ValueError: if the name or an option is unknown, or the backend cannot run on so many
            ranks.
    """
    if name not in _HOMES:
        raise ValueError(f"`backend` must be one of {', '.join(BACKENDS)}: got {name!r}")
    module, kind = _HOMES[name]
    found: type[Propagator] = getattr(import_module(f".{module}", __package__), kind)
    known = sorted(options_of(found))
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, otherwise=f"it has {known}")
            raise ValueError(f"backend {name!r} has no option {option!r}: {hint}")
    return found.of(snapshots, comm, **options)


def options_of(backend: type[Propagator]) -> set[str]:
    """The names of a backend's options."""
    takes = (backend.of, backend.__init__)
    return {
        name
        for function in takes
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
