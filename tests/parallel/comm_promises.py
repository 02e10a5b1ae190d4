"""What `Comm` promises, as functions of one rank's `Comm`; run on any number of ranks.

    PYTHONPATH=src:. mpiexec -n 2 python tests/parallel/comm_promises.py mpi torch

Each rank asserts for itself; rank 0 then prints which promises held, as a line of JSON for MPI and
one for torch.distributed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from neutronstream.parallel.comm import connect
from neutronstream.parallel.gather import gather_rows
from neutronstream.parallel.ranks import Comm, Traffic, agree
from neutronstream.parallel.spans import parts


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What a rank holds, known to all."""
    return torch.from_numpy(np.random.default_rng(rank).normal(size=shape)).to(dtype)


def uneven(comm: Comm) -> list[int]:
    """Rows of each rank: none of the second, and no two others alike."""
    return [0 if rank == 1 else rank + 2 for rank in range(comm.size)]


def a_sum_is_that_of_numpy_and_in_place(comm: Comm) -> None:
    for dtype in (torch.float64, torch.float32, torch.int64):
        for shape in ((7, 3), (1,), (0, 3), ()):
            everyone = [(100 * values(r, shape)).to(dtype) for r in range(comm.size)]
            own = everyone[comm.rank].clone()
            assert comm.all_reduce(own, "sum") is own
            expected = sum(array.numpy() for array in everyone)  # in the order of the ranks
            assert np.array_equal(own.numpy(), expected)


def a_sum_of_many_bytes_has_the_same_bits_on_every_rank(comm: Comm) -> None:
    own = values(comm.rank, (300_001,))  # more than MPI carries in one piece
    comm.all_reduce(own, "sum")
    assert np.array_equal(own.numpy(), sum(values(r, (300_001,)).numpy() for r in range(comm.size)))
    totals = comm.gather_objects(float(own.sum()).hex(), "sum")
    assert len(set(totals)) == 1


def uneven_rows_are_gathered_in_rank_order(comm: Comm) -> None:
    sizes = uneven(comm)
    for dtype in (torch.float32, torch.int64, torch.bool):
        everyone = [values(r, (size, 2, 3)).to(dtype) for r, size in enumerate(sizes)]
        found = comm.all_gather_rows(everyone[comm.rank], sizes, "rows")
        assert torch.equal(found, torch.cat(everyone))


def summed_rows_are_each_ranks_own(comm: Comm) -> None:
    sizes = uneven(comm)
    everyone = [values(r, (sum(sizes), 3)) for r in range(comm.size)]
    found = comm.reduce_scatter_rows(everyone[comm.rank], sizes, "rows")
    start = sum(sizes[: comm.rank])
    total = sum(array.numpy() for array in everyone)
    assert np.array_equal(found.numpy(), total[start : start + sizes[comm.rank]])  # type: ignore[index]


def a_transposed_tensor_is_taken_by_value(comm: Comm) -> None:
    sizes = [3] * comm.size
    found = comm.all_gather_rows(values(comm.rank, (2, 3)).T, sizes, "rows")
    assert torch.equal(found, torch.cat([values(r, (2, 3)).T for r in range(comm.size)]))


def rows_for_each_rank_arrive_in_rank_order(comm: Comm) -> None:
    n, me = comm.size, comm.rank
    for start in (False, True):
        rows = torch.cat([values(10 * me + r, (me + r, 2)) for r in range(n)])
        sizes = [me + r for r in range(n)]
        if start:
            found = comm.start_all_to_all(rows, sizes, sizes, "rows").wait()
        else:
            found = comm.all_to_all_rows(rows, sizes, sizes, "rows")
        assert torch.equal(found, torch.cat([values(10 * r + me, (me + r, 2)) for r in range(n)]))
    row = 16
    moved = row * (sum(sizes) - 2 * me)
    comm.bytes.pop("counted", None)
    comm.all_to_all_rows(rows, sizes, sizes, "counted")
    assert comm.bytes["counted"] == Traffic(1, moved, moved)


