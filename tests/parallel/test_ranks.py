"""A run over ranks equals the run of one process: states, losses, scores and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..ranks import finish, start

SCRIPT = Path(__file__).with_name("on_ranks.py")


def on_ranks(count: int, executor: str, launcher: str = "mpiexec", *more: str) -> dict[str, Any]:
    """What the script printed, run on `count` ranks."""
    code, out, err = finish(start(launcher, count, SCRIPT, executor, *more), 240)
    assert code == 0, out + err
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


@pytest.mark.parametrize("executor", ["levels", "fused", "batch"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ranks_give_what_one_process_gives(count: int, executor: str) -> None:
    found = on_ranks(count, executor)
    assert found["ranks"] == count
    assert found["worst"][0] <= 1e-12, found["worst"]
    assert found["same"] is True  # all ranks hold the same bits
    if count > 1:
        purposes = {"scores", "gradients"}
        if executor != "batch":
            purposes |= {"rows", "row gradients", "link values"}
        if executor == "levels":  # no scan with a penalty shares its events
            purposes |= {"penalties", "penalties, gradients"}
        assert purposes <= found["moved"][0].keys()


def test_ranks_of_torchrun_give_what_one_process_gives() -> None:
    found = on_ranks(2, "fused", "torchrun")
    assert found["ranks"] == 2
    assert found["worst"][0] <= 1e-12, found["worst"]
    assert found["same"] is True
