"""What can go wrong that a caller would catch.

NeutronStreamError
├── LogError            a file cannot be read as an event log (also a ValueError)
├── OrderError          events that must be in time order are not (also a ValueError)
├── ModelError          a model breaks what `check_model` asks of it (also a ValueError)
├── LeakError           the run-time check saw a neighbourhood that the oracle does not
└── CheckpointError     a checkpoint is missing, damaged or from another run (also a ValueError)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class NeutronStreamError(Exception):
    """Base of every error of this package that is not a plain `ValueError` or `TypeError`."""


class LogError(NeutronStreamError, ValueError):
    """A file cannot be read as an event log; the message names file, line, column and value.

    The options of `read_log` that would help end the message; the command line, where they are
    flags, takes it from `spelled`.

    >>> error = LogError("a.csv: no column is known as `src`; name it with ", src="COLUMN")
    >>> str(error.at("b.zip"))
    'b.zip: a.csv: no column is known as `src`; name it with src=COLUMN'
    >>> error.spelled("--{} {}")
    'a.csv: no column is known as `src`; name it with --src COLUMN'
    """

    def __init__(self, text: str, **options: str) -> None:
        self._text, self._options = text, options
        super().__init__(self.spelled("{}={}"))

    def spelled(self, form: str) -> str:
        """The message with each option as `form`, a format of its name and its value."""
        options = self._options.items()
        return self._text + ", ".join(form.format(name, value) for name, value in options)

    def at(self, place: str) -> LogError:
        """The same error, said to be at `place`."""
        return LogError(f"{place}: {self._text}", **self._options)


class OrderError(NeutronStreamError, ValueError):
    """Events are not in time order where the caller asked for order."""


class ModelError(NeutronStreamError, ValueError):
    """A model cannot be trained exactly; a line for each thing found, with what to change."""


class LeakError(NeutronStreamError):
    """A sampled neighbourhood differs from the plain-Python oracle's."""


class CheckpointError(NeutronStreamError, ValueError):
    """A checkpoint is missing, damaged, or was written by a run with other settings."""


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, otherwise: str = "") -> str:
    """The words that end an error about an unknown name: the closest known ones, else `otherwise`.

    >>> did_you_mean("wikipeda", ["uci", "wikipedia"], otherwise="known are uci, wikipedia")
    "did you mean 'wikipedia'?"
    """
    close = difflib.get_close_matches(name, list(known), n=most)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def unknown_name(argument: str, name: str, known: Sequence[str]) -> ValueError:
    """What is raised where an argument is none of the known names.

    >>> str(unknown_name("model", "gcnn", ["gat", "gcn"]))
    "`model` must be one of gat, gcn: got 'gcnn'; did you mean 'gcn'?"
    """
    hint = did_you_mean(name, known)
    text = f"`{argument}` must be one of {', '.join(known)}: got {name!r}"
    return ValueError(f"{text}; {hint}" if hint else text)
