"""Resources, mapping, migration and clocks, and backend `hetero` on one to four ranks."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest

from neutronstream.parallel.backends import Ownership
from neutronstream.parallel.backends.halo import links, wanted
from neutronstream.parallel.backends.hetero import (
    PROFILES,
    Group,
    Load,
    Mapping,
    Plan,
    Resources,
    Stage,
    busy_times,
    kernels,
    link_bytes,
    make_plan,
    map_by_shares,
    map_by_tree,
    map_equal,
    map_nodes,
    profile,
    refined,
    run,
    tensor_parallel,
    tree,
    vertex_parallel,
    with_feedback,
)
from neutronstream.parallel.backends.hetero.mapping import node_weight
from neutronstream.parallel.backends.hetero.plan import plain_stage
from neutronstream.parallel.backends.hetero.simulate import Compute, Exchange
from neutronstream.parallel.backends.partition import cut_edges, metis
from neutronstream.parallel.ranks import ALONE
from neutronstream.storage import SparseMatrix
from neutronstream.storage.sparse import Float64

from . import hetero_promises
from .graphs import power_law
from .run import Promise, held_on_ranks

LOAD = Load((32, 32, 8))
UNLIKE = [name for name in PROFILES if name != "homogeneous"]


@cache
def hubs() -> SparseMatrix:
    """A power-law graph with self loops."""
    return power_law(2_000, 12_000).matrix("loops")


@cache
def communities() -> SparseMatrix:
    """Nodes in a ring that touch near ones more than those far away."""
    random = np.random.default_rng(1)
    src = random.integers(0, 2_000, 16_000)
    reach = np.where(
        random.random(16_000) < 0.7, 60, np.where(random.random(16_000) < 0.8, 250, 2_000)
    )
    dst = (src + (random.normal(size=16_000) * reach).astype(np.int64)) % 2_000
    return SparseMatrix.from_edges(src, dst, 2_000).normalised("loops")


@cache
def plans(name: str, matrix: SparseMatrix) -> list[Plan]:
    """From kept to copied to relayed, on one mapping."""
    resources = profile(name)
    owners = map_by_shares(matrix, resources, LOAD, resources.speed).ownership
    return [
        make_plan(matrix, owners, resources, LOAD, layers=2, copies=copies, relays=relays)
        for copies, relays in ((False, False), (False, True), (True, False), (True, True))
    ]


def time_of(plan: Plan, name: str, matrix: SparseMatrix) -> float:
    """The planner's time of an epoch."""
    return float(busy_times(plan.stages, LOAD, profile(name), matrix.degree).max())


def slow_bytes(stages: tuple[Stage, ...], resources: Resources) -> float:
    """Over the links that are slow for this cluster."""
    moved = link_bytes(stages, LOAD)
    return float(sum(moved[pair] for pair in resources.slow_links()))


def test_promises_on_ranks() -> None:
    held_on_ranks((2, 3, 4), hetero_promises.__name__)


@pytest.mark.parametrize("promise", hetero_promises.PROMISES, ids=lambda promise: promise.__name__)
def test_promises_on_one_rank(promise: Promise) -> None:
    promise(ALONE)


def test_fast_pairs_merge_first() -> None:
    def shape(group: Group) -> object:
        return [shape(child) for child in group.children] or group.workers[0]

    assert shape(tree(profile("mixed 3-level"))) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert shape(tree(profile("fast GPU, slow net"))) == [[0, 1], [2, 3]]
    assert shape(tree(profile("fast worker behind slow link"))) == [0, [1, 2, 3]]
    mixed = tree(profile("mixed 3-level"))
    assert mixed.depth == 3
    assert [group.speed for group in mixed.children] == [24e9, 14e9]
    assert mixed.children[0].bandwidth == pytest.approx(0.5e9)


def test_links_that_are_nearly_alike_make_one_level() -> None:
    bandwidth = 1e9 * np.array([[9, 8, 7, 7], [8, 9, 7, 7], [7, 7, 9, 6], [7, 7, 6, 9]])
    assert [g.workers for g in tree(Resources.of([1, 1, 1, 1], bandwidth)).children] == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]


def test_of_equally_fast_links_those_between_like_workers_count_first() -> None:
    slow = 1e9 * np.array([[9, 9, 9, 1], [9, 9, 9, 1], [9, 9, 9, 1], [1, 1, 1, 9]])
    found = tree(Resources.of([1, 4, 1, 1], slow), drop=1.0)  # every merge is a level
    assert found.children[0].children[0].workers == (0, 2)


