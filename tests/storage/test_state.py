"""What the node state promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neutronstream.storage import Mark, NodeState

from .naive import ids


def test_a_new_table_holds_zeros_or_normal_numbers() -> None:
    state = NodeState(
        {"memory": 2, "embedding": 3}, {"memory": 4, "embedding": 5}, fill={"embedding": "normal"}
    )
    assert state.names == ("memory", "embedding")
    assert (state.width("embedding"), state.num_rows("embedding")) == (3, 5)
    assert state["memory"].tolist() == [[0.0, 0.0]] * 4
    assert len(set(state["embedding"].ravel().tolist())) == 15


def test_read_gives_a_copy_and_write_copies() -> None:
    state = NodeState({"h": 1}, 3)
    values = torch.tensor([[1.0], [2.0]])
    state.write("h", ids(2, 0), values)
    values += 100
    got = state.read("h", torch.tensor([0, 2, 2]))
    assert got.tolist() == [[2.0], [1.0], [1.0]]
    got += 100
    assert state["h"].tolist() == [[2.0], [0.0], [1.0]]


def test_written_values_are_detached_so_memory_stays_flat() -> None:
    state = NodeState({"h": 2}, 2)
    weight = torch.ones(2, requires_grad=True)
    for _ in range(3):
        values = state.read("h", ids(0, 1)) * weight + 1
        values.sum().backward()  # type: ignore[no-untyped-call]
        state.write("h", ids(0, 1), values)
    assert not state["h"].requires_grad
    assert not state.read("h", ids(0)).requires_grad
    assert state["h"].tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_new_row_is_a_pure_function_of_seed_name_row_and_column() -> None:
    def drawn(seed: int, name: str, *steps: int, dtype: torch.dtype = torch.float32) -> Tensor:
        state = NodeState({name: 4}, 0, seed=seed, fill={name: "normal"}, dtype=dtype)
        for rows in steps:
            state.grow(name, rows)
        return state[name]

    at_once = drawn(1, "h", 1000)
    assert torch.equal(drawn(1, "h", 1, 7, 8, 400, 999, 1000), at_once)
    assert not torch.equal(drawn(2, "h", 1000), at_once)
    assert not torch.equal(drawn(1, "g", 1000), at_once)
    assert torch.equal(drawn(1, "h", 1000, dtype=torch.float64).float(), at_once)
    assert len(set(at_once.ravel().tolist())) > 3990  # rows and columns differ


def test_growing_keeps_what_was_written_and_never_shrinks() -> None:
    state = NodeState({"h": 1}, 2)
    state.write("h", ids(1), torch.tensor([[5.0]]))
    state.grow("h", 4)
    state.grow("h", 3)
    assert state["h"].tolist() == [[0.0], [5.0], [0.0], [0.0]]


def test_growing_row_by_row_moves_the_table_rarely() -> None:
    state = NodeState({"h": 1}, 1)
    places = set()
    for rows in range(1, 5000):
        state.grow("h", rows)
        places.add(state["h"].data_ptr())
    assert len(places) <= 14


def test_undo_brings_back_every_bit() -> None:
    state = NodeState({"h": 2, "c": 1}, 4, fill={"h": "normal"})
    state["c"][2] = -0.0
    state["c"][3] = float("nan")
    before = {name: state[name].clone() for name in state.names}
    mark = state.snapshot()
    for _ in range(2):  # the mark stays usable
        state.write("h", ids(3, 1), torch.ones(2, 2))
        state.write("c", ids(2, 3), torch.ones(2, 1))
        state.touch("h", ids(0))
        state["h"][0] += 7
        state.write("h", ids(1), torch.full((1, 2), 9.0))
        state.undo(mark)
        for name in state.names:
            bits = torch.int32
            assert torch.equal(state[name].view(bits), before[name].view(bits))


def test_rows_grown_after_a_mark_are_gone_with_it_and_come_back_as_new() -> None:
    state = NodeState({"h": 2}, 2, fill={"h": "normal"})
    mark = state.snapshot()
    state.grow("h", 50)
    fresh = state.read("h", ids(40))
    state.write("h", ids(40, 0), torch.zeros(2, 2))
    state.undo(mark)
    assert state.num_rows("h") == 2
    state.grow("h", 50)
    assert torch.equal(state.read("h", ids(40)), fresh)


def test_marks_nest_like_a_stack() -> None:
    state = NodeState({"h": 1}, 1)

    def put(value: float) -> None:
        state.write("h", ids(0), torch.tensor([[value]]))

    put(1)
    outer = state.snapshot()
    put(2)
    inner = state.snapshot()
    put(3)
    state.undo(inner)
    assert state["h"].item() == 2
    put(4)
    state.forget(inner)
    assert state["h"].item() == 4
    state.undo(outer)
    assert state["h"].item() == 1


def test_a_mark_that_is_gone_is_refused() -> None:
    state = NodeState({"h": 1}, 1)
    outer = state.snapshot()
    inner = state.snapshot()
    state.undo(outer)
    with pytest.raises(
        ValueError, match=r"`mark` 2 is no longer open: .* an older mark was undone"
    ):
        state.undo(inner)
    state.forget(outer)
    with pytest.raises(ValueError, match="`mark` 1 is no longer open"):
        state.forget(outer)
    with pytest.raises(ValueError, match="is no longer open"):
        state.undo(NodeState({"h": 1}, 1).snapshot())


def test_the_journal_holds_each_row_once_a_mark_and_nothing_without_marks() -> None:
    state = NodeState({"h": 1}, 10)
    state.write("h", ids(1), torch.ones(1, 1))
    assert state.num_journaled == 0
    mark = state.snapshot()
    for _ in range(5):
        state.write("h", ids(1, 2), torch.ones(2, 1))
    assert state.num_journaled == 2
    newer = state.snapshot()
    state.write("h", ids(1, 3), torch.ones(2, 1))
    assert state.num_journaled == 4
    state.forget(mark)  # what only the older mark needed is dropped
    assert state.num_journaled == 2
    state.forget(newer)
    assert state.num_journaled == 0


def test_sliding_over_many_windows_keeps_memory_flat() -> None:
    state = NodeState({"h": 1}, 100)
    rng = np.random.default_rng(0)
    carry = state.snapshot()
    most = 0
    for window in range(50):
        state.undo(carry)
        for step in range(4):
            rows = rng.choice(100, 10, replace=False)
            state.write("h", rows, torch.full((10, 1), float(window)))
            if step == 1:
                following = state.snapshot()
        state.forget(carry)
        carry = following
        most = max(most, state.num_journaled)
    assert most <= 40


def test_tables_survive_a_round_trip_bit_for_bit() -> None:
    state = NodeState({"h": 2, "g": 1}, 3, fill={"h": "normal"})
    state["g"][0] = float("nan")
    arrays = state.to_arrays()
    state["h"].zero_()  # the arrays are copies
    other = NodeState({"h": 2, "g": 1}, {"h": 90, "g": 1}, fill={"h": "normal"})
    mark = other.snapshot()
    other.from_arrays(arrays)
    assert (other.num_rows("h"), other.num_rows("g")) == (3, 3)
    for name in ("h", "g"):
        assert torch.equal(other[name].view(torch.int32), arrays[name].view(torch.int32))
    with pytest.raises(ValueError, match="no longer open"):
        other.undo(mark)
    other.grow("h", 90)
    fresh = NodeState({"h": 2}, 90, fill={"h": "normal"})
    assert torch.equal(other["h"][3:], fresh["h"][3:])


def test_arrays_of_another_state_are_refused() -> None:
    state = NodeState({"h": 2}, 3)
    with pytest.raises(ValueError, match=r"`arrays` must hold the tables \['h'\]: got \['g'\]"):
        state.from_arrays({"g": torch.zeros(3, 2)})
    with pytest.raises(
        ValueError, match=r"`arrays\['h'\]` must have 2 columns: got shape \(3, 1\)"
    ):
        state.from_arrays({"h": torch.zeros(3, 1)})
    with pytest.raises(ValueError, match=r"must be torch.float32: got torch.float64"):
        state.from_arrays({"h": torch.zeros(3, 2, dtype=torch.float64)})


def test_a_row_beyond_the_table_is_named_with_the_limit() -> None:
    state = NodeState({"memory": 2}, 4)
    message = r"`rows` must be below 4, the rows of table 'memory': got 9; call grow\('memory'"
    with pytest.raises(ValueError, match=message):
        state.write("memory", ids(1, 9), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="got -1"):
        state.read("memory", torch.tensor([-1]))
    with pytest.raises(ValueError, match="got 4"):
        state.touch("memory", ids(4))


def test_wrong_arguments_are_refused() -> None:
    state = NodeState({"h": 2}, 4)
    with pytest.raises(ValueError, match=r"`values` must have shape \(1, 2\) .* got \(2,\)"):
        state.write("h", ids(0), torch.zeros(2))
    with pytest.raises(ValueError, match="`rows` must be distinct: got row 3 of table 'h' twice"):
        state.write("h", ids(3, 1, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="`rows` must be a 1-d array of integers: got bool"):
        state.read("h", torch.tensor([True, False]))
    with pytest.raises(KeyError, match=r"no table 'x': there are \['h'\]"):
        state.read("x", ids(0))
    with pytest.raises(ValueError, match=r"`fill` must name the tables \['h'\]: got \['g', 'h'\]"):
        NodeState({"h": 2}, 4, fill={"g": "zeros"})
    with pytest.raises(ValueError, match="`fill` must be 'zeros' or 'normal': got 'ones' for 'h'"):
        NodeState({"h": 2}, 4, fill={"h": "ones"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"`num_rows` must name the tables \['h'\]: got \[\]"):
        NodeState({"h": 2}, {})
    with pytest.raises(ValueError, match="got 0 and 4 for 'h'"):
        NodeState({"h": 0}, 4)


operation = st.one_of(
    st.tuples(st.just("write"), st.lists(st.integers(0, 5), unique=True, min_size=1)),
    st.tuples(st.just("touch"), st.lists(st.integers(0, 5), min_size=1)),
    st.tuples(st.just("grow"), st.integers(6, 30)),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("undo"), st.integers(0, 9)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=25))
def test_any_program_of_marks_is_as_if_whole_copies_had_been_kept(
    program: list[tuple[str, list[int] | int | None]],
) -> None:
    state = NodeState({"h": 2}, 6, fill={"h": "normal"}, seed=4)
    marks: list[tuple[Mark, Tensor]] = []
    twin = state["h"].clone()
    value = 0.0
    for verb, argument in program:
        value += 1
        if isinstance(argument, list):
            rows = np.array(argument)
            if verb == "write":
                state.write("h", rows, torch.full((len(rows), 2), value))
            else:
                state.touch("h", rows)
                state["h"][rows] = value
            twin[rows] = value
        elif verb == "grow":
            assert isinstance(argument, int)
            state.grow("h", argument)
            twin = torch.cat([twin, state["h"][len(twin) :]])
        elif verb == "snapshot":
            marks.append((state.snapshot(), twin.clone()))
        elif marks and isinstance(argument, int):
            place = argument % len(marks)
            if verb == "undo":
                state.undo(marks[place][0])
                twin = marks[place][1].clone()
                del marks[place + 1 :]
            else:
                state.forget(marks.pop(place)[0])
        assert torch.equal(state["h"], twin)
    for mark, copy in reversed(marks):
        state.undo(mark)
        assert torch.equal(state["h"], copy)
