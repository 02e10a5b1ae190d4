"""DyGNN is what its equations say, writes whom it reaches, and is scored from before the event.

Comments name the known faults of the NeutronStream code, and of the published one, that a test
stands against: layers that are never trained, scores from after the event, whole hours only, a
node's last event in place of a pair's, first partners reached, tails unweighted, self loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neutronstream.models import Events, Level, Members, Near, Nodes
from neutronstream.models.dygnn import DyGNN, TimeLSTM
from neutronstream.parallel import EXECUTORS, Outcome, Replay, Segment
from neutronstream.stream import TICKS_PER_SECOND, EventLog

from ..data import real_log, span_of
from ..naive import random_log
from ..parallel.runs import run
from .hostile import HOSTILE
from .naive_dygnn import NaiveDyGNN
from .twins import (
    assert_every_parameter_learns,
    assert_gradients_are_slopes,
    assert_near,
    assert_scored_alike,
    assert_stale_differs,
    replayed,
    strong,
    weights_of,
)

HOUR = 3600

LOGS = {
    "uci": real_log("uci", 200),
    "dnc": span_of(real_log("dnc"), 5000, 5080),  # self loops in it
    "reality_call": span_of(real_log("reality_call"), 20, 110),  # and here
    "loops and initial links": random_log(1, 100, 8, loops=0.4, num_initial=6),
    "few nodes": random_log(2, 80, 3),
    "isolated nodes": random_log(3, 30, 200, hub=0.0),
}


def new_model(log: EventLog, width: int = 6, **options: Any) -> Callable[[], DyGNN]:
    return lambda: DyGNN(width, log.kinds, **options)


def strong_model(log: EventLog, dtype: torch.dtype = torch.float64, **options: Any) -> DyGNN:
    model = strong(new_model(log, **options), dtype)
    assert isinstance(model, DyGNN)
    return model


def run_of(
    log: EventLog, dtype: torch.dtype = torch.float64, executor: str = "levels", **options: Any
) -> tuple[DyGNN, Replay, Segment, Outcome]:
    model = strong_model(log, dtype, **options)
    return (model, *replayed(log, model, executor))


def naive(model: DyGNN, replay: Replay) -> NaiveDyGNN:
    return NaiveDyGNN(
        *(replay.log, weights_of(model)),
        states={name: list(replay.state[name].double().numpy().copy()) for name in model.tables},
        k=model.reads.k,
        decay=model.decay,
        seconds=1.0 / TICKS_PER_SECOND[replay.log.unit],
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in LOGS), ("uci", {"k": 2}), ("few nodes", {"k": 5, "decay": 0.3})],
)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["64", "32"]
)
def test_the_model_is_that_of_the_equations(
    name: str, options: dict[str, Any], dtype: torch.dtype, bound: float
) -> None:
    model, replay, segment, outcome = run_of(LOGS[name], dtype, **options)
    slow = naive(model, replay)
    assert_scored_alike(segment, outcome, slow, bound)
    outcome.commit()
    for table in model.tables:
        assert_near(replay.state[table], np.stack(slow.states[table]), bound)


@pytest.mark.parametrize("name", ["uci", "loops and initial links"])
def test_gradients_are_the_slopes_of_the_slow_model(name: str) -> None:
    model, replay, _, outcome = run_of(LOGS[name].head(40))
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert_gradients_are_slopes(model, lambda: naive(model, replay))


STREAMS = {
    **HOSTILE,
    "uci": real_log("uci", 200),
    "reality_call": real_log("reality_call", 120),
}


@pytest.mark.parametrize("name", STREAMS)
def test_levels_equal_one_event_at_a_time(name: str) -> None:
    log = STREAMS[name]
    first, second = (
        run(
            *(log, new_model(log, 6, k=6), executor),
            size=50,
            num_candidates=3,
            learning_rate=0.01,
        )
        for executor in ("levels", "sequential")
    )
    worst, where = second.worst(first)
    assert worst <= 1e-12, where


@pytest.mark.parametrize("name", ["uci", "reality_call"])
def test_in_float32_they_agree_to_rounding(name: str) -> None:
    log = STREAMS[name]
    first, second = (
        run(log, new_model(log, 64), executor, dtype=torch.float32)
        for executor in ("levels", "sequential")
    )
    second.assert_near(first, 1e-6)


def test_a_stale_run_is_finite_and_differs_from_the_exact_one() -> None:
    log = STREAMS["uci"]
    assert_stale_differs(log, lambda: strong_model(log), "embedding", size=50)


# the parts


def test_without_any_wait_a_time_lstm_is_an_lstm() -> None:
    """Its gates are those of torch's cell, in another order."""
    torch.manual_seed(0)
    width, cells = 4, TimeLSTM(4, 2)
    x, cell, hidden = torch.randn(3, 2, 5, width)
    after = cells(x, cell, hidden, torch.ones(2, 5, 1))
    for role in range(2):
        torch_cell = nn.LSTMCell(width, width)
        enter, keep, show, new = cells.gates[role].t().chunk(4)  # each (width, 2 width)
        weights = torch.cat([enter, keep, new, show])
        biases = cells.gates_bias[role, 0].chunk(4)
        with torch.no_grad():
            torch_cell.weight_ih.copy_(weights[:, :width])
            torch_cell.weight_hh.copy_(weights[:, width:])
            torch_cell.bias_ih.copy_(torch.cat([biases[i] for i in (0, 1, 3, 2)]))
            torch_cell.bias_hh.zero_()
        expected = torch_cell(x[role], (hidden[role], cell[role]))
        torch.testing.assert_close(after[0][role], expected[1])
        torch.testing.assert_close(after[1][role], expected[0])


