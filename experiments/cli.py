"""The command line: `train`, `compare`, `labels`, `snapshots`, `replay`, `inspect`, `datasets`.

What a command finds goes to stdout (with `--json` exactly one JSON object), all else to stderr.
Heavy modules are imported inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import runs
from .config import TrainConfig, load_config
from .door import Door, open_log, say
from .flags import split_settings, with_reading, with_settings, with_settings_of
from .guard import INTERRUPTED, Guard
from .progress import Report, reading, watching
from .snapshots.config import PANELS, SnapshotConfig, default_folder, load_snapshot_config
from .ways import Ways, as_text, aside, check_output

if TYPE_CHECKING:
    from ..stream import EventLog

app = typer.Typer(
    cls=Door,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Log = Annotated[str, typer.Argument(metavar="LOG", help="A file, the name of a data set, or demo.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML; flags win.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Only the first N events of the log.")
]
Resume = Annotated[
    bool, typer.Option("--resume", metavar="", help="Go on where an interrupted run stopped.")
]
Force = Annotated[
    bool, typer.Option("--force", metavar="", help="Replace the run that is in the folder.")
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="No progress and notes on stderr.")
]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")]


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
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Exact and fast training of dynamic graph neural networks on event streams.

    Start with: neutronstream train demo
    """
    guard: Guard = context.obj
    if guard.size > 1 and context.invoked_subcommand not in ("train", "snapshots"):
        raise ValueError(
            f"`{context.invoked_subcommand}` runs in one process: start it without mpiexec "
            f"(got {guard.size} ranks)"
        )


_TRAIN_EXAMPLES = """Examples:

neutronstream train demo --limit 5000

neutronstream train messages.csv --size 7d --stride 1d --output runs/weekly

neutronstream train uci --config run.toml --seed 1 --json > uci.json

neutronstream train uci --protocol split --model tgn --epochs 20 --patience 5 --set k=10

neutronstream train uci --model tgn --consistency batch --batch-size 200

neutronstream train uci --resume

neutronstream train uci --model tgn --batch-size 200 --explain --ranks 4

mpiexec -n 4 neutronstream train uci --model tgn --batch-size 1000"""


