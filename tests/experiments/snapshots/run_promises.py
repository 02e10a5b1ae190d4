"""What holds on any number of ranks: a run over a backend is that of one process."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neutronstream.experiments import fit_snapshots
from neutronstream.experiments.snapshots.data import data_of
from neutronstream.parallel.ranks import Comm
from neutronstream.stream import EventLog

from .small import clubs, figures, habit, settings, timeless, wave

EXACT = ("tensor", "halo", "task", "hetero")
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "links": (habit, {"period": "1d", "model": "gconvgru", "epochs": 1}),
    "values": (wave, {"model": "evolvegcnh", "epochs": 1}),
    "classes": (clubs, {"model": "gat", "epochs": 2}),
}


def assert_alike(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Losses and scores of two reports are equal up to 1e-9."""
    ours, theirs = figures(left), figures(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert abs(value - theirs[name]) <= 1e-9, (name, value, theirs[name])


def every_backend_has_the_figures_of_one_process(comm: Comm) -> None:
    for source, given in RUNS.values():
        alone = fit_snapshots(source(), settings(**given)) if comm.rank == 0 else {}
        for backend in EXACT if comm.size > 1 else ("single",):
            report = fit_snapshots(source(), settings(backend=backend, **given), comm=comm)
            if comm.rank == 0:
                assert_alike(report, alone)
                assert report["backend"]["ranks"] == comm.size
                sent = report["balance"]["bytes"]["ranks"]
                assert len(sent) == comm.size
                assert sum(sent) == sum(row["bytes"] for row in report["traffic"])
                assert bool(sum(sent)) == (comm.size > 1)
            else:
                assert report == {}


def ranks_without_a_node_or_a_training_node_join(comm: Comm) -> None:
    few = EventLog.from_arrays([0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 1], range(6))
    given = {"period": 1, "epochs": 2, "backend": "auto"}
    for backend in ("auto", "halo"):
        given["backend"] = backend
        report = fit_snapshots(few, settings(**given), comm=comm)
        if comm.rank == 0:
            assert_alike(report, fit_snapshots(few, settings(**given | {"backend": "auto"})))
    # `halo` by runs of nodes: those that are trained on lie on the first ranks
    options = {"partition": "chunk"}
    config = settings(model="gcn", backend="halo", backend_options=options)
    report = fit_snapshots(clubs(), config, comm=comm)
    if comm.rank == 0:
        assert_alike(report, fit_snapshots(clubs(), settings(model="gcn")))


def ranks_that_differ_are_told(comm: Comm) -> str:
    if comm.size == 1:
        return ""
    said = []
    for other in (settings(period="1d", seed=comm.rank), settings(period="1d")):
        source = habit(0 if other.seed else comm.rank)
        try:
            fit_snapshots(source, other, comm=comm)
        except ValueError as error:
            said.append(str(error))
        else:
            raise AssertionError("nobody noticed")
    return " ".join(said)


def auto_says_why(comm: Comm) -> str:
    report = fit_snapshots(data_of(wave(), settings()), settings(epochs=1), comm=comm)
    return str(report["backend"]["reason"]) if comm.rank == 0 else ""


def a_run_that_lost_its_end_is_resumed_on_all_ranks(comm: Comm) -> None:
    config = settings(period="1d", epochs=2, checkpoint_seconds=0, model="gcn")
    with TemporaryDirectory() as own:
        folder = Path(comm.gather_objects(own, "test")[0])
        whole = fit_snapshots(habit(), config, folder, comm=comm)
        if comm.rank == 0:  # as after a kill in the last epoch
            (folder / "report.json").unlink()
            shutil.rmtree(max((folder / "checkpoints").glob("[0-9]*")))
        comm.barrier()
        resumed = fit_snapshots(habit(), config, folder, resume=True, comm=comm)
        assert timeless(resumed) == timeless(whole)
        comm.barrier()


def the_report_says_which_ranks_made_its_figures(comm: Comm) -> list[str]:
    """One process begins a run and all ranks end it; one process writes its report again."""
    config = settings(period="1d", epochs=2, checkpoint_seconds=0, model="gcn")
    many = f"{comm.size} rank{'s' if comm.size > 1 else ''}"
    with TemporaryDirectory() as own:
        folder = Path(comm.gather_objects(own, "test")[0])

        def stop(figures: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            if comm.rank == 0:
                fit_snapshots(habit(), config, folder, progress=stop)
        comm.barrier()
        report = fit_snapshots(habit(), config, folder, resume=True, comm=comm)
        whole = fit_snapshots(habit(), config, comm=comm)
        if comm.rank == 0:
            assert report["backend"]["ranks"] == comm.size
            assert timeless(report["balance"]) == timeless(whole["balance"])
            assert report["traffic"] == whole["traffic"]
            found, expected = report["throughput"], whole["throughput"]
            assert found["bytes_before_training"] == expected["bytes_before_training"]
            ends = whole["epochs"] if comm.size == 1 else whole["epochs"][1:]
            assert found["bytes_an_epoch"] == sum(e["bytes"] for e in ends) / len(ends)
            (folder / "report.json").unlink()  # as after a kill before the report
            again = fit_snapshots(habit(), config, folder, resume=True)
            assert timeless(again["balance"]) == timeless(whole["balance"])
            assert again["backend"] == report["backend"]
            if comm.size > 1:
                assert list(report["backend"]["epochs"].values())[1].endswith(many)
                made = f"{again['backend']['name']} on {many}"
                told = f"tested by single on 1 rank, after all epochs were done by {made}"
                assert told in again["notes"]
            else:
                assert report["notes"] == again["notes"] == []
        comm.barrier()
    return list(report["notes"]) if comm.rank == 0 else []


PROMISES = (
    every_backend_has_the_figures_of_one_process,
    ranks_without_a_node_or_a_training_node_join,
    ranks_that_differ_are_told,
    auto_says_why,
    a_run_that_lost_its_end_is_resumed_on_all_ranks,
    the_report_says_which_ranks_made_its_figures,
)
