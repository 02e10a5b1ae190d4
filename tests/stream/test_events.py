"""Batches are structs of arrays; a log numbers its nodes as they appear."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import neutronstream.stream as stream
from neutronstream.stream import EventBatch, EventLog, OrderError, events, windows


@pytest.mark.parametrize("module", [events, windows])
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert tried.attempted > 0 and tried.failed == 0


def test_public_names_are_those_of_the_folder() -> None:
    names = {name for name, value in vars(stream).items() if not isinstance(value, ModuleType)}
    assert sorted(stream.__all__) == sorted(name for name in names if name[0] != "_")


def test_nodes_are_numbered_by_first_appearance_source_before_destination() -> None:
    log = EventLog.from_arrays([9, 7, 9], [5, 9, 3], [0, 0, 1])
    assert log.nodes.to_pylist() == [9, 5, 7, 3]
    assert [log.nodes_before(p) for p in range(4)] == [0, 2, 3, 4]
    assert log.name_of([3, 0]) == [3, 9]


def test_initial_links_are_known_before_the_first_event() -> None:
    log = EventLog.from_arrays(["c"], ["a"], [5], initial=(["a"], ["b"]))
    assert log.nodes.to_pylist() == ["a", "b", "c"]
    assert log.initial is not None and log.initial.time.tolist() == [5]
    assert log.nodes_before(0) == 2


def test_a_head_knows_only_its_own_nodes() -> None:
    log = EventLog.from_arrays([0, 2], [1, 3], [0, 1])
    head = log.head(1)
    assert (len(head), head.num_nodes) == (1, 2)
    assert log.head(5) is log
    with pytest.raises(ValueError, match="`limit` must not be negative: got -1"):
        log.head(-1)


def test_lists_arrays_and_tensors_make_the_same_log() -> None:
    src, dst, time, features = [3, 1, 3], [4, 4, 5], [10, 20, 20], [[0.5], [1.0], [2.0]]
    makers: tuple[Any, ...] = (list, np.array, torch.tensor)
    logs = [
        EventLog.from_arrays(make(src), make(dst), make(time), features=make(features))
        for make in makers
    ]
    assert logs[0].nodes.to_pylist() == [3, 4, 1, 5]
    assert len({log.checksum for log in logs}) == 1
    for log in logs:
        assert log.events.features is not None
        assert log.events.features.dtype == np.float32
        assert log.events.features.tolist() == features


def test_integers_of_two_widths_are_the_same_ids() -> None:
    log = EventLog.from_arrays(np.array([3, 1], np.int32), np.array([1, 3], np.int64), [0, 1])
    assert log.nodes.to_pylist() == [3, 1]
    assert log.checksum == EventLog.from_arrays([3, 1], [1, 3], [0, 1]).checksum


def test_ids_of_two_types_and_features_that_are_no_table_are_refused() -> None:
    with pytest.raises(ValueError, match="of one type, such as int64 or text: got int64 and str"):
        EventLog.from_arrays([0, 1], ["a", "b"], [3, 4])
    with pytest.raises(ValueError, match=r"must be a table \(n, f\): got the shape \(2,\)"):
        EventLog.from_arrays([0, 1], [1, 2], [3, 4], features=np.zeros(2, np.float32))


def test_a_slice_is_a_view_and_a_mask_is_a_copy() -> None:
    log = EventLog.from_arrays([0, 1], [1, 2], [3, 4], weight=[0.5, 1.5], label=[0, 1])
    batch = log[1:2]
    assert isinstance(batch, EventBatch) and batch.src.base is not None
    assert np.shares_memory(batch.src, log.events.src)
    picked = log.events[np.array([False, True])]
    assert (picked.time.tolist(), picked.features) == ([4], None)
    assert picked.weight is not None and picked.weight.tolist() == [1.5]


def test_columns_of_different_lengths_are_refused() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="`dst` must have one value an event: got 2 for 1"):
        EventBatch(one, two, one, np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="must have one value an event, and `initial` as many"):
        EventLog.from_arrays([1], [1, 2], [0])


def test_falling_times_are_refused() -> None:
    with pytest.raises(OrderError, match="position 1 has 2 after 3; sort the events first"):
        EventLog.from_arrays([0, 1], [1, 2], [3, 2])


def test_kinds_are_coded_by_first_appearance() -> None:
    log = EventLog.from_arrays([0, 1, 2], [1, 2, 3], [0, 1, 2], kind=["b", "a", "b"])
    assert (log.kinds, log.events.kind.tolist()) == (("b", "a"), [0, 1, 0])
    with pytest.raises(ValueError, match="at most 256 kinds of event are supported: got 257"):
        EventLog.from_arrays([0] * 257, [1] * 257, [0] * 257, kind=[str(i) for i in range(257)])


def test_the_checksum_changes_with_any_value() -> None:
    log = EventLog.from_arrays([0, 1], [1, 2], [3, 4])
    assert log.checksum == EventLog.from_arrays([0, 1], [1, 2], [3, 4]).checksum
    assert log.checksum != EventLog.from_arrays([0, 1], [1, 2], [3, 5]).checksum
    assert log.checksum != EventLog.from_arrays([0, 1], [1, 2], [3, 4], weight=[1, 1]).checksum


def test_the_checksum_changes_with_unit_kinds_ids_and_initial_links() -> None:
    ends = ["a", "b"], ["b", "c"], [3, 4]
    log = EventLog.from_arrays(*ends, initial=(["b"], ["d"]))
    others = [
        EventLog.from_arrays(*ends),
        EventLog.from_arrays(*ends, initial=(["b"], ["e"])),
        EventLog.from_arrays(*ends, initial=(["d"], ["b"])),
        EventLog.from_arrays(["a", "b"], ["b", "cc"], [3, 4], initial=(["b"], ["d"])),
        EventLog.from_arrays(*ends, initial=(["b"], ["d"]), unit="ms"),
        EventLog.from_arrays(*ends, initial=(["b"], ["d"]), kind=["x", "x"]),
        EventLog.from_arrays(*ends, initial=(["b"], ["d"]), kind=["x", "y"]),
    ]
    assert len({log.checksum, *(other.checksum for other in others)}) == 8
    joined = (EventLog.from_arrays([x], [y], [0]) for x, y in (("ab", "c"), ("a", "bc")))
    assert len({other.checksum for other in joined}) == 2


def test_the_checksum_does_not_depend_on_how_ids_are_held() -> None:
    def checksum(ids: Any) -> str:
        return EventLog.from_arrays(ids, ids[::-1], [0, 1, 2]).checksum

    assert checksum([7, 8, 9]) == checksum(["7", "8", "9"]) == checksum(np.array([7, 8, 9], "i2"))
    log = EventLog.from_arrays(["x", "yy", "z"], ["yy", "z", "w"], [0, 1, 2])
    assert log.head(2).checksum == EventLog.from_arrays(["x", "yy"], ["yy", "z"], [0, 1]).checksum
