"""Does training stage by stage cost accuracy, and what does it save?  Lazy against end to end.

On Cora, CiteSeer and the Facebook pages, for GCN, GraphSAGE and GAT of two layers: test accuracy of
lazy training (features, then embeddings cross) and of the end-to-end twin, which has the same
stages, settings and splits; beside them an MLP on each node alone, and the two forms in which no
features leave (`hidden`, `logits`).  A seed sets the split and the weights.  Splits are those of
RETEXO's release: Cora 86 a class, CiteSeer 178 a class, Facebook 20 %.  Bags of words are divided
by their sums and brought to 128 numbers a node (truncated SVD over all nodes, a preparation outside
of what is compared; `--numbers 0` takes the words).  Settings are those of the release but for
dropout (0.5, not 0.3), were tried on other seeds, and are smaller for Facebook, the largest.  Then
four ranks train on Cora's words in float64 and are compared with one: losses, predictions, bytes.

At last the links of the next snapshot of three logs, cut as in snapshot_models.py and with the same
negatives and baselines: a layer of GraphSAGE, then a GRU over the snapshots, each stage trained
alone, with three seeds; and with weights that four ranks have learned from what each has at hand.

    python benchmarks/retexo.py [--graphs [NAME ...]] [--links [NAME ...]] [--seeds N ...]
        [--rounds N]

Answer (2026-11-30, 5 seeds, per cent, about 6 minutes of a core): lazy training is 0.0 to 1.3
points below its twin, never above it on average.

                 Cora                      CiteSeer                  Facebook (60 rounds, width 64)
                 lazy         twin         lazy         twin         lazy         twin
    GCN          83.4 +- 0.7  83.6 +- 0.8  72.8 +- 0.1  74.1 +- 0.3  88.2 +- 0.5  89.2 +- 0.2
    SAGE         82.1 +- 0.7  82.7 +- 0.7  72.7 +- 0.7  73.7 +- 0.8  89.1 +- 0.4  90.2 +- 0.2
    GAT          84.3 +- 1.3  84.3 +- 0.5  74.0 +- 0.6  74.7 +- 0.6  90.8 +- 0.2  91.6 +- 0.2
    GCN, hidden  84.0 +- 1.0               73.1 +- 1.1               86.8 +- 0.3
    GCN, logits  77.9 +- 2.2               73.0 +- 1.5               84.3 +- 1.6
    MLP          67.5 +- 0.8               66.8 +- 1.1               78.8 +- 0.3

Four ranks and one: losses within 9e-16, scores within 4e-14, no answer differs.  Rows of Cora's
1,433 words and 256 embeddings take 63.9 MB lazy and 247.8 MB end to end in 10 rounds: 3.8798 times,
as by the formula, which gives 61.5 times for 200 rounds.  The gradients of the weights, as many
either way, take 178 MB in 10 rounds (GCN): on a small graph they outweigh lazy training's rows.

Links (2026-11-30, test AP of seeds 0, 1, 2; bitcoinotc, seed 0; about 4 minutes of a core):

                 persistence  edgebank        popularity      SAGE            SAGE, GRU
    uci          .60 .60 .60  .73 .72 .74     .76 .74 .77     .857 .845 .845  .873 .866 .862
    enron        .72 .72 .73  .814 .820 .811  .62 .63 .62     .798 .814 .786  .807 .827 .805
    bitcoinotc   .50          .50             .86             .926            .935

Persistence is beaten everywhere, EdgeBank on enron with one seed of three; models trained at once
(snapshot_models.py) have .85 to .89, .71 to .82 and .91 to .93.  Rows cross once, for SAGE, and
not again for the GRU.  Weights that four ranks learn, with negatives from what each has at hand,
seed 0, tested on one rank; in brackets megabytes of gradients:

                 rows    a sum a round   every second    bf16
    uci          5.1 MB  .872 (65.4)     .869 (32.7)     .872 (32.7)
    enron        2.7 MB  .801 (163.6)    .801 (81.8)     .796 (81.8)
    bitcoinotc   8.2 MB  .936 (65.4)     .937 (32.7)     .936 (32.7)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from statistics import mean, stdev
from time import perf_counter
from typing import Any

import numpy as np
import torch
from common import finish  # type: ignore  # beside this file

from neutronstream.datasets import StaticGraph, load, load_graph, random_split
from neutronstream.experiments import SnapshotConfig
from neutronstream.experiments.snapshots.data import data_of_log
from neutronstream.experiments.snapshots.links import Links
from neutronstream.parallel.backends import Ownership, make_propagator
from neutronstream.parallel.backends.lazy import (
    EndToEnd,
    LazySettings,
    LazyTrainer,
    Part,
    link_parts,
    traffic_ratio,
)
from neutronstream.parallel.comm import connect
from neutronstream.parallel.ranks import ALONE, Comm
from neutronstream.storage import Snapshot, SparseMatrix

GRAPHS = ("cora", "citeseer", "facebook_page")
KINDS = ("gcn", "sage", "gat")
SPLITS: dict[str, dict[str, Any]] = {
    "cora": {"per_class": 86, "val": 300},
    "citeseer": {"per_class": 178, "val": 357},
    "facebook_page": {"train": 0.201, "val": 0.099},
}
BASE = LazySettings(hidden=256, learning_rate=0.003, weight_decay=5e-4, dropout=0.5, every=2)
SPECIAL: dict[str, dict[str, Any]] = {
    "facebook_page": {"hidden": 64, "learning_rate": 0.01, "rounds": 60}
}


@lru_cache
def snapshot_of(name: str, numbers: int) -> tuple[StaticGraph, Snapshot]:
    """The graph in both directions, with its features: words, or so many numbers a node."""
    graph = load_graph(name)
    rows = graph.sparse_features
    assert rows is not None
    rows = rows.unit_rows()
    if numbers:
        from scipy.sparse import csr_matrix
        from sklearn.decomposition import TruncatedSVD

        shape = graph.num_nodes, rows.num_columns
        words = csr_matrix((rows.values, rows.indices, rows.indptr), shape)
        reduced = TruncatedSVD(numbers, random_state=0).fit_transform(words)
        features = (reduced / reduced.std()).astype(np.float32)
    else:
        features = rows.dense()
    adjacency = SparseMatrix.from_edges(*graph.both_ways, graph.num_nodes)
    return graph, Snapshot(adjacency, features, np.maximum(graph.labels, 0))


def part_of(name: str, seed: int, comm: Comm = ALONE, *, numbers: int = 0) -> Part:
    """This rank's part, nodes dealt out one by one."""
    graph, snapshot = snapshot_of(name, numbers)
    masks = random_split(graph.labels, seed=seed, **SPLITS[name])
    ownership = Ownership.round_robin(graph.num_nodes, comm.size)
    return Part.of(snapshot, masks, ownership, comm.rank)


