"""Runs of several threads equal those of one: states bit for bit, gradients up to rounding."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import sleep

import numpy as np
import pytest
import torch

from neutronstream.models import JODIE, TGN, DynamicGNN, DyRep, attention
from neutronstream.models.scans import attention as pairs_attended
from neutronstream.models.scans import memory, point_process
from neutronstream.models.threads import added, count_threads, spans, together, using_threads
from neutronstream.parallel import FusedExecutor, Replay, fused
from neutronstream.parallel.costs import Costs
from neutronstream.parallel.sharing import deal, share_chain
from neutronstream.stream import EventLog

from ..data import SIX, real_log
from ..naive import random_log
from .runs import Run, run
from .test_ranks import on_ranks

MODELS: dict[str, Callable[[EventLog], DynamicGNN]] = {
    "tgn": lambda log: TGN(8, log.kinds),
    "tgn, learned frequencies": lambda log: TGN(6, log.kinds, k=3, frequencies="learned"),
    "tgn, rnn and sum": lambda log: TGN(6, log.kinds, memory="rnn", embedding="sum"),
    "jodie": lambda log: JODIE(6, log.kinds),
    "jodie, shared": lambda log: JODIE(6, log.kinds, shared=True),
    "dyrep": lambda log: DyRep(6, log.kinds),
    "dyrep, bilinear": lambda log: DyRep(6, log.kinds, intensity="bilinear", drift=True),
}

FREE = Costs(event=1.0, message=0.0, byte=0.0)

HOSTILE = {
    "ties and a hub": random_log(4, 60, 12, ties=1.0, hub=0.9),
    "only loops": random_log(6, 30, 5, loops=1.0),
    "kinds and initial links": random_log(1, 80, 8, kinds=("AE", "b"), loops=0.4, num_initial=6),
    "one event": random_log(9, 1, 5),
    "late nodes": random_log(10, 90, 300, hub=0.0),
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever can be done in a thread is, however little it is."""
    for module in (attention, pairs_attended, memory, point_process):
        monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(fused, "threaded", lambda width: FREE)
    yield


def learn(log: EventLog, name: str, threads: int, dtype: torch.dtype = torch.float64) -> Run:
    with using_threads(threads):
        return run(
            *(log, lambda: MODELS[name](log), "fused"),
            dtype=dtype,
            size=40,
            num_candidates=3,
        )


def assert_the_same(ours: Run, right: Run, bound: float) -> None:
    """All bits but those of gradients, of which weights are sums over events."""
    ours.assert_near(right, bound)
    for key, value in right.values.items():
        if not key.startswith("grad"):
            assert torch.equal(value, ours.values[key]), key


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("log", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("name", MODELS)
def test_threads_give_what_one_gives(name: str, log: EventLog) -> None:
    right = learn(log, name, 1)
    for threads in (2, 4):
        assert_the_same(learn(log, name, threads), right, 1e-12)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["tgn", "jodie", "dyrep"])
def test_in_single_precision_too(name: str) -> None:
    log = HOSTILE["late nodes"]
    right = learn(log, name, 1, torch.float32)
    assert_the_same(learn(log, name, 3, torch.float32), right, 1e-6)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["tgn", "jodie", "dyrep"])
@pytest.mark.parametrize("name", SIX)
def test_on_real_logs_threads_give_what_one_gives(name: str, kind: str) -> None:
    log = real_log(name, 300)

    def learned(threads: int) -> Run:
        with using_threads(threads):
            return run(log, lambda: MODELS[kind](log), "fused", size=150)

    assert_the_same(learned(2), learned(1), 1e-12)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", MODELS)
def test_a_run_repeated_on_as_many_threads_has_the_same_bits(name: str) -> None:
    log = HOSTILE["late nodes"]
    first = learn(log, name, 3, torch.float32)
    assert all(learn(log, name, 3, torch.float32).equals(first) for _ in range(3))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["tgn", "jodie", "dyrep"])
def test_what_is_not_a_number_comes_out_of_all_threads(name: str) -> None:
    log = HOSTILE["late nodes"]

    def broken() -> DynamicGNN:
        model = MODELS[name](log)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(torch.nan)
        return model

    with using_threads(4):
        found = run(log, broken, "fused", size=45)
    assert found.values["losses"].isnan().all()


