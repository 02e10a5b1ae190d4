"""The messages hold the structures that they promise, and each can be taken away."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from neutronstream.datasets.messages import MessageTruth, messages, messages_with_truth
from neutronstream.experiments.baselines import Baseline, EdgeBank, Popularity, RecentPartner
from neutronstream.experiments.metrics import LinkMetrics
from neutronstream.stream import Bool, EventLog, Float64, Int64

SEEDS = [0, 1, 2]


@cache
def planted(seed: int = 0, **changes: float) -> tuple[EventLog, MessageTruth]:
    return messages_with_truth(seed=seed, **changes)  # type: ignore[arg-type]


def candidates_of(log: EventLog, count: int = 100) -> tuple[Int64, Bool]:
    """The true destination, then known destinations drawn uniformly; and which of those count."""
    dst = log.events.dst
    _, first = np.unique(dst, return_index=True)
    pool = dst[np.sort(first)]  # in order of first appearance
    known = np.searchsorted(np.sort(first), np.arange(len(log)))  # before each event
    draws = np.random.default_rng(0).random((len(log), count)) * np.maximum(known, 1)[:, None]
    negatives = pool[draws.astype(np.int64)]
    valid = (negatives != dst[:, None]) & (known > 0)[:, None]
    return np.column_stack([dst, negatives]), valid


def recency(log: EventLog, candidates: Int64) -> Float64:
    """Minus the number of events since each candidate took part in one, before each event."""
    last = np.full(log.num_nodes, -(10**9))
    scores = np.empty(candidates.shape)
    for event, (src, dst) in enumerate(zip(log.events.src, log.events.dst, strict=True)):
        scores[event] = last[candidates[event]] - event
        last[[src, dst]] = event
    return scores


def value(scores: Float64, valid: Bool) -> dict[str, float]:
    """The metrics over the last half."""
    half = len(scores) // 2
    metrics = LinkMetrics()
    metrics.update(scores[half:, 0], scores[half:, 1:], valid[half:])
    return metrics.value()


def repeat_share(log: EventLog) -> float:
    """The share of messages whose directed pair has been seen before."""
    pairs = log.events.src * log.num_nodes + log.events.dst
    return 1 - len(np.unique(pairs)) / len(log)


def gap_spread(log: EventLog) -> float:
    """Burstiness (sd - mean) / (sd + mean) of the gaps between a person's messages, averaged."""
    person = np.concatenate([log.events.src, log.events.dst])
    time = np.concatenate([log.events.time, log.events.time])
    order = np.lexsort([time, person])
    gaps, same = np.diff(time[order]), np.diff(person[order]) == 0
    spreads = []
    for node in range(log.num_nodes):
        own = gaps[same & (person[order][1:] == node)]
        if len(own) >= 20:
            spreads.append((own.std() - own.mean()) / (own.std() + own.mean()))
    return float(np.mean(spreads))


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_active_last_tells_more_than_all_baselines(seed: int) -> None:
    log, _ = planted(seed)
    candidates, valid = candidates_of(log)
    learnable = value(recency(log, candidates), valid)
    assert learnable["ap"] > 0.85
    assert learnable["mrr"] > 0.4
    baselines: list[Baseline] = [EdgeBank(), EdgeBank(3600), Popularity(), RecentPartner()]
    for baseline in baselines:
        simple = value(baseline.score_and_learn(log.events, candidates), valid)
        assert learnable["ap"] > simple["ap"] + 0.15
        assert learnable["auc"] > simple["auc"] + 0.15
        assert learnable["mrr"] > simple["mrr"] + 0.15


@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_log_has_the_promised_shape(seed: int) -> None:
    log, truth = planted(seed)
    assert len(log) == 20_000
    assert 900 < log.num_nodes <= 1000
    assert (log.unit, log.name) == ("s", "messages")
    assert not (log.events.src == log.events.dst).any()
    assert 0.1 < repeat_share(log) < 0.3
    assert 0.07 < truth.is_reply.mean() < 0.11
    assert truth.conversation.max() > 300
    assert (truth.conversation >= 0).mean() == pytest.approx(0.9)
    assert 0.85 < (truth.src_community == truth.dst_community).mean() < 0.98
    assert 0.005 < (np.diff(log.events.time) == 0).mean() < 0.1  # equal times occur
    assert 2 * 86400 < log.events.time[-1] < 14 * 86400


@pytest.mark.parametrize("seed", SEEDS)
def test_people_are_active_in_bursts_and_then_silent(seed: int) -> None:
    assert gap_spread(planted(seed)[0]) > 0.4
    assert abs(gap_spread(planted(seed, bursts=0.0)[0])) < 0.1  # 0 for random times


def test_without_bursts_recent_activity_tells_little() -> None:
    log, truth = planted(bursts=0.0)
    assert (truth.conversation == -1).all()
    candidates, valid = candidates_of(log)
    assert value(recency(log, candidates), valid)["ap"] < 0.65


def test_a_pair_speaks_again_in_a_conversation_only_as_a_reply() -> None:
    log, truth = planted()
    said = ~truth.is_reply & (truth.conversation >= 0)
    ends = np.sort([log.events.src[said], log.events.dst[said]], axis=0)
    distinct = np.unique([truth.conversation[said], *ends], axis=1)
    assert distinct.shape[1] > 0.97 * said.sum()  # small groups run out of pairs