def much_may_go_one_way_and_little_the_other(comm: Comm) -> None:
    n, me = comm.size, comm.rank
    sizes = [[300_000 if giver == 0 else 7 for _ in range(n)] for giver in range(n)]  # doubles
    for turn in range(3):
        given = [values(10 * me + r + turn, (sizes[me][r],)) for r in range(n)]
        received = [sizes[r][me] for r in range(n)]
        found = comm.all_to_all_rows(torch.cat(given), sizes[me], received, "rows")
        expected = [values(10 * r + me + turn, (sizes[r][me],)) for r in range(n)]
        assert torch.equal(found, torch.cat(expected))


def two_exchanges_may_be_under_way(comm: Comm) -> None:
    n, me = comm.size, comm.rank
    begun = [
        comm.start_all_to_all(
            values(me + 10 * turn, (n * 70_000,)), [70_000] * n, [70_000] * n, "x"
        )
        for turn in range(2)
    ]
    for turn in (1, 0):
        cut = slice(70_000 * me, 70_000 * (me + 1))
        expected = torch.cat([values(r + 10 * turn, (n * 70_000,))[cut] for r in range(n)])
        assert torch.equal(begun[turn].wait(), expected)


def an_exchange_under_way_goes_on_while_ranks_meet_in_another(comm: Comm) -> None:
    """The even ranks end it before, the odd ones after."""
    n, me = comm.size, comm.rank
    for turn in range(3):
        given = values(me + 10 * turn, (n * 300_000,))
        begun = comm.start_all_to_all(given, [300_000] * n, [300_000] * n, "x")
        if me % 2 == 0:
            begun.wait()
        total = comm.all_reduce(values(me + turn, (9,)), "sum")
        assert np.array_equal(total.numpy(), sum(values(r + turn, (9,)).numpy() for r in range(n)))
        cut = slice(300_000 * me, 300_000 * (me + 1))
        expected = torch.cat([values(r + 10 * turn, (n * 300_000,))[cut] for r in range(n)])
        assert torch.equal(begun.wait(), expected)


def ranks_that_make_different_calls_are_told(comm: Comm) -> None:
    if not comm.shares_memory:
        return
    purpose = "that of one" if comm.rank == 1 else "that of others"
    with pytest.raises(ValueError, match="ranks make different calls: rank"):
        comm.all_gather_rows(torch.zeros(1), [1] * comm.size, purpose)
    comm.barrier()


def little_and_more_than_memory_holds_take_turns(comm: Comm) -> None:
    n, me = comm.size, comm.rank
    for size in (3, 700_000, 0, 5, 700_000, 90_000, 90_001, 2):  # doubles
        found = comm.all_gather_rows(values(me, (size,)), [size] * n, "rows")
        assert torch.equal(found, torch.cat([values(r, (size,)) for r in range(n)]))
        sums = comm.reduce_scatter_rows(values(me, (size * n,)), [size] * n, "rows")
        total = sum(values(r, (size * n,)).numpy() for r in range(n))
        assert np.array_equal(sums.numpy(), total[me * size : (me + 1) * size])  # type: ignore[index]


def messages_of_a_tag_arrive_in_order(comm: Comm) -> None:
    if comm.size == 1:
        with pytest.raises(ValueError, match="has none to send to: got rank 0"):
            comm.start_send(torch.zeros(1), 0, "one")
        return
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.bytes.pop("one", None)
    sends = [
        comm.start_send(values(comm.rank + 10 * turn, (3, 2)), to, "one", tag)
        for turn, tag in enumerate((5, 4, 5))
    ]
    found = [comm.start_receive((3, 2), torch.float64, source, "one", tag) for tag in (4, 5, 5)]
    for turn, pending in zip((1, 0, 2), found, strict=True):
        assert torch.equal(pending.wait(), values(source + 10 * turn, (3, 2)))
    for pending in sends:
        pending.wait()
    assert comm.bytes["one"] == Traffic(6, 3 * 48, 3 * 48)


