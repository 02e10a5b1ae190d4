"""Partitions, and the backends `halo` and `broadcast` on one to four ranks."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from neutronstream.parallel.backends import make_propagator
from neutronstream.parallel.backends.halo import Halo, links, wanted
from neutronstream.parallel.backends.partition import (
    chunk,
    cut_edges,
    edges_of,
    imbalance,
    metis,
    union,
)
from neutronstream.parallel.ranks import ALONE
from neutronstream.storage import Snapshot, SparseMatrix

from . import halo_promises
from .graphs import power_law
from .run import Promise, held_on_ranks

MODULE = halo_promises.__name__


def two_communities() -> SparseMatrix:
    """Even nodes among themselves, odd ones too, and one edge between."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, 30, (2, 400)) * 2
    odd = np.arange(400) % 2
    return SparseMatrix.from_edges([*(src + odd), 0], [*(dst + odd), 1], 60)


def test_promises_on_ranks() -> None:
    held_on_ranks((2, 3, 4), MODULE)


@pytest.mark.parametrize("promise", halo_promises.PROMISES, ids=lambda promise: promise.__name__)
def test_promises_on_one_rank(promise: Promise) -> None:
    promise(ALONE)


@pytest.mark.parametrize("count", [2, 4])
def test_runs_of_a_sorted_power_law_graph_are_uneven(count: int) -> None:
    matrix = power_law(4_000, 30_000).adjacency
    assert imbalance(edges_of(matrix, chunk(4_000, count))) >= 1.5
    assert imbalance(edges_of(matrix, metis(matrix, count))) < 1.1


def test_metis_finds_communities() -> None:
    matrix = two_communities()
    found = metis(matrix, 2)
    assert cut_edges(matrix, found) == 1
    assert cut_edges(matrix, chunk(60, 2)) > 100
    assert sorted(rows[0] % 2 for rows in found.rows) == [0, 1]


def test_shares_and_weights_are_what_metis_balances() -> None:
    matrix = power_law(4_000, 30_000).adjacency
    ones = np.ones(4_000)
    nodes = metis(matrix, 2, [3, 1], node_weight=ones)
    assert nodes.sizes[0] / 4_000 == pytest.approx(0.75, abs=0.02)
    part = np.where(np.arange(4_000) < 100, 0.5, 0.0)  # numbers that are not whole
    where = metis(matrix, 2, node_weight=part)
    assert abs((where.rows[0] < 100).sum() - 50) <= 3
    edges = metis(matrix, 4, [4, 4, 1, 1])
    weight = edges_of(matrix, edges) + edges.sizes
    np.testing.assert_allclose(weight / weight.sum(), [0.4, 0.4, 0.1, 0.1], rtol=0.01)


def test_a_heavy_edge_is_not_cut() -> None:
    ring = np.arange(12)
    weight = np.where(ring % 3 == 2, 1.0, 50.0)  # 2-3, 5-6, 8-9 and 11-0 are light
    matrix = SparseMatrix.from_edges(ring, (ring + 1) % 12, 12, weight)
    owner = metis(matrix, 4, node_weight=np.ones(12), weigh_edges=True).owner
    assert all(len({*owner[first : first + 3]}) == 1 for first in (0, 3, 6, 9))


def test_snapshots_are_united_by_how_often_an_edge_is_there() -> None:
    first = Snapshot(SparseMatrix.from_edges([0, 1], [1, 0], 2, [5.0, 7.0]))
    second = Snapshot(SparseMatrix.from_edges([0, 2], [1, 1], 3))
    assert union([first, second]).dense().tolist() == [[0, 1, 0], [2, 0, 1], [0, 0, 0]]
    assert union([]).num_rows == 0


def test_a_remote_row_is_wanted_once() -> None:
    matrix = SparseMatrix.from_edges([0, 0, 0, 3, 1], [2, 3, 1, 0, 0], 4)
    ownership = chunk(4, 2)
    remote = wanted(matrix, ownership.rows, ownership.rows)
    assert [nodes.tolist() for nodes in remote] == [[3], [0]]
    halo = Halo.plan(remote, ownership, 1)
    assert (halo.remote.tolist(), halo.given.tolist()) == ([0], [1])
    assert (halo.sent, halo.received) == ([1, 0], [1, 0])
    assert links(remote, ownership).tolist() == [[0, 1], [1, 0]]


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"'partition' of .* must be 'chunk' or 'metis': got 'm"):
        make_propagator("halo", [power_law()], partition="mets")
    with pytest.raises(ValueError, match="`shares` must be 2 numbers above 0"):
        metis(power_law().adjacency, 2, [1.0, 0.0])


def test_without_pymetis_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"pip install 'neutronstream\[snapshots\]'"):
        metis(power_law().adjacency, 2)