@pytest.mark.parametrize("count", [1, 2])
def test_every_rank_may_have_threads_of_its_own(count: int) -> None:
    found = on_ranks(count, "fused", "mpiexec", "tgn,jodie,dyrep", "2")
    assert found["ranks"] == count
    assert found["worst"][0] <= 1e-12, found["worst"]
    assert found["same"] is True


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("model", [JODIE(2), DyRep(2)], ids=["ends", "neighbors"])
def test_no_thread_reads_what_another_writes(threads: int, model: DynamicGNN) -> None:
    log = random_log(3, 60, 200, hub=0.0)
    executor = FusedExecutor(Replay(log, model))
    plan = executor.prepare(executor.replay.resolve(0, 60))
    chain, num_base = plan.work, len(plan.base)
    assert chain.parts == ()  # one thread
    parts = share_chain(chain, num_base, threads, FREE)
    assert len(parts) == threads
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(60))
    writes = chain.writes.reshape(-1, 2)
    for part in parts:
        assert (np.diff(part) > 0).all()  # in log order
        own = set(writes[part].ravel().tolist())
        for event in part:
            a, b = chain.indptr[2 * event], chain.indptr[2 * event + 2]
            read = [*chain.ends[event].tolist(), *chain.neighbors[a:b].tolist()]
            assert {row for row in read if row >= num_base} <= own


def test_events_that_all_hang_together_are_not_shared() -> None:
    log = random_log(4, 60, 12, ties=1.0, hub=1.0)
    executor = FusedExecutor(Replay(log, JODIE(2)))
    plan = executor.prepare(executor.replay.resolve(0, 60))
    assert share_chain(plan.work, len(plan.base), 2, FREE) == ()
    assert deal(np.zeros(5, np.int64), 2)[1] == 5


def test_what_is_not_worth_a_thread_stays_on_one() -> None:
    log = random_log(3, 4, 200, hub=0.0)
    executor = FusedExecutor(Replay(log, JODIE(2)))
    with using_threads(2):
        few = executor.prepare(executor.replay.resolve(0, 4)).work
        assert few.parts == ()
        assert spans(63, 32) == [slice(0, 63)]
        assert spans(65, 32) == [slice(0, 32), slice(32, 65)]
        assert spans(0, 32) == [slice(0, 0)]


def test_as_many_threads_as_before_are_taken_after_a_block_that_fails() -> None:
    assert count_threads() == 1
    with pytest.raises(KeyError), using_threads(3):
        assert count_threads() == 3
        raise KeyError
    assert count_threads() == 1
    match = "`count` must be at least 1 thread: got 0"
    with pytest.raises(ValueError, match=match), using_threads(0):
        pass


def test_an_error_in_a_thread_is_raised_once_all_are_done() -> None:
    done: list[str] = []

    def fail() -> None:
        raise MemoryError("of the second")

    def late() -> None:
        sleep(0.05)
        done.append(threading.current_thread().name)

    with pytest.raises(MemoryError, match="of the second"):
        together([late, fail, late])
    assert len(done) == 2
    assert done.count("MainThread") == 1
    with pytest.raises(MemoryError, match="of the second"):
        together([fail, late])
    assert len(done) == 3


def test_sums_are_made_in_order() -> None:
    parts = [np.array([1.0, 1e16]), np.array([2.0, 1.0]), np.array([3.0, -1e16])]
    assert added([part.copy() for part in parts]).tolist() == [6.0, 0.0]
    assert added([part.copy() for part in parts], 1).tolist() == [1.0, 0.0]


LIFE = """
import os, sys, threading, time
from neutronstream.models.threads import together
together([lambda: None])
assert threading.active_count() == 1  # one task needs no thread
together([lambda: time.sleep(0.01)] * 3)
assert threading.active_count() == 3
child = os.fork()
if child == 0:
    together([lambda: time.sleep(0.01)] * 3)  # there are no threads here yet
    sys.exit(7 if threading.active_count() == 3 else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("ends")
"""


def test_threads_come_when_wanted_and_end_with_the_process() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIFE],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert (found.returncode, found.stdout) == (0, "ends\n"), found.stderr
