"""Loops of the scheduler: arrays and integers in, preallocated arrays out."""

import numpy as np
from numba import njit

from ..stream import Bool, Float64, Int64


@njit(cache=True, nogil=True)
def resolve_rows(
    read_start: Int64,  # (n + 1,) where the reads of each event begin
    read_node: Int64,
    write_start: Int64,  # (n + 1,)
    write_node: Int64,
    scored: Int64,  # (p, m) nodes read for scoring only; they order nothing
    first_scored: int,  # the event of the first of these rows
    row_of: Int64,  # (num_nodes,) all -1; scratch, left as it was found
    base: Int64,  # out, room for every distinct node
    read_row: Int64,  # out
    score_row: Int64,  # out, (p, m)
    write_row: Int64,  # out, (w,)
    level: Int64,  # out, (n,)
    order: Int64,  # out, (n,) events level by level, in log order inside a level
    last_row: Int64,  # out, like base: the last version of each base node
) -> int:
    """One pass in log order: the version every read must see, and the level of every event.

    Returns the number of base rows, which are 0, 1 ..; those of writes follow, in the order of
    levels.  Every write makes a new version, so only reads of earlier writes order events.
    """
    num_base = 0  # until levels are known, -1 - w is the row of write slot w
    slot_level = np.zeros(len(write_node), np.int64)
    for event in range(len(level)):
        depth = 0
        place = event - first_scored
        columns = scored.shape[1] if 0 <= place < len(scored) else 0
        for column in range(columns):
            node = scored[place, column]
            if row_of[node] == -1:
                base[num_base] = node
                last_row[num_base] = num_base
                row_of[node] = num_base
                num_base += 1
            score_row[place, column] = last_row[row_of[node]]
        for slot in range(read_start[event], read_start[event + 1]):
            node = read_node[slot]
            if row_of[node] == -1:
                base[num_base] = node
                last_row[num_base] = num_base
                row_of[node] = num_base
                num_base += 1
            row = last_row[row_of[node]]
            read_row[slot] = row
            if row < 0:
                depth = max(depth, slot_level[-1 - row] + 1)
        level[event] = depth
        for slot in range(write_start[event], write_start[event + 1]):
            node = write_node[slot]
            if row_of[node] == -1:
                base[num_base] = node
                row_of[node] = num_base
                num_base += 1
            last_row[row_of[node]] = -1 - slot
            slot_level[slot] = depth
    for row in range(num_base):
        row_of[base[row]] = -1
    _order_levels(level, order)
    row = num_base
    for event in order:
        for slot in range(write_start[event], write_start[event + 1]):
            write_row[slot] = row
            row += 1
    _name_rows(read_row, write_row)
    for place in range(len(score_row)):
        _name_rows(score_row[place], write_row)
    _name_rows(last_row[:num_base], write_row)
    return num_base


@njit(cache=True, nogil=True)
def _order_levels(level: Int64, order: Int64) -> None:
    """The events by their levels, all of which occur, as they come inside one."""
    start = np.zeros(len(level) + 1, np.int64)
    for event in range(len(level)):
        start[level[event] + 1] += 1
    for depth in range(len(level)):
        start[depth + 1] += start[depth]
    for event in range(len(level)):
        order[start[level[event]]] = event
        start[level[event]] += 1


@njit(cache=True, nogil=True)
def _name_rows(rows: Int64, write_row: Int64) -> None:
    """Put the row of write slot w where -1 - w stands in `rows` (r,)."""
    for i in range(len(rows)):
        if rows[i] < 0:
            rows[i] = write_row[-1 - rows[i]]


