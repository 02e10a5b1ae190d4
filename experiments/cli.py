"""The command line: `train`, `replay`, `inspect` and `datasets`.

What a command finds goes to stdout (with `--json` exactly one JSON object), all else to stderr.
Heavy modules are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import runs
from .config import load_config
from .door import INTERRUPTED, Door, open_log, say
from .flags import split_settings, with_reading, with_settings
from .progress import reading, watching

if TYPE_CHECKING:
    from ..stream import EventLog

app = typer.Typer(
    cls=Door,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Log = Annotated[str, typer.Argument(metavar="LOG", help="A file, the name of a data set, or demo.")]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Only the first N events of the log.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and notes on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def run(arguments: Sequence[str]) -> int:
    """Runs the command line and returns its exit code: 0, 1, 2 or 130."""
    try:
        app(list(arguments), prog_name="neutronstream")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"neutronstream {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Exact and fast training of dynamic graph neural networks on event streams.

    Start with: neutronstream train demo
    """


_TRAIN_EXAMPLES = """Examples:

neutronstream train demo --limit 5000

neutronstream train messages.csv --size 7d --stride 1d --output runs/weekly

neutronstream train uci --config run.toml --seed 1 --json > uci.json

neutronstream train uci --resume"""


@app.command("train", epilog=_TRAIN_EXAMPLES)
@with_settings
@with_reading
def _train(
    log: Log,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML; flags win.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the run. Default: runs/LOG-MODEL-seedN."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run that is in the folder.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Train a model on LOG and report how it and the baselines predict what comes next.

    Every event is predicted before it is learned. The folder of the run holds report.html,
    report.json, metrics.parquet, config.toml, reading.json if flags say how to read LOG, and the
    checkpoints.
    """
    settings, how = split_settings(flags)
    if resume and force:
        raise ValueError("--resume goes on with a run and --force replaces it: give one of them")
    if output is not None and not output.strip():
        raise ValueError(f"--output must name a folder: got {output!r}")
    config = load_config(config_file, settings)
    folder = runs.default_folder(log, config) if output is None else Path(output)
    how = {name: _as_text(value) for name, value in how.items()}
    if resume:
        how = runs.stored_reading(folder) | how
        if config_file is None and (folder / "config.toml").exists():
            config = load_config(folder / "config.toml", settings)
    elif not force:
        runs.check_is_free(folder)  # `fit` will do so again, but the log may be long to read
    events = _read(log, config.limit, how, quiet)
    from .fit import fit

    was_finished = resume and runs.is_finished(folder)
    try:
        with watching(Console(stderr=True), "training", quiet=quiet) as progress:
            report = fit(
                events,
                config,
                folder,
                resume=resume,
                force=force,
                reading=how,
                progress=progress,
            )
    except KeyboardInterrupt:
        instead = " in place of --force" if force else ""
        say(f"interrupted: the same command with --resume{instead} goes on with {folder}")
        raise typer.Exit(INTERRUPTED) from None
    if was_finished:
        say(f"{folder} is finished: nothing to resume")
    _show_scores(report, folder, as_json)


@app.command(
    "replay",
    epilog="Examples:\n\nneutronstream replay messages.csv\n\nneutronstream replay uci --check",
)
@with_reading
def _replay(
    log: Log,
    check: Annotated[
        bool, typer.Option("--check", help="Compare every neighbourhood with the oracle's.")
    ] = False,
    limit: Limit = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **how: Any,
) -> None:
    """Feed LOG through the dynamic graph and say how fast it goes and what stands there."""
    events = _read(log, limit, how, quiet)
    from .replay import replay

    with watching(Console(stderr=True), "replaying", quiet=quiet) as progress:
        figures = replay(events, clock=perf_counter, check=check, progress=progress)
    _show({**figures, "peak_memory_mib": runs.peak_memory()}, as_json)


@app.command(
    "inspect",
    epilog="Examples:\n\nneutronstream inspect messages.csv.gz\n\n"
    "neutronstream inspect log.csv --src from --dst to --time date --json",
)
@with_reading
def _inspect(
    log: Log,
    limit: Limit = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **how: Any,
) -> None:
    """Say what LOG holds: events, nodes, order, times, repeats, and a window that suits it."""
    events = _read(log, limit, how, quiet, notes=False)
    from .profile_log import profile_log

    _show(profile_log(events), as_json)


@app.command("datasets", epilog="Example:\n\nneutronstream datasets --json")
def _datasets(as_json: Json = False, debug: Debug = False) -> None:
    """List the data sets that LOG can name.

    They are files of the folder that the environment variable NEUTRONSTREAM_DATA names.
    """
    from .. import datasets
    from .tables import print_datasets

    rows = [datasets.describe(name) for name in datasets.names()]
    if as_json:
        _show({"datasets": rows}, as_json)
    else:
        print_datasets(_stdout(), rows)


def _read(
    log: str, limit: int | None, how: Mapping[str, Any], quiet: bool, *, notes: bool = True
) -> EventLog:
    """The log that is meant; what was noticed while reading goes to stderr."""
    with reading(Console(stderr=True), log, quiet=quiet):
        events = open_log(log, limit=limit, **how)
    if notes and not quiet:
        for note in events.notes:
            say(f"note: {note}")
    return events


def _as_text(value: Any) -> Any:
    """A flag as reading.json keeps it: a path leads to the same file from everywhere."""
    return str(value.absolute()) if isinstance(value, Path) else value


def _show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Prints figures on stdout, as one JSON object or as lines."""
    from .report import to_json
    from .tables import print_figures

    if as_json:
        print(to_json(figures))
    else:
        print_figures(_stdout(), figures)


def _show_scores(report: Mapping[str, Any], folder: Path, as_json: bool) -> None:
    from .report import to_json
    from .tables import print_scores

    if as_json:
        print(to_json({**report, "folder": folder}))
    else:
        print_scores(_stdout(), report, str(folder / "report.html"))


def _stdout() -> Console:
    """The console of results: as wide as the terminal, wide where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
