"""The loops of the baselines: each event's candidates are scored, then the event is learned.

Pairs stand in an open-addressing table with linear probing: `keys` holds `src << 32 | dst` or -1,
its length is a power of two.  A table, pool or tree that is full stops a loop, which returns the
number of events done; the caller makes room and calls again, so no loop allocates.  Node ids are
below 2**31, so no product here overflows.  The slow twins stand in `tests/experiments`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..stream import Float64, Int64


@njit(cache=True, nogil=True)
def slot_of(keys: Int64, left: int, right: int) -> int:
    """The slot of the pair, or the empty one where it belongs."""
    mixed = left * 0x5BD1E995 + right * 0x27D4EB2F
    mixed = ((mixed ^ (mixed >> 31)) & 0x7FFFFFFF) * 0x45D9F3B3
    key = (left << 32) | right
    last = len(keys) - 1
    slot = (mixed ^ (mixed >> 29)) & last
    while keys[slot] != key and keys[slot] != -1:
        slot = (slot + 1) & last
    return slot


@njit(cache=True, nogil=True)
def rehash(keys: Int64, values: Int64, new_keys: Int64, new_values: Int64) -> None:
    """Copy a table into a larger empty one."""
    for old in range(len(keys)):
        if keys[old] != -1:
            slot = slot_of(new_keys, keys[old] >> 32, keys[old] & 0xFFFFFFFF)
            new_keys[slot] = keys[old]
            new_values[slot] = values[old]


@njit(cache=True, nogil=True)
def run_edge_bank(
    keys: Int64,  # (slots,) pairs
    times: Int64,  # (slots,) when the pair was seen last
    used: Int64,  # (1,) slots taken
    window: int,  # ticks; negative for no limit
    done: int,
    src: Int64,
    dst: Int64,
    time: Int64,
    candidates: Int64,
    scores: Float64,
) -> int:
    """Events from `done` on; returns how many are done, fewer than all when the table is full."""
    for event in range(done, len(src)):
        if 2 * used[0] >= len(keys):
            return event
        for column in range(candidates.shape[1]):
            slot = slot_of(keys, src[event], candidates[event, column])
            if keys[slot] != -1 and (window < 0 or time[event] - times[slot] <= window):
                scores[event, column] = 1.0
        slot = slot_of(keys, src[event], dst[event])
        if keys[slot] == -1:
            keys[slot] = (src[event] << 32) | dst[event]
            used[0] += 1
        times[slot] = time[event]
    return len(src)


@njit(cache=True, nogil=True)
def run_popularity(count: Int64, dst: Int64, candidates: Int64, scores: Float64) -> None:
    """Score by how often a candidate was a destination; `count` has a place for every node."""
    for event in range(len(dst)):
        for column in range(candidates.shape[1]):
            scores[event, column] = count[candidates[event, column]]
        count[dst[event]] += 1


@njit(cache=True, nogil=True)
def alive_until(tree: Int64, start: int, place: int) -> int:
    """How many of a row's places 0 .. `place` are alive, from its Fenwick tree."""
    total = 0
    index = place + 1
    while index > 0:
        total += tree[start + index - 1]
        index -= index & -index
    return total


@njit(cache=True, nogil=True)
def add_alive(tree: Int64, start: int, length: int, place: int, change: int) -> None:
    """Add `change` at a place of a row's Fenwick tree."""
    index = place + 1
    while index <= length:
        tree[start + index - 1] += change
        index += index & -index


@njit(cache=True, nogil=True)
def make_room(
    node: int,
    keys: Int64,
    places: Int64,
    rows: Int64,
    partner: Int64,
    tree: Int64,
    free: Int64,
) -> bool:
    """Pack the full row of `node`, in a span of twice the length if most of it is alive.

    False when the pool has no such span.  The cost is paid by the appends that filled the row.
    """
    start, length, taken, alive = rows[node, 0], rows[node, 1], rows[node, 2], rows[node, 3]
    target, room = start, length
    if 2 * alive >= length:
        target, room = free[0], max(2, 2 * length)
        if target + room > len(partner):
            return False
        free[0] += room
    place = 0
    for old in range(start, start + taken):  # packs in place too: the target is never ahead
        other = partner[old]
        if other != -1:
            partner[target + place] = other
            places[slot_of(keys, node, other)] = place
            place += 1
    for index in range(1, room + 1):  # the tree of `place` ones and then zeros
        low = index - (index & -index)
        tree[target + index - 1] = max(0, min(index, place) - low)
    rows[node, 0], rows[node, 1], rows[node, 2] = target, room, place
    return True


@njit(cache=True, nogil=True)
def meet(
    node: int,
    other: int,
    keys: Int64,
    places: Int64,
    used: Int64,
    rows: Int64,
    partner: Int64,
    tree: Int64,
) -> None:
    """Make `other` the latest partner of `node`, whose row has a free place."""
    start, length = rows[node, 0], rows[node, 1]
    slot = slot_of(keys, node, other)
    if keys[slot] == -1:
        keys[slot] = (node << 32) | other
        used[0] += 1
        rows[node, 3] += 1
    else:
        partner[start + places[slot]] = -1
        add_alive(tree, start, length, places[slot], -1)
    place = rows[node, 2]
    partner[start + place] = other
    add_alive(tree, start, length, place, 1)
    places[slot] = place
    rows[node, 2] = place + 1


@njit(cache=True, nogil=True)
def run_recent_partner(
    keys: Int64,  # (slots,) (node, partner), both directions of a meeting
    places: Int64,  # (slots,) the partner's place in the node's row
    used: Int64,  # (1,) slots taken
    rows: Int64,  # (nodes, 4) start in the pool, length, places taken, partners alive
    partner: Int64,  # (pool,) partners in order of the latest meeting; -1 where one has met since
    tree: Int64,  # (pool,) a Fenwick tree a row over the places that are alive
    free: Int64,  # (1,) where the pool's free part starts
    done: int,
    src: Int64,
    dst: Int64,
    candidates: Int64,
    scores: Float64,
) -> int:
    """Events from `done` on; returns how many are done, fewer than all when room is short."""
    for event in range(done, len(src)):
        node, other = src[event], dst[event]
        if 2 * (used[0] + 2) > len(keys):
            return event
        for end in (node, other):
            if rows[end, 2] == rows[end, 1] and not make_room(
                end, keys, places, rows, partner, tree, free
            ):
                return event
        for column in range(candidates.shape[1]):
            slot = slot_of(keys, node, candidates[event, column])
            if keys[slot] != -1:
                until = alive_until(tree, rows[node, 0], places[slot])
                scores[event, column] = 1.0 / (1 + rows[node, 3] - until)
        meet(node, other, keys, places, used, rows, partner, tree)
        if node != other:
            meet(other, node, keys, places, used, rows, partner, tree)
    return len(src)


def empty_table(slots: int) -> tuple[Int64, Int64]:
    """Keys and values of a table without pairs."""
    return np.full(slots, -1, np.int64), np.zeros(slots, np.int64)
