"""Progress on stderr: bars where a person watches, a line now and then where a file does.

Nothing here writes to stdout, so that `--json` and pipes stay clean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0

Report = Callable[[dict[str, Any]], None]


@contextmanager
def reading(console: Console, name: str, *, quiet: bool = False) -> Iterator[None]:
    """Says that a log is being read, while it is."""
    if quiet or not console.is_terminal:
        yield
    else:
        with console.status(f"reading {name}", spinner="dots"):
            yield


@contextmanager
def watching(console: Console, verb: str, *, quiet: bool = False) -> Iterator[Report | None]:
    """A callback that takes dictionaries with `done_events` and `total_events` and shows them.

    Other keys it knows are `loss`, `ap`, `mrr`, `mse` and `accuracy`, the figures of the latest
    window or `epoch`, and `unit`, what is done if not events.  None if `quiet`.
    """
    if quiet:
        yield None
    elif console.is_terminal:
        with _bar(console) as bar:
            yield _feed(bar, verb)
    else:
        yield _lines(console, verb)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        speed_estimate_period=60.0,
    )


def _feed(bar: Progress, verb: str) -> Report:
    task = bar.add_task(verb, total=None, figures="")
    begin = time.monotonic()
    first: int | None = None  # events that were done before: a run may be resumed

    def show(state: dict[str, Any]) -> None:
        nonlocal first
        done = int(state["done_events"])
        if first is None:
            first = done - int(state.get("stop", done)) + int(state.get("start", 0))
        seconds = time.monotonic() - begin
        figures = _figures(state, (done - first) / seconds if seconds > 0 else 0.0)
        bar.update(task, total=state["total_events"], completed=done, figures=figures)

    return show


def _lines(console: Console, verb: str) -> Report:
    begin = latest = time.monotonic()

    def show(state: dict[str, Any]) -> None:
        nonlocal latest
        now, done, total = time.monotonic(), int(state["done_events"]), int(state["total_events"])
        if done < total and now - latest < _SECONDS_BETWEEN_LINES:
            return
        latest = now
        line = f"{verb}: {done / total:.0%} in {now - begin:.0f} s  {_figures(state, None)}"
        console.print(line.rstrip(), highlight=False, soft_wrap=True)

    return show


def _figures(state: dict[str, Any], rate: float | None) -> str:
    words = [] if rate is None else [f"{rate:,.0f} {state.get('unit', 'events')}/s"]
    words += [f"epoch {state['epoch']}"] if state.get("epoch") is not None else []
    words += [
        f"{name} {state[name]:.3f}"
        for name in ("loss", "ap", "mrr", "mse", "accuracy")
        if state.get(name) is not None
    ]
    return "  ".join(words)