def a_group_has_its_own_ranks_and_the_same_ledger(comm: Comm) -> None:
    color = comm.rank % 2
    part = comm.group(color)
    members = [rank for rank in range(comm.size) if rank % 2 == color]
    assert (part.rank, part.size) == (members.index(comm.rank), len(members))
    total = part.all_reduce(values(comm.rank, (5,)), "within")
    assert np.array_equal(total.numpy(), sum(values(rank, (5,)).numpy() for rank in members))
    assert part.bytes is comm.bytes and "within" in comm.bytes


def the_backward_of_gathered_rows_is_the_adjoint(comm: Comm) -> None:
    """<A x, y> = <x, A^T y>, both summed over the ranks."""
    sizes = uneven(comm)
    x = values(comm.rank, (sizes[comm.rank], 4)).requires_grad_()
    y = values(100 + comm.rank, (sum(sizes), 4))
    gathered = gather_rows(comm, x, sizes, "rows")
    (back,) = torch.autograd.grad(gathered, x, y)
    sides = torch.stack([(gathered * y).sum(), (x * back).sum()]).detach()
    comm.all_reduce(sides, "sum")
    torch.testing.assert_close(sides[0], sides[1], rtol=1e-13, atol=1e-13)


def gradients_are_those_of_one_process(comm: Comm) -> None:
    sizes = uneven(comm)
    whole = torch.cat([values(r, (size, 4)) for r, size in enumerate(sizes)]).requires_grad_()
    weights = [values(50 + r, (sum(sizes), 4)) for r in range(comm.size)]
    (expected,) = torch.autograd.grad((whole.tanh() * sum(weights)).sum(), whole)
    start = sum(sizes[: comm.rank])
    own = whole.detach()[start : start + sizes[comm.rank]].requires_grad_()
    loss = (gather_rows(comm, own.tanh(), sizes, "rows") * weights[comm.rank]).sum()
    (found,) = torch.autograd.grad(loss, own)
    torch.testing.assert_close(found, expected[start : start + len(own)], rtol=1e-13, atol=1e-13)


