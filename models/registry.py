"""The models in the box, built by name with options of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..stream.errors import did_you_mean, unknown_name
from .base import DynamicGNN
from .dygnn import DyGNN
from .dyrep import DyRep
from .jodie import JODIE
from .ldg import LDG
from .tgn import TGN

MODELS: Mapping[str, Callable[..., DynamicGNN]] = MappingProxyType(
    {"dygnn": DyGNN, "dyrep": DyRep, "jodie": JODIE, "ldg": LDG, "tgn": TGN}
)

RUN_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"dyrep": {"intensity": "bilinear", "drift": True}, "ldg": {"drift": True}}
)
"""Options that runs take unless told otherwise; a class's own defaults are the published ones.

DyRep's linear intensity stops telling nodes apart, and without a drift neither of the two knows who
has rested for how long.
"""

_GIVEN = frozenset({"self", "width", "kinds", "num_features", "num_negatives"})


def options_of(name: str) -> dict[str, Any]:
    """The options of a model with their defaults.

    Raises:
        ValueError: if there is no such model.
    """
    found = inspect.signature(_class_of(name)).parameters.values()
    defaults = {p.name: p.default for p in found if p.name not in _GIVEN}
    return defaults | dict(RUN_OPTIONS.get(name, {}))


def build(
    name: str,
    *,
    width: int,
    kinds: Sequence[str],
    num_features: int = 0,
    negatives: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> DynamicGNN:
    """The model of this name for a log with these `kinds` of events.

    `negatives` of None leaves the model's own number of corrupted ends.

    >>> build("dyrep", width=8, kinds=("event",), options={"intensity": "linear"}).num_negatives
    5

    Raises:
        ValueError: if the model or an option is unknown, or a value is of another type or refused.
    """
    known, given = options_of(name), dict(options or {})
    hints = get_type_hints(_class_of(name).__init__)
    for option, value in given.items():
        if option not in known:
            hint = did_you_mean(option, known, otherwise=f"it has {sorted(known)}")
            raise ValueError(f"model {name!r} has no option {option!r}: {hint}")
        if get_origin(hints[option]) is Sequence and isinstance(value, str):
            given[option] = value = [part.strip() for part in value.split(",")]
        try:
            TypeAdapter(hints[option]).validate_python(value, strict=not isinstance(value, list))
        except ValidationError as error:
            wanted = str(error.errors()[0]["msg"]).removeprefix("Input should be ")
            raise ValueError(
                f"option {option!r} of model {name!r} must be {wanted}: got {value!r}"
            ) from None
    model = _class_of(name)
    accepted = inspect.signature(model).parameters
    shared: dict[str, Any] = {"width": width, "kinds": tuple(kinds), "num_features": num_features}
    if negatives is not None:
        shared["num_negatives"] = negatives
    shared = {key: value for key, value in shared.items() if key in accepted}
    return model(**shared, **dict(RUN_OPTIONS.get(name, {})) | given)


def _class_of(name: str) -> Callable[..., DynamicGNN]:
    if name not in MODELS:
        raise unknown_name("model", name, sorted(MODELS))
    return MODELS[name]
