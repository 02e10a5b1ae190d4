"""The door of the command line: which log is meant, and how a refusal reads.

Every refusal is one line on stderr, `error: ...`, and exit code 2; a failed `--check` is exit code
1; Ctrl-C is 130.  A traceback is shown for a fault of ours, or with `--debug`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from .guard import INTERRUPTED, Guard, guarded

if TYPE_CHECKING:
    from ..stream import EventLog


class Door(TyperGroup):
    """The group of commands, with refusals in one line."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Runs a command and exits."""
        arguments = list(sys.argv[1:] if args is None else args)
        with ExitStack() as stack:
            guard = stack.enter_context(guarded(os.environ))
            if guard.size > 1 and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, guard.interrupt)
            if guard.rank:  # what is found is told once
                silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect_stdout(silent))
            try:
                code = super().main(args=arguments, standalone_mode=False, obj=guard, **extra)
                sys.stdout.flush()
            except Exception as error:
                if "--debug" in arguments:
                    raise
                code = _refuse(error, guard)
            sys.exit(code if isinstance(code, int) else 0)


def open_log(source: str, *, limit: int | None = None, **how: Any) -> EventLog:
    """The log that `source` means: `demo`, else a file of that path, else a named data set.

    `how` are the arguments of `read_log` that only a file takes (`src`, `unit`, `quarantine` ...)
    and `initial_graph`, a file of links; None means that one was not given.

    Raises:
        ValueError: if it is none of these, or a file's option is given for something else.
    """
    given = {name: value for name, value in how.items() if value is not None}
    if source != "demo" and Path(source).exists():
        from ..stream import read_log

        if "initial_graph" in given:
            given["initial"] = given.pop("initial_graph")
        for role in ("src", "dst", "time", "kind"):
            if str(given.get(role, "")).isdecimal():
                given[role] = int(given[role])  # a place, counted from 0
        return read_log(source, limit=limit, **given)
    if source != "demo":
        _check_is_named(source)
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ValueError(f"{flags} is for a file: `{source}` is a data set with columns of its own")
    from .. import datasets

    if source == "demo":
        log = datasets.messages()
        return log if limit is None else log.head(limit)
    return datasets.load(source, limit=limit)


def _check_is_named(source: str) -> None:
    from .. import datasets
    from ..stream.errors import did_you_mean

    if "/" in source or os.sep in source or Path(source).suffix:
        raise FileNotFoundError(errno.ENOENT, "no such file", source)
    known = datasets.names()
    if source not in known:
        see = "see `neutronstream datasets`"
        hint = did_you_mean(source, [*known, "demo"], most=3, otherwise=see)
        raise ValueError(f"`{source}` is neither a file nor a data set: {hint}")


def _refuse(error: Exception, guard: Guard) -> int:
    """Prints what is wrong and returns the exit code; raises what is a fault of ours.

    Of several ranks that fail alike one speaks; none of them returns.
    """
    text, code = _worded(error)
    if guard.size > 1:  # even without a text
        guard.fails(" ".join(text.split()), code)
    return say(text, code) if text else code


def _worded(error: Exception) -> tuple[str, int]:
    """What is wrong, and the exit code; raises what is a fault of ours."""
    from ..stream.errors import LeakError, LogError, NeutronStreamError

    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # a closed pipe: say nothing
        return "", 1
    if kind == "Abort":
        return "interrupted", INTERRUPTED
    if hasattr(error, "format_message"):  # a flag that the parser refuses
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        text = error.format_message()
        return (f"error: {text}{hint}" if text else ""), 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: {error.filename}: {(error.strerror or str(error)).lower()}", 2
    if isinstance(error, LeakError):
        return f"error: the check failed: {error}", 1
    if isinstance(error, LogError):
        return f"error: {error.spelled('--{} {}')}", 2
    if _is_out_of_memory(error):
        return f"error: the memory does not suffice, try smaller settings: {error}", 2
    if isinstance(error, OverflowError):
        return f"error: a number is too large: {error}", 2
    lacks_package = isinstance(error, ImportError) and "pip install" in str(error)  # says which
    if lacks_package or isinstance(error, NeutronStreamError | ValueError | OSError):
        return f"error: {error}", 2
    raise error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, numpy, Arrow, or torch with no class of its own, lacked memory."""
    told = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    torch_says = isinstance(error, RuntimeError) and any(words in str(error) for words in told)
    return isinstance(error, MemoryError) or torch_says


def say(text: str, code: int = 0) -> int:
    """Prints `text` on stderr as one line and returns `code`."""
    print(" ".join(text.split()), file=sys.stderr)
    return code
