"""Views of a model's methods, cut, padded and spoilt, and the part of a result that counts.

A method may not see more of a level than the event itself: the results of an event are the same
alone and among others, whatever stands in padding.  These are the means to try it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models import Around, Events, Level, Nodes

Change = Callable[[Tensor], Tensor]


def each(view: Any, change: Change) -> Any:
    """The view with `change` applied to every tensor in it."""
    if isinstance(view, Tensor):
        return change(view)
    if isinstance(view, Mapping):
        return {name: each(part, change) for name, part in view.items()}
    if isinstance(view, tuple | list):
        return tuple(each(part, change) for part in view)
    if is_dataclass(view) and not isinstance(view, type):
        return replace(view, **{f.name: each(getattr(view, f.name), change) for f in fields(view)})
    return view


def tensors(view: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a view, with the path under which a method finds it."""
    if isinstance(view, Tensor):
        yield path, view
    elif isinstance(view, Mapping):
        for name, part in view.items():
            yield from tensors(part, f"{path}[{name!r}]")
    elif is_dataclass(view) and not isinstance(view, type):
        for field in fields(view):
            yield from tensors(getattr(view, field.name), f"{path}.{field.name}")


def some_rows(view: Any, rows: Tensor) -> Any:
    """Only these events of a view."""
    return each(view, lambda tensor: tensor[rows])


def some_columns(nodes: Nodes, columns: slice) -> Nodes:
    """Only these of the nodes beside each event."""
    return each(nodes, lambda tensor: tensor[:, columns])  # type: ignore[no-any-return]


def what_counts(method: str, args: tuple[Any, ...], result: Any) -> dict[str, Tensor]:
    """By name, the tensors of a result, (n, ...); zeros where nobody looks."""
    if method == "update":
        members = args[0].members
        counted = {f"states[{name!r}]": s for name, s in result.states.items()}
        if members is not None:
            mask = members.mask.unsqueeze(-1)
            counted = {name: torch.where(mask, s, 0.0) for name, s in counted.items()}
        for name, values in result.links.items():
            counted[f"links[{name!r}]"] = torch.where(args[0].links.after, values, 0.0)
        if result.penalty is not None:
            counted["penalty"] = result.penalty
        return counted
    if isinstance(result, Mapping):
        return {f"[{name!r}]": tensor for name, tensor in result.items()}
    if result is None:
        return {}
    if method == "score":  # a loss of its own may turn source and destinations round
        result = torch.where(args[1].valid & args[2].valid, result, 0.0)
    if method == "embed":
        result = torch.where(args[1].valid.unsqueeze(-1), result, 0.0)
    return {"": result}


def spoil(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a method with other values wherever a mask says that nothing stands."""
    return tuple(
        _spoil_level(arg)
        if isinstance(arg, Level)
        else _spoil_nodes(arg)
        if isinstance(arg, Nodes)
        else arg
        for arg in args
    )


def _other(values: Tensor, mask: Tensor) -> Tensor:
    """The values where `mask` (...) is true, and something else elsewhere."""
    mask = mask.view(*mask.shape, *(1,) * (values.dim() - mask.dim()))
    if values.dtype == torch.bool:
        return torch.where(mask, values, ~values)
    junk = torch.arange(values.numel(), dtype=torch.float64, device=values.device)
    return torch.where(mask, values, (7.0 + junk % 13).view_as(values).to(values.dtype))


def _widen(values: Tensor, dim: int) -> Tensor:
    """One more place of zeros, or False, at the end of dimension `dim`."""
    pad = [0, 0] * (values.dim() - 1 - dim) + [0, 1]
    return F.pad(values, pad)


def _spoil_level(level: Level) -> Level:
    """One neighbour and one member more, which the masks leave out, and junk in all padding."""
    mask = _widen(level.mask, 2)
    near, links, members, sampled = level.near, level.links, level.members, level.sampled
    if near is not None:
        near = each(near, lambda t: _other(_widen(t, 2), mask))
    if links is not None:
        links = each(links, lambda t: _widen(t, 2))  # values in padding are 0, as promised
    if members is not None:
        there = _widen(members.mask, 1)
        members = replace(
            members,
            states={n: _other(_widen(s, 1), there) for n, s in members.states.items()},
            mask=there,
            neighbors=torch.cat(
                [members.neighbors, members.ends.unsqueeze(-1)], dim=2
            ),  # padding stands in the slot of the end
        )
    if level.sampled_mask is not None:
        drawn = level.sampled_mask
        sampled = {name: _other(s, drawn) for name, s in sampled.items()}
    real = mask if links is None else mask | links.after  # the partner stands on a new link
    neighbors = {name: _other(_widen(s, 2), real) for name, s in level.neighbors.items()}
    return replace(
        *(level,),
        neighbors=neighbors,
        mask=mask,
        near=near,
        links=links,
        members=members,
        sampled=sampled,
    )


def _spoil_nodes(nodes: Nodes) -> Nodes:
    around = nodes.around
    if around is not None:
        around = _spoil_around(around)
    return Nodes(
        {name: _other(s, nodes.valid) for name, s in nodes.states.items()},
        *(_other(nodes.gap, nodes.valid), _other(nodes.idle, nodes.valid), nodes.valid, around),
        None if nodes.embedded is None else _other(nodes.embedded, nodes.valid),
    )


def _spoil_around(around: Around) -> Around:
    mask = around.mask
    return replace(
        around,
        states={name: _other(s, mask) for name, s in around.states.items()},
        gap=_other(around.gap, mask),
        idle_gap=_other(around.idle_gap, mask),
        is_src=_other(around.is_src, mask),
        weight=None if around.weight is None else _other(around.weight, mask),
        features=None if around.features is None else _other(around.features, mask),
    )


def later(view: Any, seconds: float) -> Any:
    """The events, or the nodes beside them, as if the events happened `seconds` later."""
    if isinstance(view, Events):
        return replace(view, gap=view.gap + seconds)
    if isinstance(view, Nodes):
        around = view.around
        if around is not None:
            around = replace(around, gap=around.gap + seconds, idle_gap=around.idle_gap + seconds)
        return replace(view, gap=view.gap + seconds, idle=view.idle + 1.0, around=around)
    return view