def test_after_a_long_wait_the_short_term_memory_is_gone() -> None:
    """With open gates and nothing new, c' = c - tanh(W c + b) (1 - g)."""
    cells = TimeLSTM(1, 1)
    with torch.no_grad():
        cells.short.fill_(0.5)
        cells.short_bias.zero_()
        cells.gates.zero_()
        cells.gates_bias.copy_(torch.tensor([[[-80.0, 80.0, 80.0, 0.0]]]))
    cell = torch.tensor([[[0.6], [0.6], [0.6]]])
    decay = torch.tensor([[[1.0], [0.25], [0.0]]])
    after, hidden = cells(torch.zeros(1, 3, 1), cell, torch.zeros(1, 3, 1), decay)
    short = math.tanh(0.3)
    assert after[0, :, 0].tolist() == pytest.approx([0.6, 0.6 - 0.75 * short, 0.6 - short])
    torch.testing.assert_close(hidden, torch.tanh(after))


def test_news_fades_with_the_hours_even_with_parts_of_one() -> None:  # fault G3
    fade = DyGNN(2).fade(torch.tensor([0.0, 1800.0, 3600.0, 36_000.0], dtype=torch.float64))
    expected = [1 / math.log(math.e + 2 * hours) for hours in (0, 0.5, 1, 10)]
    assert fade.tolist() == pytest.approx(expected)
    assert fade[0] == 1.0


def level_of(
    p: int, ends: tuple[int, int], near: list[list[tuple[int, float, bool]]], width: int = 2
) -> Level:
    """One event among `p` members; of each end (slot, gap, the end was source)."""
    k = max(1, *map(len, near)) + 1  # one place at least is padding
    slots = torch.tensor(ends)[:, None].repeat(1, k)[None]
    gap, is_src = torch.zeros(1, 2, k, dtype=torch.float64), torch.zeros(1, 2, k, dtype=torch.bool)
    mask = torch.zeros_like(is_src)
    for side, entries in enumerate(near):
        for place, (slot, seconds, source) in enumerate(entries):
            slots[0, side, place], gap[0, side, place] = slot, seconds
            is_src[0, side, place], mask[0, side, place] = source, True
    gen = torch.Generator().manual_seed(0)
    names = ("cell_head", "cell_tail", "hidden_head", "hidden_tail", "embedding")
    states = {n: torch.randn(1, p, width, generator=gen, dtype=torch.float64) for n in names}
    members = Members(states, torch.ones(1, p, dtype=torch.bool), torch.tensor([ends]), slots)
    return Level(
        kind=torch.zeros(1, dtype=torch.int64),
        encoded={"decay": torch.ones(1, 2, dtype=torch.float64)},
        ends={},
        neighbors={},
        mask=mask,
        near=Near(gap, is_src),
        members=members,
    )


