"""Loops that move nodes between parts: arrays and numbers in, changed arrays out."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ....storage.sparse import Float64, Int32
from ....stream import Int64

Counts = npt.NDArray[Any]

STEEP = 8  # the power by which loads count: the largest counts most


@njit(cache=True, nogil=True, error_model="numpy")
def count_uses(indptr: Int64, indices: Int32, owner: Int64, uses: Counts) -> None:
    """uses[u, k] = how many nodes of part k, u aside, have u as in-neighbour; zeros come in."""
    for node in range(len(indptr) - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            if indices[edge] != node:
                uses[indices[edge], owner[node]] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def count_rows(uses: Counts, owner: Int64, rows: Counts) -> None:
    """rows[j, i] = how many nodes of part j are used by part i, i is not j; zeros come in."""
    for node in range(len(owner)):
        for part in range(uses.shape[1]):
            if part != owner[node] and uses[node, part] > 0:
                rows[owner[node], part] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def move_nodes(
    indptr: Int64,
    indices: Int32,  # in-neighbours
    cost: Float64,  # (V,) operations
    speed: Float64,  # (N,) operations a second
    trip: Float64,  # (N, N) seconds that a row takes there and back, symmetric
    owner: Int64,  # in and out
    uses: Counts,  # (V, N), in and out; see `count_uses`
    busy: Float64,  # (N,) seconds of each part, in and out
    most: int,  # a node of more in-neighbours stays
) -> int:
    """One round over the nodes: each goes where it lessens the sum of the busy times' powers.

    A round costs O(N E).  Returns how many have moved.  The largest busy time never grows.
    """
    size, moved = len(speed), 0
    change = np.zeros(size)
    near = np.zeros(size, np.bool_)
    for node in range(len(owner)):
        if indptr[node + 1] - indptr[node] > most:
            continue
        home = owner[node]
        for part in range(size):
            near[part] = uses[node, part] > 0
        for edge in range(indptr[node], indptr[node + 1]):
            near[owner[indices[edge]]] = True
        near[home] = False
        largest = busy.max()
        if largest <= 0:
            return moved
        best, goal = home, 0.0
        for part in range(size):
            goal += (busy[part] / largest) ** STEEP
        goal *= 1 - 1e-9
        for part in range(size):
            if not near[part]:
                continue
            price_move(indptr, indices, cost, speed, trip, owner, uses, node, part, change)
            total, fits = 0.0, True
            for other in range(size):
                load = busy[other] + change[other]
                fits = fits and load <= largest
                total += (load / largest) ** STEEP
            if fits and total < goal:
                best, goal = part, total
        if best != home:
            price_move(indptr, indices, cost, speed, trip, owner, uses, node, best, change)
            busy += change
            owner[node] = best
            for edge in range(indptr[node], indptr[node + 1]):
                if indices[edge] != node:
                    uses[indices[edge], home] -= 1
                    uses[indices[edge], best] += 1
            moved += 1
    return moved


@njit(cache=True, nogil=True, error_model="numpy")
def price_move(
    indptr: Int64,
    indices: Int32,
    cost: Float64,
    speed: Float64,
    trip: Float64,
    owner: Int64,
    uses: Counts,
    node: int,
    part: int,
    change: Float64,  # out, (N,) seconds by which each part's time grows
) -> None:
    """What it means for every part that `node` goes to `part`."""
    home = owner[node]
    change[:] = 0
    change[home] -= cost[node] / speed[home]
    change[part] += cost[node] / speed[part]
    for edge in range(indptr[node], indptr[node + 1]):
        source = indices[edge]
        if source == node:
            continue
        there = owner[source]
        if there != home and uses[source, home] == 1:
            change[home] -= trip[there, home]
            change[there] -= trip[there, home]
        if there != part and uses[source, part] == 0:
            change[part] += trip[there, part]
            change[there] += trip[there, part]
    for other in range(len(speed)):
        if uses[node, other] > 0:
            if other != home:
                change[home] -= trip[home, other]
                change[other] -= trip[home, other]
            if other != part:
                change[part] += trip[part, other]
                change[other] += trip[part, other]
