"""DyRep is what the paper's equations say, from the states before every event.

Comments name the known faults of published implementations (NeutronStream's, and the authors') that
a test stands against: scores from after the event, wrong survival pairs, kinds misaligned, no shift
of attention, a directed S, links seen too early, an unclamped psi, stubs, and one kind for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from neutronstream.models import DyRep, Events, Nodes
from neutronstream.models.kernels.links import attend_links, event_rates
from neutronstream.models.point_process import split_gap
from neutronstream.parallel import LevelExecutor, Outcome, Replay, Segment
from neutronstream.stream import EventLog

from ..data import real_log, span_of
from ..naive import random_log
from .naive_dyrep import NaiveDyRep
from .twins import (
    assert_every_parameter_learns,
    assert_gradients_are_slopes,
    assert_near,
    assert_scored_alike,
    replayed,
    strong,
    weights_of,
)

LOGS = {
    "uci": real_log("uci", 220),
    "social_evolution": span_of(real_log("social_evolution"), 2650, 2870),  # new friends in it
    "github": real_log("github", 220),
    "two kinds": random_log(1, 200, 15, kinds=("talk", "AE"), num_initial=12),
}


FORMS: dict[str, dict[str, Any]] = {
    "linear": {"intensity": "linear"},
    "bilinear": {"intensity": "bilinear"},
    "drift": {"intensity": "bilinear", "drift": True},
}


def new_model(
    log: EventLog, form: str = "linear", width: int = 6, dtype: torch.dtype = torch.float64
) -> DyRep:
    model = strong(lambda: DyRep(width, log.kinds, **FORMS[form]), dtype)
    model.constrain()
    assert isinstance(model, DyRep)
    return model


def naive(model: DyRep, replay: Replay) -> NaiveDyRep:
    z = [row.copy() for row in replay.state["embedding"].double().numpy()]
    return NaiveDyRep(replay.log, weights_of(model), z)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["64", "32"]
)
def test_the_model_is_that_of_the_equations(
    name: str, form: str, dtype: torch.dtype, bound: float
) -> None:
    log = LOGS[name]
    model = new_model(log, form, dtype=dtype)
    replay, segment, outcome = replayed(log, model)
    slow = naive(model, replay)
    assert_scored_alike(segment, outcome, slow, bound)
    outcome.commit()
    assert_near(replay.state["embedding"], np.stack(slow.z), bound)
    rows = attention_rows(replay)
    assert rows.keys() == slow.attention.keys()
    found = torch.tensor(list(rows.values()), dtype=torch.float64)
    assert_near(found, [slow.attention[pair] for pair in rows], bound)


def attention_rows(replay: Replay) -> dict[tuple[int, int], float]:
    """The link table as (node, neighbour) -> value."""
    nodes = np.arange(replay.log.num_nodes)
    links = replay.graph.links(nodes, len(replay.log))
    owner = np.repeat(nodes, np.diff(links.indptr))
    values = replay.state["attention"][:, 0][torch.from_numpy(links.link + 1)].double()
    pairs = zip(owner.tolist(), links.node.tolist(), strict=True)
    return dict(zip(pairs, values.tolist(), strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOGS)
def test_gradients_are_the_slopes_of_the_slow_model(name: str, form: str) -> None:
    log = LOGS[name].head(60)
    model = new_model(log, form)
    replay, _, outcome = replayed(log, model)
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
    start = naive(model, replay)
    start.run()

    def twin() -> NaiveDyRep:
        moved = naive(model, replay)
        moved.rates = start.used_rates  # attention carries no gradient
        return moved

    assert_gradients_are_slopes(model, twin)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOGS)
def test_every_parameter_learns(name: str, form: str) -> None:
    log = LOGS[name]
    model = DyRep(8, log.kinds, **FORMS[form])
    assert_every_parameter_learns(log, model.double())


@pytest.mark.parametrize("name", LOGS)
def test_the_attention_of_a_node_with_links_sums_to_one(name: str) -> None:
    log = LOGS[name]
    replay, _, _ = replayed(log, new_model(log))
    sums: dict[int, float] = {}
    for (node, _), value in attention_rows(replay).items():
        sums[node] = sums.get(node, 0.0) + value
    assert len(sums) > 10
    assert all(abs(total - 1.0) < 1e-5 for total in sums.values())


def test_a_new_link_shifts_the_attention_of_the_others() -> None:  # faults Y4 and Y5
    """Even shares of two links; a third one comes with an intensity of 2, both ways alike."""
    even = np.array([[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]])
    before = np.array([[[True, True, False], [False, False, False]]])
    after = np.array([[[True, True, True], [True, False, False]]])
    partner = np.array([[[False, False, True], [True, False, False]]])
    weight, row = np.empty_like(even), np.empty_like(even)
    attend_links(even, before, after, partner, np.array([2.0]), weight, row)
    assert weight[0].tolist() == [pytest.approx([0.5, 0.5, 0.0], abs=1e-6), [0.0, 0.0, 0.0]]
    row = row[0]
    third = 1 / 3
    assert row[0].tolist() == pytest.approx([third / 3, third / 3, (third + 2) / 3], abs=1e-6)
    assert row[1].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)


def test_an_event_on_a_standing_link_raises_its_attention_without_a_shift() -> None:
    even = np.array([[[0.5, 0.5], [1.0, 0.0]]])
    linked = np.array([[[True, True], [True, False]]])
    partner = np.array([[[True, False], [True, False]]])
    weight, row = np.empty_like(even), np.empty_like(even)
    attend_links(even, linked, linked, partner, np.array([1.0]), weight, row)
    row = row[0]
    assert row[0].tolist() == pytest.approx([1.5 / 2, 0.5 / 2], abs=1e-6)
    assert row[1].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_an_event_between_unlinked_nodes_leaves_the_attention() -> None:
    log = EventLog.from_arrays(
        ["a", "a", "b"], ["b", "c", "c"], [1, 2, 3], kind=["AE", "talk", "talk"]
    )
    replay, _, _ = replayed(log, new_model(log))
    assert attention_rows(replay).keys() == {(0, 1), (1, 0)}
    assert list(attention_rows(replay).values()) == pytest.approx([1.0, 1.0], abs=1e-6)


def test_a_link_is_not_among_the_neighbours_of_the_event_that_makes_it() -> None:  # fault Y6
    log = EventLog.from_arrays(["a", "a"], ["b", "b"], [1, 2])
    _, segment, _ = replayed(log, new_model(log))
    assert segment.neighbors.before.tolist() == [False, False, True, True]


def test_psi_stays_in_its_bounds() -> None:  # fault Y7
    model = DyRep(2, ("a", "b"))
    with torch.no_grad():
        model.psi.copy_(torch.tensor([-3.0, 1e9]))
    model.constrain()
    assert model.psi.tolist() == pytest.approx([0.1, 1000.0])


def test_intensities_are_positive_and_symmetric() -> None:
    torch.manual_seed(0)
    for intensity in ("linear", "bilinear"):
        model = new_model(LOGS["two kinds"], intensity)
        a, b = torch.rand(2, 50, 1, 6, dtype=torch.float64)
        rate = model.intensity(a, b)
        assert rate.shape == (50, 1, 2) and (rate > 0).all()
        torch.testing.assert_close(rate, model.intensity(b, a), rtol=1e-12, atol=1e-12)


def test_the_slope_by_psi_is_right_at_large_ratios() -> None:
    model = DyRep(2, ("a",)).double()
    for bias in (-30.0, -3.0, 0.0, 3.0, 30.0):
        rates = []
        with torch.no_grad():
            model.omega.bias.fill_(bias)
        for psi in (0.5 + 1e-6, 0.5 - 1e-6, 0.5):
            with torch.no_grad():
                model.psi.fill_(psi)
            rates.append(model.intensity(*torch.zeros(2, 1, 1, 2, dtype=torch.float64)).sum())
        (slope,) = torch.autograd.grad(rates[2], model.psi)
        assert slope.item() == pytest.approx((rates[0] - rates[1]).item() / 2e-6, abs=1e-8)


def test_gaps_are_days_hours_minutes_and_seconds() -> None:
    gap = torch.tensor([0.0, 59.0, 3 * 86_400 + 4 * 3_600 + 5 * 60 + 6.0])
    expected = [[0, 0, 0, 0], [0, 0, 0, 59 / 15], [3 / 50, 4 / 7, 5 / 15, 6 / 15]]
    torch.testing.assert_close(split_gap(gap), torch.tensor(expected))


def changed(log: EventLog, event: int, **columns: int) -> EventLog:
    """The log with other values in one event; nothing else."""
    arrays = {name: getattr(log.events, name).copy() for name in columns}
    for name, value in columns.items():
        assert arrays[name][event] != value
        arrays[name][event] = value
    return replace(log, events=replace(log.events, **arrays))


@pytest.mark.parametrize("column", ["dst", "kind"])
@pytest.mark.parametrize("executor", ["levels", "sequential"])
def test_an_event_changes_nothing_before_it_nor_its_own_inputs(  # fault Y1
    column: str, executor: str
) -> None:
    log, event = LOGS["two kinds"].head(120), 70
    old = int(getattr(log.events, column)[event])
    value = 1 - old if column == "kind" else (old + 1) % int(log.nodes_before(event))
    other = changed(log, event, **{column: value})
    model = new_model(log)
    (_, segment, first), (_, segment_2, second) = (
        replayed(each, model, executor=executor) for each in (log, other)
    )
    assert torch.equal(first.losses[:event], second.losses[:event])
    assert first.scores is not None and second.scores is not None
    assert torch.equal(first.scores[:event], second.scores[:event])
    assert not torch.equal(first.losses[event:], second.losses[event:])
    assert np.array_equal(segment.src.gap[event], segment_2.src.gap[event])
    # the score of a given node for the event is that of the same states: the old destination
    # scores the same whether or not it is the one that takes part
    if column == "dst":
        pool = {**scores_of(segment, first, event)}
        pool_2 = scores_of(segment_2, second, event)
        shared = pool.keys() & pool_2.keys()
        assert shared
        for node in shared:
            assert pool[node] == pytest.approx(pool_2[node], rel=1e-12)


def scores_of(segment: Segment, outcome: Outcome, event: int) -> dict[int, float]:
    """The scores of all nodes that were shown for an event."""
    assert outcome.scores is not None
    nodes = [segment.ends[event, 1], *segment.candidates.node[event]]
    valid = [True, *segment.candidates.valid[event]]
    scores = outcome.scores[event].tolist()
    return {int(n): s for n, s, ok in zip(nodes, scores, valid, strict=True) if ok}


def test_the_kind_of_an_event_selects_the_intensity_and_nothing_else() -> None:
    """Score and loss of both kinds come from one intensity of the states before the event."""
    log = LOGS["two kinds"].head(60)
    model = new_model(log)
    for event in (0, 30, 59):
        runs = []
        for kind in (0, 1):
            same = int(log.events.kind[event]) == kind
            each = log if same else changed(log, event, kind=kind)
            _, segment, outcome = replayed(each.head(event + 1), model)
            runs.append((segment, outcome))
        for name in ("src", "dst", "other_src", "other_dst", "candidates"):
            a, b = (getattr(segment, name) for segment, _ in runs)
            assert np.array_equal(a.node, b.node) and np.array_equal(a.gap, b.gap)
        losses = [outcome.losses[event].item() for _, outcome in runs]
        assert losses[0] != losses[1]


@pytest.mark.parametrize("name", LOGS)
def test_survival_pairs_are_never_the_true_pair(name: str) -> None:  # faults Y2 and Y3
    log = LOGS[name]
    _, segment, _ = replayed(log, new_model(log))
    ends = segment.ends
    for others in (segment.other_src, segment.other_dst):
        assert others.node.shape == (len(log), 5)
        assert not (others.node[:, :, None] == ends[:, None, :])[others.valid].any()
        assert others.valid[20:].all()


def test_the_loss_counts_two_sides_times_samples_times_kinds() -> None:  # faults Y2 and Y3
    """With equal states every intensity is the same, so that the loss shows how many there are."""
    model = DyRep(2, ("a", "b")).double()
    with torch.no_grad():
        model.omega.weight.zero_()
    z = {"embedding": torch.full((3, 5, 2), 0.5, dtype=torch.float64)}
    one = {"embedding": z["embedding"][:, :1]}
    gap = torch.zeros(3, 5, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [False] * 5])
    end, others = (
        Nodes(states, gap[:, :m], gap[:, :m], valid[:, :m], embedded=states["embedding"])
        for states, m in ((one, 1), (z, 5))
    )
    events = Events(torch.tensor([0, 1, 0]), torch.zeros(3, 2))
    rate = 0.5 * np.log(2.0)
    expected = [-np.log(rate) + 2 * 2 * rate] * 2 + [-np.log(rate)]
    assert model.loss(events, end, end, others, others).tolist() == pytest.approx(expected)


def test_the_loss_pairs_each_end_with_the_others_of_the_opposite_side() -> None:  # fault Y2
    model = new_model(LOGS["uci"])
    torch.manual_seed(0)
    src, dst, other_src, other_dst = torch.rand(4, 1, 1, 6, dtype=torch.float64)
    gap, valid = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    views = [
        Nodes({"embedding": z}, gap, gap, valid, embedded=z)
        for z in (src, dst, other_src, other_dst)
    ]
    loss = model.loss(Events(torch.tensor([0]), torch.zeros(1, 2)), *views)
    pairs = ((src, dst), (src, other_dst), (other_src, dst))
    happened, first, second = (model.intensity(*pair).sum() for pair in pairs)
    assert loss.item() == pytest.approx((-torch.log(happened) + first + second).item())


def test_every_event_is_trained_under_its_own_kind() -> None:  # faults Y3 and Y9
    log = LOGS["social_evolution"]
    _, segment, _ = replayed(log, new_model(log))
    assert segment.events.kind.tolist() == log.events.kind.tolist()
    names = {log.kinds[kind] for kind in segment.events.kind.tolist()}
    assert names == {"AE", "Communication"} == set(log.kinds)


def test_the_score_is_a_log_density_that_falls_with_idle_time() -> None:  # fault Y8
    model = new_model(LOGS["uci"])
    z = torch.rand(1, 3, 6, dtype=torch.float64)
    gap, valid = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    idle = torch.tensor([[0.0, 2.0, 9.0]], dtype=torch.float64)
    src = Nodes({"embedding": z[:, :1]}, gap[:, :1], idle[:, 2:], valid[:, :1], embedded=z[:, :1])
    dst = Nodes({"embedding": z}, gap, idle, valid, embedded=z)
    scores = model.score(Events(torch.tensor([0]), torch.zeros(1, 2)), src, dst)
    rate = model.intensity(z[:, :1], z).squeeze(2)
    torch.testing.assert_close(scores, torch.log(rate + 1e-10) - rate * idle)


def test_what_is_expected_does_not_know_how_much_time_has_passed() -> None:
    model = new_model(LOGS["uci"], "drift")
    z, valid = torch.rand(1, 2, 6, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    events = Events(torch.tensor([0]), torch.zeros(1, 2))
    expected, scores = [], []
    for idle in (0.0, 3.0):
        both = Nodes({"embedding": z}, torch.zeros(1, 2), torch.full((1, 2), idle), valid)
        both = replace(both, embedded=model.embed(events, both))
        src, dst = (
            replace(
                both,
                states={"embedding": z[:, [side]]},
                embedded=both.embedding[:, [side]],
                idle=both.idle[:, [side]],
            )
            for side in (0, 1)
        )
        expected.append(model.expected_idle(events, src, dst))
        scores.append(model.score(events, src, dst))
    assert torch.equal(expected[0], expected[1])
    assert not torch.equal(scores[0], scores[1])


def test_a_node_without_links_has_no_structure() -> None:
    log = EventLog.from_arrays(["a"], ["b"], [5])
    model = new_model(log)
    replay, _, outcome = replayed(log, model)
    z = replay.state["embedding"].clone()
    outcome.commit()
    expected = torch.sigmoid(model.structure.bias + model.recurrence(z))
    torch.testing.assert_close(replay.state["embedding"], expected.detach())


@pytest.mark.parametrize("executor", ["levels", "sequential"])
def test_a_self_loop_updates_its_node_once(executor: str) -> None:
    log = EventLog.from_arrays(["a", "a"], ["a", "a"], [5, 9])
    model = new_model(log)
    replay, _, outcome = replayed(log, model, executor=executor)
    slow = naive(model, replay)
    slow.run()
    outcome.commit()
    assert_near(replay.state["embedding"], np.stack(slow.z), 1e-12)
    assert attention_rows(replay) == {(0, 0): pytest.approx(1.0, abs=1e-6)}


def test_a_layer_that_mixes_events_is_refused() -> None:
    class Mixed(DyRep):
        def __init__(self) -> None:
            super().__init__(4)
            self.norm = nn.BatchNorm1d(4)

    with pytest.raises(ValueError, match=r"`norm` is a BatchNorm1d.*use LayerNorm"):
        Replay(LOGS["uci"], Mixed())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "`width` must be at least 1: got 0"),
        ({"num_negatives": 0}, "`num_negatives` must be at least 1: got 0"),
        ({"intensity": "cubic"}, "`intensity` must be 'linear' or 'bilinear': got 'cubic'"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DyRep(**arguments)  # type: ignore[arg-type]


def test_a_segment_cuts_the_gradient_of_the_states_before_it() -> None:
    log = LOGS["uci"].head(40)
    replay = Replay(log, new_model(log), dtype=torch.float64)
    executor = LevelExecutor(replay)
    for start in (0, 20):
        outcome = executor.run(executor.prepare(replay.resolve(start, start + 20)))
        outcome.commit()
        assert not replay.state["embedding"].requires_grad
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("intensity", ["linear", "bilinear"])
def test_the_attention_uses_the_intensity_of_the_loss(intensity: str) -> None:
    model = new_model(LOGS["two kinds"], intensity)
    z = torch.randn(40, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 30
    kind = torch.arange(40) % 2
    with torch.no_grad():
        wanted = model.intensity(z[:, :1], z[:, 1:]).squeeze(1).gather(1, kind[:, None]).squeeze(1)
    between = np.empty((0, 0, 0))
    if model.interaction is not None:
        between = model.interaction.detach().numpy()
    weights = [p.detach().numpy() for p in (model.omega.weight, model.omega.bias, model.psi)]
    for call in (event_rates, event_rates.py_func):
        rate = np.empty(40)
        omega, bias, psi = weights
        call(z.numpy(), kind.numpy(), omega, bias, psi, between, rate)
        np.testing.assert_allclose(rate, wanted.numpy(), rtol=1e-9)