def changes(model: DyGNN, level: Level) -> dict[str, Tensor]:
    """By how much each state of each member changes, (p, width)."""
    assert level.members is not None
    written = model.update(level).states
    return {n: (written[n] - s)[0].detach() for n, s in level.members.states.items()}


def test_an_end_takes_its_role_and_leaves_the_other() -> None:
    model = strong_model(LOGS["uci"], width=2)
    moved = changes(model, level_of(3, (0, 1), [[], []]))
    for role, slot in (("head", 0), ("tail", 1)):
        for kept in {0, 1, 2} - {slot}:
            assert (moved[f"cell_{role}"][kept] == 0).all()
            assert (moved[f"hidden_{role}"][kept] == 0).all()
        assert (moved[f"cell_{role}"][slot] != 0).all()
    assert (moved["embedding"][:2] != 0).all() and (moved["embedding"][2] == 0).all()


def test_heads_are_told_as_heads_and_tails_as_tails() -> None:
    """Slot 2 had sent to the source, to slot 3 the source had sent; 4 is padding of the event."""
    model = strong_model(LOGS["uci"], width=2)
    near = [[(2, 0.0, False), (3, 0.0, True)], []]
    moved = changes(model, level_of(5, (0, 1), near))
    assert (moved["cell_head"][2] != 0).all() and (moved["cell_tail"][2] == 0).all()
    assert (moved["cell_head"][3] == 0).all() and (moved["cell_tail"][3] != 0).all()
    assert (moved["embedding"][[2, 3]] != 0).all()
    assert all((moved[name][4] == 0).all() for name in moved)


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("side", [0, 1])
def test_the_shares_of_heads_and_of_tails_sum_to_one(source: bool, side: int) -> None:  # fault G6
    """Without any fading, what the neighbours receive together is the whole news."""
    model = strong_model(LOGS["uci"], width=2)
    near: list[list[tuple[int, float, bool]]] = [[], []]
    near[side] = [(slot, 0.0, source) for slot in (2, 3, 4, 3)]  # 3 was met twice
    level = level_of(5, (0, 1), near)
    moved = changes(model, level)["cell_tail" if source else "cell_head"][2:]
    assert level.members is not None
    z = level.members.states["embedding"][0]
    told = torch.tanh(model.interact(z[:2].flatten())).view(2, 2)[side]
    news = (model.transfer_src, model.transfer_dst)[side](told).view(2, 2)[int(source)]
    torch.testing.assert_close(moved.sum(0), news.detach())
    assert len({round(float(share), 6) for share in moved[:, 0]}) == 3  # and they differ


def test_of_several_events_of_a_pair_in_one_direction_the_last_counts() -> None:  # fault G4
    """Slot 2 sent 5 hours and 1 hour ago; that it received 1 minute ago is of the other role."""
    model = strong_model(LOGS["uci"], width=2)
    near = [[(2, 5.0 * HOUR, False), (2, 1.0 * HOUR, False), (2, 60.0, True)], []]
    _, reaches = model.places(level_of(3, (0, 1), near))
    heads, tails = (reach.fade[0, 2].tolist() for reach in reaches[0])
    assert heads == pytest.approx([1 / math.log(math.e + 2), 0.0])
    assert tails == pytest.approx([0.0, 1 / math.log(math.e + 2 / 60)])
    assert reaches[1] == []