def accuracies(part: Part, settings: LazySettings) -> dict[str, float]:
    """Test accuracy of every way, in per cent."""
    found: dict[str, float] = {}
    for kind in KINDS:
        chosen = replace(settings, kind=kind)  # type: ignore[arg-type]
        lazy = LazyTrainer(part, chosen)
        lazy.train()
        found[f"{kind} lazy"] = 100 * lazy.accuracy(part.test)
        twin = EndToEnd(part, chosen)
        twin.train()
        found[f"{kind} twin"] = 100 * twin.accuracy(part.test)
    hidden = LazyTrainer(part, replace(settings, payload="hidden"))
    hidden.train_stage(0)
    found["mlp"] = 100 * hidden.accuracy(part.test)
    for stage in (1, 2):
        hidden.train_stage(stage)
    found["gcn hidden"] = 100 * hidden.accuracy(part.test)
    logits = LazyTrainer(part, replace(settings, payload="logits"))
    logits.train()
    found["gcn logits"] = 100 * logits.accuracy(part.test)
    return found


def compare_ranks(comm: Comm) -> dict[str, Any]:
    """Cora on these ranks and on one, in float64: largest differences, and the bytes."""
    settings = replace(BASE, rounds=10, double=True)
    found: dict[str, Any] = {"ranks": comm.size}
    for kind in KINDS:
        chosen = replace(settings, kind=kind)  # type: ignore[arg-type]
        ours, twin = (
            cls(part_of("cora", 0, comm), chosen, comm) for cls in (LazyTrainer, EndToEnd)
        )
        assert isinstance(ours, LazyTrainer) and isinstance(twin, EndToEnd)
        ours.train()
        twin.train()
        scores = comm.all_gather_rows(ours.predict(), ours.part.ownership.sizes, "results")
        losses, off, differ = [0.0], 0.0, 0
        if comm.rank == 0:  # the others have the same losses
            alone = LazyTrainer(part_of("cora", 0), chosen)
            alone.train()
            expected = alone.predict()[torch.from_numpy(ours.part.ownership.order)]
            losses = [
                abs(a - b)
                for stage, history in alone.histories.items()
                for a, b in zip(history.losses, ours.histories[stage].losses, strict=True)
            ]
            off = float((scores - expected).abs().max())
            differ = int((scores.argmax(1) != expected.argmax(1)).sum())
        moved = [t.gate.everyones_bytes() for t in (ours, twin)]
        pairs = sum(comm.gather_objects(len(ours.part.boundary.given), "results"))
        width = ours.stages[0].width
        evaluating = len(twin.history.accuracies) * pairs * width * 8
        rows = [m["feature"] + m["embed"] + m["embed gradient"] for m in moved]
        found[kind] = {
            "loss off by": max(losses),
            "scores off by": off,
            "answers that differ": differ,
            "row bytes lazy": rows[0],
            "row bytes end to end": rows[1] - evaluating,
            "ratio": (rows[1] - evaluating) / rows[0],
            "ratio by formula": traffic_ratio(ours.part.features.shape[1], [width], 10),
            "gradient bytes": moved[0]["grad"],
        }
    return found


