"""Task parallelism: the same promises on 1, 2, 3 and 4 ranks."""

from __future__ import annotations

import pytest

from . import task_promises
from .run import held_on_ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_task_ranks_promise_holds(ranks: int) -> None:
    found = held_on_ranks(ranks, task_promises.__name__)
    assert set(found) == {promise.__name__ for promise in task_promises.PROMISES}