def bytes_are_counted_by_the_formula(comm: Comm) -> None:
    comm.bytes.clear()
    n, sizes = comm.size, uneven(comm)
    whole, own = 24 * sum(sizes), 24 * sizes[comm.rank]
    rows = values(comm.rank, (sizes[comm.rank], 3))
    comm.all_gather_rows(rows, sizes, "gather")
    comm.reduce_scatter_rows(values(0, (sum(sizes), 3)), sizes, "scatter")
    comm.all_reduce(values(0, (8 * n,)), "sum")
    comm.all_reduce(values(0, (8 * n,)), "sum")
    comm.broadcast_bytes(b"four" if comm.rank == 0 else None, "bytes")
    there = 0 if comm.rank == 0 else 4
    assert comm.bytes["gather"] == Traffic(1, (n - 1) * own, whole - own)
    assert comm.bytes["scatter"] == Traffic(1, whole - own, (n - 1) * own)
    each = 2 * (2 * 64 * n * (n - 1) // n)  # two sums of b = 64 n bytes: 2 b (n - 1) / n
    assert (comm.bytes["sum"].sent, comm.bytes["sum"].received) == (each, each)
    lengths = 8 * (n - 1)
    assert comm.bytes["bytes"] == Traffic(2, lengths + (4 - there) * (n - 1), lengths + there)


def uneven_parts_of_a_sum_are_counted_exactly(comm: Comm) -> None:
    comm.bytes.clear()
    length = comm.size * 5 + 1
    comm.all_reduce(values(0, (length,)), "sum")
    own = 8 * parts(length, comm.size)[comm.rank]
    expected = 0 if comm.size == 1 else 8 * length - own + (comm.size - 1) * own
    assert (comm.bytes["sum"].sent, comm.bytes["sum"].received) == (expected, expected)


def objects_come_from_all_and_bytes_from_one(comm: Comm) -> None:
    found = comm.gather_objects({"rank": comm.rank, "text": "ü" * comm.rank}, "objects")
    assert found == [{"rank": rank, "text": "ü" * rank} for rank in range(comm.size)]
    root = comm.size - 1
    assert comm.broadcast_bytes(bytes([comm.rank, 0, 255]), "bytes", root) == bytes([root, 0, 255])
    assert comm.broadcast_bytes(b"", "bytes") == b""


def equal_facts_are_agreed_on(comm: Comm) -> None:
    agree(comm, {"seed": 3, "rate": 0.1, "log": "a1b2"})


def a_differing_fact_is_named_with_both_values_and_the_first_rank(comm: Comm) -> None:
    if comm.size == 1:
        return
    seed = 4 if comm.rank == 1 else 3
    with pytest.raises(ValueError, match="differ in seed: 3 on rank 0, 4 on rank 1; give every"):
        agree(comm, {"log": "a1b2", "seed": seed})
    more: dict[str, str] = {} if comm.rank == 1 else {"log": "a1b2"}
    with pytest.raises(ValueError, match="differ in log: 'a1b2' on rank 0, None on rank 1"):
        agree(comm, more)


def sizes_that_do_not_fit_are_refused(comm: Comm) -> None:
    with pytest.raises(ValueError, match=f"rows of each of {comm.size} ranks, 2 of them on rank"):
        comm.all_gather_rows(torch.zeros(2, 1), [3] * comm.size, "rows")
    with pytest.raises(ValueError, match="must cut 5 rows"):
        comm.reduce_scatter_rows(torch.zeros(5, 1), [6] * comm.size, "rows")
    with pytest.raises(ValueError, match="must be contiguous"):
        comm.all_reduce(torch.zeros(2, 3).T, "sum")


PROMISES: tuple[Callable[[Comm], None], ...] = (
    a_sum_is_that_of_numpy_and_in_place,
    a_sum_of_many_bytes_has_the_same_bits_on_every_rank,
    uneven_rows_are_gathered_in_rank_order,
    summed_rows_are_each_ranks_own,
    a_transposed_tensor_is_taken_by_value,
    rows_for_each_rank_arrive_in_rank_order,
    much_may_go_one_way_and_little_the_other,
    two_exchanges_may_be_under_way,
    an_exchange_under_way_goes_on_while_ranks_meet_in_another,
    ranks_that_make_different_calls_are_told,
    little_and_more_than_memory_holds_take_turns,
    messages_of_a_tag_arrive_in_order,
    a_group_has_its_own_ranks_and_the_same_ledger,
    the_backward_of_gathered_rows_is_the_adjoint,
    gradients_are_those_of_one_process,
    bytes_are_counted_by_the_formula,
    uneven_parts_of_a_sum_are_counted_exactly,
    objects_come_from_all_and_bytes_from_one,
    equal_facts_are_agreed_on,
    a_differing_fact_is_named_with_both_values_and_the_first_rank,
    sizes_that_do_not_fit_are_refused,
)


def main() -> None:
    torch.set_num_threads(1)
    for over in sys.argv[1:]:
        with connect(os.environ, over=over) as comm:  # type: ignore[arg-type]
            found = {
                "kinds": comm.gather_objects(type(comm).__name__, "kinds"),
                "shared": comm.gather_objects(comm.shares_memory, "shared"),
                "held": [promise.__name__ for promise in PROMISES],
            }
            for promise in PROMISES:
                promise(comm)
            comm.barrier()
            vars(comm)["_board"] = None  # and once more by messages alone
            for promise in PROMISES:
                promise(comm)
            if comm.rank == 0:
                print(json.dumps(found))


if __name__ == "__main__":
    main()
