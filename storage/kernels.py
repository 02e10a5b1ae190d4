"""Compiled loops of the store.

A node has two lists, of its events and of its links.  A list is one block of consecutive words in a
shared pool, rising, so what stood before a position is found by bisection and is a slice.  A block
that is full moves to one of twice the size; the old one goes to a free list.  The set of linked
pairs is an open-addressing table with linear probing: undo takes pairs out newest first, so
emptying a slot never breaks a probe.  Each kernel has its slow twin in `oracle.py` or in the tests.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ..stream.events import Bool, Float64, Int64

# `heads` (nodes, 8): where a node's two lists are; one row is one cache line
EVENTS, LINKS = 0, 4  # first column of each list
START, COUNT, CAPACITY = 0, 1, 2  # columns relative to it

# `pool`: a word of an event list is position << 27 | run << 2 | role, where `run` is how many
# entries of the same role stand directly before it (at most MAX_RUN); a word of a link list is
# 2 * link, plus 1 if the node was the destination of the event that made the link
IN, OUT, LOOP = 0, 1, 2  # role of the node in an event; a loop is both
ROLE_BITS, POSITION_SHIFT = 2, 27
MAX_RUN = (1 << (POSITION_SHIFT - ROLE_BITS)) - 1
MAX_EVENTS = 1 << 36

# `record` (1 + events, 5): row p + 1 holds event p and the counts after it; row 0 what was before
SRC, DST, TIME, LINKS_AFTER, NODES_AFTER = 0, 1, 2, 3, 4
# `made` (links, 3): SRC, DST and position of the event that made the link
MADE_AT = 2
EMPTY = 0  # slot of the table of pairs
# `counts`: words of the pool in use, links, nodes
USED, NUM_LINKS, NUM_NODES = 0, 1, 2

FIRST_CAPACITY = 4  # words in a node's first block


@njit(cache=True, nogil=True)
def mix(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): each bit stirs all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def fold(state: np.uint64, word: int | np.uint64) -> np.uint64:
    """The state of a counter-based generator after one more word of its key."""
    return mix(state + np.uint64(0x9E3779B97F4A7C15) + mix(np.uint64(word)))


@njit(cache=True, nogil=True)
def pair_of(u: int, v: int) -> int:
    """One number, not 0, for an undirected pair of ids below 2**31."""
    return (min(u, v) << 32 | max(u, v)) + 1


@njit(cache=True, nogil=True)
def slot_of(table: Int64, pair: int) -> np.int64:
    """The slot that holds `pair`, or the empty one where it belongs."""
    mask = len(table) - 1
    slot = np.int64(mix(np.uint64(pair)) & np.uint64(mask))
    while table[slot] != EMPTY and table[slot] != pair:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def refill(table: Int64, made: Int64, num_links: int) -> None:
    """Put the links into an empty table, in order of creation (undo relies on it)."""
    for i in range(num_links):
        pair = pair_of(made[i, SRC], made[i, DST])
        table[slot_of(table, pair)] = pair


@njit(cache=True, nogil=True)
def move_block(
    heads: Int64, pool: Int64, free: Int64, counts: Int64, node: int, which: int
) -> bool:
    """Move a full list to a block of twice the size; False if the pool has no room for one."""
    start = heads[node, which + START]
    count = heads[node, which + COUNT]
    size = max(2 * count, FIRST_CAPACITY)
    level = 0  # log2 of the size is the place in the free list
    while (1 << level) < size:
        level += 1
    fresh = free[level]
    if fresh >= 0:
        free[level] = pool[fresh]
    elif counts[USED] + size > len(pool):
        return False
    else:
        fresh = counts[USED]
        counts[USED] += size
    for i in range(count):
        pool[fresh + i] = pool[start + i]
    if count > 0:
        pool[start] = free[level - 1]
        free[level - 1] = start
    heads[node, which + START] = fresh
    heads[node, which + CAPACITY] = size
    return True


@njit(cache=True, nogil=True)
def run_of(word: int) -> int:
    """How many entries of the same role stand directly before this one of an event list."""
    return (word >> ROLE_BITS) & MAX_RUN


@njit(cache=True, nogil=True)
def apply_events(
    heads: Int64,
    pool: Int64,
    free: Int64,
    counts: Int64,
    table: Int64,
    made: Int64,
    record: Int64,
    src: Int64,
    dst: Int64,
    time: Int64,
    links: Bool,
    first: int,
    position: int,
) -> int:
    """Apply events from index `first` on; returns the first one not applied for want of room.

    Event `i` has position `position + i`; a negative `position` makes links only (initial ones).
    All in one piece: a helper that takes arrays and is not inlined counts references, which made
    this loop ten times slower.
    """
    is_initial = position < 0
    num_links, num_nodes = counts[NUM_LINKS], counts[NUM_NODES]
    i = first
    while i < len(src) and 2 * (num_links + 1) <= len(table):
        u, v = src[i], dst[i]
        num_ends = 1 if u == v else 2
        # room first, so that an event is applied whole or not at all
        has_room = True
        for which in (EVENTS, LINKS):
            for side in range(num_ends):
                node = v if side else u
                if heads[node, which + COUNT] == heads[node, which + CAPACITY]:
                    has_room &= move_block(heads, pool, free, counts, node, which)
        if not has_room:
            break
        at = -1 if is_initial else position + i
        for side in range(0 if is_initial else num_ends):
            node = v if side else u
            role = IN if side else OUT
            if u == v:
                role = LOOP
            count = heads[node, EVENTS + COUNT]
            place = heads[node, EVENTS + START] + count
            run = 0
            if count > 0 and pool[place - 1] & 3 == role:
                run = min(run_of(pool[place - 1]) + 1, MAX_RUN)
            pool[place] = at << POSITION_SHIFT | run << ROLE_BITS | role
            heads[node, EVENTS + COUNT] = count + 1
        if links[i]:
            pair = pair_of(u, v)
            slot = slot_of(table, pair)
            if table[slot] == EMPTY:
                table[slot] = pair
                made[num_links, SRC] = u
                made[num_links, DST] = v
                made[num_links, MADE_AT] = at
                for side in range(num_ends):
                    node = v if side else u
                    count = heads[node, LINKS + COUNT]
                    pool[heads[node, LINKS + START] + count] = 2 * num_links + side
                    heads[node, LINKS + COUNT] = count + 1
                num_links += 1
        num_nodes = max(num_nodes, u + 1, v + 1)
        if not is_initial:
            record[at + 1, SRC] = u
            record[at + 1, DST] = v
            record[at + 1, TIME] = time[i]
            record[at + 1, LINKS_AFTER] = num_links
            record[at + 1, NODES_AFTER] = num_nodes
        i += 1
    counts[NUM_LINKS], counts[NUM_NODES] = num_links, num_nodes
    return i


@njit(cache=True, nogil=True)
def undo_events(
    heads: Int64,
    counts: Int64,
    table: Int64,
    record: Int64,
    position: int,
    target: int,
) -> None:
    """Take the events `target .. position - 1` out again, newest first."""
    for row in range(position, target, -1):
        u, v = record[row, SRC], record[row, DST]
        has_link = record[row, LINKS_AFTER] > record[row - 1, LINKS_AFTER]
        if has_link:
            table[slot_of(table, pair_of(u, v))] = EMPTY
        heads[u, EVENTS + COUNT] -= 1
        heads[u, LINKS + COUNT] -= has_link
        if u != v:
            heads[v, EVENTS + COUNT] -= 1
            heads[v, LINKS + COUNT] -= has_link
    counts[NUM_LINKS] = record[target, LINKS_AFTER]
    counts[NUM_NODES] = record[target, NODES_AFTER]


@njit(cache=True, nogil=True)
def _below(pool: Int64, start: int, count: int, limit: int) -> int:
    """How many of a rising list's words are below a limit.

    Most limits are close to the newest word, so steps back from there double.
    """
    high, step = count, 1
    while high > 0 and pool[start + max(high - step, 0)] >= limit:
        high = max(high - step, 0)
        step *= 2
    low = max(high - step + 1, 0)
    while low < high:
        middle = (low + high) // 2
        if pool[start + middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def count_below(
    heads: Int64, pool: Int64, nodes: Int64, limits: Int64, which: int, out: Int64
) -> None:
    """How many words of each node's list are below its limit; 0 for unknown nodes."""
    for i in range(len(nodes)):
        out[i] = 0
        if nodes[i] < len(heads):
            start, count = heads[nodes[i], which + START], heads[nodes[i], which + COUNT]
            out[i] = _below(pool, start, count, limits[i])


