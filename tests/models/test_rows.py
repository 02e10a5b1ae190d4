"""Promises: equal rows get equal results, wherever they stand; equal states get equal scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neutronstream.models import Events, Nodes, build
from neutronstream.models.base import DynamicGNN
from neutronstream.models.rows import INPUTS, ROWS, elementwise, linear, product, products

TYPES = [torch.float32, torch.float64]
WIDTHS = [1, 2, 5, 7, 8, 16, 30, 64, 100, 131]
COUNTS = [1, 2, 3, ROWS - 1, ROWS, 77, 200]


def alike(x: Tensor) -> bool:
    """Whether all rows are the same bits."""
    return bool((x == x[:1]).all())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("inputs", WIDTHS)
def test_equal_rows_have_equal_products_anywhere_and_alone(dtype: torch.dtype, inputs: int) -> None:
    generator = torch.Generator().manual_seed(inputs)
    row = torch.randn(1, inputs, dtype=dtype, generator=generator)
    for outputs in WIDTHS:
        weight = torch.randn(outputs, inputs, dtype=dtype, generator=generator)
        bias = torch.randn(outputs, dtype=dtype, generator=generator)
        alone = product(row, weight, bias)
        torch.testing.assert_close(alone, F.linear(row, weight, bias))
        lying = weight.t().contiguous().t()
        for count in COUNTS:
            rows = row.repeat(count, 1)
            rows[count // 2 :] = row  # no row is a view of another
            assert torch.equal(product(rows, weight, bias), alone.repeat(count, 1))
            assert torch.equal(product(rows, lying, bias), alone.repeat(count, 1))


def test_a_row_is_the_same_beside_any_others() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in TYPES:
        layer = nn.Linear(31, 9).to(dtype)
        x = torch.randn(300, 31, dtype=dtype, generator=generator)
        whole = linear(layer, x)
        torch.testing.assert_close(whole, layer(x))
        for start, stop in ((0, 1), (299, 300), (5, 12), (250, 300), (17, 250)):
            assert torch.equal(linear(layer, x[start:stop]), whole[start:stop])
        assert torch.equal(linear(layer, x.view(10, 30, 31)), whole.view(10, 30, 9))
        assert linear(layer, x[:0]).shape == (0, 9)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_of_each_event_by_weights_of_its_own(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for n, count, inputs, outputs in ((1, 21, 64, 1), (7, 101, 7, 8), (3, INPUTS, INPUTS, 2)):
        row = torch.randn(1, 1, inputs, dtype=dtype, generator=generator)
        weights = torch.randn(n, outputs, inputs, dtype=dtype, generator=generator)
        found = products(row.repeat(n, count, 1), weights)
        torch.testing.assert_close(found, row.expand(n, count, inputs) @ weights.mT)
        assert all(alike(each) for each in found)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", [F.softplus, torch.sigmoid, F.elu, torch.log1p])
def test_equal_numbers_have_equal_results(function: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(1, 300, 7):
        x = torch.rand(1, dtype=dtype, generator=generator).repeat(count, 1)
        assert alike(elementwise(function, x))
        assert elementwise(function, x).shape == x.shape


def test_gradients_are_those_of_a_plain_layer() -> None:
    layer = nn.Linear(7, 5).double()
    x = torch.randn(9, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 2, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: linear(layer, x), x)
    assert torch.autograd.gradcheck(lambda w: product(x, w), layer.weight)
    assert torch.autograd.gradcheck(lambda x, w: products(x.view(3, 3, 7), w), (x, weights))
    assert torch.autograd.gradcheck(lambda x: elementwise(F.softplus, x), x)


def test_hooks_of_a_layer_and_layers_of_another_kind_are_called() -> None:
    layer = nn.Linear(7, 5)
    layer.register_forward_hook(lambda module, given, found: found + 1)
    x = torch.randn(3, 7)
    torch.testing.assert_close(linear(layer, x), layer(x))
    both = nn.Sequential(nn.Linear(7, 5), nn.Tanh())
    torch.testing.assert_close(linear(both, x.view(3, 1, 7)), both(x).view(3, 1, 5))


def score_of_equals(model: DynamicGNN, n: int, m: int, dtype: torch.dtype) -> Tensor:
    """The scores (n, m) of sources in one state with destinations in one other."""
    generator = torch.Generator().manual_seed(n)

    def nodes(m: int) -> Nodes:
        states = {
            name: torch.randn(1, 1, width, dtype=dtype, generator=generator).repeat(n, m, 1)
            for name, width in model.tables.items()
        }
        rest = torch.full((n, m), 7.5, dtype=torch.float64)
        beside = Nodes(states, rest, rest / 3, torch.ones(n, m, dtype=torch.bool))
        return Nodes(*(states, rest, rest / 3, beside.valid, None), model.embed(events, beside))

    gap = torch.full((n, 2), 3.0, dtype=torch.float64)
    events = Events(torch.zeros(n, dtype=torch.int64), gap, None, None)
    with torch.no_grad():
        return model.score(events, nodes(1), nodes(m))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dyrep", {}),
        ("dyrep", {"intensity": "bilinear"}),
        ("dyrep", {"drift": True}),
        ("ldg", {}),
        ("dygnn", {}),
        ("jodie", {}),
        ("tgn", {"embedding": "identity"}),
        ("tgn", {"embedding": "time"}),
    ],
)
def test_equal_states_have_equal_scores(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    for width in (5, 7, 8, 30, 64):
        for kinds in ("a", "ab", "abcdefgh"):
            torch.manual_seed(width)
            model = build(name, width=width, kinds=tuple(kinds), options=options).to(dtype)
            for n, m in ((1, 2), (3, 4), (1, 21), (7, 21), (33, 101)):
                scores = score_of_equals(model, n, m, dtype)
                assert (scores == scores[0, 0]).all(), (width, kinds, n, m)
