"""The compiled loops that no other test runs against a slow twin."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neutronstream.storage import kernels
from neutronstream.storage.counter import key_of

from .test_negatives import fold, mix


def test_a_key_depends_on_every_word_and_on_their_order() -> None:
    keys = [
        key_of(),
        key_of(0),
        key_of(0, 0),
        key_of(1, 2),
        key_of(2, 1),
        key_of("a"),
        key_of("a", 1),
        key_of(1, "a"),
        key_of(-1),
    ]
    assert len({int(key) for key in keys}) == len(keys)
    assert key_of(-1) == key_of(2**64 - 1)
    assert int(key_of(3, -4)) == fold(fold(0, 3), -4)


@np.errstate(over="ignore")  # for the interpreted run
def test_normal_numbers_are_those_of_the_slow_twin() -> None:
    out = np.empty((40, 3))
    kernels.fill_normal(key_of(9), 100, out)
    for i in range(40):
        for j in range(3):
            state = fold(fold(int(key_of(9)), 100 + i), j)
            a, b = ((state >> 11) + 1) * 2.0**-53, (mix(state) >> 11) * 2.0**-53
            twin = math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b)
            assert out[i, j] == pytest.approx(twin, rel=1e-12, abs=1e-12)


@np.errstate(over="ignore")  # for the interpreted run
def test_normal_numbers_are_normal() -> None:
    out = np.empty((100_000, 2))
    kernels.fill_normal(key_of(1), 0, out)
    assert np.abs(out.mean(0)).max() < 0.015
    assert np.abs(out.std(0) - 1).max() < 0.01
    assert abs((out[:, 0] * out[:, 1]).mean()) < 0.015
    assert np.abs((out**4).mean(0) - 3).max() < 0.15
    share = (np.abs(out) < 1).mean()
    assert abs(share - math.erf(1 / math.sqrt(2))) < 0.005


@np.errstate(over="ignore")  # for the interpreted run
def test_the_table_of_pairs_is_a_set_with_undo() -> None:
    rng = np.random.default_rng(0)
    table = np.zeros(128, np.int64)
    made: list[tuple[int, int]] = []
    for _ in range(3000):
        u, v = (int(x) for x in rng.integers(0, 14, 2))
        pair = kernels.pair_of(u, v)
        slot = kernels.slot_of(table, pair)
        assert (table[slot] == pair) == ((min(u, v), max(u, v)) in made)
        if table[slot] == kernels.EMPTY and len(made) < 64:
            table[slot] = pair
            made.append((min(u, v), max(u, v)))
        for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.4 else 0):
            if made:
                table[kernels.slot_of(table, kernels.pair_of(*made.pop()))] = kernels.EMPTY
    assert (table != kernels.EMPTY).sum() == len(made)


def test_a_run_too_long_for_its_bits_is_passed_in_several_steps() -> None:
    # a list of 10 outgoing entries after one incoming, the last run cut as if it were the longest
    one_in = 0 << kernels.POSITION_SHIFT | kernels.IN
    outs = [
        (i + 1) << kernels.POSITION_SHIFT | min(i, 3) << kernels.ROLE_BITS | kernels.OUT
        for i in range(10)
    ]
    pool = np.array([one_in, *outs], np.int64)
    heads = np.zeros((1, 8), np.int64)
    heads[0, kernels.COUNT] = len(pool)
    found = np.empty(1, np.int64)
    ask = np.zeros(1, np.int64), np.array([len(pool)])
    kernels.count_recent(heads, pool, *ask, kernels.OUT, 5, found)
    assert found.tolist() == [1]


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="this is that run")
def test_the_kernels_mean_the_same_when_interpreted() -> None:
    here = Path(__file__).parent
    chosen = ["test_graph.py", "test_negatives.py", "test_kernels.py", "test_state.py"]
    slow = "million or hub or memory_follows or uniform or normal or whole or history"
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({slow})"),
            *(str(here / name) for name in chosen),
        ],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
