"""What the sampler of negatives promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutronstream.storage import NegativeSampler, Role
from neutronstream.storage.counter import key_of
from neutronstream.storage.negatives import TRIES
from neutronstream.stream.events import Int64

from .naive import batch_of, ids

MASK = 2**64 - 1


def none(size: int) -> Int64:
    """Nothing to avoid."""
    return np.empty((size, 0), np.int64)


def test_candidates_are_the_nodes_that_had_the_role_before() -> None:
    sampler = NegativeSampler(ids(5, 6, 5, 7), ids(9, 2, 9, 5), seed=0)
    assert [sampler.pool("dst", p).tolist() for p in range(5)] == [
        [],
        [9],
        [9, 2],
        [9, 2],
        [9, 2, 5],
    ]
    assert sampler.pool("src", 4).tolist() == [5, 6, 7]
    assert sampler.pool("src", 10**9).tolist() == [5, 6, 7]


def test_both_ends_of_initial_links_are_candidates_from_the_start() -> None:
    sampler = NegativeSampler(ids(5), ids(3), seed=0, initial=batch_of((1, 2, 0), (2, 4, 0)))
    assert sampler.pool("dst", 0).tolist() == [1, 2, 4]
    assert sampler.pool("src", 1).tolist() == [1, 2, 4, 5]


def test_a_pool_cannot_be_written() -> None:
    sampler = NegativeSampler(ids(5), ids(3), seed=0)
    with pytest.raises(ValueError, match="read-only"):
        sampler.pool("dst", 1)[0] = 8


def test_nothing_is_drawn_from_the_future() -> None:
    many = 400
    sampler = NegativeSampler(np.arange(many), np.arange(many), seed=3)
    positions = np.repeat(np.arange(1, many), 5)
    nodes, valid = sampler.sample("dst", positions, 20, none(len(positions)))
    assert valid.all()
    assert (nodes < positions[:, None]).all()
    assert nodes.max() > many - 20  # and up to the newest


def test_avoided_nodes_are_never_drawn_and_the_last_one_left_always_is() -> None:
    sampler = NegativeSampler(ids(0, 0, 0, 0), ids(1, 2, 3, 4), seed=1)
    avoid = np.array([[1, 2, 3], [2, 4, 9], [1, 1, 1]])
    nodes, valid = sampler.sample("dst", ids(4, 4, 2), 50, avoid)
    assert valid.all()
    assert set(nodes[0]) == {4}
    assert set(nodes[1]) == {1, 3}
    assert set(nodes[2]) == {2}


def test_one_allowed_node_among_thousands_is_found() -> None:
    many = 5000
    sampler = NegativeSampler(np.zeros(many, np.int64), np.arange(many), seed=1)
    avoid = np.delete(np.arange(many), 1234)[None]
    nodes, valid = sampler.sample("dst", ids(many), 3, avoid)
    assert valid.all()
    assert nodes.tolist() == [[1234, 1234, 1234]]


def test_where_no_candidate_is_allowed_the_draw_is_invalid() -> None:
    sampler = NegativeSampler(ids(0, 0), ids(1, 2), seed=1)
    nodes, valid = sampler.sample("dst", ids(0, 1, 2), 2, np.array([[7, 7], [1, 7], [2, 1]]))
    assert not valid.any()
    assert not nodes.any()


def test_a_draw_depends_on_its_position_only_and_not_on_its_batch() -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 300, (2, 2000))
    sampler = NegativeSampler(*ends, seed=5)
    positions = rng.permutation(2000)
    avoid = ends.T[positions]
    whole, valid = sampler.sample("dst", positions, 4, avoid)
    again = NegativeSampler(*ends, seed=5)
    for i in range(0, 2000, 37):
        nodes, is_valid = again.sample("dst", positions[i : i + 1], 4, avoid[i : i + 1])
        assert np.array_equal(nodes[0], whole[i])
        assert np.array_equal(is_valid[0], valid[i])
    wider = again.sample("dst", positions, 9, avoid)[0]
    assert np.array_equal(wider[:, :4], whole)  # more columns do not change the first ones


def test_what_comes_later_in_the_log_does_not_change_a_draw() -> None:
    ends = np.random.default_rng(0).integers(0, 300, (2, 2000))
    positions = np.arange(500)
    full = NegativeSampler(*ends, seed=5).sample("src", positions, 4, none(500))
    part = NegativeSampler(*ends[:, :500], seed=5).sample("src", positions, 4, none(500))
    assert np.array_equal(full[0], part[0])


def test_seeds_streams_roles_positions_and_columns_draw_independently() -> None:
    many, at = 1 << 16, np.arange(1 << 16, (1 << 16) + 500)
    ends = np.arange(many + 500) % many
    cases: list[tuple[int, Role, int]] = [
        (0, "dst", 0),
        (1, "dst", 0),
        (0, "src", 0),
        (0, "dst", 1),
    ]
    drawn = [
        NegativeSampler(ends, ends, seed=seed).sample(role, at, 8, none(500), stream)[0]
        for seed, role, stream in cases
    ]
    # 4 * 4000 draws from 65,536: independent ones give about 14,200 distinct nodes
    distinct = len(np.unique(np.stack(drawn)))
    assert abs(distinct - many * (1 - np.exp(-16_000 / many))) < 250


def test_draws_are_uniform() -> None:
    many, size = 40_000, 50
    sampler = NegativeSampler(np.arange(many) % size, np.arange(many) % size, seed=2)
    nodes, _ = sampler.sample("dst", np.arange(size, many), 5, none(many - size))
    counts = np.bincount(nodes.ravel(), minlength=size)
    expected = nodes.size / size
    assert ((counts - expected) ** 2 / expected).sum() < 95  # chi square, 49 degrees: p < 1e-4


def test_without_replacement_a_row_holds_a_node_once() -> None:
    ends = np.random.default_rng(0).integers(0, 90, (2, 400))
    sampler = NegativeSampler(*ends, seed=5)
    positions = np.arange(400)
    nodes, valid = sampler.sample("dst", positions, 60, ends.T, replace=False)
    for position in range(400):
        known = set(ends[1, :position].tolist()) - set(ends[:, position].tolist())
        row = nodes[position, valid[position]].tolist()
        assert len(set(row)) == len(row) == min(60, len(known))
        assert set(row) <= known
        assert valid[position, : len(row)].all()  # the others follow


def test_where_there_are_no_more_than_asked_for_all_are_drawn() -> None:
    sampler = NegativeSampler(ids(0, 0, 0, 0), ids(1, 2, 3, 4), seed=1)
    avoid = np.array([[1, 3], [9, 2], [1, 2], [1, 1]])
    nodes, valid = sampler.sample("dst", ids(4, 4, 2, 1), 5, avoid, replace=False)
    assert [sorted(row[ok].tolist()) for row, ok in zip(nodes, valid, strict=True)] == [
        [2, 4],
        [1, 3, 4],
        [],
        [],
    ]
    assert not nodes[~valid].any()


def test_without_replacement_more_columns_and_other_batches_change_nothing() -> None:
    ends = np.random.default_rng(0).integers(0, 90, (2, 400))
    sampler = NegativeSampler(*ends, seed=5)
    positions = np.random.default_rng(1).permutation(400)
    avoid = ends.T[positions]
    few = sampler.sample("dst", positions, 4, avoid, replace=False)[0]
    many = sampler.sample("dst", positions, 90, avoid, replace=False)[0]
    assert np.array_equal(many[:, :4], few)
    for i in range(0, 400, 37):
        one = NegativeSampler(*ends, seed=5).sample(
            "dst", positions[i : i + 1], 90, avoid[i : i + 1], replace=False
        )
        assert np.array_equal(one[0][0], many[i])


@pytest.mark.parametrize("column", [0, 1, 19, 46])
def test_without_replacement_every_column_is_uniform(column: int) -> None:
    many, size = 20_000, 50
    sampler = NegativeSampler(np.arange(many) % size, np.arange(many) % size, seed=2)
    avoid = np.tile([3, 4, 4], (many - size, 1))
    nodes, valid = sampler.sample("dst", np.arange(size, many), 47, avoid, replace=False)
    assert valid.all()
    counts = np.delete(np.bincount(nodes[:, column], minlength=size), [3, 4])
    expected = (many - size) / 48
    assert ((counts - expected) ** 2 / expected).sum() < 92  # chi square, 47 degrees: p < 1e-4


def test_an_offset_draws_for_later_positions_in_its_stream_alone() -> None:
    ends = np.random.default_rng(0).integers(0, 90, (2, 400))
    sampler, moved = NegativeSampler(*ends, seed=5), NegativeSampler(*ends, seed=5)
    moved.offsets[0] = 400
    positions = np.arange(400)
    for replace in (True, False):
        at, later = (
            sampler.sample("dst", p, 4, ends.T, replace=replace)
            for p in (positions, positions + 400)
        )
        drawn = moved.sample("dst", positions, 4, ends.T, replace=replace)
        assert np.array_equal(drawn[0], later[0]) and drawn[1].all()
        assert (drawn[0] != at[0]).mean() > 0.8
        for one, other in zip(
            *(s.sample("dst", positions, 4, ends.T, 1, replace=replace) for s in (sampler, moved)),
            strict=True,
        ):
            assert np.array_equal(one, other)


def test_wrong_arguments_are_refused() -> None:
    sampler = NegativeSampler(ids(0, 0), ids(1, 2), seed=1)
    with pytest.raises(ValueError, match="`role` must be 'src', 'dst' or 'any': got 'both'"):
        sampler.pool("both", 1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"`avoid` must have one row a position: got shape \(1, 0\)"
    ):
        sampler.sample("dst", ids(0, 1), 2, none(1))
    with pytest.raises(ValueError, match="`k` must not be negative: got -2"):
        sampler.sample("dst", ids(0), -2, none(1))
    with pytest.raises(ValueError, match="`log_dst` must be as long as `log_src`: got 1 for 2"):
        NegativeSampler(ids(0, 1), ids(0), seed=0)


def test_an_empty_log_has_no_candidates() -> None:
    sampler = NegativeSampler(ids(), ids(), seed=1)
    assert sampler.pool("dst", 0).tolist() == []
    assert sampler.sample("dst", ids(), 3, none(0))[0].shape == (0, 3)


# --- slow twin, in Python's own integers ---


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def fold(state: int, word: int) -> int:
    return mix((state + 0x9E3779B97F4A7C15 + mix(word & MASK)) & MASK)


def draw(pool: list[int], key: int, position: int, column: int, avoid: list[int]) -> int | None:
    state = fold(fold(key, position), column)
    index = 0
    for attempt in range(TRIES if pool else 0):
        index = (fold(state, attempt) >> 32) * len(pool) >> 32
        if pool[index] not in avoid:
            return pool[index]
    for step in range(1, len(pool) + 1):
        node = pool[(index + step) % len(pool)]
        if node not in avoid:
            return node
    return None


def shuffle(pool: list[int], key: int, position: int, avoid: list[int]) -> list[int]:
    """All allowed nodes of the pool in the order in which they are drawn without replacement."""
    here, order = fold(key, position), list(pool)
    for step in range(len(order)):
        place = step + ((fold(here, step) >> 32) * (len(order) - step) >> 32)
        order[step], order[place] = order[place], order[step]
    return [node for node in order if node not in avoid]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    log=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12),
    avoid=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), max_size=5),
    position=st.integers(0, 13),
    stream=st.integers(0, 3),
)
def test_the_kernel_draws_what_its_slow_twin_draws(
    seed: int, log: list[tuple[int, int]], avoid: list[list[int]], position: int, stream: int
) -> None:
    ends = np.array(log, np.int64).reshape(-1, 2).T
    sampler = NegativeSampler(*ends, seed=seed)
    avoided = np.array(avoid, np.int64).reshape(-1, 3)
    positions = np.full(len(avoid), position)
    nodes, valid = sampler.sample("dst", positions, 3, avoided, stream)
    pool = list(dict.fromkeys(dst for _, dst in log[:position]))
    key = int(key_of(seed, stream, "dst"))
    for i, row in enumerate(avoid):
        for column in range(3):
            expected = draw(pool, key, position, column, row)
            assert valid[i, column] == (expected is not None)
            assert nodes[i, column] == (expected or 0)
    nodes, valid = sampler.sample("dst", positions, 3, avoided, stream, replace=False)
    for i, row in enumerate(avoid):
        drawn = shuffle(pool, key, position, row)[:3]
        assert nodes[i, valid[i]].tolist() == drawn