def test_the_destination_sees_what_the_source_wrote() -> None:
    """A common neighbour: the news of the source moves what it is worth to the destination."""
    model = strong_model(LOGS["uci"], width=2)
    level = level_of(4, (0, 1), [[(2, 0.0, False)], [(2, 0.0, False), (3, 0.0, False)]])
    alone = changes(model, level_of(4, (0, 1), [[], [(2, 0.0, False), (3, 0.0, False)]]))
    both = changes(model, level)
    assert (both["cell_head"][3] != alone["cell_head"][3]).all()


def test_a_self_loop_takes_both_roles_and_its_node_is_both_to_itself() -> None:  # fault G8
    model = strong_model(LOGS["uci"], width=2)
    first = changes(model, level_of(1, (0, 0), [[], []]))
    assert all((first[name] != 0).all() for name in first)
    again = level_of(1, (0, 0), [[(0, 0.0, True)], [(0, 0.0, True)]])
    _, reaches = model.places(again)
    for end in reaches:
        assert [reach.fade[0, 0].tolist() for reach in end] == [[1.0, 0.0], [0.0, 1.0]]
    second = changes(model, again)
    assert all((second[name] != first[name]).all() for name in first)


def test_a_first_partner_is_not_among_those_who_are_told() -> None:  # fault G5
    """A node without any other event keeps its tail state when it sends for the first time."""
    log = EventLog.from_arrays(["a", "a"], ["b", "c"], [0, HOUR])
    model, replay, segment, outcome = run_of(log)
    before = {name: replay.state[name].clone() for name in model.tables}
    outcome.commit()
    assert segment.neighbors.node.tolist() == [1]  # of the second event, b only
    assert torch.equal(replay.state["cell_tail"][0], before["cell_tail"][0])  # of a
    assert torch.equal(replay.state["cell_head"][2], before["cell_head"][2])  # of c
    assert not torch.equal(replay.state["cell_tail"][1], before["cell_tail"][1])  # of b


def test_neighbours_are_written_for_later_events_to_read() -> None:
    """After (a, b), the event (a, c) changes b, which is scored for the one after it."""
    log = EventLog.from_arrays(["a", "a", "d"], ["b", "c", "b"], [0, 1, 2])
    other = EventLog.from_arrays(["a", "d", "d"], ["b", "c", "b"], [0, 1, 2])
    states = []
    for each in (log, other):
        _, replay, _, outcome = run_of(each.head(2))
        outcome.commit()
        states.append(replay.state["embedding"][1])
    assert not torch.equal(*states)


# learning


@pytest.mark.parametrize("executor", ["levels", "sequential"])
@pytest.mark.parametrize("name", ["uci", "loops and initial links"])
def test_every_parameter_learns(name: str, executor: str) -> None:  # fault G1
    log = LOGS[name]
    torch.manual_seed(0)
    model = DyGNN(8, log.kinds).double()
    layers = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert layers == {
        *("interact", "cells", "merge", "attention"),
        *("transfer_src", "transfer_dst", "as_head", "as_tail"),
    }
    assert_every_parameter_learns(log, model, executor)


def test_it_learns_who_receives_much() -> None:
    """Of two known destinations the true one is ranked first, more often than by chance."""
    rng = np.random.default_rng(0)
    share = 1.0 / np.arange(1, 21) ** 1.5
    src, dst = rng.integers(0, 20, 240), 20 + rng.choice(20, 240, p=share / share.sum())
    log = EventLog.from_arrays(src, dst, np.arange(240) * 600)
    torch.manual_seed(0)
    model = DyGNN(16, log.kinds, k=4)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        replay, wins = Replay(log, model), []
        engine = EXECUTORS["levels"](replay)
        for start in range(0, 240, 20):
            segment = replay.resolve(start, start + 20, num_candidates=5)
            outcome = engine.run(engine.prepare(segment))
            optimiser.zero_grad()
            outcome.losses.mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            outcome.commit()
            assert outcome.scores is not None
            wins.append((outcome.scores[:, :1] > outcome.scores[:, 1:]).double().mean().item())
    assert np.mean(wins[5:]) > 0.7