def test_a_reply_turns_the_message_before_it_in_its_conversation() -> None:
    log, truth = planted()
    latest: dict[int, tuple[int, int]] = {}
    columns = (truth.conversation, log.events.src, log.events.dst, truth.is_reply)
    for number, src, dst, is_reply in zip(*(column.tolist() for column in columns), strict=True):
        if is_reply:
            assert latest[number] == (dst, src)
        latest[number] = (src, dst)
    assert not planted(replies=0.0)[1].is_reply.any()


def test_conversations_are_short_and_take_turns() -> None:
    log, truth = planted()
    members = np.concatenate([log.events.src, log.events.dst])
    time = np.concatenate([log.events.time, log.events.time])
    number = np.concatenate([truth.conversation, truth.conversation])
    hours, sizes = [], []
    for conversation in range(truth.conversation.max() + 1):
        inside = number == conversation
        hours.append(np.ptp(time[inside]) / 3600)
        sizes.append(len(np.unique(members[inside])))
    assert 0.2 < np.median(hours) < 1.0
    assert 9 <= np.median(sizes) <= 15


def test_newcomers_appear_over_the_whole_log() -> None:
    def appeared(share: float) -> Float64:
        log, _ = planted(newcomers=share)
        quarters = [log.nodes_before(len(log) * part // 4) for part in (1, 2, 3)]
        return np.array(quarters) / log.num_nodes

    assert (appeared(0.0)[1:] > 0.94).all()
    assert appeared(0.9) == pytest.approx([0.33, 0.55, 0.78], abs=0.06)
    assert planted(newcomers=0.9)[0].num_nodes > 930  # who joins late takes part soon, too


def test_newcomers_mostly_speak_before_they_are_addressed() -> None:
    log, _ = planted()
    ends = np.stack([log.events.src, log.events.dst], axis=1).ravel()
    _, first = np.unique(ends, return_index=True)
    assert (first[first > len(log)] % 2 == 0).mean() > 0.8  # in the last half


def test_drift_moves_people_and_changes_who_is_popular() -> None:
    def moved_and_kept(drift: float) -> tuple[float, float]:
        log, truth = planted(drift=drift, newcomers=0.0, popularity=1.0, bursts=0.0)
        person = np.concatenate([log.events.src, log.events.dst])
        home = np.concatenate([truth.src_community, truth.dst_community])
        homes = np.unique([person, home], axis=1).shape[1]
        fifth = len(log) // 5
        early, late = (
            np.bincount(part, minlength=log.num_nodes)
            for part in (log.events.dst[:fifth], log.events.dst[-fifth:])
        )
        return homes / log.num_nodes - 1, float(np.corrcoef(early, late)[0, 1])

    moved, kept = moved_and_kept(0.0)
    assert moved == 0
    assert kept > 0.7
    moved, kept = moved_and_kept(2.0)
    assert moved > 0.8
    assert kept < 0.4


def test_one_community_leaves_no_structure_of_who_meets_whom() -> None:
    _, truth = planted(communities=1)
    assert (truth.src_community == 0).all()
    assert (truth.dst_community == 0).all()
    assert repeat_share(planted(communities=1)[0]) < 0.5 * repeat_share(planted()[0])


def test_a_community_with_one_who_writes_most_still_writes_within() -> None:
    _, truth = planted(popularity=3.0, bursts=0.0, communities=10)
    assert (truth.src_community == truth.dst_community).mean() > 0.8


def test_popularity_spreads_how_often_people_are_addressed() -> None:
    def dispersion(spread: float) -> float:
        log, _ = planted(popularity=spread, bursts=0.0, newcomers=0.0, drift=0.0, communities=1)
        count = np.bincount(log.events.dst, minlength=log.num_nodes)
        return float(count.var() / count.mean())

    assert dispersion(0.0) == pytest.approx(1.0, abs=0.15)  # Poisson
    assert dispersion(0.7) > 5


def test_a_log_is_a_function_of_its_arguments() -> None:
    assert messages(2000, seed=5).checksum == messages(2000, seed=5).checksum
    assert messages(2000, seed=5).checksum != messages(2000, seed=6).checksum
    assert messages(seed=1).checksum == planted(1)[0].checksum


@pytest.mark.parametrize(
    ("num_events", "num_nodes", "communities"),
    [(0, 2, 1), (1, 2, 1), (300, 2, 1), (300, 3, 50), (300, 12, 4), (60, 5000, None)],
)
@pytest.mark.parametrize("bursts", [0.0, 0.5, 1.0])
def test_small_networks_are_fine(
    num_events: int, num_nodes: int, communities: int | None, bursts: float
) -> None:
    log = messages(num_events, num_nodes, communities=communities, bursts=bursts)
    assert len(log) == num_events
    assert log.num_nodes <= num_nodes
    assert not (log.events.src == log.events.dst).any()


def test_numbers_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match=r"`bursts` must lie in 0 \.\. 1: got 1\.5"):
        messages(10, bursts=1.5)
    with pytest.raises(ValueError, match=r"`num_nodes` must lie in 2 \.\. inf: got 1"):
        messages(10, 1)
    with pytest.raises(ValueError, match=r"`replies` must lie in 0 \.\. 1: got nan"):
        messages(10, replies=float("nan"))
