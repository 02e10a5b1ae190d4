"""Watches a model's methods while an executor calls them: what they return, and what they touch.

A method is a pure function of its arguments and the parameters.  What breaks that, or has another
form than the API says, is told in one sentence that names the method, the place and the cure.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import torch
from torch import Tensor

from ...models import DynamicGNN, Written
from .attributes import Kept, changed, remember
from .views import each, tensors, what_counts

ARGUMENTS = {
    "encode": ("events",),
    "derive": ("states",),
    "message": ("level",),
    "renew": ("states", "message"),
    "update": ("level",),
    "embed": ("events", "nodes"),
    "loss": ("events", "src", "dst", "other_src", "other_dst"),
    "score": ("events", "src", "dst"),
    "expected_idle": ("events", "src", "dst"),
}
"""The methods that executors call, and their arguments."""

METHODS = frozenset(ARGUMENTS)


class Broken(Exception):
    """A method raised, or returned what no executor can use; nothing more can be tried."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method, with copies of what it was given, to be tried again."""

    method: str
    args: tuple[Any, ...]
    counts: dict[str, Tensor]  # what counts of the result
    rows: int


class Watch:
    """A model whose methods are watched; `where` says what is being run."""

    def __init__(self, model: DynamicGNN, dtype: torch.dtype, device: torch.device) -> None:
        self.model, self.dtype, self.device = model, dtype, device
        self.where = ""
        self.impure: dict[str, str] = {}  # what was touched, and what to say of it
        self.bad_values: dict[str, str] = {}
        self.largest: dict[str, Call] = {}  # by method, that of the most events
        self.padded: dict[tuple[str, str], Call] = {}  # by mask too, where it leaves out most
        self._hidden: dict[tuple[str, str], int] = {}
        self._depth = 0
        self._kept: Kept | None = None
        self.plain = {name: getattr(model, name) for name in ARGUMENTS}
        for name, method in self.plain.items():
            setattr(model, name, self._watched(name, method))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            given = (*args, *(named[key] for key in ARGUMENTS[name] if key in named))
            before = list(_inputs(name, given))
            copies = [tensor.detach().clone() for _, tensor in before]
            versions = [tensor._version for _, tensor in before]
            inside = self._depth > 0  # between two calls from outside nothing of it changes
            kept = remember(self.model, METHODS) if inside or self._kept is None else self._kept
            drawn = torch.get_rng_state()
            rows = next((len(tensor) for _, tensor in before), 0)
            is_largest = name not in self.largest or rows > self.largest[name].rows
            hidden = {
                path: int((~tensor).sum())
                for path, tensor in before
                if path.endswith((".mask", "_mask", ".valid"))
            }
            more = [path for path, n in hidden.items() if n > self._hidden.get((name, path), 0)]
            kept_args: tuple[Any, ...] = ()
            if is_largest or more:
                kept_args = each(given, lambda tensor: tensor.detach().clone())
            self._depth += 1
            with self._explained(name):
                result = method(*given)
            self._depth -= 1
            for (path, tensor), copy, version in zip(before, copies, versions, strict=True):
                if tensor._version != version or not _same_bits(tensor.detach(), copy):
                    self._blame(
                        *(f"{name} {path}", f"`{name}` changes `{path}` in place"),
                        "it belongs to the executor and others read it: make a new tensor "
                        "(`x = x + y` for `x += y`, `masked_fill` for `masked_fill_`)",
                    )
            self._kept = remember(self.model, METHODS)
            for path in changed(kept, self._kept):
                self._blame(
                    *(path, f"`{name}` changes `self.{path}`"),
                    "a model keeps nothing between calls, since executors call it in other orders "
                    "and go back in time: keep what a node must remember in `tables`",
                )
            if not torch.equal(drawn, torch.get_rng_state()):
                self._blame(
                    *(f"{name} rng", f"`{name}` draws random numbers from torch's generator"),
                    "no two executors draw the same: ask for `reads.noise`, and set dropout to 0",
                )
            check_result(self.model, name, given, result, self.dtype, self.device, self.where)
            counts = what_counts(name, given, result)
            self._check_values(name, counts)
            counts = {key: value.detach().clone() for key, value in counts.items()}
            if is_largest:
                self.largest[name] = Call(name, kept_args, counts, rows)
            for path in more:
                self.padded[name, path] = Call(name, kept_args, counts, rows)
                self._hidden[name, path] = hidden[path]
            return result

        return call

    def _blame(self, key: str, what: str, cure: str) -> None:
        if key not in self.impure:
            self.impure[key] = f"{what} ({self.where}); {cure}"

    def _check_values(self, name: str, counts: Mapping[str, Tensor]) -> None:
        for part, values in counts.items():
            if name in self.bad_values or not values.is_floating_point():
                continue
            odd = ~torch.isfinite(values)
            if odd.any():
                at = torch.nonzero(odd)[0].tolist()
                self.bad_values[name] = (
                    f"`{name}` gives {float(values[tuple(at)])} in {_the(part)} at {at} "
                    f"({self.where}): keep logarithms, roots and quotients away from 0, also "
                    "where there is no neighbour"
                )

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except Broken:
            raise
        except Exception as error:
            raise Broken(
                f"`{name}` raised {type(error).__name__}: {error}{place_of(error, self.model)} "
                f"({self.where}){cure_of(error)}"
            ) from error


