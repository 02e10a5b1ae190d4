"""Models of snapshots by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ...stream.errors import did_you_mean, unknown_name
from .base import SnapshotModel
from .evolve_gcn import EvolveGCNH, EvolveGCNO
from .gat import GAT
from .gc_lstm import GCLSTM
from .gcn import GCN
from .gconv_gru import GConvGRU
from .gconv_lstm import GConvLSTM
from .mpnn_lstm import MPNNLSTM
from .sage import SAGE
from .tgcn import A3TGCN, TGCN


def _gcn(in_width: int, width: int, *, layers: int = 2, decoupled: bool = False) -> GCN:
    return GCN(_widths(in_width, width, layers), decoupled=decoupled)


def _sage(in_width: int, width: int, *, layers: int = 2) -> SAGE:
    return SAGE(_widths(in_width, width, layers))


def _gat(in_width: int, width: int, *, layers: int = 2, heads: int = 2) -> GAT:
    widths = _widths(in_width, width, layers)
    if heads > 0 and layers > 1 and width % heads:
        raise ValueError(
            f"`width` must be a multiple of the model's `heads`, which stand side by side: got "
            f"width {width} for {heads} heads"
        )
    return GAT(widths, heads)


SNAPSHOT_MODELS: Mapping[str, Callable[..., SnapshotModel]] = MappingProxyType(
    {
        "a3tgcn": A3TGCN,
        "evolvegcnh": EvolveGCNH,
        "evolvegcno": EvolveGCNO,
        "gat": _gat,
        "gclstm": GCLSTM,
        "gcn": _gcn,
        "gconvgru": GConvGRU,
        "gconvlstm": GConvLSTM,
        "mpnnlstm": MPNNLSTM,
        "sage": _sage,
        "tgcn": TGCN,
    }
)
"""The models, each made with the widths of its features and of its hidden rows."""


def snapshot_options(name: str) -> dict[str, Any]:
    """The options of a model with their defaults.

    Raises:
        ValueError: if there is no such model.

    >>> snapshot_options("gconvgru")
    {'orders': 2}
    """
    if name not in SNAPSHOT_MODELS:
        raise unknown_name("model", name, [*SNAPSHOT_MODELS])
    found = inspect.signature(SNAPSHOT_MODELS[name]).parameters.values()
    return {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY}


def build_snapshot_model(name: str, in_width: int, width: int, **options: Any) -> SnapshotModel:
    """The model of that name for features of `in_width` columns.

    `width` is that of its hidden rows; what the output has is the model's own `width`, which
    differs for `mpnnlstm` alone.

    >>> build_snapshot_model("mpnnlstm", 3, 8).width
    19

    Raises:
        ValueError: if the model or an option is unknown, or a width is below 1.
    """
    known = snapshot_options(name)
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known, otherwise=f"it has {sorted(known)}")
            raise ValueError(f"model {name!r} has no option {option!r}: {hint}")
        usual, given = known[option], options[option]
        kind = int if usual is None else type(usual)  # None: a number that the widths give
        fits = isinstance(given, int | float if kind is float else kind)
        if not fits or isinstance(given, bool) != (kind is bool):
            like = "" if usual is None else f", as {usual}"
            raise ValueError(
                f"option {option!r} of {name!r} must be {kind.__name__}{like}: got {given!r}"
            )
    for argument, value in (("in_width", in_width), ("width", width)):
        if value < 1:
            raise ValueError(f"`{argument}` must be at least 1: got {value}")
    return SNAPSHOT_MODELS[name](in_width, width, **options)


def _widths(in_width: int, width: int, layers: int) -> list[int]:
    if layers < 1:
        raise ValueError(f"`layers` must be at least 1: got {layers}")
    return [in_width, *[width] * layers]
