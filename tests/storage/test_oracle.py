"""What the run-time check says when an answer is not the oracle's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neutronstream.storage import DynamicGraph, OracleGraph, compare
from neutronstream.stream.errors import LeakError, OrderError

from .naive import batch_of, ids


def both() -> tuple[DynamicGraph, OracleGraph]:
    graph, oracle = DynamicGraph(), OracleGraph()
    for one in (graph, oracle):
        one.apply(batch_of((0, 1, 5), (0, 2, 6), (1, 2, 8)))
    return graph, oracle


def test_a_neighbour_from_the_future_is_reported_with_node_and_position() -> None:
    graph, oracle = both()
    nodes, positions = ids(1, 0), ids(1, 1)
    leaked = graph.sample(nodes, ids(1, 2), k=3)
    message = r"node 0 as of position 1: the graph answers \[\(1, 0, 5, True\), \(2, 1, 6, True\)\]"
    with pytest.raises(LeakError, match=message):
        compare(leaked, oracle.sample(nodes, positions, k=3), nodes, positions)
    with pytest.raises(LeakError, match=r"query 1: .* the oracle \[\(1, 0, 5, True\)\]"):
        compare(leaked, oracle.sample(nodes, positions, k=3))


@pytest.mark.parametrize("field", ["node", "position", "time", "is_src"])
def test_any_wrong_column_of_a_sample_is_found(field: str) -> None:
    graph, oracle = both()
    answer = graph.sample(ids(0, 1), 3, k=2)
    compare(answer, oracle.sample(ids(0, 1), 3, k=2), ids(0, 1), 3)
    column = getattr(answer, field).copy()
    column[-1] = not column[-1] if field == "is_src" else column[-1] + 1
    with pytest.raises(LeakError, match="node 1 as of position 3"):
        compare(replace(answer, **{field: column}), oracle.sample(ids(0, 1), 3, k=2), ids(0, 1), 3)


@pytest.mark.parametrize("field", ["node", "link", "position"])
def test_any_wrong_column_of_links_is_found(field: str) -> None:
    graph, oracle = both()
    answer = graph.links(ids(0, 1), ids(3, 3))
    compare(answer, oracle.links(ids(0, 1), 3))
    column = getattr(answer, field).copy()
    column[0] += 1
    with pytest.raises(LeakError, match="node 0 as of position 3"):
        compare(replace(answer, **{field: column}), oracle.links(ids(0, 1), 3), ids(0, 1), 3)


def test_plain_numbers_are_compared_too() -> None:
    graph, oracle = both()
    compare(graph.degree(ids(0, 2), 3), oracle.degree(ids(0, 2), 3))
    with pytest.raises(LeakError, match=r"node 2 as of position 3: .* \[\(1,\)\], .* \[\(2,\)\]"):
        compare(ids(2, 1), oracle.degree(ids(0, 2), 3), ids(0, 2), 3)
    with pytest.raises(LeakError, match="the graph answers 1 queries, the oracle 2"):
        compare(np.ones(1, np.int64), np.ones(2, np.int64))


def test_the_oracle_refuses_disorder_too() -> None:
    oracle = both()[1]
    with pytest.raises(OrderError, match="7 after 8"):
        oracle.apply(batch_of((0, 1, 7)))