@njit(cache=True, nogil=True)
def lay_recent(
    heads: Int64,
    pool: Int64,
    record: Int64,
    nodes: Int64,  # (n,)
    positions: Int64,  # (n,) up to which all has been applied
    node: Int64,  # out, (n, k) the other ends, oldest first from the left; 0 where there are fewer
    position: Int64,  # out, (n, k) likewise, -1 where there are fewer
    is_src: Bool,  # out, (n, k) likewise, False
    last: Int64,  # out, (n,) the position of the node's own latest event before, or -1
    last_of: Int64,  # out, (n, k) the same of the other ends
) -> None:
    """The `k` latest events of each node before its position, and how long their ends rest."""
    k = node.shape[1]
    starts, counts = np.empty(k, np.int64), np.empty(k, np.int64)
    for i in range(len(nodes)):
        end, limit = 0, positions[i] << POSITION_SHIFT
        if nodes[i] < len(heads) and limit > 0:
            start = heads[nodes[i], EVENTS + START]
            end = _below(pool, start, heads[nodes[i], EVENTS + COUNT], limit)
        count = min(end, k)
        first = heads[nodes[i], EVENTS + START] + end - count if end else 0
        # apart, so that what one neighbour waits for from memory is under way for all
        for column in range(count):
            word = pool[first + column]
            row = (word >> POSITION_SHIFT) + 1
            came = word & 3 != IN
            is_src[i, column], position[i, column] = came, row - 1
            node[i, column] = record[row, DST] if came else record[row, SRC]
        for column in range(count):
            starts[column] = heads[node[i, column], EVENTS + START]
            counts[column] = heads[node[i, column], EVENTS + COUNT]
        for column in range(count):
            last_of[i, column] = pool[starts[column] + counts[column] - 1]
        for column in range(count):
            if last_of[i, column] >= limit:
                before = _below(pool, starts[column], counts[column] - 1, limit)
                last_of[i, column] = pool[starts[column] + before - 1]  # there is one: this event
            last_of[i, column] >>= POSITION_SHIFT
        for column in range(count, k):
            is_src[i, column], node[i, column] = False, 0
            position[i, column] = last_of[i, column] = -1
        last[i] = pool[first + count - 1] >> POSITION_SHIFT if end else -1