@njit(cache=True, nogil=True, error_model="numpy")
def lay_gaps(
    position: Int64,  # (n m, k) of recent events of m nodes beside each of n, or -1; 0 is put there
    last: Int64,  # (n m, k) the position of the neighbour's own last event
    log_time: Int64,
    now: Int64,  # (n,) the time of the events beside which they stand
    ticks: float,  # a second
    mask: Bool,  # out, (n m, k): there is an event
    gap: Float64,  # out, seconds since it; 0 where there is none
    idle_gap: Float64,  # out, seconds since the neighbour's own last event, likewise
) -> None:
    """How long ago recent events were."""
    beside = len(position) // max(1, len(now))
    for i in range(len(position)):
        at = now[i // beside]
        for column in range(position.shape[1]):
            found = position[i, column] >= 0
            mask[i, column] = found
            gap[i, column] = idle_gap[i, column] = 0.0
            if found:
                gap[i, column] = (at - log_time[position[i, column]]) / ticks
                idle_gap[i, column] = (at - log_time[last[i, column]]) / ticks
            else:
                position[i, column] = 0


@njit(cache=True, nogil=True)
def cut_pieces(
    order: Int64,  # (n,) events level by level
    level: Int64,  # (n,)
    length: Int64,  # (n,) the longer neighbour list of the two ends
    budget: int,
    piece_stop: Int64,  # out, room for n
    piece_width: Int64,  # out, room for n: the longest list in the piece, at least 1
) -> int:
    """Cut the ordered events where the level changes, or where padding would waste memory."""
    pieces = 0
    start = 0
    width = 1
    total = 0
    for place in range(len(order)):
        event = order[place]
        wider = max(width, length[event])
        count = place - start + 1
        full = count > 1 and wider * count > 2 * (total + length[event]) + budget
        if place > start and (level[event] != level[order[place - 1]] or full):
            piece_stop[pieces] = place
            piece_width[pieces] = width
            pieces += 1
            start = place
            width = max(1, length[event])
            total = 0
        else:
            width = wider
        total += length[event]
    if len(order):
        piece_stop[pieces] = len(order)
        piece_width[pieces] = width
        pieces += 1
    return pieces


@njit(cache=True, nogil=True)
def pad_lists(
    order: Int64,
    piece_stop: Int64,
    piece_width: Int64,
    indptr: Int64,  # (2 n + 1,) the lists of source and destination of each event
    values: Int64,
    fill: int,
    padded: Int64,  # out, sum over pieces of 2 * events * width
    mask: Bool,  # out, the same
) -> None:
    """Lay the neighbour lists of every piece out as (events, 2, width), piece after piece."""
    cell = 0
    place = 0
    for piece in range(len(piece_stop)):
        width = piece_width[piece]
        while place < piece_stop[piece]:
            event = order[place]
            for side in range(2):
                start = indptr[2 * event + side]
                length = indptr[2 * event + side + 1] - start
                for column in range(width):
                    if column < length:
                        padded[cell] = values[start + column]
                        mask[cell] = True
                    else:
                        padded[cell] = fill
                        mask[cell] = False
                    cell += 1
            place += 1


@njit(cache=True, nogil=True)
def collect_members(
    ends: Int64,  # (n, 2)
    indptr: Int64,  # (2 n + 1,) the neighbours of both ends of each event
    neighbors: Int64,
    slot_of: Int64,  # (num_nodes,) all -1; scratch, left as it was found
    member_start: Int64,  # out, (n + 1,)
    member: Int64,  # out, room for 2 n + all neighbours
    end_slot: Int64,  # out, (n, 2)
    neighbor_slot: Int64,  # out, like neighbors
) -> int:
    """The distinct nodes of each event, ends first; returns how many there are in all."""
    count = 0
    member_start[0] = 0
    for event in range(len(ends)):
        first = count
        for side in range(2):
            node = ends[event, side]
            if slot_of[node] == -1:
                slot_of[node] = count - first
                member[count] = node
                count += 1
            end_slot[event, side] = slot_of[node]
        for place in range(indptr[2 * event], indptr[2 * event + 2]):
            node = neighbors[place]
            if slot_of[node] == -1:
                slot_of[node] = count - first
                member[count] = node
                count += 1
            neighbor_slot[place] = slot_of[node]
        for place in range(first, count):
            slot_of[member[place]] = -1
        member_start[event + 1] = count
    return count


@njit(cache=True, nogil=True)
def join_events(
    read_start: Int64,  # (n + 1,) where the reads of each event begin
    read_row: Int64,  # rows below `num_base` were written by no event
    num_base: int,
    writer: Int64,  # (w,) the event that wrote each row from `num_base` on
    parent: Int64,  # (n,) 0, 1, ..; becomes the first event of each event's component
) -> None:
    """Join every event with those whose rows it reads."""
    for event in range(len(parent)):
        for slot in range(read_start[event], read_start[event + 1]):
            row = read_row[slot]
            if row < num_base:
                continue
            one, other = event, writer[row - num_base]
            while parent[one] != one:
                parent[one] = parent[parent[one]]
                one = parent[one]
            while parent[other] != other:
                parent[other] = parent[parent[other]]
                other = parent[other]
            if one < other:
                parent[other] = one
            else:
                parent[one] = other
    for event in range(len(parent)):  # a parent stands before its children
        parent[event] = parent[parent[event]]


@njit(cache=True, nogil=True)
def deal_out(
    component: Int64,  # (n,)
    order: Int64,  # (c,) all numbers of components, those that are none among them
    sizes: Int64,  # (c,) 0 of those
    loads: Int64,  # (ranks,) out, all 0: the events of each rank
    rank_of: Int64,  # (n,) out
) -> None:
    """Give each component in that order to the rank that has least, of several to the first."""
    rank_of_component = np.empty(len(sizes), np.int64)
    for one in order:
        if sizes[one] == 0:
            continue
        least = 0
        for rank in range(1, len(loads)):
            if loads[rank] < loads[least]:
                least = rank
        loads[least] += sizes[one]
        rank_of_component[one] = least
    for event in range(len(component)):
        rank_of[event] = rank_of_component[component[event]]
