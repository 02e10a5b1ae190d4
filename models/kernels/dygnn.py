"""Loops of DyGNN's scan: the events of a segment in log order, forward, and then backward.

A version is a cell and hidden state of a node in one role, and the representation merged with it:
the one that the segment begins with, or what an event makes, as of an end or of whom an end tells.
Versions of heads stand before those of tails, in the order in which they are made.  So whatever an
event leaves as it was is neither copied nor projected again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from ...stream import Int64
from .elementary import exponential, hyperbolic_tangent, sigmoid
from .tiles import Floats, add_rows

# Counting references to every row that is taken costs a third of the time: there is no need, as
# nothing is allocated here.
uncounted = partial(njit, cache=True, nogil=True, error_model="numpy", _nrt=False)

UNMERGED = -1  # no z was made with this version
WAITING = -2  # nor is its `part` known yet


class Told(NamedTuple):
    """Whom each event tells: lists of source's heads, its tails, destination's heads, its tails."""

    ends: Int64  # (n, 2) slots among the members
    indptr: Int64  # (4 n + 1,)
    slot: Int64  # (r,)
    fade: Floats  # (r,) g of the time since the last event of the pair in that direction


class Weights(NamedTuple):
    """As (inputs, outputs) in a forward pass, as (outputs, inputs) in a backward pass."""

    interact: Floats  # (2 width, 2 width)
    short: Floats  # (2, width, width)
    gates: Floats  # (2, 2 width, 4 width), outputs enter, keep, show, new
    merge: Floats  # (2, width, width)
    transfer: Floats  # (2, width, 2 width)
    attention: Floats  # (width, width)


class Biases(NamedTuple):
    """Added to products with weights of the same name."""

    interact: Floats  # (2 width,)
    short: Floats  # (2, width)
    gates: Floats  # (2, 4 width)
    merge: Floats  # (width,)
    transfer: Floats  # (2, 2 width)


class Versions(NamedTuple):
    """`v` versions; those at the start are filled before a forward pass but for `part`."""

    cell: Floats  # (v, width)
    hidden: Floats  # (v, width)
    part: Floats  # (v, width) what merging takes from the hidden state
    z: Floats  # (v, width) unset where nothing was merged
    before: Int64  # (v,) the version that it was made of
    other: Int64  # (v,) the one of the other role that z is merged with, or one of the below


class Trace(NamedTuple):
    """What a forward pass leaves for a backward pass, which has the same places for gradients."""

    pair: Floats  # (n, 2 width) z of both ends
    told: Floats  # (n, 2 width) e of both ends
    cell: Floats  # (n, 2, width) of the source as head, of the destination as tail, before
    short: Floats  # (n, 2, width)
    entered: Floats  # (n, 2, 2 width) e and the hidden state before
    gates: Floats  # (n, 2, 4 width), after their functions
    news: Floats  # (n, 2, 2 width)
    asked: Floats  # (lists, width) z of the end, for each list that is not empty
    own: Floats  # (lists, width) M z of it
    share: Floats  # (r,) the softmax
    at_pair: Int64  # (n, 2) the version of each z above
    at_asked: Int64  # (lists,)
    at_share: Int64  # (r,) that of the z that was weighed


@uncounted()
def list_told(
    ends: Int64,  # (n, 2)
    indptr: Int64,  # (2 n + 1,) the neighbours of source and destination
    neighbors: Int64,  # their slots
    is_src: npt.NDArray[np.bool_],
    fade: Floats,
    best: Floats,  # (2, slots) of zeros; scratch, left as it was found
    list_start: Int64,  # out, (4 n + 1,)
    listed: Int64,  # out, slots; room for two entries for each neighbour
    listed_fade: Floats,  # out, likewise
) -> tuple[int, int, int]:
    """Each neighbour once a role, by its last event; how many heads, tails, and lists with any."""
    count, lists = 0, 0
    heads, tails = 0, 0
    list_start[0] = 0
    for event in range(len(ends)):
        for side in range(2):
            start, stop = indptr[2 * event + side], indptr[2 * event + side + 1]
            for place in range(start, stop):
                slot, role = neighbors[place], 1 if is_src[place] else 0
                best[role, slot] = max(best[role, slot], fade[place])
                if slot == ends[event, side]:  # whom a self loop met is both
                    best[1 - role, slot] = max(best[1 - role, slot], fade[place])
            for role in range(2):
                first = count
                for place in range(start, stop):
                    slot = neighbors[place]
                    if best[role, slot] > 0:
                        listed[count] = slot
                        listed_fade[count] = best[role, slot]
                        best[role, slot] = 0
                        count += 1
                if role == 0:
                    heads += count - first
                else:
                    tails += count - first
                lists += count > first
                list_start[4 * event + 2 * side + role + 1] = count
    return heads, tails, lists


@uncounted()
def copy(source: Floats, target: Floats) -> None:
    """As `target[:] = source`, which asks whether they overlap and makes room for it."""
    for c in range(len(source)):
        target[c] = source[c]


@uncounted()
def clear(target: Floats) -> None:
    """Set all to 0."""
    for c in range(len(target)):
        target[c] = 0


@uncounted()
def add_row(weight: Floats, x: Floats, y: Floats) -> None:
    """Add x W to y, of x (inputs,), W (inputs, outputs), y (outputs,)."""
    add_rows(weight, x[np.newaxis], y[np.newaxis], 1)


@uncounted(fastmath={"contract", "reassoc"})
def dot(a: Floats, row: int, b: Floats) -> np.floating[Any]:
    """The inner product of a row of `a` with `b`."""
    total = b.dtype.type(0)
    for c in range(len(b)):
        total += a[row, c] * b[c]
    return total


@uncounted(fastmath={"contract"})
def project(weight: Floats, versions: Versions, first: int, stop: int) -> None:
    """Fill `part` of some versions of one role."""
    for q in range(first, stop):
        clear(versions.part[q])
    add_rows(weight, versions.hidden[first:stop], versions.part[first:stop], stop - first)


@uncounted(fastmath={"contract"})
def merge(versions: Versions, weight: Floats, bias: Floats, q: int, other: int) -> None:
    """The representation of a version `q` and the version `other` of the other role."""
    z, part = versions.z, versions.part
    versions.other[q] = other
    if versions.other[other] == WAITING:
        project(weight, versions, other, other + 1)
        versions.other[other] = UNMERGED
    for c in range(len(bias)):
        z[q, c] = hyperbolic_tangent(part[q, c] + part[other, c] + bias[c])


@uncounted(fastmath={"contract"})
def step(
    old: int, new: int, g: float, cell: Floats, hidden: Floats, short: Floats, gates: Floats
) -> None:
    """The time LSTM: of the products `short` (width,) and `gates` (4 width,) the version `new`."""
    width = len(short)
    for c in range(width):
        short[c] = hyperbolic_tangent(short[c])
    for c in range(3 * width):
        gates[c] = sigmoid(gates[c])
    for c in range(3 * width, 4 * width):
        gates[c] = hyperbolic_tangent(gates[c])
    for c in range(width):
        faded = cell[old, c] + short[c] * g
        cell[new, c] = gates[width + c] * faded + gates[c] * gates[3 * width + c]
    for c in range(width):
        hidden[new, c] = gates[2 * width + c] * hyperbolic_tangent(cell[new, c])


@uncounted(fastmath={"contract"})
def renew_ends(
    i: int,
    told: Told,
    decay: Floats,  # (n, 2)
    weights: Weights,
    biases: Biases,
    current: Int64,  # (3, slots) versions of head, tail and z
    made: Int64,  # (2,) the next version of each role
    versions: Versions,
    trace: Trace,
) -> None:
    """Interact, update and merge of event `i`."""
    width, ends = len(biases.merge), told.ends[i]
    one = decay.dtype.type(1)
    for side in range(2):
        at = current[2, ends[side]]
        trace.at_pair[i, side] = at
        copy(versions.z[at], trace.pair[i, side * width : (side + 1) * width])
    copy(biases.interact, trace.told[i])
    add_row(weights.interact, trace.pair[i], trace.told[i])
    for c in range(2 * width):
        trace.told[i, c] = hyperbolic_tangent(trace.told[i, c])
    for role in range(2):  # the source as head, the destination as tail
        old, new = current[role, ends[role]], made[role]
        copy(versions.cell[old], trace.cell[i, role])
        copy(trace.told[i, role * width : (role + 1) * width], trace.entered[i, role, :width])
        copy(versions.hidden[old], trace.entered[i, role, width:])
        copy(biases.short[role], trace.short[i, role])
        add_row(weights.short[role], trace.cell[i, role], trace.short[i, role])
        copy(biases.gates[role], trace.gates[i, role])
        add_row(weights.gates[role], trace.entered[i, role], trace.gates[i, role])
        step(
            *(old, new, decay[i, role] - one, versions.cell, versions.hidden),
            *(trace.short[i, role], trace.gates[i, role]),
        )
        project(weights.merge[role], versions, new, new + 1)
        versions.before[new] = old
        current[role, ends[role]] = new
    for role in range(2):
        new, slot = made[role], ends[role]
        made[role] += 1
        if role == 0 and ends[0] == ends[1]:  # a self loop is merged with both
            versions.other[new] = UNMERGED
            continue
        merge(versions, weights.merge[1 - role], biases.merge, new, current[1 - role, slot])
        current[2, slot] = new


@uncounted(fastmath={"contract"})
def tell(
    i: int,
    side: int,
    role: int,
    at: int,
    told: Told,
    weights: Weights,
    biases: Biases,
    current: Int64,
    made: Int64,
    versions: Versions,
    trace: Trace,
) -> None:
    """Propagate from an end of event `i` to a list of neighbours, the one numbered `at`."""
    width, cell, hidden = len(biases.merge), versions.cell, versions.hidden
    start, stop = told.indptr[4 * i + 2 * side + role], told.indptr[4 * i + 2 * side + role + 1]
    asker = current[2, told.ends[i, side]]
    trace.at_asked[at] = asker
    copy(versions.z[asker], trace.asked[at])
    clear(trace.own[at])
    add_row(weights.attention, trace.asked[at], trace.own[at])
    own, share = trace.own[at], trace.share
    for place in range(start, stop):
        seen = current[2, told.slot[place]]
        trace.at_share[place] = seen
        share[place] = dot(versions.z, seen, own)
    top = share[start]
    for place in range(start + 1, stop):
        top = max(top, share[place])
    total = share.dtype.type(0)
    for place in range(start, stop):
        share[place] = exponential(share[place] - top)
        total += share[place]
    first = made[role]
    made[role] += stop - start
    news = trace.news[i, side, role * width : (role + 1) * width]
    for place in range(start, stop):
        share[place] /= total
        amount = share[place] * told.fade[place]
        slot, new = told.slot[place], first + place - start
        old = current[role, slot]
        for c in range(width):
            cell[new, c] = cell[old, c] + amount * news[c]
        for c in range(width):
            hidden[new, c] = hyperbolic_tangent(cell[new, c])
        versions.before[new] = old
        current[role, slot] = new
    project(weights.merge[role], versions, first, made[role])
    for place in range(start, stop):
        slot, new = told.slot[place], first + place - start
        merge(versions, weights.merge[1 - role], biases.merge, new, current[1 - role, slot])
        current[2, slot] = new


@uncounted(fastmath={"contract"})
def run_forward(
    member_start: Int64,  # (n + 1,)
    read_row: Int64,  # (t,) of each member
    write_row: Int64,  # (t,)
    told: Told,
    decay: Floats,  # (n, 2)
    weights: Weights,
    biases: Biases,
    made: Int64,  # (2,) the first version of each role that an event makes
    place: Int64,  # (3, rows) versions of head, tail and z; filled for rows before the segment
    current: Int64,  # (3, slots) the same of the members of an event; scratch
    versions: Versions,
    trace: Trace,
) -> None:
    """All events, in log order."""
    n, width, lists = len(decay), len(biases.merge), 0
    for i in range(n):
        first, stop = member_start[i], member_start[i + 1]
        for slot in range(stop - first):
            for part in range(3):
                current[part, slot] = place[part, read_row[first + slot]]
        renew_ends(i, told, decay, weights, biases, current, made, versions, trace)
        for side in range(2):
            list_start = 4 * i + 2 * side
            if told.indptr[list_start] == told.indptr[list_start + 2]:
                continue
            news = trace.news[i, side]
            copy(biases.transfer[side], news)
            add_row(
                *(weights.transfer[side], trace.told[i, side * width : (side + 1) * width], news)
            )
            for role in range(2):
                if told.indptr[list_start + role] < told.indptr[list_start + role + 1]:
                    tell(
                        *(i, side, role, lists, told, weights, biases),
                        *(current, made, versions, trace),
                    )
                    lists += 1
        for slot in range(stop - first):
            for part in range(3):
                place[part, write_row[first + slot]] = current[part, slot]


class Slopes(NamedTuple):
    """Gradients of versions; those of the outputs of a forward pass when a backward pass begins."""

    cell: Floats  # (v, width)
    hidden: Floats  # (v, width)
    part: Floats  # (v, width) zeros
    z: Floats  # (v, width), of those that were merged by it: after, before the tanh


class Inputs(NamedTuple):
    """Gradients of what stands before tanh, sigmoid or softmax; all out."""

    told: Floats  # (n, 2 width)
    short: Floats  # (n, 2, width)
    gates: Floats  # (n, 2, 4 width)
    news: Floats  # (n, 2, 2 width)
    own: Floats  # (lists, width)


@uncounted(fastmath={"contract"})
def unmerge(q: int, versions: Versions, slopes: Slopes) -> None:
    """From the representation of a version to the parts of it."""
    z, of_z, part, other = versions.z, slopes.z, slopes.part, versions.other[q]
    one = z.dtype.type(1)
    for c in range(z.shape[1]):
        of_z[q, c] *= one - z[q, c] * z[q, c]
    for c in range(z.shape[1]):
        part[q, c] += of_z[q, c]
    for c in range(z.shape[1]):
        part[other, c] += of_z[q, c]


@uncounted(fastmath={"contract"})
def untell(
    i: int,
    side: int,
    role: int,
    at: int,
    told: Told,
    weights: Weights,
    first: int,
    versions: Versions,
    trace: Trace,
    slopes: Slopes,
    inputs: Inputs,
    slope: Floats,  # room for a list
) -> None:
    """`tell` backward; `first` is the first version that it made."""
    start, stop = told.indptr[4 * i + 2 * side + role], told.indptr[4 * i + 2 * side + role + 1]
    width, hidden, z = versions.z.shape[1], versions.hidden, versions.z
    one = z.dtype.type(1)
    for q in range(first, first + stop - start):
        unmerge(q, versions, slopes)
    last = first + stop - start
    add_rows(weights.merge[role], slopes.part[first:last], slopes.hidden[first:last], stop - start)
    of_cell, of_hidden, of_z = slopes.cell, slopes.hidden, slopes.z
    news = trace.news[i, side, role * width : (role + 1) * width]
    of_news = inputs.news[i, side, role * width : (role + 1) * width]
    mean = one - one
    for place in range(start, stop):
        q = first + place - start
        old = versions.before[q]
        amount = trace.share[place] * told.fade[place]
        for c in range(width):
            of_cell[q, c] += of_hidden[q, c] * (one - hidden[q, c] * hidden[q, c])
        for c in range(width):
            of_cell[old, c] += of_cell[q, c]
        for c in range(width):
            of_news[c] += amount * of_cell[q, c]
        slope[place - start] = told.fade[place] * dot(of_cell, q, news)
        mean += trace.share[place] * slope[place - start]
    own, of_own = trace.own[at], inputs.own[at]
    for place in range(start, stop):
        of_score = trace.share[place] * (slope[place - start] - mean)
        seen = trace.at_share[place]
        for c in range(width):
            of_own[c] += of_score * z[seen, c]
        for c in range(width):
            of_z[seen, c] += of_score * own[c]
    add_row(weights.attention, of_own, of_z[trace.at_asked[at]])


@uncounted(fastmath={"contract"})
def unstep(
    old: int,
    new: int,
    g: float,
    versions: Versions,
    slopes: Slopes,
    short: Floats,
    gates: Floats,
    of_short: Floats,  # out, (width,)
    of_gates: Floats,  # out, (4 width,)
) -> None:
    """`step` backward, to the products and to the cell before."""
    width, cell = len(short), versions.cell
    of_cell, of_hidden = slopes.cell, slopes.hidden
    one = cell.dtype.type(1)
    for c in range(width):
        show, bent = gates[2 * width + c], hyperbolic_tangent(cell[new, c])
        of_gates[2 * width + c] = of_hidden[new, c] * bent * show * (one - show)
        of_cell[new, c] += of_hidden[new, c] * show * (one - bent * bent)
    for c in range(width):
        enter, fresh, d = gates[c], gates[3 * width + c], of_cell[new, c]
        of_gates[c] = d * fresh * enter * (one - enter)
        of_gates[3 * width + c] = d * enter * (one - fresh * fresh)
    for c in range(width):
        keep, d = gates[width + c], of_cell[new, c]
        faded = cell[old, c] + short[c] * g
        of_gates[width + c] = d * faded * keep * (one - keep)
        of_short[c] = d * keep * g * (one - short[c] * short[c])
    for c in range(width):
        of_cell[old, c] += of_cell[new, c] * gates[width + c]


@uncounted(fastmath={"contract"})
def unrenew_ends(
    i: int,
    told: Told,
    decay: Floats,
    weights: Weights,
    made: Int64,  # (2,) the versions that it made
    versions: Versions,
    trace: Trace,
    slopes: Slopes,
    inputs: Inputs,
    room: Floats,  # (2 width,)
) -> None:
    """`renew_ends` backward; gradients of e stand in `inputs.told`."""
    width = versions.z.shape[1]
    one = decay.dtype.type(1)
    for role in range(2):
        if versions.other[made[role]] >= 0:
            unmerge(made[role], versions, slopes)
    for role in range(2):
        new = made[role]
        old = versions.before[new]
        add_row(weights.merge[role], slopes.part[new], slopes.hidden[new])
        unstep(
            *(old, new, decay[i, role] - one, versions, slopes),
            *(trace.short[i, role], trace.gates[i, role]),
            *(inputs.short[i, role], inputs.gates[i, role]),
        )
        add_row(weights.short[role], inputs.short[i, role], slopes.cell[old])
        clear(room)
        add_row(weights.gates[role], inputs.gates[i, role], room)
        for c in range(width):
            inputs.told[i, role * width + c] += room[c]
        for c in range(width):
            slopes.hidden[old, c] += room[width + c]
    for c in range(2 * width):
        inputs.told[i, c] *= one - trace.told[i, c] * trace.told[i, c]
    clear(room)
    add_row(weights.interact, inputs.told[i], room)
    for side in range(2):
        at = trace.at_pair[i, side]
        for c in range(width):
            slopes.z[at, c] += room[side * width + c]


@uncounted(fastmath={"contract"})
def run_backward(
    told: Told,
    decay: Floats,
    weights: Weights,
    made: Int64,  # (2,) the version after the last of each role
    versions: Versions,
    trace: Trace,
    slopes: Slopes,
    inputs: Inputs,
    slope: Floats,  # room for the longest list; scratch
    room: Floats,  # (2 width,) scratch
) -> None:
    """All events, from the last to the first."""
    n, width = len(decay), versions.z.shape[1]
    lists = len(trace.asked)
    for i in range(n - 1, -1, -1):
        clear(inputs.told[i])
        for side in range(1, -1, -1):
            clear(inputs.news[i, side])
            list_start = 4 * i + 2 * side
            if told.indptr[list_start] == told.indptr[list_start + 2]:
                continue
            for role in range(1, -1, -1):
                count = told.indptr[list_start + role + 1] - told.indptr[list_start + role]
                if count:
                    lists -= 1
                    clear(inputs.own[lists])
                    made[role] -= count
                    untell(
                        *(i, side, role, lists, told, weights, made[role]),
                        *(versions, trace, slopes, inputs, slope),
                    )
            of_told = inputs.told[i, side * width : (side + 1) * width]
            add_row(weights.transfer[side], inputs.news[i, side], of_told)
        made[0] -= 1
        made[1] -= 1
        unrenew_ends(i, told, decay, weights, made, versions, trace, slopes, inputs, room)