@pytest.mark.parametrize("matrix", [hubs(), communities()], ids=["hubs", "communities"])
def test_a_homogeneous_cluster_gets_what_plain_metis_finds(matrix: SparseMatrix) -> None:
    resources = profile("homogeneous")
    assert tree(resources).depth == 1
    assert resources.slow_links() == []
    plain = metis(matrix, 4, node_weight=node_weight(matrix, LOAD))
    found = map_by_tree(matrix, resources, LOAD).ownership
    assert cut_edges(matrix, found) <= 1.02 * cut_edges(matrix, plain)
    assert make_plan(matrix, found, resources, LOAD, layers=2).copies == 0


@pytest.mark.parametrize("name", UNLIKE)
def test_weights_of_the_parts_are_as_the_speeds(name: str) -> None:
    resources = profile(name)
    weight = node_weight(communities(), LOAD)
    for found in (
        map_by_tree(communities(), resources, LOAD),
        map_by_shares(communities(), resources, LOAD, resources.speed),
    ):
        parts = np.array([weight[rows].sum() for rows in found.ownership.rows])
        expected = resources.speed / resources.speed.sum()
        np.testing.assert_allclose(parts / parts.sum(), expected, rtol=0.05)


@pytest.mark.parametrize("matrix", [hubs(), communities()], ids=["hubs", "communities"])
def test_the_tree_sends_less_over_slow_links_than_a_blind_mapping(matrix: SparseMatrix) -> None:
    """Workers are numbered across the racks; in their order METIS's own halving is a tree too."""
    usual, order = profile("mixed 3-level"), [0, 4, 1, 5, 2, 6, 3, 7]
    pairs = np.ix_(order, order)
    resources = Resources(
        usual.speed[order], usual.bandwidth[pairs], usual.latency[pairs], usual.memory
    )
    blind = map_by_shares(matrix, resources, LOAD, resources.speed)
    found = map_by_tree(matrix, resources, LOAD)
    crossing = [
        slow_bytes((plain_stage(matrix, m.ownership),) * 2, resources) for m in (found, blind)
    ]
    assert crossing[0] < 0.95 * crossing[1]
    assert found.time < blind.time


def test_feedback_takes_work_from_a_fast_worker_behind_a_slow_link() -> None:
    resources, matrix = profile("fast worker behind slow link"), communities()
    equal = map_equal(matrix, resources, LOAD)
    weighted = map_by_shares(matrix, resources, LOAD, resources.speed)
    assert weighted.time > equal.time  # more nodes, more bytes
    fed = with_feedback(matrix, resources, LOAD)
    assert fed.time < 0.9 * map_by_tree(matrix, resources, LOAD).time
    assert fed.ownership.sizes[0] < weighted.ownership.sizes[0]
    owners = map_nodes(matrix, resources, LOAD, rounds=4).ownership
    plan = make_plan(matrix, owners, resources, LOAD, layers=2)
    assert time_of(plan, "fast worker behind slow link", matrix) < min(equal.time, fed.time)


@pytest.mark.parametrize("name", PROFILES)
def test_moving_single_nodes_makes_it_no_slower(name: str) -> None:
    resources = profile(name)
    before = map_by_tree(hubs(), resources, LOAD)
    after = refined(hubs(), before, resources, LOAD)
    assert after.time <= before.time
    assert sorted(after.ownership.order) == list(range(2_000))


