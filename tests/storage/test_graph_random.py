"""The store against its oracle on random events, ties, loops, link masks, undo and redo."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutronstream.storage import Direction, DynamicGraph, OracleGraph, compare
from neutronstream.stream.events import EventBatch, Int64

from .naive import batch_of, random_batch

DIRECTIONS: tuple[Direction, ...] = ("both", "in", "out")


def assert_same(
    graph: DynamicGraph, oracle: OracleGraph, nodes: Int64, positions: Int64, k: int | None
) -> None:
    """All answers of the store are those of the oracle."""
    assert graph.position == oracle.position
    assert graph.num_nodes == oracle.num_nodes
    assert graph.num_links == oracle.num_links
    ask = nodes, positions
    for direction in DIRECTIONS:
        compare(graph.sample(*ask, k, direction), oracle.sample(*ask, k, direction), *ask)
    compare(graph.links(*ask), oracle.links(*ask), *ask)
    compare(graph.degree(*ask), oracle.degree(*ask), *ask)
    compare(graph.num_linked(*ask), oracle.num_linked(*ask), *ask)
    compare(graph.last_position(*ask), oracle.last_position(*ask), *ask)
    compare(graph.last_time(*ask, -3), oracle.last_time(*ask, -3), *ask)
    rests, plain = graph.rests(*ask, k or 0), oracle.sample(*ask, k or 0)
    real = rests.position >= 0
    assert np.array_equal(real.sum(1), np.diff(plain.indptr))
    assert (np.diff(real.astype(int), axis=1) <= 0).all()  # from the left
    for ours, right in (
        ("node", plain.node),
        ("position", plain.position),
        ("is_src", plain.is_src),
    ):
        assert np.array_equal(getattr(rests, ours)[real], right)
        assert not np.where(real, 0, getattr(rests, ours) - (ours == "position") * -1).any()
    compare(rests.last, oracle.last_position(*ask), *ask)
    ends = plain.node, np.repeat(positions, np.diff(plain.indptr))
    compare(rests.last_of[real], oracle.last_position(*ends), *ends)


end = st.integers(0, 5)
event = st.tuples(end, end, st.integers(0, 2), st.booleans())  # src, dst, time step, makes a link
apply = st.tuples(st.just("apply"), st.lists(event, max_size=8))
undo = st.tuples(st.just("undo"), st.floats(0, 1))


@settings(max_examples=150, deadline=None)
@given(
    initial=st.lists(st.tuples(end, end, st.just(0)), max_size=4),
    steps=st.lists(apply | undo, max_size=8),
    k=st.none() | st.integers(0, 4),
)
def test_any_program_of_apply_and_undo_gives_the_answers_of_the_oracle(
    initial: list[tuple[int, int, int]],
    steps: list[tuple[str, list[tuple[int, int, int, bool]] | float]],
    k: int | None,
) -> None:
    graph, oracle = DynamicGraph(batch_of(*initial)), OracleGraph(batch_of(*initial))
    times: list[int] = []
    for _, step in steps:
        if isinstance(step, float):
            position = round(step * graph.position)
            graph.undo(position)
            oracle.undo(position)
            del times[position:]
        else:
            events = []
            for src, dst, wait, _ in step:
                times.append((times[-1] if times else 0) + wait)
                events.append((src, dst, times[-1]))
            links = np.array([makes_link for *_, makes_link in step], np.bool_)
            graph.apply(batch_of(*events), links)
            oracle.apply(batch_of(*events), links)
        nodes = np.repeat(np.arange(7), graph.position + 3)
        positions = np.tile(np.arange(-1, graph.position + 2), 7)
        assert_same(graph, oracle, nodes, positions, k)


@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_history_gives_the_answers_of_the_oracle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_nodes = (3, 12, 60, 400)[seed]
    initial = random_batch(rng, 20, num_nodes, 0) if seed % 2 else None
    graph, oracle = DynamicGraph(initial), OracleGraph(initial)
    start = -1000
    for _ in range(12):
        if rng.random() < 0.3:
            position = int(rng.integers(0, graph.position + 1))
            graph.undo(position)
            oracle.undo(position)
        if graph.position:
            start = int(graph.last_time(np.arange(num_nodes), graph.position, -1000).max())
        batch = random_batch(rng, int(rng.integers(0, 300)), num_nodes, start)
        links = None if rng.random() < 0.5 else rng.random(len(batch)) < 0.5
        graph.apply(batch, links)
        oracle.apply(batch, links)
        nodes = rng.integers(0, num_nodes + 2, 300)
        positions = rng.integers(-1, graph.position + 3, 300)
        k = (1, 3, None)[int(rng.integers(0, 3))]
        assert_same(graph, oracle, nodes, positions, k)


def answers(graph: DynamicGraph, nodes: Int64, positions: Int64) -> list[bytes]:
    """Every answer, bit for bit."""
    ask = nodes, positions
    sampled = [graph.sample(*ask, k, way) for k in (1, 4, None) for way in DIRECTIONS]
    links = graph.links(*ask)
    columns = [c for s in sampled for c in (s.indptr, s.node, s.position, s.time, s.is_src)]
    columns += [links.indptr, links.node, links.link, links.position]
    columns += [graph.degree(*ask), graph.num_linked(*ask), graph.last_time(*ask, 0)]
    return [column.tobytes() for column in columns]


def test_undone_and_applied_again_is_never_undone_bit_for_bit() -> None:
    rng = np.random.default_rng(7)
    log = random_batch(rng, 5000, 80, 0)
    links = rng.random(len(log)) < 0.7
    straight, winding = DynamicGraph(), DynamicGraph()
    straight.apply(log, links)
    position = 0
    while position < len(log):  # forth by up to 400, back by up to 300
        stop = min(position + int(rng.integers(1, 400)), len(log))
        winding.apply(log[position:stop], links[position:stop])
        position = stop
        if rng.random() < 0.5 and position < len(log):
            position = max(0, position - int(rng.integers(0, 300)))
            winding.undo(position)
    nodes, positions = rng.integers(0, 82, 4000), rng.integers(0, 5001, 4000)
    assert answers(winding, nodes, positions) == answers(straight, nodes, positions)


def test_how_a_log_is_cut_into_batches_does_not_matter() -> None:
    rng = np.random.default_rng(8)
    log = random_batch(rng, 3000, 50, 0)
    whole, single = DynamicGraph(), DynamicGraph()
    whole.apply(log)
    for i in range(len(log)):
        single.apply(log[i : i + 1])
    nodes, positions = rng.integers(0, 50, 3000), rng.integers(0, 3001, 3000)
    assert answers(single, nodes, positions) == answers(whole, nodes, positions)


def test_a_million_nodes_are_only_a_matter_of_memory() -> None:
    # each node 2 i meets 2 i + 1; then the hub, the last id, meets every tenth node
    many = 1_000_000
    evens = np.arange(0, many, 2)
    tenths = np.arange(0, many, 10)
    src = np.concatenate([evens, np.full(len(tenths), many - 1)])
    dst = np.concatenate([evens + 1, tenths])
    graph = DynamicGraph()
    graph.apply(EventBatch(src, dst, np.arange(len(src)), np.zeros(len(src), np.uint8)))
    assert graph.num_nodes == many
    assert graph.num_links == len(src)
    assert int(graph.degree(np.arange(many), len(src)).sum()) == 2 * len(src)
    hub = graph.sample(np.array([many - 1]), len(src), k=None)
    assert hub.node.tolist() == [many - 2, *tenths.tolist()]
    graph.undo(len(evens))
    assert np.array_equal(graph.links(evens, len(src)).node, evens + 1)
    assert graph.num_links == len(evens)