@njit(cache=True, nogil=True)
def count_recent(
    heads: Int64, pool: Int64, nodes: Int64, ends: Int64, unwanted: int, limit: int, out: Int64
) -> None:
    """How many of the first `ends` events have another role than `unwanted`, at most `limit`.

    A run of unwanted entries is passed in one step, so the cost is that of what is found.
    """
    for i in range(len(nodes)):
        out[i] = 0
        place = ends[i] - 1
        while place >= 0 and out[i] < limit:
            word = pool[heads[nodes[i], EVENTS + START] + place]
            if word & 3 == unwanted:
                place -= run_of(word)
            else:
                out[i] += 1
            place -= 1


@njit(cache=True, nogil=True)
def copy_recent(
    heads: Int64,
    pool: Int64,
    record: Int64,
    nodes: Int64,
    ends: Int64,
    unwanted: int,
    indptr: Int64,
    neighbor: Int64,
    position: Int64,
    time: Int64,
    is_src: Bool,
) -> None:
    """The newest of the first `ends` events of another role than `unwanted`, oldest first."""
    for i in range(len(nodes)):
        j = indptr[i + 1] - 1
        place = ends[i] - 1
        while j >= indptr[i]:
            word = pool[heads[nodes[i], EVENTS + START] + place]
            place -= 1
            if word & 3 == unwanted:
                place -= run_of(word)
                continue
            row = (word >> POSITION_SHIFT) + 1
            is_src[j] = word & 3 != IN
            neighbor[j] = record[row, DST] if is_src[j] else record[row, SRC]
            position[j] = row - 1
            time[j] = record[row, TIME]
            j -= 1


@njit(cache=True, nogil=True)
def copy_links(
    heads: Int64,
    pool: Int64,
    made: Int64,
    nodes: Int64,
    indptr: Int64,
    neighbor: Int64,
    link: Int64,
    position: Int64,
) -> None:
    """The first links of each node, as many as `indptr` says."""
    for i in range(len(nodes)):
        for j in range(indptr[i], indptr[i + 1]):
            word = pool[heads[nodes[i], LINKS + START] + j - indptr[i]]
            neighbor[j] = made[word >> 1, SRC if word & 1 else DST]
            link[j] = word
            position[j] = made[word >> 1, MADE_AT]


