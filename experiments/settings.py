"""Settings: frozen, checked at the door, read from TOML and flags, and written back equal.

A kind of settings is a subclass of `Settings`, one field a command-line flag.  Whatever is refused,
the error is one line in our words, for who writes Python as for who writes TOML or flags.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

_NAME = re.compile(r"[a-z][a-z0-9_]*")

END = 2**63  # counts, ticks and TOML's numbers are below

Option: TypeAlias = bool | int | float | str


class Settings(BaseModel):
    """What a command can be told.

    Raises:
        ValueError: if a name is unknown or a value is refused; one line that names the setting,
            the value and, for a name, the nearest known one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    command: ClassVar[str]
    """Of which these are the flags."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ValueError(_in_words(error, type(self))) from None


Kind = TypeVar("Kind", bound=Settings)


def load_settings(
    kind: type[Kind],
    path: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Kind:
    """The settings of the TOML file at `path` under `overrides`, which win.

    Without a `path` the overrides stand over the defaults.  Tables win entry by entry.

    Raises:
        ValueError: if the file is not TOML, a key is unknown or a value is refused; one line that
            names the file (or the flag), the key, the value and, for a key, the nearest known one.
        FileNotFoundError: if there is no such file.
    """
    settings: dict[str, Any] = {}
    if path is not None:
        try:
            settings = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from None
    flags = dict(overrides or {})
    both = settings | flags
    for name, given in flags.items():
        if isinstance(given, dict) and isinstance(settings.get(name), dict):
            both[name] = settings[name] | given

    def source_of(key: str) -> str:
        blames_file = path is not None and key not in flags and (key or not flags)
        return f"{path}: " if blames_file else ""

    found = kind.__new__(kind)
    try:
        BaseModel.__init__(found, **both)  # `kind(**both)` would not know of the file
    except ValidationError as error:
        raise ValueError(_in_words(error, kind, source_of)) from None
    return found


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model, an option or a backend.

    >>> is_name("gconvgru"), is_name("GCN")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def check_options(given: Any) -> dict[str, Option]:
    """A copy of a table of options, each value a TOML scalar.

    Raises:
        ValueError: if it is no such table.
    """
    if not isinstance(given, Mapping):
        raise ValueError('must be a table of options by name, such as {"k": 10}')
    for name, value in given.items():
        if not (isinstance(name, str) and is_name(name)):
            raise ValueError(f"must have names such as k, which {name!r} is not")
        if not isinstance(value, Option) or value in (math.inf, -math.inf) or value != value:
            raise ValueError(f"must give `{name}` a finite number, true, false or a text")
    return dict(given)


def to_toml(config: BaseModel) -> str:
    """The configuration as a TOML text, a line and a comment a field; `load_config` reads it back.

    >>> from .config import TrainConfig
    >>> print(to_toml(TrainConfig(width=3)).splitlines()[1])
    width = 3  # Width of a node's state.
    """
    lines = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        entry = f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"
        lines.append(f"{entry}  # {field.description}")
    return "\n".join(lines) + "\n"


def _toml(value: Option | Mapping[str, Option]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entries = ", ".join(f"{name} = {_toml(entry)}" for name, entry in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, str):  # JSON's escapes are TOML's, but for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value)


def parse_options(texts: Sequence[str]) -> dict[str, Option]:
    """The options of texts such as "k=10", their values as in TOML, bare words as text.

    Raises:
        ValueError: if one has no name, or its value is a list, table or date.

    >>> parse_options(["k=10", "embedding=attention", "dropout=0.1", "sparse=true"])
    {'k': 10, 'embedding': 'attention', 'dropout': 0.1, 'sparse': True}
    """
    options: dict[str, Option] = {}
    for text in texts:
        name, equals, word = (part.strip() for part in text.partition("="))
        if not (name and equals):
            raise ValueError(f"--set must be NAME=VALUE, such as k=10: got {text!r}")
        try:
            value = tomllib.loads(f"value = {word}")["value"]
        except tomllib.TOMLDecodeError:
            value = word
        if not word.startswith(('"', "'")) and ("#" in word or "\n" in word):
            value = word  # no comment, and no second line
        if not isinstance(value, Option):
            raise ValueError(
                f"--set must give a number, true, false or a text to `{name}`: got {word}"
            )
        options[name] = value
    return options


def _in_words(
    error: ValidationError, kind: type[Settings], source_of: Callable[[str], str] = lambda _: ""
) -> str:
    """What pydantic found, in one line; before each fault, `source_of` its setting."""
    return "; ".join(
        source_of(key) + _fault_in_words(key, fault, kind)
        for fault in error.errors(include_url=False)
        for key in [str(fault["loc"][0]) if fault["loc"] else ""]
    )


def _fault_in_words(key: str, fault: Any, kind: type[Settings]) -> str:
    if fault["type"] == "extra_forbidden":
        from ..stream.errors import did_you_mean  # here: it loads pyarrow

        otherwise = f"see `neutronstream {kind.command} --help`"
        hint = did_you_mean(key, kind.model_fields, otherwise=otherwise)
        return f"unknown setting `{key}`: {hint}"
    text = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if not key:
        return text
    text = text if text.startswith("must") else f"must be {text}"
    return f"`{key}` {text}: got {fault['input']!r}"
