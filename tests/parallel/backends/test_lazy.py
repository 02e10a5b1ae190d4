"""Lazy message passing: its promises on one to four ranks, clients, costs and settings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from neutronstream.datasets import load
from neutronstream.parallel.backends import Ownership
from neutronstream.parallel.backends.lazy import (
    NETWORKS,
    DeltaHalo,
    EndToEnd,
    LazySettings,
    LazyTrainer,
    LazyWindows,
    Network,
    Part,
    link_parts,
    link_trainer,
    simulate_clients,
    traffic_ratio,
    tree_bytes,
)
from neutronstream.parallel.backends.lazy.gate import Phase
from neutronstream.parallel.backends.lazy.settings import Payload
from neutronstream.parallel.backends.lazy.stages import Kind, count_parameters
from neutronstream.parallel.ranks import ALONE
from neutronstream.storage import Snapshot, SparseMatrix, discretise
from neutronstream.stream import EventLog

from ...test_docs import run
from . import lazy_promises
from .lazy_promises import SMALL, WAYS, graph, masks_of, part_of, parts_of, snapshots
from .run import Promise, held_on_ranks

MODULE = lazy_promises.__name__


def test_promises_on_ranks() -> None:
    held_on_ranks((2, 3, 4), MODULE)


@pytest.mark.slow
def test_the_books_equal_the_formulas_on_eight_ranks() -> None:
    held_on_ranks((8,), MODULE, lazy_promises.keeps_books_that_equal_the_formulas)


@pytest.mark.parametrize("promise", lazy_promises.PROMISES, ids=lambda promise: promise.__name__)
def test_promises_on_one_rank(promise: Promise) -> None:
    promise(ALONE)


def alike() -> tuple[Snapshot, list[np.ndarray]]:
    """Most edges join nodes of a class; the features say little of it."""
    random = np.random.default_rng(0)
    target = np.arange(200) % 4
    dst = np.repeat(np.arange(200), 6)
    near = (dst + 4 * random.integers(1, 50, len(dst))) % 200
    src = np.where(random.random(len(dst)) < 0.85, near, random.integers(0, 200, len(dst)))
    features = random.normal(size=(200, 6)) + 0.7 * np.eye(4, 6)[target]
    parts = random.permutation(np.arange(200) % 3)
    adjacency = SparseMatrix.from_edges(src, dst, 200)
    masks = [parts == part for part in range(3)]
    return Snapshot(adjacency, features.astype(np.float32), target), masks


@pytest.mark.parametrize(("kind", "payload"), WAYS)
def test_a_stage_that_hears_its_neighbours_knows_more(kind: Kind, payload: Payload) -> None:
    snapshot, masks = alike()
    part = Part.of(snapshot, masks, Ownership.round_robin(200, 1), 0)
    settings = LazySettings(
        kind=kind, payload=payload, hidden=16, heads=2, rounds=40, dropout=0.1, learning_rate=0.02
    )
    trainer = LazyTrainer(part, settings)
    trainer.train()
    for history in trainer.histories.values():
        assert history.losses[-1] < history.losses[0]
    alone = LazyTrainer(part, replace(settings, payload="hidden"))
    alone.train_stage(0)
    assert trainer.accuracy(part.test) > alone.accuracy(part.test) + 0.15


def window(graphs: list[Snapshot]) -> Part:
    return Part.of_window(parts_of(ALONE, graphs))


def test_a_stage_over_time_is_a_plain_gru_of_each_node() -> None:
    settings = replace(SMALL, temporal="gru", dropout=0.0)
    trainer = LazyTrainer(window(snapshots(3)), settings)
    trainer.train()
    gru, head = trainer.stages[2].conv, trainer.stages[2].head
    assert isinstance(gru, torch.nn.GRU) and head is not None
    inputs = trainer._inputs[2].x.view(3, 97, 8)
    found = trainer.predict().view(3, 97, 7)
    weight, recurrent, of_input, of_state = dict(gru.named_parameters()).values()
    for node in (0, 5, 96):
        state = torch.zeros(8).double()
        for step in range(3):
            x = weight @ inputs[step, node] + of_input
            h = recurrent @ state + of_state
            reset, update = torch.sigmoid(x[:8] + h[:8]), torch.sigmoid(x[8:16] + h[8:16])
            new = torch.tanh(x[16:] + reset * h[16:])
            state = (1 - update) * new + update * state
            torch.testing.assert_close(found[step, node], head(state), rtol=0, atol=1e-12)


def test_a_stage_over_time_reads_no_later_snapshot() -> None:
    graphs, settings = snapshots(3), replace(SMALL, temporal="gru")
    trainer = LazyTrainer(window(graphs), settings)
    trainer.train()
    assert graphs[2].features is not None
    graphs[2] = replace(graphs[2], features=graphs[2].features + 1)
    other = LazyTrainer(window(graphs), settings)
    other.adopt(trainer.stages)
    assert torch.equal(trainer.predict()[: 2 * 97], other.predict()[: 2 * 97])
    assert not torch.equal(trainer.predict()[2 * 97 :], other.predict()[2 * 97 :])
    graphs[0] = replace(graphs[0], features=2 * np.asarray(graphs[0].features))
    earlier = LazyTrainer(window(graphs), settings)
    earlier.adopt(trainer.stages)
    changed = (earlier.predict() - other.predict())[2 * 97 :].abs().amax(1)
    assert (changed > 0).sum() > 48, "the past is remembered"


def test_a_stage_over_time_learns_what_a_snapshot_alone_does_not_show() -> None:
    """The class of a node is that of its features one snapshot ago."""
    snapshot, masks = alike()
    assert snapshot.target is not None
    random = np.random.default_rng(1)
    shown = [random.permutation(snapshot.target) for _ in range(5)]
    parts = []
    for step in range(1, 5):
        features = np.eye(4, 6)[shown[step]].astype(np.float32)
        one = Snapshot(SparseMatrix.from_edges([], [], 200), features, shown[step - 1])
        parts.append(Part.of(one, masks, Ownership.round_robin(200, 1), 0))
    settings = LazySettings(
        hidden=16, hops=1, rounds=120, dropout=0, learning_rate=0.03, temporal="gru"
    )
    trainer = LazyTrainer(Part.of_window(parts), settings)
    trainer.train_stage(0)
    before = trainer.accuracy("test")
    trainer.train_stage(1)
    assert before < 0.4 and trainer.accuracy("test") > 0.7  # at the first nobody can know


def test_links_of_a_real_log_are_learned_better_than_by_persistence() -> None:
    """AP against one negative a link, which keeps the source; persistence: a link of the last."""
    log = load("uci", limit=12_000)
    graphs = discretise(log, count=10, features="history")
    settings = LazySettings(
        hops=1, temporal="gru", hidden=16, rounds=30, dropout=0.1, weight_decay=0, every=2
    )
    trainer = link_trainer(graphs, settings, undirected=True)
    trainer.train()
    width, random = log.num_nodes, np.random.default_rng(0)
    step = 8
    matrix = graphs[step + 1].adjacency
    links = matrix.indices.astype(np.int64), matrix.row_of
    before = np.unique(np.concatenate([g.adjacency.row_of for g in graphs[: step + 1]]))
    asked = np.isin(links[1], before)
    src, dst = (end[asked] for end in links)
    others = random.choice(before, len(src))
    last = graphs[step].adjacency
    known = set(zip(last.indices.tolist(), last.row_of.tolist(), strict=True))
    ends = np.concatenate((src, src)), np.concatenate((dst, others))
    label = np.arange(2 * len(src)) < len(src)
    scores = trainer.score(step * width + ends[0], step * width + ends[1]).numpy()
    same = [pair in known for pair in zip(ends[0].tolist(), ends[1].tolist(), strict=True)]
    ours, persistence = (average_precision_score(label, s) for s in (scores, same))
    assert ours > persistence + 0.1
    assert trainer.accuracy("test") > 0.7


def test_the_weights_that_chose_best_are_kept_and_patience_ends_a_stage() -> None:
    settings = replace(SMALL, rounds=200, learning_rate=0.05, patience=5, hops=1, dropout=0.0)
    trainer = LazyTrainer(part_of(ALONE, graph()), settings)
    history = trainer.train_stage(0)
    assert history.rounds == history.best + 6 < 200
    assert history.accuracies[history.best] == max(history.accuracies)
    assert trainer.accuracy(trainer.part.val) == max(history.accuracies)


def test_one_node_a_client_sends_and_receives_what_its_degrees_say() -> None:
    snapshot = graph()
    into, out = np.zeros(97, np.int64), np.zeros(97, np.int64)
    for v, u in zip(snapshot.adjacency.row_of, snapshot.adjacency.indices, strict=True):
        into[v] += u != v
        out[u] += u != v
    for payload, widths in (("raw+hidden", [9, 8]), ("hidden", [0, 8, 8]), ("logits", [0, 7, 7])):
        settings = replace(SMALL, payload=payload)  # type: ignore[arg-type]
        found = simulate_clients(snapshot, masks_of(snapshot), settings, participants=10)
        stages = zip(found.rows_sent, found.rows_received, widths, strict=True)
        for sent, received, width in stages:
            assert sent.sum() == received.sum()
            assert np.array_equal(sent + received, (into + out) * width * 8)
        sizes = [count_parameters(stage) * 8 for stage in found.trainer.stages]
        assert (found.participations.sum(), found.participations.max()) == (
            3 * 10 * len(sizes),
            max(found.participations),
        )
        assert not found.participations[~masks_of(snapshot)[0]].any()
        assert found.gradients_sent.sum() == 3 * 10 * sum(sizes)
        idle = ~masks_of(snapshot)[0] & ~masks_of(snapshot)[1]
        assert set(found.weights_received[idle]) == {sum(sizes)}
        client, most = found.largest
        assert most == found.total[client] == max(found.total)
        assert found.total.sum() - found.server == 2 * sum(int(s.sum()) for s in found.rows_sent)


def test_a_broadcast_is_sent_once() -> None:
    snapshot = graph()
    found = simulate_clients(snapshot, masks_of(snapshot), SMALL, medium="broadcast")
    into, out = (np.bincount(end, minlength=97) for end in _ends(snapshot))
    assert np.array_equal(found.rows_sent[0], (out > 0) * 9 * 8)
    assert np.array_equal(found.rows_received[0], into * 9 * 8)


def _ends(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    matrix = snapshot.adjacency
    others = matrix.row_of != matrix.indices
    return matrix.row_of[others], matrix.indices[others]


def test_clients_who_all_take_part_learn_as_one_process_does() -> None:
    snapshot = graph()
    found = simulate_clients(snapshot, masks_of(snapshot), SMALL)
    alone = LazyTrainer(part_of(ALONE, snapshot), SMALL)
    alone.train()
    assert torch.equal(found.trainer.predict(), alone.predict())
    few = simulate_clients(snapshot, masks_of(snapshot), SMALL, participants=3)
    assert not torch.equal(few.trainer.predict(), alone.predict())


def test_a_computation_tree_costs_what_a_walk_along_it_counts() -> None:
    snapshot = power_law_without_loops()
    matrix, widths, parameters = snapshot.adjacency, [5, 4, 3], [20, 12]

    def walk(node: int, layers: int) -> int:
        numbers = 0
        row = slice(matrix.indptr[node], matrix.indptr[node + 1])
        for other in matrix.indices[row].tolist():
            below = layers - 1
            numbers += widths[below]  # its embedding comes
            if below:
                numbers += widths[below]  # the embedding's gradient goes back
                numbers += 2 * sum(parameters[:below])  # weights there, their gradient back
            numbers += walk(other, below) if below else 0
        return numbers

    expected = [4 * (walk(node, 2) + 2 * sum(parameters)) for node in range(20)]
    assert tree_bytes(snapshot, widths, parameters).tolist() == expected
    lazy = simulate_clients(graph(), masks_of(graph()), replace(SMALL, payload="logits", rounds=20))
    sizes = [count_parameters(stage) for stage in lazy.trainer.stages[1:]]
    naive = tree_bytes(graph(), [9, 8, 7], sizes, 8) @ np.maximum(lazy.participations, 0)
    assert naive > 5 * lazy.total.sum()


def power_law_without_loops() -> Snapshot:
    random = np.random.default_rng(0)
    src, dst = random.integers(0, 20, (2, 70))
    apart = src != dst
    return Snapshot(SparseMatrix.from_edges(src[apart], dst[apart], 20))


def test_a_phase_lasts_as_long_as_its_slowest_rank() -> None:
    phases = [[Phase("embed", 1, 100), Phase("grad", 2, 0)], [Phase("embed", 3, 0)] * 2]
    assert Network(1.0, 10.0).seconds(phases) == 11 + 3
    with pytest.raises(ValueError, match="`phases` must be as many on every rank"):
        Network(1.0, 1.0).seconds([phases[0], []])
    with pytest.raises(ValueError, match="`latency` must be at least 0 and `bandwidth` above 0"):
        Network(0.0, 0.0)
    times = {name: network.seconds(phases) for name, network in NETWORKS.items()}
    assert min(times, key=lambda name: times[name]) == "datacentre"


def test_the_ratio_is_that_of_the_published_settings() -> None:
    assert round(traffic_ratio(1_433, [256], 200), 1) == 61.5  # Cora
    assert round(traffic_ratio(602, [256], 200)) == 120  # Reddit
    assert round(traffic_ratio(100, [256], 200)) == 288  # products


def test_what_cannot_be_trained_says_why() -> None:
    with pytest.raises(ValueError, match=r"`payload` must be raw.*, hidden or logits: got 'a'"):
        LazySettings(payload="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`kind` must be mlp, gcn, sage or gat: got 'gin'"):
        LazySettings(kind="gin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`dropout` must be a share below 1: got 1"):
        LazySettings(dropout=1)
    with pytest.raises(ValueError, match="must be at least 1: got 0, 200, 1, 64 and 8"):
        LazySettings(hops=0)
    with pytest.raises(ValueError, match="`hidden` must be a multiple of 3 heads: got 8"):
        LazyTrainer(part_of(ALONE, graph()), replace(SMALL, kind="gat", heads=3))
    with pytest.raises(ValueError, match="end to end features and embeddings cross"):
        EndToEnd(part_of(ALONE, graph()), replace(SMALL, payload="logits"))
    with pytest.raises(ValueError, match="`part` must be that of rank 0 of 1: got that of rank 1"):
        base = graph()
        LazyTrainer(Part.of(base, masks_of(base), Ownership.round_robin(97, 2), 1), SMALL)
    with pytest.raises(ValueError, match="`masks` must have a value for each of 97 nodes: got 5"):
        Part.of(graph(), [np.ones(5, bool)] * 3, Ownership.round_robin(97, 1), 0)
    with pytest.raises(ValueError, match="must have `features` and a `target`"):
        Part.of(power_law_without_loops(), [], Ownership.round_robin(20, 1), 0)
    with pytest.raises(ValueError, match="some nodes must be trained on, and some chosen by"):
        nobody = [np.zeros(97, bool)] * 3
        LazyTrainer(Part.of(graph(), nobody, Ownership.round_robin(97, 1), 0), SMALL)
    with pytest.raises(ValueError, match="there is nothing to predict with"):
        LazyTrainer(part_of(ALONE, graph()), SMALL).predict()
    with pytest.raises(ValueError, match="`parts` must hold at least one snapshot"):
        Part.of_window([])
    with pytest.raises(ValueError, match="`eps` must be at least 0: got -1"):
        DeltaHalo(-1)
    with pytest.raises(ValueError, match="`participants` must be at least 1: got 0"):
        simulate_clients(graph(), masks_of(graph()), SMALL, participants=0)
    with pytest.raises(ValueError, match="`widths` must be one more than `parameters`"):
        tree_bytes(graph(), [1], [1])
    with pytest.raises(ValueError, match="`temporal` must be gru or None: got 'lstm'"):
        LazySettings(temporal="lstm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`rounding` must be none, bf16 or fp16: got 'int8'"):
        LazySettings(rounding="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`local_steps` must be at least 1 and divide `every`"):
        LazySettings(local_steps=2)
    with pytest.raises(ValueError, match="`negatives` must be local or global: got 'all'"):
        LazySettings(negatives="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`per_link` must be at least 0: got -1"):
        LazySettings(per_link=-1)
    with pytest.raises(ValueError, match="`late` must be ranks below 1: got \\[1\\]"):
        LazyWindows(SMALL).step(parts_of(ALONE, snapshots(1)), late=[1])
    with pytest.raises(ValueError, match="`late` ranks need a `delta`"):
        LazyTrainer(part_of(ALONE, graph()), SMALL, late=[0])
    with pytest.raises(ValueError, match="`sample` is for classes, and for `local_steps` of 1"):
        simulate_clients(graph(), masks_of(graph()), replace(SMALL, local_steps=2, every=2))
    with pytest.raises(ValueError, match="end to end learns classes, by exact gradients"):
        EndToEnd(part_of(ALONE, graph()), replace(SMALL, rounding="bf16"))


def test_undirected_messages_go_both_ways_and_a_loop_counts_once() -> None:
    log = EventLog.from_arrays([0, 0, 1, 1] * 4, [0, 0, 1, 2] * 4, range(16))
    graphs = discretise(log, count=4, features="history")
    part = link_parts(graphs, Ownership.round_robin(3, 1), 0, undirected=True)[0]
    edges = zip(part.src.tolist(), part.dst.tolist(), part.weight.tolist(), strict=True)
    assert sorted(edges) == [(0, 0, 2.0), (1, 1, 1.0), (1, 2, 1.0), (2, 1, 1.0)]


def test_links_that_cannot_be_learned_say_why() -> None:
    graphs, alone = snapshots(5), Ownership.round_robin(97, 1)
    with pytest.raises(ValueError, match=r"`snapshots` must be at least 4, .*: got 3"):
        link_parts(graphs[:3], alone, 0)
    with pytest.raises(ValueError, match=r"must leave a step of 4 to train on: got 0\.5"):
        link_parts(graphs, alone, 0, val_ratio=0.5, test_ratio=0.5)
    log = load("uci", limit=300)
    with pytest.raises(ValueError, match="snapshot 1 must not hold events of snapshot 0"):
        link_trainer(discretise(log, count=5, cumulative=True), SMALL)
    with pytest.raises(ValueError, match="snapshot 0 must have `features`, if nodes have no"):
        link_trainer([replace(one, features=None) for one in graphs], SMALL, names=0)
    with pytest.raises(ValueError, match="`snapshots` must hold at least 4: got none"):
        link_trainer([], SMALL)
    with pytest.raises(ValueError, match="the snapshot must have `features` to learn from"):
        link_parts([replace(one, features=None) for one in graphs], alone, 0)
    for settings in (replace(SMALL, payload="logits"), replace(SMALL, kind="mlp")):
        with pytest.raises(ValueError, match="links need the rows of both ends in every stage"):
            link_trainer(graphs, settings)
    parts = [*parts_of(ALONE, graphs[:1]), *link_parts(graphs, alone, 0)]
    with pytest.raises(ValueError, match="`parts` must all ask for links, or none of them"):
        Part.of_window(parts)
    with pytest.raises(ValueError, match="some links must be trained on, and some chosen by"):
        LazyTrainer(Part.of_window(parts[1:2]), SMALL)
    trainer = link_trainer(graphs, replace(SMALL, rounds=1))
    with pytest.raises(ValueError, match="there is nothing to predict with"):
        trainer.embed()
    trainer.train()
    with pytest.raises(ValueError, match="links are asked for, not classes: `score` pairs"):
        trainer.predict()
    with pytest.raises(ValueError, match="`which` must be one of train, val, test for links"):
        trainer.accuracy(np.ones(97, bool))
    with pytest.raises(ValueError, match="end to end learns classes"):
        EndToEnd(trainer.part, SMALL)
    classes = LazyTrainer(part_of(ALONE, graph()), SMALL)
    with pytest.raises(ValueError, match="classes are asked for, not links: `predict` them"):
        classes.score(np.zeros(1, np.int64), np.zeros(1, np.int64))


def test_the_page_on_backends_shows_what_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/backends.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (share,) = re.findall(r"a link stands above (\d\d)% of", run(["-c", block], tmp_path))
    assert int(share) > 70
    (beyond,) = re.findall(r"Beyond these 45:(.*)", page, re.DOTALL)
    names = re.findall(r"`(?:lazy_promises\.)?(\w+)`", beyond)
    assert len(names) == 11
    assert set(names) <= {promise.__name__ for promise in lazy_promises.PROMISES}
