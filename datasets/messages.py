"""A seeded network of people who write messages, with a known structure to be learned.

People of one community meet in conversations: a dozen of them exchange some fifty messages within
an hour and fall silent, so whoever was active a moment ago is addressed next.  But for replies, a
pair speaks again in a conversation only when all of its pairs have spoken, so a memory of pairs
knows little of it; people join, move between communities and change how much they write, so
counting fades too.  Each of these structures has an argument that takes it away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..stream import Bool, EventLog, Float64, Int64

EPOCHS = 100  # people join and move at the starts of this many equal spans
GROUP = (10, 16)  # people in a conversation, half open
MESSAGES_A_HEAD = 4  # messages of a conversation for each of its people
GAP, GAP_SPREAD = 20.0, 1.2  # median seconds between messages of a conversation; log-normal
ACTIVE = 0.02  # share of the people who are in a conversation at a time
MIXING = 0.05  # share of the people met from outside the community
WELCOME = 20.0  # how much likelier one who has just joined is to be in the next conversation


@dataclass(frozen=True, slots=True)
class MessageTruth:
    """What was planted with each event of a log, in log order."""

    conversation: Int64  # (n,) number of the conversation, -1 for a message outside of any
    src_community: Int64  # (n,) where the source belonged at the time
    dst_community: Int64  # (n,)
    is_reply: Bool  # (n,) whether it answers the message before it in its conversation


def messages(
    num_events: int = 20_000,
    num_nodes: int | None = None,
    *,
    communities: int | None = None,
    bursts: float = 0.9,
    replies: float = 0.1,
    newcomers: float = 0.5,
    drift: float = 0.5,
    popularity: float = 0.7,
    seed: int = 0,
) -> EventLog:
    """A log of `num_events` messages, times in seconds, equal for equal arguments.

    `num_nodes` people, by default one for twenty events; those who never write or are written to
    are not in the log.  Every structure can be taken away:

    - `communities`: how many there are, by default one for eighty people; 1 for none.
    - `bursts`: the share of messages in conversations; 0 leaves messages at random times.
    - `replies`: the share of a conversation's messages that answer the one before.
    - `newcomers`: the share of people who join after the start, evenly over the log.
    - `drift`: how often a person moves on average, to a random community and a new popularity.
    - `popularity`: the spread (sigma of a log-normal) of how much people take part.

    Raises:
        ValueError: if a number lies outside its range; the message says which.

    >>> log = messages(500, seed=3)
    >>> len(log), log.unit, log.checksum == messages(500, seed=3).checksum
    (500, 's', True)
    """
    return messages_with_truth(
        num_events,
        num_nodes,
        communities=communities,
        bursts=bursts,
        replies=replies,
        newcomers=newcomers,
        drift=drift,
        popularity=popularity,
        seed=seed,
    )[0]


def messages_with_truth(
    num_events: int = 20_000,
    num_nodes: int | None = None,
    *,
    communities: int | None = None,
    bursts: float = 0.9,
    replies: float = 0.1,
    newcomers: float = 0.5,
    drift: float = 0.5,
    popularity: float = 0.7,
    seed: int = 0,
) -> tuple[EventLog, MessageTruth]:
    """The log of `messages` with these arguments, and what was planted in it."""
    people = max(20, num_events // 20) if num_nodes is None else num_nodes
    groups = max(1, round(people / 80)) if communities is None else communities
    for name, value, low, high in (
        ("num_events", num_events, 0, np.inf),
        ("num_nodes", people, 2, np.inf),
        ("communities", groups, 1, np.inf),
        ("bursts", bursts, 0, 1),
        ("replies", replies, 0, 1),
        ("newcomers", newcomers, 0, 1),
        ("drift", drift, 0, EPOCHS),
        ("popularity", popularity, 0, np.inf),
    ):
        if not low <= value <= high:
            raise ValueError(f"`{name}` must lie in {low} .. {high}: got {value}")
    rng = np.random.default_rng(seed)
    mean_gap = GAP * np.exp(GAP_SPREAD**2 / 2)
    span = 1 + num_events * mean_gap * sum(GROUP) / 2 / (ACTIVE * people)
    lengths, sizes = _conversation_plan(rng, round(bursts * num_events))
    starts = np.sort(rng.uniform(0, span, len(lengths)))
    alone = rng.uniform(0, span, num_events - int(lengths.sum()))
    crowd = _Crowd(rng, people, groups, newcomers, popularity)
    parts = []
    for epoch in range(EPOCHS):
        crowd.advance(epoch, drift)
        begin, end = span * epoch / EPOCHS, span * (epoch + 1) / EPOCHS
        for number in range(*np.searchsorted(starts, [begin, end])):
            ends, is_reply = _conversation(rng, crowd, lengths[number], sizes[number], replies)
            gaps = rng.lognormal(np.log(GAP), GAP_SPREAD, lengths[number])
            parts.append(_part(crowd, ends, starts[number] + np.cumsum(gaps), number, is_reply))
        times = alone[(alone >= begin) & (alone < end)]
        none = np.zeros(len(times), np.bool_)
        parts.append(_part(crowd, crowd.pairs(len(times)), times, -1, none))
    src, dst, time, number, src_community, dst_community, is_reply = np.concatenate(parts, axis=1)
    order = np.argsort(time, kind="stable")
    log = EventLog.from_arrays(src[order], dst[order], time[order], name="messages")
    truth = MessageTruth(
        number[order], src_community[order], dst_community[order], is_reply[order].astype(np.bool_)
    )
    return log, truth


class _Crowd:
    """Who has joined, where they belong and how much they take part; changes at epochs."""

    def __init__(
        self, rng: np.random.Generator, people: int, groups: int, newcomers: float, spread: float
    ) -> None:
        self.rng, self.groups, self.spread = rng, groups, spread
        self.community = rng.integers(0, groups, people)
        self.weight = rng.lognormal(0, spread, people)
        self.first = max(2, people - round(newcomers * people))  # those who are there at the start
        self.silent = np.ones(people, np.bool_)  # has not been in any message yet
        self.joined = self.first

    def advance(self, epoch: int, drift: float) -> None:
        """Let people join and move, and sort all who are there by community."""
        rng, people = self.rng, len(self.community)
        self.joined = self.first + (people - self.first) * epoch // (EPOCHS - 1)
        if epoch:
            moves = np.flatnonzero(rng.random(people) < drift / EPOCHS)
            self.community[moves] = rng.integers(0, self.groups, len(moves))
            self.weight[moves] = rng.lognormal(0, self.spread, len(moves))
        home = self.community[: self.joined]
        self.sorted = np.argsort(home, kind="stable")  # (joined,)
        self.bounds = np.searchsorted(home[self.sorted], np.arange(self.groups + 1))
        self.mass = np.concatenate([[0.0], np.cumsum(self.weight[self.sorted])])

    def draw(self, low: Float64, high: Float64) -> Int64:
        """A person for each span `low` .. `high` of the cumulated weights."""
        at = low + (high - low) * self.rng.random(len(low))
        place = np.searchsorted(self.mass, at, side="right") - 1
        drawn: Int64 = self.sorted[np.clip(place, 0, self.joined - 1)]
        return drawn

    def pairs(self, count: int) -> Int64:
        """Pairs (2, count) of a sender and someone else, mostly of the same community."""
        low, high = np.zeros(count), np.full(count, self.mass[-1])
        src = self.draw(low, high)
        near = self.rng.random(count) >= MIXING
        home = self.community[src]
        low[near] = self.mass[self.bounds[home[near]]]
        high[near] = self.mass[self.bounds[home[near] + 1]]
        dst = self.draw(low, high)
        for _ in range(8):
            same = np.flatnonzero(src == dst)
            dst[same] = self.draw(low[same], high[same])
        same = np.flatnonzero(src == dst)  # alone in the community
        dst[same] = (src[same] + self.rng.integers(1, self.joined, len(same))) % self.joined
        pairs = np.stack([src, dst])
        self.silent[pairs] = False
        return pairs

    def gathering(self, size: int) -> Int64:
        """Some `size` distinct people, mostly of one community, newcomers first of all."""
        rng = self.rng
        host = self.draw(np.zeros(1), self.mass[-1:])[0]
        home = self.community[host]
        near = self.sorted[self.bounds[home] : self.bounds[home + 1]]
        eager = np.where(self.silent[near] & (near >= self.first), WELCOME, 1.0)
        race = rng.exponential(size=len(near)) / (self.weight[near] * eager)
        guests = min(rng.binomial(size, MIXING) + max(0, size - len(near)), self.joined)
        chosen = near[np.argsort(race)[: max(0, size - guests)]]
        return np.unique(np.concatenate([chosen, rng.integers(0, self.joined, guests), [host]]))


def _conversation_plan(rng: np.random.Generator, total: int) -> tuple[Int64, Int64]:
    """Numbers of messages, `total` in all, and of people of the conversations."""
    count = 1 + total // (MESSAGES_A_HEAD * GROUP[0])  # enough even if all are small
    sizes = rng.integers(*GROUP, count)
    ends = np.minimum(np.cumsum(MESSAGES_A_HEAD * sizes), total)
    lengths = np.diff(ends, prepend=0)
    return lengths[lengths > 0], sizes[lengths > 0]


def _conversation(
    rng: np.random.Generator, crowd: _Crowd, length: int, size: int, replies: float
) -> tuple[Int64, Bool]:
    """Ends (2, length) of a conversation's messages, and which of them are replies."""
    people = crowd.gathering(size)
    while len(people) < 2:  # a community of one
        people = np.unique(rng.integers(0, crowd.joined, 2))
    pairs = np.stack(np.triu_indices(len(people), 1))
    pairs = rng.permuted(pairs[:, rng.permutation(pairs.shape[1])], axis=0)  # either direction
    ends = people[pairs[:, np.arange(length) % pairs.shape[1]]]  # (2, length)
    for person in people[crowd.silent[people]]:  # who is new speaks first
        column = (ends == person).any(axis=0).argmax()
        if ends[1, column] == person:
            ends[:, column] = ends[::-1, column].copy()
    is_reply = rng.random(length) < replies
    is_reply[0] = False
    place = np.arange(length)
    said = np.maximum.accumulate(np.where(is_reply, 0, place))  # what the chain answers
    turned = (place - said) % 2 == 1
    ends = np.where(turned, ends[::-1, said], ends[:, said])
    crowd.silent[ends] = False
    return ends, is_reply


def _part(crowd: _Crowd, ends: Int64, time: Float64, number: int, is_reply: Bool) -> Int64:
    """Columns (7, n): src, dst, time, conversation, both communities, whether a reply."""
    numbers = np.full(len(time), number)
    return np.stack([*ends, time.astype(np.int64), numbers, *crowd.community[ends], is_reply])