@njit(cache=True, nogil=True)
def copy_last(heads: Int64, pool: Int64, nodes: Int64, ends: Int64, out: Int64) -> None:
    """The position of the last of the first `ends` events, -1 if there is none."""
    for i in range(len(nodes)):
        out[i] = -1
        if ends[i] > 0:
            out[i] = pool[heads[nodes[i], EVENTS + START] + ends[i] - 1] >> POSITION_SHIFT


@njit(cache=True, nogil=True)
def draw_negatives(
    pool: Int64,
    sizes: Int64,
    key: np.uint64,
    positions: Int64,
    avoid: Int64,
    tries: int,
    nodes: Int64,
    valid: Bool,
) -> None:
    """Draw a node of `pool[:sizes[i]]` outside `avoid[i]` for every row and column of `nodes`."""
    for i in range(nodes.shape[0]):
        size = sizes[i]
        here = fold(key, positions[i])
        for column in range(nodes.shape[1]):
            nodes[i, column] = 0
            valid[i, column] = False
            state = fold(here, column)
            index = np.int64(0)
            for attempt in range(tries):
                if size == 0:
                    break
                high = fold(state, attempt) >> np.uint64(32)
                index = np.int64((high * np.uint64(size)) >> np.uint64(32))
                if not is_in(pool[index], avoid, i):
                    nodes[i, column] = pool[index]
                    valid[i, column] = True
                    break
            if valid[i, column]:
                continue
            # nodes of the pool are distinct: one of any `avoid + 1` in a row is allowed
            for _ in range(min(size, avoid.shape[1] + 1)):
                index = (index + 1) % size
                if not is_in(pool[index], avoid, i):
                    nodes[i, column] = pool[index]
                    valid[i, column] = True
                    break


@njit(cache=True, nogil=True)
def draw_distinct(
    pool: Int64,
    sizes: Int64,
    key: np.uint64,
    positions: Int64,
    avoid: Int64,
    order: Int64,
    swapped: Int64,
    nodes: Int64,
    valid: Bool,
) -> None:
    """Draw the first nodes of `pool[:sizes[i]]` outside `avoid[i]` in a random order of the row.

    `order` is 0, 1, 2, ... over at least the largest size, and is so again after each row: it is
    shuffled as far as needed (Fisher and Yates 1938), and put right by the places in `swapped`.
    """
    for i in range(nodes.shape[0]):
        size = sizes[i]
        here = fold(key, positions[i])
        column = step = 0
        while column < nodes.shape[1] and step < size:
            high = fold(here, step) >> np.uint64(32)
            place = step + np.int64((high * np.uint64(size - step)) >> np.uint64(32))
            index = order[place]
            order[place] = order[step]
            swapped[step] = place
            step += 1
            if not is_in(pool[index], avoid, i):
                nodes[i, column] = pool[index]
                valid[i, column] = True
                column += 1
        for rest in range(column, nodes.shape[1]):
            nodes[i, rest] = 0
            valid[i, rest] = False
        for back in range(step):
            order[back] = back
            order[swapped[back]] = swapped[back]


@njit(cache=True, nogil=True)
def is_in(node: int, avoid: Int64, i: int) -> bool:
    """Whether `node` stands in row `i` of `avoid`."""
    for j in range(avoid.shape[1]):  # noqa: SIM110 (a loop compiles, a generator does not)
        if avoid[i, j] == node:
            return True
    return False


@njit(cache=True, nogil=True)
def fill_normal(key: np.uint64, first_row: int, out: Float64) -> None:
    """Standard normal numbers, each a pure function of (key, row, column) (Box and Muller 1958)."""
    for i in range(out.shape[0]):
        here = fold(key, first_row + i)
        for column in range(out.shape[1]):
            state = fold(here, column)
            # 53 bits each: the first in (0, 1] so that its logarithm is finite
            a = (np.float64(state >> np.uint64(11)) + 1.0) * 2.0**-53
            b = np.float64(mix(state) >> np.uint64(11)) * 2.0**-53
            out[i, column] = math.sqrt(-2.0 * math.log(a)) * math.cos(2.0 * math.pi * b)


@njit(cache=True, nogil=True)
def fill_uniform(key: np.uint64, positions: Int64, out: Float64) -> None:
    """Uniform numbers inside (0, 1), each a pure function of (key, position, column)."""
    for i in range(out.shape[0]):
        here = fold(key, positions[i])
        for column in range(out.shape[1]):
            out[i, column] = (np.float64(fold(here, column) >> np.uint64(11)) + 0.5) * 2.0**-53
