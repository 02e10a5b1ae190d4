"""What a model keeps outside its parameters and buffers, and what of it changes.

Invariant: every value is named by the path under which a user would write it, such as
`cells[0].scale`; what PyTorch registers is left to PyTorch.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

INTERNAL = frozenset(vars(nn.Module()))  # where PyTorch itself keeps things
MOST = 10_000  # values looked at; more than that is data, not a model

Kept = dict[str, tuple[Any, Any]]
"""By path, the value and what is needed to see whether it has changed."""


def attributes(model: nn.Module, skip: Set[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Paths and values of all that a model and its layers keep in plain attributes.

    Lists, dictionaries, objects and closures are looked into; `skip` are names on the model itself.
    """
    registered = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
    budget = iter(range(MOST))
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in INTERNAL and not (module is model and name in skip):
                path = f"{place}.{name}" if place else name
                yield from _inside(path, value, registered, budget)


def _inside(
    path: str, value: Any, seen: set[int], budget: Iterator[int]
) -> Iterator[tuple[str, Any]]:
    if _is_plain(value):
        yield path, value
        return
    if id(value) in seen or next(budget, None) is None:
        return
    seen.add(id(value))
    parts: Sequence[tuple[str, Any]] = ()
    if isinstance(value, nn.Module):
        yield path, value
        parts = [(f"{path}.{n}", m) for n, m in value.named_children()]
        parts += [(f"{path}.{n}", t) for n, t in vars(value).items() if n not in INTERNAL]
        parts += [(f"{path}.{n}", t) for n, t in value.named_buffers(recurse=False)]
        parts += [(f"{path}.{n}", t) for n, t in value.named_parameters(recurse=False)]
    elif isinstance(value, Mapping):
        parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, Sequence | Set) or type(value).__name__ == "deque":
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value)]
    elif isinstance(value, functools.partial):
        parts = [(f"{path}.func", value.func), (f"{path}.args", value.args)]
        parts += [(f"{path}.keywords", value.keywords)]
    elif isinstance(value, MethodType):
        parts = [(path, value.__self__)]
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts = [(f"{path}, {name}", cell.cell_contents) for name, cell in cells]
    elif hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        parts = [(f"{path}.{name}", part) for name, part in vars(value).items()]
    if not parts:
        yield path, value
    for place, part in parts:
        yield from _inside(place, part, seen, budget)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def unregistered(model: nn.Module) -> list[str]:
    """What of a model its `parameters()`, checkpoints and `.to(...)` do not see, and the cure."""
    known = {id(each) for each in (*model.parameters(), *model.buffers())}
    found: list[str] = []
    covered: list[str] = []
    for path, value in attributes(model):
        if any(path.startswith(f"{other}.") for other in covered):
            continue
        if isinstance(value, nn.Module) and any(True for _ in value.parameters()):
            covered.append(path)
            count = sum(1 for _ in value.parameters())
            found.append(
                f"`{path}` is a {type(value).__name__} kept where PyTorch does not look: its "
                f"{count} parameters are neither learned nor saved; set layers as attributes of "
                "the model, or keep them in nn.ModuleList or nn.ModuleDict"
            )
        elif not isinstance(value, Tensor) or id(value) in known:
            continue
        elif value.requires_grad and value.is_leaf:
            found.append(
                f"`{path}` asks for a gradient, but is not in `parameters()`, so it is neither "
                "learned nor saved: make it an nn.Parameter set as an attribute of the model, or "
                "keep it in nn.ParameterList or nn.ParameterDict"
            )
        elif value.requires_grad:
            found.append(
                f"`{path}` was computed from parameters beforehand and stays what it was when "
                "they are learned: compute it in the method that uses it"
            )
        else:
            found.append(
                f"`{path}` is a plain tensor, which `.to(...)` leaves behind and checkpoints leave "
                f"out: use `register_buffer({path.split('.')[-1].split('[')[0]!r}, ...)`"
            )
    return found


def remember(model: nn.Module, skip: Set[str] = frozenset()) -> Kept:
    """What the model keeps now, to be compared later: attributes, buffers and parameters."""
    kept: Kept = {}
    for path, value in attributes(model, skip):
        kept[path] = value, _print_of(value)
    for path, tensor in (*model.named_buffers(), *model.named_parameters()):
        kept[path] = tensor, _print_of(tensor)
    return kept


def changed(before: Kept, after: Kept) -> list[str]:
    """The attributes whose value is another one than before, each once."""
    paths = [path for path in (*before, *after) if not _is_same(before.get(path), after.get(path))]
    return list(dict.fromkeys(path.split("[")[0] for path in paths))


def _print_of(value: Any) -> Any:
    """What changes when the value does."""
    if isinstance(value, Tensor):
        return value._version
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return value if _is_plain(value) else id(value)


def _is_same(before: tuple[Any, Any] | None, after: tuple[Any, Any] | None) -> bool:
    if before is None or after is None:
        return False
    (old, old_print), (new, new_print) = before, after
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        if old is new:
            return bool(old_print == new_print)
        return old.shape == new.shape and old.dtype == new.dtype and torch.equal(old, new)
    if isinstance(old_print, Tensor) and isinstance(new_print, Tensor):
        return torch.equal(old_print, new_print)
    if isinstance(old_print, np.ndarray) and isinstance(new_print, np.ndarray):
        return np.array_equal(old_print, new_print)
    return type(old) is type(new) and bool(old_print == new_print)
