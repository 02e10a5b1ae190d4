"""Backends by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ...storage.snapshot import Snapshot
from ...stream.errors import did_you_mean, unknown_name
from ..ranks import ALONE, Comm
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

_LOOSE = ConfigDict(arbitrary_types_allowed=True)

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
        raise unknown_name("backend", name, BACKENDS)
    module, kind = _HOMES[name]
    found: type[Propagator] = getattr(import_module(f".{module}", __package__), kind)
    known = _options_of(found)
    for option, value in options.items():
        if option not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            hint = did_you_mean(option, known, otherwise=has)
            raise ValueError(f"backend {name!r} has no option {option!r}: {hint}")
        if not isinstance(value, bool | int | float | str):
            continue  # what a caller has made
        try:
            TypeAdapter(known[option], config=_LOOSE).validate_python(value, strict=True)
        except ValidationError as error:
            wanted = str(error.errors()[0]["msg"]).removeprefix("Input should be ")
            raise ValueError(
                f"option {option!r} of backend {name!r} must be {wanted}: got {value!r}"
            ) from None
    return found.of(snapshots, comm, **options)


def _options_of(backend: type[Propagator]) -> dict[str, Any]:
    """The options of a backend and their types."""
    return {
        name: get_type_hints(function)[name]
        for function in (backend.__init__, backend.of)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