def _inputs(name: str, given: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    for argument, value in zip(ARGUMENTS[name], given, strict=False):
        yield from tensors(value, argument)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _the(part: str) -> str:
    return f"`{part}`" if part else "its result"


def place_of(error: BaseException, model: DynamicGNN) -> str:
    """The line of the model's own file at which it went wrong, if any."""
    try:
        own = inspect.getsourcefile(type(model))
    except (OSError, TypeError):
        own = None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f", line {frames[-1].lineno} of {own}" if frames else ""


def cure_of(error: BaseException) -> str:
    """What usually helps against an error of this kind, as the end of a sentence."""
    text = str(error).lower()
    if isinstance(error, KeyError):
        return (
            ": a model is shown the tables that `reads` names, and finds of `encode` what that "
            "returned: name it there"
        )
    if isinstance(error, FrozenInstanceError):
        return ": what a model is shown is read only; make a new tensor"
    if isinstance(error, AttributeError) and "nonetype" in text:
        return (
            ": `links`, `near`, `members`, `noise` and `around` are there only if `link_tables`, "
            "`writes` or `reads` ask for them, `weight` and `features` only if the log has them"
        )
    if "dtype" in text or "scalar type" in text:
        return (
            ": the model also runs in float32 and in float64: cast with `.to(x.dtype)` of a state "
            "or a parameter, not with `.float()`"
        )
    if "same device" in text or "on device" in text:
        return ": make tensors where the given ones are, as `x.new_zeros(...)` does"
    if isinstance(error, IndexError):
        return (
            ": an embedding of kinds needs a row for each of the log's; pass `check_model` the "
            "`log` that the model is for"
        )
    if "cannot be multiplied" in text or "size" in text or "shape" in text:
        return (
            ": the widths do not fit; if the model takes features, pass `check_model` the `log` "
            "that it is for"
        )
    if "inplace" in text or "in-place" in text:
        return ": make a new tensor where the model changes one that it was given"
    return ""


def check_result(
    model: DynamicGNN,
    method: str,
    args: tuple[Any, ...],
    result: Any,
    dtype: torch.dtype,
    device: torch.device,
    where: str,
) -> None:
    """Refuse a result of another form than the API says.

    Raises:
        Broken: if a name, a shape, a number type or a device is wrong.
    """
    wanted = dict(_expected(model, method, args, result, where))
    for name, (tensor, shape, is_state) in wanted.items():
        what = f"`{method}` returns {_the(name)}"
        if not isinstance(tensor, Tensor):
            raise Broken(f"{what} as {type(tensor).__name__} ({where}): return a tensor")
        fits = len(shape) == tensor.dim() and all(
            size in (-1, real) for size, real in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            sizes = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise Broken(
                f"{what} of shape {tuple(tensor.shape)} ({where}): it must be ({sizes})"
                f"{_meaning(method, name)}"
            )
        if is_state and tensor.dtype != dtype:
            raise Broken(
                f"{what} as {tensor.dtype} in a run with {dtype} ({where}): make tensors with "
                "`dtype=x.dtype` of a state or a parameter, or as `x.new_tensor(...)`"
            )
        if tensor.device.type != device.type:
            raise Broken(
                f"{what} on {tensor.device} in a run on {device} ({where}): make tensors where "
                "the given ones are, as `x.new_zeros(...)` does"
            )


def _meaning(method: str, name: str) -> str:
    if method == "loss":
        return ", one loss an event: sum or mean over the negatives, not over the events"
    if method == "score":
        return ", one score for each of `dst`"
    if method == "update" and name.startswith("states"):
        return ", the width being that in `tables`"
    return ""


def _expected(
    model: DynamicGNN, method: str, args: tuple[Any, ...], result: Any, where: str
) -> Iterator[tuple[str, tuple[Any, tuple[int, ...], bool]]]:
    """By name: the tensor, its shape (-1 for any size), and whether it has the run's dtype."""
    if method == "encode":
        _demand_names(method, result, None, where)
        for name, tensor in result.items():
            rest = tensor.dim() - 1 if isinstance(tensor, Tensor) else 0
            yield f"[{name!r}]", (tensor, (len(args[0]), *(-1,) * rest), False)
    elif method in ("derive", "renew"):
        widths = model.derived if method == "derive" else model.tables
        declared = "derived" if method == "derive" else "tables"
        _demand_names(method, result, (declared, tuple(widths)), where)
        lead = next((state.shape[:-1] for state in args[0].values()), ())
        for name, width in widths.items():
            yield f"[{name!r}]", (result[name], (*lead, width), True)
    elif method == "message":
        yield "", (result, (len(args[0].kind), 2, -1), True)
    elif method == "update":
        yield from _expected_of_update(model, args[0], result, where)
    elif method == "embed":
        yield "", (result, (*args[1].gap.shape, -1), True)
    elif method == "loss":
        yield "", (result, (len(args[0]),), True)
    elif method == "score":
        shape = (args[1].gap + args[2].gap).shape
        yield "", (result, tuple(shape), True)
    elif result is not None:
        yield "", (result, (len(args[0]),), False)


def _expected_of_update(
    model: DynamicGNN, level: Any, result: Any, where: str
) -> Iterator[tuple[str, tuple[Any, tuple[int, ...], bool]]]:
    if not isinstance(result, Written):
        raise Broken(
            f"`update` returns {type(result).__name__} ({where}): return Written({{table: states}})"
        )
    _demand_names("update", result.states, ("tables", tuple(model.tables)), where)
    n, wide = len(level.kind), 2 if level.members is None else level.members.mask.shape[1]
    for name, width in model.tables.items():
        yield f"states[{name!r}]", (result.states[name], (n, wide, width), True)
    if extra := sorted(set(result.links) - set(model.link_tables)):
        raise Broken(
            f"`update` writes {extra[0]!r} of links, which is not in `link_tables` "
            f"{tuple(model.link_tables)} ({where}): declare it there, or leave it out"
        )
    for name, values in result.links.items():
        yield f"links[{name!r}]", (values, tuple(level.mask.shape), True)
    if result.penalty is not None:
        yield "penalty", (result.penalty, (n,), True)


def _demand_names(
    method: str, result: Any, declared: tuple[str, tuple[str, ...]] | None, where: str
) -> None:
    if not isinstance(result, Mapping):
        raise Broken(
            f"`{method}` returns {type(result).__name__} ({where}): return a dictionary of tensors"
        )
    if declared is None:
        return
    field, names = declared
    if extra := sorted(set(result) - set(names)):
        raise Broken(
            f"`{method}` writes {extra[0]!r}, which is not in `{field}` {names} ({where}): "
            "declare it there with its width, or leave it out"
        )
    if missing := sorted(set(names) - set(result)):
        raise Broken(
            f"`{method}` leaves out {missing[0]!r} of `{field}` {names} ({where}): return every "
            "one, as it was read if it does not change"
        )
