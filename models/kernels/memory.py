"""Loops of memories that an event renews at both of its ends, forward and backward.

Each end reads its own memory and the other's, side by side.  Events that read nothing of one
another are taken together, since a weight that is read for one of them is then at hand for all.
Arrays of what is read and of slopes stand in the order in which events are taken, end by end.
"""

import numpy as np
from numba import njit

from ...stream import Bool, Float64, Int64
from .cosine import cosines, cosines_and_sines
from .elementary import hyperbolic_tangent, sigmoid
from .tiles import Floats, add_outer, add_rows, widen
from .transposes import add_turned, turn
from .vectors import add_row, clear, copy_row

WHOLE = 4  # events, two rows each, that fill a tile of eight rows
EVENTS = 16  # of a batch at a time
ENDS = 64  # at a time in products of all of them, so that a strip of columns stays close


@njit(cache=True, nogil=True)
def in_batches(
    ends: Int64,  # (n, 2) rows read
    writes: Int64,  # (2 n,)
    head: Int64,  # (rows,) all -1: scratch
    order: Int64,  # out, (n,) events batch by batch
    starts: Int64,  # out, room for n + 1: where each batch begins
) -> int:
    """Events that read nothing of one another, batch by batch, after what they read; how many.

    Those come first on which most others wait.  A batch holds as many as leave enough for the
    batches to come, and of `WHOLE` a multiple if it can be: so few products are of odd rows.
    """
    n = len(ends)
    follow, waits = np.empty(2 * n, np.int64), np.zeros(n, np.int64)
    height, first = np.zeros(n, np.int64), np.full(n + 1, -1, np.int64)
    after = np.empty(n, np.int64)
    for place in range(len(writes)):
        head[writes[place]] = -2  # written here, and as yet not read
    for event in range(n - 1, -1, -1):
        for side in range(2):
            slot = head[writes[2 * event + side]]
            while slot >= 0:
                height[event] = max(height[event], height[slot // 2] + 1)
                slot = follow[slot]
        for side in range(2):
            row = ends[event, side]
            if head[row] != -1:
                follow[2 * event + side], head[row] = head[row], 2 * event + side
                waits[event] += 1
    ready = top = 0
    for event in range(n - 1, -1, -1):  # so that of a height those stand first that come first
        if waits[event] == 0:
            after[event], first[height[event]] = first[height[event]], event
            top, ready = max(top, height[event]), ready + 1
    starts[0] = placed = count = 0
    while placed < n:
        while first[top] < 0:
            top -= 1
        fair = (n - placed + top) // (top + 1)
        stop = placed + min(ready, max(WHOLE, fair - fair % WHOLE))
        begin, at = placed, top
        while placed < stop:
            event = first[at]
            if event < 0:
                at -= 1
                continue
            order[placed], first[at] = event, after[event]
            placed, ready = placed + 1, ready - 1
        count += 1
        starts[count] = placed
        for place in range(begin, placed):
            for side in range(2):
                slot = head[writes[2 * order[place] + side]]
                while slot >= 0:
                    event = slot // 2
                    waits[event] -= 1
                    if waits[event] == 0:
                        after[event], first[height[event]] = first[height[event]], event
                        ready += 1
                    slot = follow[slot]
    return count


@njit(cache=True, nogil=True)
def lay_out(
    into: Floats,  # (3 width, 2 width + t) of [own, other's, told] onto reset, renew and new
    back: Floats,  # (3 width, width) of own memory
    bias_in: Floats,  # (3 width,)
    bias_back: Floats,  # (3 width,)
    own: Floats,  # out, (width, p + h) of own memory onto new's own part and the three
    other: Floats,  # out, (width, h) of the other's onto the three
    told: Floats,  # out, (t, h) likewise
    bias: Floats,  # out, (1, p + h)
) -> None:
    """The transposes of a GRU's weights, and 0 in columns beyond."""
    width, part = len(own), own.shape[1] - other.shape[1]
    for weight in (own, other, told):
        for r in range(len(weight)):
            for c in range(weight.shape[1] - other.shape[1] + 3 * width, weight.shape[1]):
                weight[r, c] = 0
    for r in range(width):
        for c in range(width, part):
            own[r, c] = 0
    turn(back[2 * width :], own)
    turn(into[:, :width], own[:, part:])
    add_turned(back[: 2 * width], own[:, part:])
    turn(into[:, width : 2 * width], other)
    turn(into[:, 2 * width :], told)
    bias[:] = 0
    for c in range(width):
        bias[0, c] = bias_back[2 * width + c]
    for c in range(3 * width):
        bias[0, part + c] = bias_in[c]
    for c in range(2 * width):
        bias[0, part + c] += bias_back[c]


@njit(cache=True, nogil=True)
def lay_back(
    into: Floats,
    back: Floats,
    ways: Floats,  # out, (7 width, p) of slopes of new's own part and the three, and the other's
    told: Floats,  # out, (3 width, q) of the three onto the last of what is told
    count: int,  # how many of these
) -> None:
    """The weights as they are, and 0 in columns beyond."""
    width = len(into) // 3
    for r in range(len(ways)):
        for c in range(width, ways.shape[1]):
            ways[r, c] = 0
    for r in range(width):
        copy_row(back, 2 * width + r, ways, r, width)
    for r in range(3 * width):
        copy_row(into, r, ways, width + r, width)
        copy_row(into[:, width:], r, ways, 4 * width + r, width)
    for r in range(2 * width):
        add_row(back, r, ways, width + r, width)
    for r in range(3 * width):
        copy_row(into[:, into.shape[1] - count :], r, told, r, count)
        for c in range(count, told.shape[1]):
            told[r, c] = 0


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_forward(
    table: Floats,  # (rows, width) the base rows are filled; the others are, here
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,) events batch by batch
    starts: Int64,  # (batches + 1,)
    known: Floats,  # (n, 1 or 2, x) what both ends, or each, is told
    seconds: Float64,  # (n, 2) whose code each is told after that
    rate: Float64,  # (t,) turns a second
    offset: Float64,  # (t,) turns
    own: Floats,  # (width, p + h) as `lay_out` has them
    other: Floats,  # (width, h)
    told: Floats,  # (x + t, h)
    bias: Floats,  # (1, p + h)
    read: Floats,  # out, (2 n, r) in that order: [told, other's, own, 1, 0 ...]
    gates: Floats,  # out, (2 n, p + h) in that order
) -> None:
    """n = tanh(a + r b), s' = (1 - z) n + z s with r, z the sigmoids; b, r, z and n are kept."""
    widen()
    width, size, part = table.shape[1], len(told), own.shape[1] - other.shape[1]
    one = table.dtype.type(1)
    last, ahead = size + 2 * width, 0
    for batch in range(len(starts) - 1):
        for first in range(starts[batch], starts[batch + 1], EVENTS):
            start = 2 * first
            stop = 2 * min(starts[batch + 1], first + EVENTS)
            if stop > ahead:  # what needs no memory, in full tiles that are soon read again
                upto = min(len(read), max(stop, ahead + ENDS))
                for i in range(ahead, upto):
                    event, side = order[i // 2], i % 2
                    copy_row(known[event], side % known.shape[1], read, i, known.shape[2])
                    cosines(seconds[event, side], rate, offset, read, i, known.shape[2])
                    read[i, last] = one
                    for c in range(last + 1, read.shape[1]):
                        read[i, c] = 0
                    copy_row(bias, 0, gates, i, bias.shape[1])
                add_rows(told, read[ahead:upto], gates[ahead:upto, part:], upto - ahead)
                ahead = upto
            for i in range(start, stop):
                event, side = order[i // 2], i % 2
                copy_row(table, ends[event, 1 - side], read[:, size:], i, width)
                copy_row(table, ends[event, side], read[:, size + width :], i, width)
            reads = read[start:stop, size:]
            add_rows(own, reads[:, width:], gates[start:stop], stop - start)
            add_rows(other, reads, gates[start:stop, part:], stop - start)
            for i in range(start, stop):
                gate, memory = gates[i], read[i, size + width : last]
                three, new = gate[part:], table[writes[2 * order[i // 2] + i % 2]]
                for c in range(2 * width):
                    three[c] = sigmoid(three[c])
                for c in range(width):
                    r, z = three[c], three[np.uint64(width + c)]
                    n = hyperbolic_tangent(three[np.uint64(2 * width + c)] + r * gate[c])
                    three[np.uint64(2 * width + c)] = n
                    new[c] = (one - z) * n + z * memory[c]


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def put_row(source: Floats, i: int, target: Floats, j: int, size: int, has: bool) -> None:
    """target[j, :size] = source[i, :size], added to what it `has`.

    Told as a value: looked up (and set) in here, it made `tanh_backward` 1.5 times as slow.
    """
    if has:
        add_row(source, i, target, j, size)
    else:
        copy_row(source, i, target, j, size)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gru_backward(
    grad: Floats,  # (rows, width) of later readers
    more: Floats,  # (rows - base, width) of the scan's own: scratch
    is_read: Bool,  # (rows - base,) all False: whether there is any
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,)
    starts: Int64,  # (batches + 1,) of all of them, or some
    ways: Floats,  # (7 width, p) as `lay_back` has them
    size: int,  # how much is told
    read: Floats,  # (2 n, r) as kept
    gates: Floats,  # (2 n, p + h) as kept
    slopes: Floats,  # out, (m, p + h) the gradient of the pre-activations of these batches' ends
) -> None:
    """The way back, last batch first; the rows before the first event have no gradient."""
    widen()
    width, part, begin = grad.shape[1], ways.shape[1], 2 * starts[0]
    base, own = len(grad) - len(more), size + width
    one = grad.dtype.type(1)
    given = np.zeros((2 * EVENTS, len(ways)), grad.dtype)
    found = np.zeros((2 * EVENTS, part), grad.dtype)
    rows = np.empty(2 * EVENTS, np.int64)
    for batch in range(len(starts) - 2, -1, -1):
        for first in range(starts[batch], starts[batch + 1], EVENTS):
            start = 2 * first
            stop = 2 * min(starts[batch + 1], first + EVENTS)
            count = 0
            for i in range(start, stop):
                event, side = order[i // 2], i % 2
                row = writes[2 * event + side]
                put_row(grad, row, more, row - base, width, is_read[row - base])
                total, memory = more[row - base], read[i, own : own + width]
                three, at = gates[i, part:], i - begin
                slope = slopes[at, part:]
                for c in range(width):
                    b, r = gates[i, c], three[c]
                    z, n = three[np.uint64(width + c)], three[np.uint64(2 * width + c)]
                    g = total[c]
                    by_new = g * (one - z) * (one - n * n)
                    slopes[at, c] = by_new * r
                    slope[c] = by_new * b * r * (one - r)
                    slope[np.uint64(width + c)] = g * (memory[c] - n) * z * (one - z)
                    slope[np.uint64(2 * width + c)] = by_new
                if ends[event, side] >= base:
                    for c in range(width):
                        found[count, c] = total[c] * three[np.uint64(width + c)]
                    rows[count] = i
                    count += 1
            for place in range(count):
                at = rows[place] - begin
                copy_row(slopes, at, given, place, width)
                copy_row(slopes[:, part:], at, given[:, width:], place, 3 * width)
                copy_row(slopes[:, part:], at ^ 1, given[:, 4 * width :], place, 3 * width)
            whole = count + -count % (WHOLE if count % (2 * WHOLE) <= WHOLE else 2 * WHOLE)
            for block in range(0, len(ways), width):  # each stays close while the rows go by
                add_rows(ways[block : block + width], given[:, block:], found, whole)
            for place in range(count):
                i = rows[place]
                row = ends[order[i // 2], i % 2] - base
                put_row(found, place, more, row, width, is_read[row])
                is_read[row] = True


@njit(cache=True, nogil=True)
def gru_weights(
    read: Floats,  # (m, r) as kept
    slopes: Floats,  # (m, p + h) the gradient of the pre-activations
    part: int,  # p
    tail: int,  # the first column of r that `by_part` has, at most that of own memory
    order: Int64,  # (n,)
    begin: int,  # the place of the first of these ends
    seconds: Float64,  # (n, 2)
    rate: Float64,  # (t,) turns a second
    offset: Float64,  # (t,) turns
    told: Floats,  # (3 width, q) as `lay_back` has them; (3 width, 0) if no gradient goes there
    by_three: Floats,  # to be added to, (3 width, r): by weights of the three and their bias
    by_part: Floats,  # to be added to, (width, q): by those of new's own part, and by others
    by_known: Floats,  # out, (n, 2, x) by what each is told; (n, 2, 0) if it is not wanted
    by_phase: Float64,  # to be added to, (t,) by phases in radians
    by_rate: Float64,  # to be added to, (t,) by frequencies in radians; (0,) if not wanted
) -> None:
    """The gradients of the weights, and of what is told."""
    widen()
    width = len(by_part)
    known = by_known.shape[2]
    by_told = np.empty((ENDS, told.shape[1]), read.dtype)
    cosine, sine = np.empty((1, len(rate)), read.dtype), np.empty((1, len(rate)), read.dtype)
    for start in range(0, len(read), ENDS):
        count = min(ENDS, len(read) - start)
        reads, slope = read[start : start + count], slopes[start : start + count]
        add_outer(slope[:, part : part + 3 * width], reads, by_three, count)
        add_outer(slope[:, :width], reads[:, tail : tail + by_part.shape[1]], by_part, count)
        if told.shape[1] == 0:
            continue
        clear(by_told)
        for block in range(0, len(told), width):  # each stays close while the rows go by
            add_rows(told[block : block + width], slope[:, part + block :], by_told, count)
        for i in range(count):
            event, side = order[(begin + start + i) // 2], (begin + start + i) % 2
            copy_row(by_told, i, by_known[event], side, known)
            if len(by_phase) == 0:
                continue
            gap, by_code = seconds[event, side], by_told[i, known:]
            cosines_and_sines(gap, rate, offset, cosine, 0, 0, sine)
            for c in range(len(by_phase)):
                by_phase[c] -= sine[0, c] * by_code[c]
            for c in range(len(by_rate)):
                by_rate[c] -= gap * (sine[0, c] * by_code[c])


@njit(cache=True, nogil=True)
def gru_whole(
    grad: Floats,  # as `gru_backward` has them
    more: Floats,
    is_read: Bool,
    ends: Int64,
    writes: Int64,
    order: Int64,
    starts: Int64,
    ways: Floats,
    size: int,
    read: Floats,
    gates: Floats,
    part: int,  # as `gru_weights` has them
    tail: int,
    seconds: Float64,
    rate: Float64,
    offset: Float64,
    told: Floats,
    by_three: Floats,
    by_part: Floats,
    by_known: Floats,
    by_phase: Float64,
    by_rate: Float64,
) -> None:
    """Both of some batches at a time, so that slopes are close when weights are to have them."""
    longest, last = ENDS, len(starts) - 1
    for batch in range(last):
        longest = max(longest, 2 * (starts[batch + 1] - starts[batch]))
    slopes = np.empty((longest, gates.shape[1]), gates.dtype)
    while last > 0:
        first = last - 1
        while first > 0 and 2 * (starts[last] - starts[first - 1]) <= ENDS:
            first -= 1
        begin, stop = 2 * starts[first], 2 * starts[last]
        some = starts[first : last + 1]
        gru_backward(
            grad, more, is_read, ends, writes, order, some, ways, size, read, gates, slopes
        )
        gru_weights(
            read[begin:stop],
            slopes,
            part,
            tail,
            order,
            begin,
            seconds,
            rate,
            offset,
            told,
            by_three,
            by_part,
            by_known,
            by_phase,
            by_rate,
        )
        last = first


@njit(cache=True, nogil=True)
def take_apart(
    by_three: Floats,  # (parts, 3 width, r) as found, part by part
    by_part: Floats,  # (parts, width, q)
    size: int,  # how much is told
    tail: int,  # as `gru_weights` has it
    by_into: Floats,  # out, (3 width, 2 width + t)
    by_back: Floats,  # out, (3 width, width)
    by_bias: Floats,  # out, (3 width,)
    by_bias_back: Floats,  # out, (3 width,)
) -> None:
    """The gradients of a GRU's weights as the cell has them, the parts added up in order."""
    width, part = by_part.shape[1:]
    other, own, one = size, size + width, size + 2 * width
    behind = own - tail
    for place in range(1, len(by_three)):
        for r in range(3 * width):
            add_row(by_three[place], r, by_three[0], r, by_three.shape[2])
        for r in range(width):
            add_row(by_part[place], r, by_part[0], r, part)
    three, parts = by_three[0], by_part[0]
    for r in range(3 * width):
        copy_row(three[:, own:], r, by_into, r, width)
        copy_row(three[:, other:], r, by_into[:, width:], r, width)
        copy_row(three, r, by_into[:, 2 * width :], r, size)
        by_bias[r] = by_bias_back[r] = three[r, one]
    for r in range(2 * width):
        copy_row(three[:, own:], r, by_back, r, width)
    for r in range(width):
        copy_row(parts[:, behind:], r, by_back, 2 * width + r, width)
        by_bias_back[2 * width + r] = parts[r, behind + width]


@njit(cache=True, nogil=True)
def lay_side(weight: Floats, bias: Floats, forth: Floats, back: Floats) -> None:
    """Of weights (width, 2 width + x) and bias of an end: for the forward pass their transpose and

    the bias below it (2 width + x + 1, p), for the way back the first 2 width columns (width, q).
    """
    width, size = weight.shape
    for r in range(len(forth)):
        for c in range(width, forth.shape[1]):
            forth[r, c] = 0
    turn(weight, forth)
    for c in range(width):
        forth[size, c] = bias[c]
    for r in range(width):
        copy_row(weight, r, back, r, 2 * width)
        for c in range(2 * width, back.shape[1]):
            back[r, c] = 0


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def tanh_forward(
    table: Floats,  # (rows, width) the base rows are filled; the others are, here
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,) events batch by batch
    starts: Int64,  # (batches + 1,)
    told: Floats,  # (n, 2, x)
    weight: Floats,  # (1 or 2, 2 width + x + 1, p) of both ends, or of each, as `lay_side` has it
    read: Floats,  # out, (2, n, r) by side, in that order: [own, other's, told, 1, 0 ...]
) -> None:
    """s' = tanh(W [own, other's, told] + b)."""
    widen()
    width, size = table.shape[1], told.shape[2]
    one = table.dtype.type(1)
    for side in range(2):
        for place in range(len(order)):
            copy_row(told[order[place]], side, read[side, :, 2 * width :], place, size)
            read[side, place, 2 * width + size] = one
            for c in range(2 * width + size + 1, read.shape[2]):
                read[side, place, c] = 0
    new = np.empty((EVENTS, weight.shape[2]), table.dtype)
    for batch in range(len(starts) - 1):
        for start in range(starts[batch], starts[batch + 1], EVENTS):
            count = min(EVENTS, starts[batch + 1] - start)
            for side in range(2):
                reads = read[side, start : start + count]
                for place in range(count):
                    own, other = (
                        ends[order[start + place], side],
                        ends[order[start + place], 1 - side],
                    )
                    copy_row(table, own, reads, place, width)
                    copy_row(table, other, reads[:, width:], place, width)
                clear(new)
                add_rows(weight[side % len(weight)], reads, new, count)
                for place in range(count):
                    states, pre = table[writes[2 * order[start + place] + side]], new[place]
                    for c in range(width):
                        states[c] = hyperbolic_tangent(pre[c])


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def tanh_backward(
    table: Floats,  # (rows, width)
    grad: Floats,  # (rows, width) of later readers
    more: Floats,  # (rows - base, width) of the scan's own: scratch
    is_read: Bool,  # (rows - base,) all False: whether there is any
    ends: Int64,  # (n, 2)
    writes: Int64,  # (2 n,)
    order: Int64,  # (n,)
    starts: Int64,  # (batches + 1,)
    back: Floats,  # (1 or 2, width, q) as `lay_side` has them
    slopes: Floats,  # out, (2, n, width) the gradient of the pre-activations
) -> None:
    """The way back, last batch first; the rows before the first event have no gradient."""
    widen()
    width, base = table.shape[1], len(table) - len(more)
    one = table.dtype.type(1)
    found = np.empty((2, EVENTS, back.shape[2]), table.dtype)
    for batch in range(len(starts) - 2, -1, -1):
        for start in range(starts[batch], starts[batch + 1], EVENTS):
            count = min(EVENTS, starts[batch + 1] - start)
            clear(found)
            for side in range(2):
                slope = slopes[side, start : start + count]
                for place in range(count):
                    row = writes[2 * order[start + place] + side]
                    total, states, by_pre = more[row - base], table[row], slope[place]
                    put_row(grad, row, more, row - base, width, is_read[row - base])
                    for c in range(width):
                        by_pre[c] = total[c] * (one - states[c] * states[c])
                add_rows(back[side % len(back)], slope, found[side], count)
            for place in range(count):
                for side in range(2):
                    for part in range(2):
                        row = ends[order[start + place], side ^ part] - base
                        if row < 0:
                            continue
                        way = found[side][:, part * width :]
                        put_row(way, place, more, row, width, is_read[row])
                        is_read[row] = True


@njit(cache=True, nogil=True)
def tanh_weights(
    read: Floats,  # (2, m, r) as kept
    slopes: Floats,  # (2, m, width) the gradient of the pre-activations
    by_weight: Floats,  # out, (1 or 2, width, r): by weights and bias of both ends, or of each
) -> None:
    """The gradients of the weights."""
    widen()
    clear(by_weight)
    for side in range(2):
        for start in range(0, read.shape[1], ENDS):
            count = min(ENDS, read.shape[1] - start)
            reads = read[side, start : start + count]
            slope = slopes[side, start : start + count]
            add_outer(slope, reads, by_weight[side % len(by_weight)], count)