def test_what_moves_cost_is_kept_up_to_date() -> None:
    """Against counting all anew, after some hundred moves."""
    matrix, resources = hubs(), Resources.of([3, 2, 1], [[1, 1, 9], [1, 1, 1], [9, 1, 1]])
    owner = np.random.default_rng(4).integers(0, 3, 2_000)
    cost: Float64 = np.asarray(2 * matrix.degree + 1, np.float64)
    trip = 5 * resources.pace

    def busy_of(
        owners: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        rows = Ownership.of(owners, 3)
        pairs = links(wanted(matrix, rows.rows, rows.rows), rows)
        work = np.bincount(owners, weights=cost, minlength=3) / resources.speed
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = work + ((pairs + pairs.T) * trip).sum(
            1
        )
        return found

    uses = np.zeros((2_000, 3), np.int32)
    kernels.count_uses(matrix.indptr, matrix.indices, owner, uses)
    rows = np.zeros((3, 3), np.int64)
    kernels.count_rows(uses, owner, rows)
    before = busy_of(owner)
    busy = before.copy()
    csr = matrix.indptr, matrix.indices
    moved = kernels.move_nodes(*csr, cost, resources.speed, trip, owner, uses, busy, 10**6)
    assert moved > 100
    np.testing.assert_allclose(busy, busy_of(owner), rtol=1e-9)
    assert busy.max() < before.max()
    again = np.zeros((2_000, 3), np.int32)
    kernels.count_uses(matrix.indptr, matrix.indices, owner, again)
    np.testing.assert_array_equal(uses, again)


def test_an_epoch_is_priced_by_edges_rows_and_bytes() -> None:
    """0 -> 1 and 1 -> 0, and 2 -> 0 on the other rank; loops; widths 3, 2."""
    matrix = SparseMatrix.from_edges([0, 1, 2], [1, 0, 0], 3).normalised("loops")
    owners = Ownership.of([0, 0, 1], 2)
    stage = plain_stage(matrix, owners)
    assert [rows.tolist() for rows in stage.remote] == [[2], []]
    resources = Resources.of([2.0, 1.0], [[1, 4], [8, 1]], latency=0.5)
    # rank 0: 5 edges x 8, 2 rows x 36, at 2 operations a second; a row of 8 bytes there and back
    link = (8 / 8 + 8 / 4) / 2 + 2 * 0.5
    expected = [(5 * 8 + 2 * 36) / 2 + link, 1 * 8 + 1 * 36 + link]
    assert busy_times([stage], Load((3, 2)), resources, matrix.degree).tolist() == expected
    assert link_bytes([stage], Load((3, 2))).tolist() == [[0, 8], [8, 0]]


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("matrix", [hubs(), communities()], ids=["hubs", "communities"])
def test_migration_makes_it_no_slower_and_spares_slow_links(
    name: str, matrix: SparseMatrix
) -> None:
    kept, relayed, copied, both = plans(name, matrix)
    times = [time_of(plan, name, matrix) for plan in (kept, relayed, copied, both)]
    assert times[1] <= times[0]
    assert times[3] <= times[2] < times[0]
    moved = [slow_bytes(plan.stages, profile(name)) for plan in (kept, relayed, copied, both)]
    assert moved[1] <= moved[0]
    assert moved[3] <= moved[2] < moved[0]
    assert copied.copies > 0
    assert kept.copies == relayed.copies == 0


@pytest.mark.parametrize("name", PROFILES)
def test_a_layer_gives_what_the_next_one_takes(name: str) -> None:
    plan = plans(name, hubs())[-1]
    for rank, own in enumerate(plan.ownership.rows):
        first, second = plan.stages
        assert second.given[rank].tolist() == own.tolist()
        for stage in plan.stages:
            given, taken = stage.given[rank], stage.taken[rank]
            assert taken[: len(given)].tolist() == given.tolist()  # a prefix
            here = {*taken.tolist(), *stage.remote[rank].tolist()}
            assert {*hubs().take_rows(given).indices.tolist()} <= here
        assert first.given[rank].tolist() == second.taken[rank].tolist()


def test_a_relayed_row_crosses_once_a_group() -> None:
    name = "fast GPU, slow net"
    stages = plans(name, hubs())[1].stages
    relays = 0
    for stage in stages:
        owner = stage.ownership.owner
        for group in ((0, 1), (2, 3)):
            arrived = np.concatenate([stage.first[rank] for rank in group])
            far = arrived[~np.isin(owner[arrived], group)]
            late = np.concatenate([stage.second[0][rank] for rank in group])
            relays += len(late)
            crossings = np.bincount(far, minlength=2_000)[late]
            assert (crossings == 1).all()
        for rank, via in enumerate(stage.via):
            for node, relay in zip(stage.remote[rank], via, strict=True):
                assert owner[node] == relay or node in stage.first[relay]
    assert relays > 50


def test_a_way_round_a_slow_link_is_found() -> None:
    """Ranks 0 and 3 are far apart; the others are near both."""
    plan = plans("one straggler link", hubs())[1]
    for stage in plan.stages:
        first, second = stage.rows
        assert first[0, 3] < plain_stage(hubs(), plan.ownership).rows[0][0, 3]
        assert second[1, 3] + second[2, 3] > 0


def test_copies_stay_within_the_memory() -> None:
    usual = profile("fast worker behind slow link")
    owners = map_equal(hubs(), usual, LOAD).ownership
    sizes = []
    for memory in (inf, 20_000.0, 0.0):
        resources = Resources(usual.speed, usual.bandwidth, usual.latency, np.full(4, memory))
        plan = make_plan(hubs(), owners, resources, LOAD, layers=2, relays=False)
        for rank in range(4):
            copies = [len(s.taken[rank]) - len(owners.rows[rank]) for s in plan.stages]
            assert 4 * (copies[0] * 32 + copies[1] * 32) <= memory
        sizes.append(plan.copies)
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_a_plan_arrives_as_it_was_sent() -> None:
    plan = plans("fast GPU, slow net", hubs())[-1]
    again = Plan.from_bytes(plan.to_bytes())
    assert again.ownership.owner.tolist() == plan.ownership.owner.tolist()
    for ours, theirs in zip((*plan.stages, plan.plain), (*again.stages, again.plain), strict=True):
        for name in ("taken", "given", "remote", "via", "first"):
            for mine, other in zip(getattr(ours, name), getattr(theirs, name), strict=True):
                assert mine.tolist() == other.tolist()


def test_a_message_leaves_at_the_clock_of_its_sender() -> None:
    two = Resources.of([1.0, 2.0], [[1, 10], [5, 1]], latency=1.0)
    to_second, to_first = np.array([[0, 30.0], [0, 0]]), np.array([[0, 0], [20.0, 0]])
    work = Compute(np.array([4.0, 4.0]))
    assert run([work], two).time == 4.0  # the second is done at 2
    assert run([work, Exchange(to_second)], two).time == 4 + 3 + 1
    assert run([work, Exchange(to_first)], two).time == 2 + 4 + 1
    assert run([work, Exchange(to_first), work], two).time == 7 + 4
    # the link is busy till 7, though the sender is not
    twice = run([work, Exchange(to_second), Exchange(to_second)], two)
    assert twice.time == 4 + 3 + 3 + 1
    assert twice.sent.tolist() == [[0, 60], [0, 0]]
    assert twice.computing.tolist() == [4, 2]


def test_with_one_port_messages_wait_for_each_other() -> None:
    three = Resources.of([1.0, 1.0, 1.0], np.full((3, 3), 10.0))
    from_first = Exchange(np.array([[0, 30.0, 50], [0, 0, 0], [0, 0, 0]]))
    assert run([from_first], three).time == 5
    assert run([from_first], three, one_port=True).time == 3 + 5
    to_last = Exchange(np.array([[0, 0, 20.0], [0, 0, 40], [0, 0, 0]]))
    assert run([to_last], three).time == 4
    assert run([to_last], three, one_port=True).time == 4 + 2


def test_on_equal_workers_all_ways_are_alike() -> None:
    resources, matrix = profile("homogeneous"), communities()
    found: list[Mapping] = [
        map_equal(matrix, resources, LOAD),
        map_by_shares(matrix, resources, LOAD, resources.speed),
        map_by_tree(matrix, resources, LOAD),
    ]
    epochs = [
        run(vertex_parallel([plain_stage(matrix, m.ownership)] * 2, LOAD, matrix.degree), resources)
        for m in found
    ]
    assert max(epoch.time for epoch in epochs) <= 1.02 * min(epoch.time for epoch in epochs)


def test_tensor_parallel_work_goes_by_share_and_its_bytes_by_formula() -> None:
    shares = np.array([3.0, 1.0])
    load = Load((8, 8, 4))
    steps = tensor_parallel(100, 700, load, shares)
    work = np.sum([step.work for step in steps if isinstance(step, Compute)], 0)
    assert work.tolist() == [3 * work[1], work[1]]
    moved = np.sum([step.sent for step in steps if isinstance(step, Exchange)])
    blocks = sum(4 * 2 * (75 * d / 4 + 25 * 3 * d / 4) * 4 / 2 for d in (8, 4))
    assert moved == blocks + 2 * 2 * 4 * (8 * 8 + 8 * 4) / 2
    assert run(steps, Resources.of([3, 1], [[1, inf], [inf, 1]])).time == work[1]


def test_bad_resources_are_named() -> None:
    with pytest.raises(ValueError, match=r"`latency` must be \(2, 2\), a pair: got \(1, 1\)"):
        Resources(np.ones(2), np.ones((2, 2)), np.ones((1, 1)), np.ones(2))
    with pytest.raises(ValueError, match="must be above 0 for every worker and pair"):
        Resources.of([1, 0], [[1, 1], [1, 1]])
    with pytest.raises(ValueError, match=r"`profile` must be one of homogeneous, .*: got 'fast'"):
        profile("fast")
    with pytest.raises(ValueError, match="`count` must be at most 4, the workers there are: 5"):
        profile("homogeneous").first(5)
