"""The loops of the scheduler equal slow twins, compiled and as plain Python alike."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutronstream.parallel import kernels
from neutronstream.stream import Bool, Int64

from ..naive import naive_levels, naive_versions
from ..uncompiled import run_uncompiled

COMPILED = hasattr(kernels.resolve_rows, "py_func")
MODES = ("compiled", "python") if COMPILED else ("python",)


def kernel(name: str, mode: str) -> Any:
    """The kernel, or the Python function that it was compiled from."""
    found = getattr(kernels, name)
    return found.py_func if COMPILED and mode == "python" else found


def array(values: list[int]) -> Int64:
    return np.array(values, np.int64)


nodes = st.lists(st.integers(0, 5), max_size=3)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(program=st.lists(st.tuples(nodes, nodes), max_size=12))
def test_resolve_rows_gives_every_read_its_version(
    mode: str, program: list[tuple[list[int], list[int]]]
) -> None:
    reads, writes = [list(r) for r, _ in program], [list(w) for _, w in program]
    read_start, write_start = (np.cumsum([0, *map(len, lists)]) for lists in (reads, writes))
    read_node, write_node = (array([n for ns in lists for n in ns]) for lists in (reads, writes))
    scratch, base, last = np.full(6, -1), np.empty(6, np.int64), np.empty(6, np.int64)
    rows, written = np.empty(len(read_node), np.int64), np.empty(len(write_node), np.int64)
    level, order = np.empty(len(program), np.int64), np.empty(len(program), np.int64)
    nothing = np.empty((len(program), 0), np.int64)
    count = kernel("resolve_rows", mode)(
        *(read_start, read_node, write_start, write_node, nothing, 0, scratch),
        *(base, rows, nothing.copy(), written, level, order, last),
    )
    versions = [v for seen in naive_versions(reads, writes) for v in seen]
    for row, (event, place) in zip(rows.tolist(), versions, strict=True):
        assert row == (written[write_start[event] + place] if event >= 0 else row)
        assert (row < count) == (event < 0)
        assert event >= 0 or base[row] == place
    assert level.tolist() == naive_levels(reads, writes)
    assert order.tolist() == sorted(range(len(program)), key=lambda event: level[event])
    made = [range(write_start[event], write_start[event + 1]) for event in order]
    assert written[[slot for slots in made for slot in slots]].tolist() == [
        *range(count, count + len(write_node))
    ]
    final = {node: row for row, node in enumerate(base[:count].tolist())}
    final |= dict(zip(write_node.tolist(), written.tolist(), strict=True))
    assert dict(zip(base[:count].tolist(), last[:count].tolist(), strict=True)) == final
    assert (scratch == -1).all()
    assert sorted(base[:count].tolist()) == sorted({*read_node.tolist(), *write_node.tolist()})


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(
    level=st.lists(st.integers(0, 3), max_size=15).map(sorted),
    length=st.lists(st.integers(0, 40), min_size=15, max_size=15),
    budget=st.integers(0, 60),
)
def test_a_piece_ends_where_its_level_does_or_padding_would_be_waste(
    mode: str, level: list[int], length: list[int], budget: int
) -> None:
    n = len(level)
    stops, widths = np.empty(n, np.int64), np.empty(n, np.int64)
    order = np.arange(n)
    count = kernel("cut_pieces", mode)(
        order, array(level), array(length[:n]), budget, stops, widths
    )
    bounds = [0, *stops[:count].tolist()]
    assert bounds[-1] == n

    def fits(start: int, stop: int) -> bool:
        lists = length[start:stop]
        padded = max(1, *lists) * len(lists)
        return len(lists) == 1 or padded <= 2 * sum(lists) + budget

    for (start, stop), width in zip(pairwise(bounds), widths[:count].tolist(), strict=True):
        assert len(set(level[start:stop])) == 1
        assert width == max([1, *length[start:stop]])
        assert all(fits(start, end) for end in range(start + 1, stop + 1))
        if stop < n and level[stop] == level[start]:
            assert not fits(start, stop + 1)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(lists=st.lists(st.tuples(nodes, nodes), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_lists_are_laid_out_piece_after_piece(
    mode: str, lists: list[tuple[list[int], list[int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lists))
    stops = np.unique(np.append(rng.integers(1, len(lists) + 1, 2), len(lists)))
    flat = [side for event in lists for side in event]
    indptr, values = np.cumsum([0, *map(len, flat)]), array([n for side in flat for n in side])
    expected: list[int] = []
    listed: list[bool] = []
    widths = []
    for start, stop in pairwise([0, *stops.tolist()]):
        sides = [side for event in order[start:stop] for side in lists[event]]
        width = max(1, *map(len, sides))
        widths.append(width)
        for side in sides:
            expected += side + [77] * (width - len(side))
            listed += [True] * len(side) + [False] * (width - len(side))
    padded: Int64 = np.empty(len(expected), np.int64)
    mask: Bool = np.empty(len(expected), np.bool_)
    kernel("pad_lists", mode)(order, stops, array(widths), indptr, values, 77, padded, mask)
    assert padded.tolist() == expected
    assert mask.tolist() == listed


@pytest.mark.skipif(not COMPILED, reason="this is the run without compilation")
def test_the_kernels_are_right_without_compilation() -> None:
    assert "3 passed, 1 skipped" in run_uncompiled(__file__)
