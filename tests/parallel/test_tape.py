"""Reads and writes of the tape have the values and gradients of plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from neutronstream.parallel import Tape

WIDTHS = {"a": 3, "b": 2}


def new_tape(num_rows: int) -> Tape:
    return Tape(WIDTHS, num_rows, torch.float64, torch.device("cpu"))


def at(start: int, values: dict[str, Tensor]) -> tuple[slice, dict[str, Tensor]]:
    """The rows from `start` that `values` fill."""
    return slice(start, start + len(next(iter(values.values())))), values


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_has_the_gradients_of_autograd(seed: int) -> None:
    torch.manual_seed(seed)
    base = {"a": rand(6, 3), "b": rand(6, 2)}
    weights = {"a": rand(3, 3), "b": rand(2, 2)}
    mixing = rand(3, 2)
    leaves = [*base.values(), *weights.values(), mixing]

    def program(on_tape: bool) -> tuple[Tensor, list[Tensor]]:
        draw = torch.Generator().manual_seed(seed)
        tape = new_tape(30)
        plain = dict(base)
        tape.write(*at(0, base))
        row, total = 6, torch.zeros((), dtype=torch.float64)
        for _ in range(6):
            rows_a = torch.randint(0, row, (2, 2), generator=draw)  # may repeat
            rows_b = torch.randint(0, row, (4,), generator=draw)
            if on_tape:
                a, b = tape.read([("a", rows_a), ("b", rows_b)])
            else:
                a, b = plain["a"][rows_a], plain["b"][rows_b]
            new_a = torch.tanh(a.reshape(4, 3) @ weights["a"] + b @ mixing.T)  # (4, 3)
            written = {"a": new_a, "b": torch.sin(b @ weights["b"])}
            if on_tape:
                tape.write(*at(row, written))
            else:
                plain = {name: torch.cat([plain[name], written[name]]) for name in plain}
            row += 4
            total = total + (b * b).sum()
        last = torch.randint(0, row, (3,), generator=draw)
        (read,) = tape.read([("a", last)]) if on_tape else (plain["a"][last],)
        total = total + read.pow(3).sum()
        for leaf in leaves:
            leaf.grad = None
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None]

    (ours, our_grads), (plain, plain_grads) = program(True), program(False)
    assert len(our_grads) == len(leaves)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    for mine, right in zip(our_grads, plain_grads, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_a_row_that_is_read_twice_gets_both_gradients() -> None:
    tape, base = new_tape(3), {"a": rand(3, 3), "b": rand(3, 2)}
    tape.write(*at(0, base))
    (read,) = tape.read([("a", torch.tensor([1, 1, 2]))])
    (read * torch.tensor([[1.0], [10.0], [5.0]])).sum().backward()  # type: ignore[no-untyped-call]
    assert base["a"].grad is not None
    assert base["a"].grad.tolist() == [[0.0] * 3, [11.0] * 3, [5.0] * 3]


def test_rows_that_nobody_reads_get_a_gradient_of_zero() -> None:
    tape, base, later = new_tape(4), {"a": rand(2, 3), "b": rand(2, 2)}, rand(2, 3)
    tape.write(*at(0, base))
    tape.write(*at(2, {"a": later}))
    (read,) = tape.read([("a", torch.tensor([0]))])
    read.sum().backward()  # type: ignore[no-untyped-call]
    assert later.grad is not None and later.grad.tolist() == [[0.0] * 3] * 2
    assert base["a"].grad is not None and base["a"].grad[1].tolist() == [0.0] * 3


def test_a_state_that_is_passed_on_unchanged_keeps_its_gradient() -> None:
    tape, base = new_tape(3), {"a": rand(1, 3)}
    tape.write(*at(0, base))
    for row in (1, 2):
        (read,) = tape.read([("a", torch.tensor([row - 1]))])
        tape.write(*at(row, {"a": read + 1.0}))
    (last,) = tape.read([("a", torch.tensor([2]))])
    last.sum().backward()  # type: ignore[no-untyped-call]
    assert base["a"].grad is not None and base["a"].grad.tolist() == [[1.0] * 3]
    tape.grads["a"].zero_()
    assert base["a"].grad.tolist() == [[1.0] * 3]  # its own memory, not a view of the tape's


def test_one_read_gathers_several_tables_in_the_order_asked_for() -> None:
    tape, base = new_tape(2), {"a": rand(2, 3), "b": rand(2, 2)}
    tape.write(*at(0, base))
    rows = torch.tensor([[1, 0]])
    b, a, b_again = tape.read([("b", rows), ("a", rows[0, :1]), ("b", rows[0])])
    assert b.shape == (1, 2, 2) and a.shape == (1, 3)
    assert torch.equal(b[0], b_again) and torch.equal(a[0], base["a"][1])


def test_without_gradient_the_values_are_the_same_and_nothing_is_kept() -> None:
    tape, base = new_tape(2), {"a": rand(2, 3), "b": rand(2, 2)}
    with torch.no_grad():
        tape.write(*at(0, base))
        (read,) = tape.read([("a", torch.tensor([1]))])
    assert torch.equal(read, base["a"][1:]) and not read.requires_grad
    assert tape.grads == {}


def test_a_read_costs_its_own_rows_and_not_the_table() -> None:
    tape, base = new_tape(1000), {"a": rand(1000, 3)}
    tape.write(*at(0, base))
    (read,) = tape.read([("a", torch.tensor([5, 7]))])
    kept = read.grad_fn
    assert kept is not None and read.untyped_storage().nbytes() == 2 * 3 * 8
    read.sum().backward()  # type: ignore[no-untyped-call]
    assert {name: grad.shape for name, grad in tape.grads.items()} == {"a": (1000, 3)}  # one table