@pytest.mark.parametrize("executor", ["levels", "sequential"])
def test_an_event_changes_nothing_before_it_nor_its_own_score(executor: str) -> None:  # fault G2
    log, event = LOGS["loops and initial links"], 60
    dst = log.events.dst.copy()
    dst[event] = (dst[event] + 1) % int(log.nodes_before(event))
    other = replace(log, events=replace(log.events, dst=dst))
    model = strong_model(log)
    first, second = (replayed(each, model, executor) for each in (log, other))
    assert torch.equal(first[2].losses[:event], second[2].losses[:event])
    pools = []
    for _, segment, outcome in (first, second):
        assert outcome.scores is not None
        nodes = [int(segment.ends[event, 1]), *segment.candidates.node[event].tolist()]
        real = [True, *segment.candidates.valid[event].tolist()]
        scores = outcome.scores[event].tolist()
        pools.append({n: s for n, s, ok in zip(nodes, scores, real, strict=True) if ok})
    shared = pools[0].keys() & pools[1].keys()
    assert shared  # the same states, whoever takes part
    for node in shared:
        assert pools[0][node] == pytest.approx(pools[1][node], rel=1e-12)
    assert not torch.equal(first[2].losses[event:], second[2].losses[event:])


def test_the_loss_is_a_mean_over_the_true_and_the_corrupted_pairs() -> None:
    model = DyGNN(2)
    with torch.no_grad():
        model.as_head.weight.copy_(torch.eye(2))
        model.as_tail.weight.copy_(2 * torch.eye(2))
    one, two = torch.ones(1, 1, 2), torch.full((1, 3, 2), 0.5)

    def nodes(z: Tensor, valid: list[bool]) -> Nodes:
        gap = torch.zeros(z.shape[:2])
        return Nodes({"embedding": z}, gap, gap, torch.tensor([valid]))

    end = nodes(one, [True])
    loss = model.loss(
        Events(torch.tensor([0]), torch.zeros(1, 2)),
        *(end, end, nodes(two, [True, True, False]), nodes(two, [True, False, False])),
    )
    true, wrong = math.log1p(math.exp(-4.0)), math.log1p(math.exp(2.0))
    assert loss.item() == pytest.approx((true + 3 * wrong) / 4)


def test_the_roles_of_a_pair_are_told_apart_in_its_score() -> None:
    """U z . V z, whichever side has more nodes."""
    model = strong_model(LOGS["uci"])
    z = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    events = Events(torch.tensor([0]), torch.zeros(1, 2))

    def nodes(*which: int) -> Nodes:
        gap = torch.zeros(1, len(which))
        return Nodes({"embedding": z[None, list(which)]}, gap, gap, torch.ones_like(gap).bool())

    right = model.as_head(z) @ model.as_tail(z).t()
    assert not torch.allclose(right, right.t())
    torch.testing.assert_close(model.score(events, nodes(0), nodes(0, 1, 2))[0], right[0])
    torch.testing.assert_close(model.score(events, nodes(0, 1, 2), nodes(1))[0], right[:, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "`width` must be at least 1: got 0"),
        ({"num_negatives": 0}, "`num_negatives` must be at least 1: got 0"),
        ({"decay": -1.0}, "`decay` must not be negative: got -1.0"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DyGNN(**arguments)  # type: ignore[arg-type]


def test_the_model_is_sound_and_says_how_many_events_it_needs() -> None:
    DyGNN(4).check()
    with pytest.raises(ValueError, match=r"`reads\.k` must say how many recent .*: got 0"):
        DyGNN(4, k=0).check()
