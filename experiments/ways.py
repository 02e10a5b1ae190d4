"""What all commands that train do alike: whose folder it is, the ranks, Ctrl-C, and what is shown.

Heavy modules are imported inside the functions, so that `--help` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import typer
from rich.console import Console

from . import runs
from .config import TrainConfig
from .door import say
from .guard import INTERRUPTED, Guard
from .progress import watching
from .snapshots.config import SnapshotConfig

Settings = TypeVar("Settings", TrainConfig, SnapshotConfig)


@dataclass(frozen=True, slots=True)
class Ways:
    """How a command that trains was called, and what all of them do alike."""

    log: str
    output: str | None
    resume: bool
    force: bool
    quiet: bool
    as_json: bool

    def begin(
        self,
        guard: Guard,
        config_file: Path | None,
        load: Callable[[Path | None], Settings],
        default_folder: Callable[[str, Settings], Path],
        how: Mapping[str, Any],
        explained: bool = False,
    ) -> tuple[Settings, Path, dict[str, Any]]:
        """The settings, the folder, and how to read the log: those of the run that is resumed."""
        if self.resume and self.force:
            raise ValueError(
                "--resume goes on with a run and --force replaces it: give one of them"
            )
        check_output(self.output)
        config = load(config_file)
        folder = default_folder(self.log, config) if self.output is None else Path(self.output)
        how = {name: as_text(value) for name, value in how.items()}
        if explained:  # nothing is written
            return config, folder, how
        if guard.rank == 0:  # `fit` will do so again, but the log may be long to read
            runs.check_may_begin(folder, resume=self.resume, force=self.force)
        if self.resume:
            how = runs.stored_reading(folder) | how
            if config_file is None and (folder / "config.toml").exists():
                config = load(folder / "config.toml")
        return config, folder, how

    def run(
        self,
        guard: Guard,
        device: str,
        fit: Callable[..., dict[str, Any]],
        folder: Path,
        how: Mapping[str, Any],
        show: Callable[[dict[str, Any], bool], None],
    ) -> None:
        """Runs `fit` over all ranks, its progress shown, and then shows what the first one says."""
        was_finished = self.resume and runs.is_finished(folder)
        guard.interrupted = partial(_interrupted, folder, self.force)
        try:
            with guard.connected(os.environ, device) as comm:
                with watching(Console(stderr=True), "training", quiet=self.quiet) as progress:
                    report = fit(
                        resume=self.resume,
                        force=self.force,
                        reading=how,
                        progress=progress,
                        comm=comm,
                    )
                if comm.rank == 0:
                    if was_finished:
                        say(f"{folder} is finished: nothing to resume")
                    show(report, self.as_json)
        except KeyboardInterrupt:  # in one process; of many, none comes here
            say(guard.interrupted())
            raise typer.Exit(INTERRUPTED) from None


def _interrupted(folder: Path, force: bool) -> str:
    """What is said of Ctrl-C: where the run stands, and how to go on."""
    from .keeper import standing

    instead = " in place of --force" if force else ""
    return (
        f"interrupted: the same command with --resume{instead} goes on with {folder}, "
        f"{standing(folder)}"
    )


@contextmanager
def aside(guard: Guard, how: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How this rank is to read the log: the first one alone writes the file of bad rows."""
    own = dict(how)
    with ExitStack() as stack:
        if guard.rank and "quarantine" in own:
            own["quarantine"] = str(Path(stack.enter_context(TemporaryDirectory())) / "bad.csv")
        yield own


def check_output(output: str | None) -> None:
    """Refuses an empty name of a folder."""
    if output is not None and not output.strip():
        raise ValueError(f"--output must name a folder: got {output!r}")


def as_text(value: Any) -> Any:
    """A flag as reading.json keeps it: a path leads to the same file from everywhere."""
    return str(value.absolute()) if isinstance(value, Path) else value