LOGS: dict[str, dict[str, Any]] = {
    "uci": {"period": "7d"},
    "enron": {"count": 40},
    "bitcoinotc": {"count": 40},
}
OF_LINKS = LazySettings(
    *("sage", "raw+hidden", 1, "gru"),
    rounds=40,
    dropout=0.1,
    weight_decay=0.0,
    every=2,
)
MORE = {"enron": 100}  # rounds
ON_FOUR: dict[str, dict[str, Any]] = {
    "a sum a round": {},
    "2 local steps": {"local_steps": 2},
    "bf16": {"rounding": "bf16"},
}


def links_of(name: str, seed: int, comm: Comm = ALONE) -> tuple[Links, Part]:
    """What is asked and how it is scored, and this rank's part of all snapshots."""
    data = data_of_log(load(name), SnapshotConfig(seed=seed, **LOGS[name]))
    task = Links(data, SnapshotConfig(seed=seed), make_propagator("single", data.snapshots))
    ownership = Ownership.round_robin(data.num_nodes, comm.size)
    parts = link_parts(data.snapshots, ownership, comm.rank, undirected=True)
    return task, Part.of_window(parts)


def link_settings(name: str, **changed: Any) -> LazySettings:
    """Those of a log."""
    return replace(OF_LINKS, rounds=MORE.get(name, OF_LINKS.rounds), **changed)


def link_precision(task: Links, trainer: LazyTrainer) -> float:
    """Test AP by the last stage that is done; on one rank, which has all rows."""
    outputs = {}
    for step in task.data.test:
        src, dst, valid = task.candidates(step, "test", task.config.candidates)
        ends = np.broadcast_to(src[:, None], dst.shape).reshape(-1), dst.reshape(-1)
        first = step * task.data.num_nodes
        scores = trainer.score(first + ends[0], first + ends[1]).double().numpy()
        outputs[step] = np.where(valid, scores.reshape(dst.shape), 0)
    return task.measure(outputs, "test")["ap"]


