"""Memory that ranks share: what one shows, the others read; and where there is none."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from neutronstream.parallel import blackboard
from neutronstream.parallel.blackboard import FOLDER, STRICT, Blackboard, create

pytestmark = pytest.mark.skipif(
    platform.machine() not in STRICT or not os.path.isdir(FOLDER), reason="ranks share none here"
)


def left() -> list[str]:
    return [name for name in os.listdir(FOLDER) if name.startswith("neutronstream-")]


def boards(size: int) -> list[Blackboard]:
    path = create(size)
    try:
        found = [Blackboard(path, rank, size) for rank in range(size)]
    finally:
        os.unlink(path)
    assert len({board.name for board in found}) == 1
    return found


def test_a_rank_reads_what_others_show_and_only_once_they_do() -> None:
    one, other = boards(2)
    rng = np.random.default_rng(0)
    for turn in range(5):
        sent = rng.integers(0, 256, (2, 3 * turn), np.uint8)
        one.post("x", (0, sent[0][:turn]), (turn, sent[0][turn:]))
        assert not one.is_there(1) and one.is_there(0)
        other.post("x", (7, sent[1]))
        assert one.is_there(1) and other.is_there(0)
        assert np.array_equal(one.read(1, 7, 3 * turn), sent[1])
        assert np.array_equal(other.read(0, 0, 3 * turn), sent[0])


def test_a_rank_that_is_ahead_overwrites_nothing_that_is_still_read() -> None:
    one, other = boards(2)
    one.post("x", (0, np.full(4, 1, np.uint8)))
    other.post("x", (0, np.full(4, 2, np.uint8)))
    assert one.is_there(1)
    one.post("x", (0, np.full(4, 3, np.uint8)))  # the other has not yet read the first
    assert other.is_there(0) and other.read(0, 0, 4).tolist() == [1] * 4
    other.post("x", (0, np.full(4, 4, np.uint8)))
    assert other.is_there(0) and other.read(0, 0, 4).tolist() == [3] * 4


def test_each_half_has_a_name_however_long() -> None:
    one, other = boards(2)
    for name in ("`rows` (exchange 3)", "", "ü" * 200, "`rows` (exchange 5)"):
        one.post(name)
        other.post(name + "!")
        assert name.startswith(one.name_of(0).rstrip("\ufffd"))
        assert (one.name_of(1) == other.name_of(0)) == (len(name) == 200)


def test_the_whole_room_can_be_sent_and_all_ranks_together_stay_small() -> None:
    for size in (1, 2, 3, 64):
        found = boards(size)
        assert 0 < size * 2 * found[0].room <= blackboard.TOTAL
        full = np.arange(found[0].room).astype(np.uint8)
        for board in found:
            board.post("x", (0, full))
        assert found[0].is_there(size - 1)
        assert np.array_equal(found[0].read(size - 1, 0, len(full)), full)


def test_where_there_is_no_memory_there_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blackboard, "FOLDER", "/nowhere")
        assert create(2) == ""
    with pytest.raises(OSError, match="nowhere"):
        Blackboard("/nowhere/x", 0, 2)
    before = left()
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))\n"
        "from neutronstream.parallel.blackboard import create\nassert create(2) == ''"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert left() == before
