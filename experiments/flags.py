"""Flags that commands share: how to read a log, and every field of `TrainConfig` or its like.

They take the place of a command's `**` parameter, so that no setting is written down twice.  A flag
that is not given is None: it leaves the configuration file, or the default, in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from .config import TrainConfig
from .settings import parse_options

_PANELS = {  # the first field of each group of flags
    "model": "Model",
    "protocol": "Protocol",
    "window": "Windows",
    "batch_size": "Training",
    "candidates": "Scoring",
    "consistency": "Execution",
    "limit": "Run",
}


_READING: dict[str, tuple[type, str, str]] = {
    "src": (str, "COLUMN", "Column of sources: a name, or a place from 0."),
    "dst": (str, "COLUMN", "Column of destinations."),
    "time": (str, "COLUMN", "Column of times."),
    "kind": (str, "COLUMN", "Column of kinds."),
    "unit": (str, "s|ms|us|ns|step", "What one tick of time is."),
    "initial_graph": (Path, "FILE", "Links that stand before the first event."),
    "quarantine": (Path, "FILE", "Put bad rows there and go on; else a bad row is an error."),
}


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the flags that say how to read a file in place of its `**reading`."""
    flags = {}
    for name, (kind, metavar, text) in _READING.items():
        flag = "--" + name.replace("_", "-")
        option = typer.Option(
            flag, metavar=metavar, help=text, rich_help_panel="How to read a file"
        )
        flags[name] = Annotated[kind | None, option]
    return _with_flags(command, flags)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with a flag for each field of `TrainConfig` in place of its `**settings`."""
    return with_settings_of(TrainConfig, _PANELS)(command)


def with_settings_of(
    kind: type[BaseModel], panels: Mapping[str, str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A flag for each field of `kind`; `panels` names the first field of each group of flags."""

    def widen(command: Callable[..., None]) -> Callable[..., None]:
        panel, flags = "", {}
        for name in kind.model_fields:
            panel = panels.get(name, panel)
            flags[name] = _flag(kind, name, panel)
        return _with_flags(command, flags)

    return widen


def split_settings(
    values: dict[str, Any], kind: type[BaseModel] = TrainConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags that were given, apart: (settings of a run, how to read the log)."""
    given = {name: value for name, value in values.items() if value is not None}
    for name in [name for name in given if name.endswith("options")]:
        options = parse_options(given.pop(name))
        given |= {name: options} if options else {}
    settings = {name: given.pop(name) for name in kind.model_fields if name in given}
    return settings, given


def _with_flags(command: Callable[..., None], flags: dict[str, Any]) -> Callable[..., None]:
    """`command`, its `**` parameter spelled out as keyword parameters of these annotated types."""
    signature = inspect.signature(command, eval_str=True)
    kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in flags.items()
    ]
    wider = signature.replace(parameters=[*kept, *added])
    command.__signature__ = wider  # type: ignore[attr-defined]
    return command


def _flag(kind_of: type[BaseModel], name: str, panel: str) -> Any:
    """The annotated type of one flag."""
    field = kind_of.model_fields[name]
    if name.endswith("options"):  # options: --set, backend_options: --backend-set
        text = f"{field.description} May be given several times."
        flag = "--" + name.replace("_", "-").replace("options", "set")
        option = typer.Option(flag, metavar="NAME=VALUE", help=text, rich_help_panel=panel)
        return Annotated[list[str] | None, option]
    kind, metavar = _kind(field.annotation)
    flag = name.replace("_", "-")
    text = field.description or ""
    if field.default is not None and kind is not bool:
        text += f" Default: {field.default}."
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=text,
        metavar=metavar,
        show_default=False,
        rich_help_panel=panel,
    )
    return Annotated[kind | None, option]


def _kind(annotation: Any) -> tuple[Any, str | None]:
    """The type that the parser reads, and what its value is called in the help."""
    if get_origin(annotation) is Literal:
        return str, "|".join(get_args(annotation))
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    if kinds == {bool}:
        return bool, ""
    if kinds == {int}:
        return int, "N"
    if kinds == {float}:
        return float, "X"
    return str, "N|DURATION" if int in kinds else "NAME"
