"""Whether a method gives an event the same alone and among others, whatever stands in padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .methods import Call
from .views import later, some_columns, some_rows, spoil, what_counts


def mixes(method: Callable[..., Any], call: Call, bound: float) -> list[str]:
    """What is wrong with how a method treats the events and the nodes beside them."""
    name, findings = call.method, []
    if call.rows > 1:
        every = torch.arange(call.rows)
        for rows in (every[:1], every[-1:], every[::2], every.flip(0)):
            expected = {part: value[rows] for part, value in call.counts.items()}
            odd = differs(method, call, some_rows(call.args, rows), expected, bound)
            if odd is not None:
                findings.append(
                    f"`{name}` mixes the events of a level or segment: without the others, "
                    f"{odd} of an event is another; take no sum, mean, norm or softmax over "
                    "dimension 0 (LayerNorm, not BatchNorm)"
                )
                break
    is_plain = name == "embed" or (name == "score" and call.args[1].gap.shape[1] == 1)
    if is_plain and call.args[-1].gap.shape[1] > 1:
        part = {key: value[:, :1] for key, value in call.counts.items()}
        args = (*call.args[:-1], some_columns(call.args[-1], slice(0, 1)))
        if differs(method, call, args, part, bound) is not None:
            findings.append(
                f"`{name}` mixes the nodes beside an event: what one of them gets depends on which "
                "others are asked for; take no mean, norm or softmax over dimension 1"
            )
    if name == "expected_idle" and call.counts:
        args = tuple(later(view, 5e3) for view in call.args)
        if differs(method, call, args, call.counts, bound) is not None:
            findings.append(
                "`expected_idle` depends on when the event happens, which is what it predicts: "
                "use neither `gap` nor `idle` there"
            )
    return findings


def reads_padding(method: Callable[..., Any], call: Call, bound: float) -> list[str]:
    """What is wrong with how a method treats what masks leave out."""
    odd = differs(method, call, spoil(call.args), call.counts, bound)
    if odd is None:
        return []
    return [
        f"`{call.method}` reads padding: {odd} is another with other values where `mask` or "
        "`valid` is False; fill them (`masked_fill(~mask, 0.0)`) before a sum, and divide by "
        "`mask.sum`, not by the number of columns"
    ]


def differs(
    method: Callable[..., Any],
    call: Call,
    args: tuple[Any, ...],
    expected: dict[str, Tensor],
    bound: float,
) -> str | None:
    """The part of the result that is not as expected with these arguments, if any."""
    found = what_counts(call.method, args, method(*args))
    for part, wanted in expected.items():
        values = found[part]
        if call.method == "update":  # wider padding gives more columns
            values = values[tuple(slice(0, size) for size in wanted.shape)]
        if wanted.numel():
            scale = max(1.0, float(wanted.abs().max()))
            if not float((values.to(wanted) - wanted).abs().max()) <= bound * scale:
                return f"`{part}`" if part else "the result"
    return None