def link_row(name: str, seeds: list[int]) -> dict[str, Any]:
    """AP after each stage, beside what needs no training; of every seed."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        task, part = links_of(name, seed)
        for rival, scores in task.baselines("test").items():
            found.setdefault(rival, []).append(scores["ap"])
        trainer = LazyTrainer(part, link_settings(name, seed=seed))
        for stage, way in enumerate(("sage", "sage + gru")):
            trainer.train_stage(stage)
            found.setdefault(way, []).append(link_precision(task, trainer))
    row = {way: [round(ap, 3) for ap in aps] for way, aps in found.items()}
    print(f"{name:12}{row}", flush=True)
    return row


def link_ranks(comm: Comm, names: list[str]) -> dict[str, Any]:
    """Weights that these ranks learn, tested on one rank, and the bytes it took."""
    found: dict[str, Any] = {}
    for name in names:
        task, part = links_of(name, 0, comm)
        whole = links_of(name, 0)[1] if comm.rank == 0 else None
        for way, changed in ON_FOUR.items():
            settings = link_settings(name, **changed)
            trainer = LazyTrainer(part, settings, comm)
            trainer.train()
            moved = trainer.gate.everyones_bytes()
            calls = trainer.gate.calls
            if whole is not None:
                alone = LazyTrainer(whole, settings)
                alone.adopt(trainer.stages)
                found[f"{name} {way}"] = {
                    "ap": round(link_precision(task, alone), 3),
                    "exchanges of rows": calls["feature"] + calls["embed"],
                    "row bytes": moved["feature"] + moved["embed"],
                    "gradient bytes": moved["grad"],
                }
            comm.barrier()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", nargs="*", default=list(LOGS), choices=list(LOGS))
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=200, help="at most, a stage")
    parser.add_argument("--patience", type=int, default=20, help="evaluations without a better one")
    parser.add_argument("--numbers", type=int, default=128, help="a node, by SVD; 0: its words")
    parser.add_argument("--on-ranks", choices=("graphs", "links"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.on_ranks:
        with connect(os.environ) as comm:
            links = given.on_ranks == "links"
            compared = link_ranks(comm, given.links) if links else compare_ranks(comm)
            if comm.rank == 0:
                print(json.dumps(compared))
        return
    result: dict[str, Any] = {}
    for name in given.graphs:
        runs: list[dict[str, float]] = []
        start = perf_counter()
        for seed in given.seeds:
            settings = replace(BASE, seed=seed, rounds=given.rounds, patience=given.patience)
            settings = replace(settings, **SPECIAL.get(name, {}))
            runs.append(accuracies(part_of(name, seed, numbers=given.numbers), settings))
            line = "  ".join(f"{way} {value:.1f}" for way, value in runs[-1].items())
            print(f"{name:14}seed {seed}  {line}  ({perf_counter() - start:.0f} s)", flush=True)
        for way in runs[0]:
            values = [run[way] for run in runs]
            spread = stdev(values) if len(values) > 1 else 0.0
            result[f"{name} {way}"] = [round(mean(values), 2), round(spread, 2)]
            print(f"{name:14}{way:12}{mean(values):6.2f} +- {spread:.2f}")
        for kind in KINDS:
            gap = mean(run[f"{kind} lazy"] - run[f"{kind} twin"] for run in runs)
            result[f"{name} {kind} lazy - twin"] = round(gap, 2)
            print(f"{name:14}{kind:5} lazy - twin {gap:+.2f} points")
    job = ["mpiexec", "-n", "4", sys.executable, __file__]
    if given.graphs:
        shown = subprocess.run(
            [*job, "--on-ranks", "graphs"], capture_output=True, text=True, check=True
        )
        result["ranks"] = json.loads(shown.stdout.splitlines()[-1])
        for kind in KINDS:
            print(f"four ranks and one, {kind}: {result['ranks'][kind]}")
    for name in given.links:
        result[f"links {name}"] = link_row(name, given.seeds[:3])
    if given.links:
        shown = subprocess.run(
            [*job, "--links", *given.links, "--on-ranks", "links"],
            capture_output=True,
            text=True,
            check=True,
        )
        result["link ranks"] = json.loads(shown.stdout.splitlines()[-1])
        for way, row in result["link ranks"].items():
            print(f"four ranks, {way}: {row}")
    finish({"rounds": given.rounds, "numbers": given.numbers, **result}, seed=given.seeds[0])


if __name__ == "__main__":
    main()
