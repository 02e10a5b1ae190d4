"""What is chosen for a graph, and that the bytes it is chosen by are those that travel."""

from __future__ import annotations

import numpy as np
import pytest

from neutronstream.parallel.backends.choose import Rates, choose
from neutronstream.storage import Snapshot, SparseMatrix

from .graphs import power_law
from .run import held_on_ranks


def ring(num_nodes: int = 400) -> Snapshot:
    """Each node hears its two neighbours: a cut of two edges a border."""
    nodes = np.arange(num_nodes)
    around = np.concatenate(((nodes + 1) % num_nodes, (nodes - 1) % num_nodes))
    return Snapshot(SparseMatrix.from_edges(around, np.tile(nodes, 2), num_nodes))


def test_one_rank_needs_no_other() -> None:
    choice = choose([ring()], 1, [16])
    assert (choice.backend, choice.estimates) == ("single", ())


def test_a_graph_with_a_small_cut_gets_halos() -> None:
    choice = choose([ring()], 4, [64, 64])
    assert choice.backend == "halo"
    chunked = next(e for e in choice.estimates if e.options.get("partition") == "chunk")
    assert chunked.bytes == 2 * 8 * (64 + 64) * 4  # two rows a border, there and back


def test_a_graph_with_hubs_gets_columns() -> None:
    choice = choose([power_law(2_000, 60_000)], 4, [64, 64])
    assert choice.backend == "tensor"
    chunked = next(e for e in choice.estimates if e.options.get("partition") == "chunk")
    assert chunked.balance > 1.5
    assert choice.estimates[0].balance == 1.0
    assert "tensor" in choice.reason and "halo (chunk)" in choice.reason


def test_what_is_in_use_stays_unless_another_is_a_tenth_quicker() -> None:
    snapshot = power_law(2_000, 60_000)
    first, second, third = choose([snapshot], 4, [64]).estimates
    assert first.seconds < second.seconds <= 1.1 * first.seconds < third.seconds
    near = choose([snapshot], 4, [64], current=second.label)
    assert (near.backend, near.options) == (second.backend, second.options)
    assert choose([snapshot], 4, [64], current=third.label).backend == first.backend


def test_messages_that_cost_most_are_saved() -> None:
    dear = Rates(product=1e15, byte=0.0)  # four exchanges a product against two
    assert choose([power_law()], 4, [64], rates=dear).backend == "halo"


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a rank, a snapshot and a width: got 0 ranks"):
        choose([ring()], 0, [1])
    with pytest.raises(ValueError, match="0 snapshots"):
        choose([], 2, [1])


def test_the_predicted_bytes_travel() -> None:
    module = "tests.parallel.backends.choose_promises"
    assert held_on_ranks((2, 3), module)