@app.command("train", epilog=_TRAIN_EXAMPLES)
@with_settings
@with_reading
def _train(
    context: typer.Context,
    log: Log,
    config_file: ConfigFile = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the run. Default: runs/LOG-MODEL-seedN, with -split and -batch.",
        ),
    ] = None,
    resume: Resume = False,
    force: Force = False,
    explained: Annotated[
        bool,
        typer.Option(
            "--explain",
            metavar="",
            help="Say what would be done, how long it would take and why; then stop.",
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="N", help="Explain as if there were N ranks."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Train a model on LOG and report how it and the baselines predict what comes next.

    Every event is predicted before it is learned; with --protocol split the model is trained on the
    first part of LOG for some epochs and tested once on the last. The folder of the run holds
    report.html, report.json, metrics.parquet, config.toml, reading.json if flags say how to read
    LOG, and the checkpoints.
    """
    guard: Guard = context.obj
    quiet = quiet or guard.rank > 0
    settings, how = split_settings(flags)
    if ranks is not None and not explained:
        raise ValueError(
            "--ranks supposes a job for --explain: a real one is started by mpiexec -n"
        )
    load = partial(load_config, overrides=settings)
    ways = Ways(log, output, resume, force, quiet, as_json)
    config, folder, how = ways.begin(guard, config_file, load, runs.default_folder, how, explained)
    if explained:
        if guard.rank == 0:  # for all ranks that were started
            _explain(_read(log, config.limit, how, quiet), config, ranks or guard.size, as_json)
        return
    with aside(guard, how) as own:
        events = _read(log, config.limit, own, quiet)
    runs.check_device(config.device)  # before ranks talk through it
    from .fit import fit

    fitted = partial(fit, events, config, folder)
    told = None if quiet else events.notes
    show = partial(_show_scores, folder=folder, told=told)
    ways.run(guard, config.device, fitted, folder, how, show)


def _explain(log: EventLog, config: TrainConfig, ranks: int, as_json: bool) -> None:
    """Prints what a run on `ranks` ranks would do."""
    from .explain import explain, print_explanation

    found = explain(log, config, ranks)
    if as_json:
        _show(found, as_json)
    else:
        print_explanation(_stdout(), found)


@app.command(
    "replay",
    epilog="Examples:\n\nneutronstream replay messages.csv\n\nneutronstream replay uci --check",
)
@with_reading
def _replay(
    log: Log,
    check: Annotated[
        bool,
        typer.Option("--check", metavar="", help="Compare every neighbourhood with the oracle's."),
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


def _without(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Takes the flag `name` away from a command."""

    def narrow(command: Callable[..., None]) -> Callable[..., None]:
        whole = signature(command)
        kept = [p for p in whole.parameters.values() if p.name != name]
        command.__signature__ = whole.replace(parameters=kept)  # type: ignore[attr-defined]
        return command

    return narrow


_COMPARE_EXAMPLES = """Examples:

neutronstream compare uci --models dyrep,tgn,edgebank --seeds 3

neutronstream compare demo --limit 5000 --models dyrep,dyrep:intensity=linear --seeds 2

neutronstream compare uci --models tgn,tgn:consistency=batch,tgn:k=5 --output runs/uci-stale

neutronstream compare enron --models jodie,tgn --protocol split --epochs 20 --json > enron.json"""


@app.command("compare", epilog=_COMPARE_EXAMPLES)
@_without("model")  # --models takes its place
@with_settings
@with_reading
def _compare(
    log: Log,
    models: Annotated[
        str,
        typer.Option(
            metavar="ROW,ROW,...",
            help="Models and baselines; a model may have settings of its own, as in tgn:k=5.",
        ),
    ],
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="So many seeds, from --seed on.")
    ] = 3,
    config_file: ConfigFile = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder. Default: runs/LOG-compare.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Replace the runs that are in the folder.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Train several models on LOG with several seeds and show them in one table and on one page.

    All are scored on the same events against the same candidates, beside the baselines. The folder
    holds compare.html, compare.json, compare.parquet and a folder for each run. What is finished is
    not repeated: after Ctrl-C, or with more rows or seeds, the same command goes on.
    """
    settings, how = split_settings(flags)
    check_output(output)
    config = load_config(config_file, settings)
    from .compare import compare, default_folder, parse_models
    from .compare.tables import print_comparison

    folder = default_folder(log, config) if output is None else Path(output)
    parse_models(models, config.protocol)  # `compare` will do so again, but the log may be long
    how = ({} if force else runs.stored_reading(folder)) | {n: as_text(v) for n, v in how.items()}
    events = _read(log, config.limit, how, quiet)
    with _going_on(folder, force), _bar_a_run(quiet) as progress:
        given = events, models, seeds, config, folder, progress
        found = compare(*given, force=force, reading=how)
    if as_json:
        _show({**found, "folder": folder}, as_json)
    else:
        print_comparison(_stdout(), found, str(folder / "compare.html"))


_LABELS_EXAMPLES = """Examples:

neutronstream labels wikipedia --model tgn

neutronstream labels mooc --model jodie --epochs 5 --classifier mlp --json"""


@app.command("labels", epilog=_LABELS_EXAMPLES)
@with_settings
@with_reading
def _labels(
    log: Log,
    classifier: Annotated[
        str,
        typer.Option(metavar="logistic|mlp", help="What reads the label from an embedding."),
    ] = "logistic",
    config_file: ConfigFile = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the run. Default: that of `train`."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", metavar="", help="Train again, and replace the run in the folder."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Predict the labels of LOG, which say that the state of an event's source changes.

    A model is trained on links with --protocol split, or taken from the finished run in the folder;
    its weights are held, and a classifier reads the embedding of each event's source from before
    the event. The folder of the run gets labels.json.
    """
    settings, how = split_settings(flags)
    check_output(output)
    config = load_config(config_file, {"protocol": "split"} | settings)
    folder = runs.default_folder(log, config) if output is None else Path(output)
    how = ({} if force else runs.stored_reading(folder)) | {n: as_text(v) for n, v in how.items()}
    if not force and config_file is None and (folder / "config.toml").exists():
        config = load_config(folder / "config.toml", settings)
    events = _read(log, config.limit, how, quiet)
    from .labels import label_run, print_labels

    with _going_on(folder, force), _bar_a_run(quiet) as progress:
        found = label_run(
            *(events, config, folder),
            classifier=classifier,
            force=force,
            reading=how,
            progress=progress,
        )
    if as_json:
        _show({**found, "folder": folder}, as_json)
    else:
        print_labels(_stdout(), found, str(folder / "labels.json"))


_SNAPSHOTS_EXAMPLES = """Examples:

neutronstream snapshots uci --period 7d --model gconvgru

neutronstream snapshots uci --period 7d --model evolvegcno --set layers=2 --output runs/evolving

mpiexec -n 4 neutronstream snapshots bitcoinotc --count 60 --model gclstm --backend tensor

neutronstream snapshots chickenpox --model tgcn --lags 8 --json > chickenpox.json

neutronstream snapshots cora --model gat --weight-decay 0.0005"""


@app.command("snapshots", epilog=_SNAPSHOTS_EXAMPLES)
@with_settings_of(SnapshotConfig, PANELS)
@with_reading
def _snapshots(
    context: typer.Context,
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="A file, the name of a data set, of a signal or of a static graph, or demo.",
        ),
    ],
    config_file: ConfigFile = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the run. Default: runs/LOG-MODEL-snapshots-seedN, with the backend.",
        ),
    ] = None,
    resume: Resume = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Train a model on the snapshots of LOG, on one rank or many, and test it on the last ones.

    Of a log the links of the next snapshot are predicted, of a signal (chickenpox, england_covid
    ...) the next value of each node, of a static graph (cora ...) the classes of nodes. The folder
    of the run holds report.html, report.json, metrics.parquet, config.toml and the checkpoints.
    """
    guard: Guard = context.obj
    quiet = quiet or guard.rank > 0
    settings, how = split_settings(flags, SnapshotConfig)
    load = partial(load_snapshot_config, overrides=settings)
    ways = Ways(log, output, resume, force, quiet, as_json)
    config, folder, how = ways.begin(guard, config_file, load, default_folder, how)
    from .snapshots.data import open_data
    from .snapshots.fit import fit_snapshots
    from .snapshots.run import show_snapshots

    with aside(guard, how) as own, reading(Console(stderr=True), log, quiet=quiet):
        data = open_data(log, config, **own)
    told = () if quiet else data.notes
    for note in told:
        say(f"note: {note}")

    def show(report: dict[str, Any], as_json: bool) -> None:
        if as_json:
            _show({**report, "folder": folder}, as_json)
        else:
            show_snapshots(_stdout(), report, str(folder / "report.html"), told)

    ways.run(guard, "cpu", partial(fit_snapshots, data, config, folder), folder, how, show)


@contextmanager
def _going_on(folder: Path, force: bool) -> Iterator[None]:
    """Says on Ctrl-C how to go on, and leaves."""
    try:
        yield
    except KeyboardInterrupt:
        instead = " without --force" if force else ""
        say(f"interrupted: the same command{instead} goes on with {folder}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _bar_a_run(quiet: bool) -> Iterator[Report | None]:
    """A callback that shows a bar, or lines, for each `run` that it is told of in turn."""
    if quiet:
        yield None
        return
    with ExitStack() as stack:
        current, show = "", None

        def tell(figures: dict[str, Any]) -> None:
            nonlocal current, show
            run = str(figures["run"])
            if figures.get("runs", 1) > 1:
                run = f"{figures['number'] + 1} of {figures['runs']}: {run}"
            if figures.get("was_finished"):
                say(f"{run}: finished before")
                return
            if run != current:
                stack.close()  # the bar before stays where it ended
                current, show = run, stack.enter_context(watching(Console(stderr=True), run))
            if show is not None:
                show(figures)

        yield tell


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


def _show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Prints figures on stdout, as one JSON object or as lines."""
    from .report import to_json
    from .tables import print_figures

    if as_json:
        print(to_json(figures))
    else:
        print_figures(_stdout(), figures)


def _show_scores(
    report: Mapping[str, Any], as_json: bool, folder: Path, told: Sequence[str] | None
) -> None:
    """Prints what a run found; on stderr its notes that were not `told` before, None for none."""
    from .report import to_json
    from .tables import print_scores

    if told is not None:
        for note in report.get("notes") or ():
            if note not in told:
                say(f"note: {note}")

    if as_json:
        print(to_json({**report, "folder": folder}))
    else:
        print_scores(_stdout(), report, str(folder / "report.html"))


def _stdout() -> Console:
    """The console of results: as wide as the terminal, wide where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
