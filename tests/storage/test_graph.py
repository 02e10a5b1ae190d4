"""What the dynamic graph promises, on events that can be checked by eye.

Every test runs on the store and on its oracle, so that the oracle is not taken on trust.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TypeAlias

import numpy as np
import pytest

from neutronstream.storage import DynamicGraph, Links, Neighborhood, OracleGraph
from neutronstream.stream.errors import OrderError
from neutronstream.stream.events import EventBatch

from .naive import batch_of, ids, random_batch

AnyGraph: TypeAlias = type[DynamicGraph] | type[OracleGraph]


@pytest.fixture(params=[DynamicGraph, OracleGraph])
def new_graph(request: pytest.FixtureRequest) -> AnyGraph:
    kind: AnyGraph = request.param
    return kind


def rows(answer: Neighborhood | Links) -> list[list[int]]:
    """The neighbours of each query."""
    return [part.tolist() for part in np.split(answer.node, answer.indptr[1:-1])]


def test_the_oldest_neighbour_is_kept(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 1)))
    assert rows(graph.sample(ids(0), 1, k=3)) == [[1]]
    graph.apply(batch_of((0, 2, 2), (0, 3, 3)))
    assert rows(graph.sample(ids(0), 3, k=3)) == [[1, 2, 3]]


def test_an_event_never_sees_itself_nor_its_equals_in_time(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 2, 4), (0, 1, 5), (0, 1, 5)))
    assert rows(graph.sample(ids(0, 0), ids(1, 2), k=9)) == [[2], [2, 1]]


def test_equal_times_keep_log_order(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 3, 7), (0, 1, 7), (2, 0, 7)))
    assert rows(graph.sample(ids(0), 3, k=None)) == [[3, 1, 2]]
    assert rows(graph.sample(ids(0), 3, k=2)) == [[1, 2]]


def test_times_are_exact_at_any_size(new_graph: AnyGraph) -> None:
    seconds = 1_700_000_000
    graph = new_graph()
    graph.apply(batch_of((0, 1, seconds), (0, 2, seconds + 10), (0, 3, seconds + 20)))
    times = graph.sample(ids(0), 3, k=3).time
    assert (seconds + 30 - times).tolist() == [30, 20, 10]
    huge = 2**63 - 1
    graph.apply(batch_of((0, 1, huge - 1), (0, 1, huge)))
    assert graph.last_time(ids(0, 0), ids(4, 5), default=0).tolist() == [huge - 1, huge]


def test_times_may_be_negative(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, -(2**63)), (0, 1, -5), (0, 1, 0)))
    assert graph.last_time(ids(0, 0), ids(1, 2), default=9).tolist() == [-(2**63), -5]


def test_a_self_loop_stands_once_and_counts_once(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((3, 3, 1), (3, 4, 2)))
    assert graph.degree(ids(3, 4), 2).tolist() == [2, 1]
    assert graph.num_linked(ids(3, 4), 2).tolist() == [2, 1]
    answer = graph.sample(ids(3), 2, k=None)
    assert rows(answer) == [[3, 4]]
    assert answer.is_src.tolist() == [True, True]
    assert graph.links(ids(3, 4), 2).link.tolist() == [0, 2, 3]
    assert graph.num_links == 2


def test_a_self_loop_comes_in_and_goes_out(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((3, 3, 1), (3, 4, 2), (5, 3, 3)))
    assert rows(graph.sample(ids(3), 3, k=None, direction="in")) == [[3, 5]]
    assert rows(graph.sample(ids(3), 3, k=None, direction="out")) == [[3, 4]]


def test_a_node_may_appear_late_and_far_away(new_graph: AnyGraph) -> None:
    graph = new_graph(num_nodes=4)
    assert graph.num_nodes == 0
    assert rows(graph.sample(ids(9), 0, k=3)) == [[]]
    graph.apply(batch_of((0, 1, 0), (9, 1, 1)))
    assert graph.num_nodes == 10
    assert rows(graph.sample(ids(9, 8, 10, 10**12), 2, k=3)) == [[1], [], [], []]


def test_what_was_applied_later_does_not_change_an_answer(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 0), (0, 2, 1)))
    before = rows(graph.sample(ids(0), 2, k=1))
    graph.apply(batch_of((0, 3, 1), (0, 1, 9)))
    assert rows(graph.sample(ids(0), 2, k=1)) == before == [[2]]
    assert graph.last_position(ids(0, 1), ids(3, 3)).tolist() == [2, 0]


def test_a_position_beyond_the_log_sees_all_and_one_before_it_nothing(new_graph: AnyGraph) -> None:
    graph = new_graph(batch_of((7, 8, 0)))
    graph.apply(batch_of((0, 1, 0)))
    far = 2**63 - 1
    assert graph.degree(ids(0, 0, 0), ids(far, 1, -1)).tolist() == [1, 1, 0]
    assert graph.num_linked(ids(7, 7, 7), ids(far, 0, -1)).tolist() == [1, 1, 0]


def test_a_neighbour_met_twice_is_two_events_and_one_link(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 0), (1, 0, 1), (0, 1, 2)))
    assert rows(graph.sample(ids(0), 3, k=None)) == [[1, 1, 1]]
    assert graph.degree(ids(0), 3).tolist() == [3]
    assert rows(graph.links(ids(0), 3)) == [[1]]
    assert graph.num_links == 1


def test_the_roles_of_an_event_are_kept(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 0), (2, 0, 1), (3, 0, 2), (0, 4, 3)))
    assert graph.sample(ids(0), 4, k=None).is_src.tolist() == [True, False, False, True]
    assert rows(graph.sample(ids(0), 4, k=1, direction="in")) == [[3]]
    assert rows(graph.sample(ids(0), 4, k=None, direction="in")) == [[2, 3]]
    assert rows(graph.sample(ids(0), 4, k=None, direction="out")) == [[1, 4]]
    assert rows(graph.sample(ids(0), 3, k=5, direction="out")) == [[1]]


def test_links_have_one_id_in_each_direction(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((5, 2, 0), (2, 7, 1), (2, 5, 2)))
    answer = graph.links(ids(5, 2, 7), 3)
    assert rows(answer) == [[2], [5, 7], [2]]
    assert answer.link.tolist() == [0, 1, 2, 3]
    assert answer.position.tolist() == [0, 0, 1, 1]


def test_initial_links_are_links_but_not_events(new_graph: AnyGraph) -> None:
    graph = new_graph(batch_of((0, 1, 0), (1, 0, 0), (1, 2, 0)))
    assert (graph.num_nodes, graph.num_links, graph.position) == (3, 2, 0)
    answer = graph.links(ids(1), 0)
    assert rows(answer) == [[0, 2]]
    assert answer.link.tolist() == [1, 2]
    assert answer.position.tolist() == [-1, -1]
    assert rows(graph.sample(ids(1), 0, k=None)) == [[]]
    assert graph.last_position(ids(1), 0).tolist() == [-1]
    assert graph.last_time(ids(1), 0, default=-7).tolist() == [-7]
    graph.apply(batch_of((0, 1, 4)))
    assert graph.num_links == 2
    assert graph.degree(ids(0), 1).tolist() == [1]


def test_an_event_without_a_link_is_still_an_event(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 0), (0, 2, 1), (0, 1, 2)), np.array([False, True, True]))
    assert rows(graph.sample(ids(0), 3, k=None)) == [[1, 2, 1]]
    answer = graph.links(ids(0), 3)
    assert rows(answer) == [[2, 1]]
    assert answer.position.tolist() == [1, 2]


def test_undo_is_as_if_the_events_had_not_been(new_graph: AnyGraph) -> None:
    graph = new_graph(batch_of((0, 1, 0)))
    graph.apply(batch_of((1, 2, 5), (0, 1, 6), (8, 2, 9)))
    graph.undo(1)
    assert (graph.position, graph.num_nodes, graph.num_links) == (1, 3, 2)
    assert graph.degree(ids(0, 1, 2, 8), 3).tolist() == [0, 1, 1, 0]
    graph.apply(batch_of((2, 0, 5)))  # earlier than the event taken back
    assert rows(graph.sample(ids(2), 2, k=None)) == [[1, 0]]
    assert graph.links(ids(0), 2).link.tolist() == [0, 5]
    graph.undo(0)
    assert (graph.position, graph.num_nodes, graph.num_links) == (0, 2, 1)
    assert rows(graph.links(ids(0), 0)) == [[1]]


def test_an_empty_batch_and_an_empty_query_are_nothing(new_graph: AnyGraph) -> None:
    graph = new_graph(batch_of())
    graph.apply(batch_of())
    graph.undo(0)
    assert (graph.position, graph.num_nodes, graph.num_links) == (0, 0, 0)
    for answer in (graph.sample(ids(), 0, k=3), graph.links(ids(), ids())):
        assert answer.indptr.tolist() == [0]
        assert len(answer.node) == len(answer.position) == 0
    assert graph.degree(ids(), 0).shape == (0,)


def test_no_neighbours_are_asked_for_with_k_0(new_graph: AnyGraph) -> None:
    graph = new_graph()
    graph.apply(batch_of((0, 1, 0)))
    assert rows(graph.sample(ids(0, 1), 1, k=0)) == [[], []]


def test_padded_rows_are_filled_from_the_left_with_the_newest() -> None:
    graph = DynamicGraph()
    graph.apply(batch_of((0, 1, 5), (0, 2, 6), (0, 3, 7), (4, 1, 8)))
    answer = graph.sample(ids(0, 4, 9), 4, k=None)
    node, position, time, mask = answer.padded(2)
    assert node.tolist() == [[2, 3], [1, 0], [0, 0]]
    assert position.tolist() == [[1, 2], [3, -1], [-1, -1]]
    assert time.tolist() == [[6, 7], [8, 0], [0, 0]]
    assert mask.tolist() == [[True, True], [True, False], [False, False]]
    assert graph.sample(ids(), 4, k=2).padded(2)[0].shape == (0, 2)
    assert answer.padded(0)[3].shape == (3, 0)


def test_a_batch_is_refused_whole() -> None:
    graph = DynamicGraph()
    graph.apply(batch_of((0, 1, 5)))
    with pytest.raises(OrderError, match="event 1 of the batch has 3 after 6; sort"):
        graph.apply(batch_of((0, 2, 6), (0, 3, 3)))
    with pytest.raises(OrderError, match="begins at 4, but an event at 5 has been applied"):
        graph.apply(batch_of((0, 2, 4)))
    with pytest.raises(ValueError, match=r"`dst` must hold dense node ids .* got -1 at event 1"):
        graph.apply(batch_of((0, 2, 6), (0, -1, 7)))
    with pytest.raises(ValueError, match=r"`src` must hold dense node ids .* got 2147483648"):
        graph.apply(batch_of((2**31, 0, 6)))
    with pytest.raises(ValueError, match="`links` must be one bool an event: got bool of shape"):
        graph.apply(batch_of((0, 2, 6)), np.array([True, False]))
    with pytest.raises(ValueError, match="`links` must be one bool an event: got int64"):
        graph.apply(batch_of((0, 2, 6)), np.array([1]))
    assert (graph.position, graph.num_nodes, graph.num_links) == (1, 2, 1)
    assert rows(graph.sample(ids(0), 9, k=None)) == [[1]]


def test_ids_that_are_no_integers_are_refused() -> None:
    ends = np.array([0.5, 1.0])
    batch = EventBatch(ends, ends, ids(0, 1), np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="`src` must be a 1-d array of integers: got float64"):
        DynamicGraph().apply(batch)
    with pytest.raises(ValueError, match="`nodes` must be a 1-d array of integers"):
        DynamicGraph().degree(np.array([[1]]), 0)


def test_queries_that_make_no_sense_are_refused() -> None:
    graph = DynamicGraph()
    graph.apply(batch_of((0, 1, 5)))
    with pytest.raises(ValueError, match="`nodes` must not be negative: got -1"):
        graph.sample(ids(0, -1), 1, k=1)
    with pytest.raises(ValueError, match="`positions` must be one number or one a node: got 1"):
        graph.degree(ids(0, 1), ids(1))
    with pytest.raises(ValueError, match="`k` must not be negative: got -1"):
        graph.sample(ids(0), 1, k=-1)
    with pytest.raises(ValueError, match="`k` must not be negative: got -1"):
        graph.rests(ids(0), ids(1), k=-1)
    with pytest.raises(ValueError, match="`direction` must be 'both', 'in' or 'out': got 'up'"):
        graph.sample(ids(0), 1, k=1, direction="up")  # type: ignore[arg-type]
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=f"`position` must be one of .* got {wrong}"):
            graph.undo(wrong)


def test_batches_of_other_integer_types_and_strides_are_understood() -> None:
    graph = DynamicGraph()
    ends = np.array([0, 9, 1, 9, 2, 9], np.int32)[::2]
    kind = np.zeros(3, np.uint8)
    graph.apply(EventBatch(ends, ends[::-1], ids(1, 2, 3), kind))  # type: ignore[arg-type]
    assert rows(graph.sample(ids(0), 3, k=None)) == [[2, 2]]


def test_a_hub_costs_no_more_than_others_to_look_back_in_one_direction() -> None:
    # 200,000 events go out and only the first comes in: it is found in one step, not by walking,
    # which would be 2 * 10**9 steps here
    graph = DynamicGraph()
    many = 200_000
    graph.apply(batch_of((1, 0, 0)))
    graph.apply(star(many))
    nodes = np.zeros(10_000, np.int64)
    graph.sample(nodes, 1, k=3, direction="in")  # compiles
    start = perf_counter()
    answer = graph.sample(nodes, graph.position, k=3, direction="in")
    assert perf_counter() - start < 0.5
    assert (answer.node == 1).all()
    assert len(answer.node) == len(nodes)


def test_memory_follows_what_is_stored_however_often_it_is_undone() -> None:
    graph = DynamicGraph()
    batch = random_batch(np.random.default_rng(0), 50_000, 50_000, 0)
    sizes = []
    for _ in range(20):
        graph.apply(batch)
        graph.undo(0)
        sizes.append(sum(sys.getsizeof(getattr(graph, name)) for name in vars(graph)))
    assert sizes[1] == sizes[-1] < 400 * len(batch)


def star(size: int) -> EventBatch:
    """Events from node 0 to `size` others, at time 1."""
    src, dst = np.zeros(size, np.int64), np.arange(2, size + 2)
    return EventBatch(src, dst, np.ones(size, np.int64), np.zeros(size, np.uint8))
