"""What TGN compiles to score is what its tensors say, whatever is scored beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor, nn

from neutronstream.models import JODIE, TGN, DynamicGNN, can_price
from neutronstream.models import attention as attention_module
from neutronstream.models import decoder as decoder_module
from neutronstream.models import tgn as tgn_module
from neutronstream.models import time_encoding as time_module
from neutronstream.models.attention import Attention
from neutronstream.models.decoder import pair_logits, pair_losses
from neutronstream.models.kernels.attention import NODES, Kept, Reads, Room, Weights, attend
from neutronstream.models.kernels.cosine import encode_times, quarter_sine
from neutronstream.models.kernels.vectors import add_row, clear, copy_row, dots
from neutronstream.models.time_encoding import TimeEncoding
from neutronstream.models.views import StateRows, rows_of
from neutronstream.parallel import FusedExecutor, LevelExecutor, Replay
from neutronstream.stream import EventLog

from ..naive import random_log
from ..uncompiled import run_uncompiled
from .memories import LOGS
from .small import Attentive
from .test_tgn import new_model
from .twins import assert_near, strong

DTYPES = [(torch.float64, 1e-12), (torch.float32, 2e-6)]
SIZES = {  # width, time_width, what else is known, heads, k, learned
    "as published": (100, 100, 0, 2, 10, False),
    "one head": (6, 5, 0, 1, 3, True),
    "features": (6, 4, 7, 3, 2, False),
    "blocks that are full": (16, 8, 16, 4, 8, True),
}


class Case:
    """More nodes than are attended to at a time, some without neighbours; several read a row."""

    def __init__(self, size: str, dtype: torch.dtype) -> None:
        width, time_width, x, heads, k, learned = SIZES[size]
        generator = torch.Generator().manual_seed(3)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        n, m, count = 19, 3, 12
        self.layer = Attention(width, time_width + x, heads).to(dtype)
        self.time = TimeEncoding(time_width, learned=learned).to(dtype)
        with torch.no_grad():
            for parameter in (*self.layer.parameters(), *self.time.parameters()):
                parameter.copy_(normal(*parameter.shape) / math.sqrt(parameter.shape[-1]))
        self.own = normal(n, m, width).requires_grad_()
        self.table = normal(count, width).requires_grad_()
        self.rows = torch.randint(count, (n, m, k), generator=generator)
        self.mask = torch.rand(n, m, k, generator=generator) < 0.7
        self.mask[0, 0] = False
        self.seconds = torch.randint(-50, 1000, (n, m, k), generator=generator).double()
        self.known, self.way = normal(n, m, k, x), normal(n, m, width)

    def compiled(self, part: slice = slice(None)) -> Tensor:
        arguments = (self.rows, self.mask, self.seconds, self.known)
        rows, mask, seconds, known = (each[part] for each in arguments)
        table, own, rows = rows_of(
            *("state", {"state": self.own[part]}, StateRows({"state": self.table}, rows))
        )
        return self.layer.of_rows(table, own, rows, mask, self.time, seconds, known)

    def tensors(self) -> Tensor:
        edges = torch.cat([self.time(self.seconds), self.known], dim=-1)
        z: Tensor = self.layer(self.own, self.table[self.rows], edges, self.mask)
        return z

    def gradients(self, z: Tensor) -> dict[str, Tensor]:
        named = {"own": self.own, "table": self.table, **dict(self.layer.named_parameters())}
        named |= dict(self.time.named_parameters())
        found = torch.autograd.grad((z * self.way).sum(), list(named.values()))
        return dict(zip(named, found, strict=True))


def in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing is compiled, as on a GPU."""
    for module in (time_module, tgn_module, decoder_module):
        monkeypatch.setattr(module, "can_compile", lambda device, dtype: False)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "bound"), DTYPES, ids=["64", "32"])
def test_compiled_attention_is_that_of_tensors(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, size: str
) -> None:
    case = Case(size, dtype)
    mine = case.compiled()
    found = case.gradients(mine)
    in_tensors(monkeypatch)
    right = case.tensors()
    assert_near(mine, right.detach(), bound)
    for name, value in case.gradients(right).items():
        assert value.abs().max() > 1e-3, name
        assert_near(found[name], value, bound)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="only compiled products promise that")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["64", "32"])
def test_a_node_alone_has_the_bits_that_it_has_among_others(dtype: torch.dtype, size: str) -> None:
    case = Case(size, dtype)
    whole = case.compiled().detach()
    for i in range(len(whole)):
        assert torch.equal(case.compiled(slice(i, i + 1)), whole[i : i + 1])


def test_without_gradient_the_same_is_computed_and_little_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, held = Case("as published", torch.float32), []

    def watched(reads: Reads, weights: Weights, kept: Kept, room: Room, z: Any) -> None:
        held.append(len(kept.query))
        attend(reads, weights, kept, room, z)

    monkeypatch.setattr(attention_module, "attend", watched)
    with torch.no_grad():
        plain = case.compiled()
    with_gradient = case.compiled()
    assert plain.grad_fn is None and with_gradient.grad_fn is not None
    assert torch.equal(plain, with_gradient)
    assert held == [NODES, case.own.shape[:2].numel()] and held[1] > held[0]


def test_of_no_nodes_there_is_nothing_to_attend_with() -> None:
    case = Case("one head", torch.float64)
    z = case.compiled(slice(0, 0))
    assert z.shape == (0, 3, 6)
    z.sum().backward()  # type: ignore[no-untyped-call]
    assert case.table.grad is not None and not case.table.grad.any()


@pytest.mark.parametrize(("dtype", "bound"), DTYPES, ids=["64", "32"])
def test_the_code_of_times_is_that_of_tensors(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float
) -> None:
    encoding = TimeEncoding(7, learned=True).to(dtype)
    with torch.no_grad():
        encoding.bias.copy_(torch.linspace(-2, 2, 7))
    seconds = torch.arange(22, dtype=torch.float64).view(11, 2) * 17
    way = torch.linspace(-1, 1, 22 * 7, dtype=dtype).view(11, 2, 7)

    def found() -> list[Tensor]:
        code = encoding(seconds)
        return [code, *torch.autograd.grad((code * way).sum(), list(encoding.parameters()))]

    mine = found()
    in_tensors(monkeypatch)
    for ours, right in zip(mine, found(), strict=True):
        assert_near(ours, right.detach(), bound)


@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-15), (np.float32, 2e-7)])
def test_cosines_know_eighths_of_a_turn_after_a_billion_turns(dtype: Any, bound: float) -> None:
    seconds = np.arange(16, dtype=np.float64) + 8e9
    code = np.empty((16, 3), dtype)
    encode_times(seconds, np.array([0.125, 0.0, -0.25]), np.array([0.0, 0.5, 0.125]), code)
    half = math.sqrt(0.5)
    eighths = np.array([1, half, 0, -half, -1, -half, 0, half] * 2)
    quarters = np.array([half, half, -half, -half] * 4)
    assert np.abs(code[:, 0] - eighths).max() <= bound
    assert np.abs(code[:, 1] + 1).max() <= bound
    assert np.abs(code[:, 2] - quarters).max() <= bound


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_polynomial_is_a_sine(dtype: Any) -> None:
    for x in np.linspace(-0.25, 0.25, 41).astype(dtype):
        code = np.empty((1, 1), dtype)
        encode_times(np.zeros(1), np.zeros(1), np.array([0.25 - abs(float(x))]), code)
        plain = quarter_sine(abs(x))
        assert type(plain) is dtype
        assert abs(float(code[0, 0]) - float(plain)) <= 2 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_code_has_the_same_bits_alone(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, 10**8, 9).astype(np.float64)
    rate, offset = rng.random(37), rng.random(37)
    whole = np.empty((9, 37), dtype)
    encode_times(seconds, rate, offset, whole)
    for width in (1, 5, 36):
        alone = np.empty((1, width), dtype)
        encode_times(seconds[4:5], rate[-width:], offset[-width:], alone)
        assert np.array_equal(alone[0], whole[4, -width:])


def test_pairs_are_scored_as_by_the_layers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [nn.Linear(6, 6).double() for _ in range(2)] + [nn.Linear(6, 1).double()]
        src, dst = (torch.randn(4, m, 6).double().requires_grad_() for m in (1, 3))
        way = torch.randn(4, 3).double()
    inputs = [src, dst, *(p for layer in layers for p in layer.parameters())]
    hidden = torch.relu(layers[0](src) + layers[1](dst))
    assert (hidden == 0).any() and (hidden > 0).any()
    right = layers[2](hidden).squeeze(-1)
    mine = pair_logits(src, dst, *layers)
    assert_near(mine, right.detach(), 1e-14)
    for ours, theirs in zip(
        torch.autograd.grad((mine * way).sum(), inputs),
        torch.autograd.grad((right * way).sum(), inputs),
        strict=True,
    ):
        assert ours.shape == theirs.shape
        assert_near(ours, theirs, 1e-13)


@pytest.mark.parametrize("width", [6, 40])
@pytest.mark.parametrize(("dtype", "bound"), DTYPES, ids=["64", "32"])
def test_compiled_losses_are_those_of_tensors(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, width: int
) -> None:
    """Of more events than are taken at a time; some have no corrupted destination."""
    sizes = (width, width), (width, width), (width, 1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [nn.Linear(*size).to(dtype) for size in sizes]
        together = torch.randn(41, 4, width).to(dtype).requires_grad_()
        valid, way = torch.rand(41, 2) < 0.6, torch.randn(41).to(dtype)
    valid[3] = False
    inputs = [together, *(p for layer in layers for p in layer.parameters())]

    def found() -> list[Tensor]:
        src, dst, other = together[:, :1], together[:, 1:2], together[:, 2:]
        losses = pair_losses(src, dst, other, valid, *layers)
        return [losses, *torch.autograd.grad((losses * way).sum(), inputs)]

    mine = found()
    in_tensors(monkeypatch)
    for ours, right in zip(mine, found(), strict=True):
        assert ours.shape == right.shape and right.abs().max() > 1e-3
        assert_near(ours, right.detach(), bound)


def test_a_loss_that_is_certain_is_finite() -> None:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)]
    with torch.no_grad():
        layers[2].bias.fill_(-1e4)
    src, dst = torch.ones(1, 1, 2), torch.ones(1, 1, 2, requires_grad=True)
    losses = pair_losses(src, dst, dst, torch.ones(1, 1, dtype=torch.bool), *layers)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert losses.item() == pytest.approx(1e4, rel=1e-3)
    assert dst.grad is not None and dst.grad.isfinite().all()


class Scored:
    """A segment scored from a table of random states, which has a gradient."""

    def __init__(self, log: EventLog, model: DynamicGNN, dtype: torch.dtype, late: bool) -> None:
        executor = LevelExecutor(Replay(log, model, dtype=dtype))
        segment = executor.replay.resolve(0, len(log), num_candidates=4)
        plan = executor.prepare(segment)
        generator = torch.Generator().manual_seed(1)
        widths = {**model.tables, **model.derived}
        self.tables = {
            name: torch.randn(plan.schedule.num_rows, width, generator=generator)
            .to(dtype)
            .requires_grad_()
            for name, width in widths.items()
        }

        def read(
            names: tuple[str, ...], columns: Any, rows: Any, grad: bool
        ) -> Mapping[str, Tensor]:
            at = plan.score_row[rows, columns]
            tables = {n: self.tables[n] if grad else self.tables[n].detach() for n in names}
            if late:
                return StateRows(tables, at)
            return {name: F.embedding(at, table) for name, table in tables.items()}

        scored = executor.scorer.score(segment, read, slice(None))
        model.zero_grad()
        scored.losses.sum().backward()  # type: ignore[no-untyped-call]
        assert scored.scores is not None
        self.values = {"losses": scored.losses.detach(), "scores": scored.scores}
        self.values |= {n: t.grad for n, t in self.tables.items() if t.grad is not None}
        named = model.named_parameters()
        self.values |= {n: p.grad.clone() for n, p in named if p.grad is not None}

    def assert_is(self, other: Scored, bound: float) -> None:
        assert self.values.keys() == other.values.keys()
        for name, value in self.values.items():
            assert_near(other.values[name], value, bound)


MODELS: dict[str, Callable[[EventLog], Callable[[], DynamicGNN]]] = {
    "attention": lambda log: new_model(log),
    "attention, neighbor": lambda log: new_model(log, time_from="neighbor", heads=3, k=3),
    "sum": lambda log: new_model(log, embedding="sum", time_width=4, num_negatives=3),
    "jodie": lambda log: lambda: JODIE(4, log.kinds, num_features=_width(log), decoder="distance"),
    "attentive": lambda log: Attentive,
}


def _width(log: EventLog) -> int:
    return 0 if log.events.features is None else log.events.features.shape[1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("log", LOGS)
def test_states_that_are_gathered_late_are_those_gathered_early(name: str, log: str) -> None:
    model = strong(MODELS[name](LOGS[log]))
    early, late = (Scored(LOGS[log], model, torch.float64, late) for late in (False, True))
    early.assert_is(late, 1e-12)


@pytest.mark.parametrize("name", ["attention", "attention, neighbor", "sum"])
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_compiled_or_in_tensors_a_segment_is_scored_alike(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, log: str, name: str
) -> None:
    """Of long gaps tensors round a phase otherwise, by 1e-10 of a turn."""
    model = strong(MODELS[name](LOGS[log]), dtype)
    mine = Scored(LOGS[log], model, dtype, True)
    in_tensors(monkeypatch)
    Scored(LOGS[log], model, dtype, True).assert_is(mine, bound)


def test_the_loss_of_a_pair_is_the_usual_one() -> None:
    log = random_log(5, 40, 6)
    model = strong(lambda: TGN(4, num_negatives=3))
    executor = LevelExecutor(Replay(log, model, dtype=torch.float64))
    losses = executor.run(executor.prepare(executor.replay.resolve(0, 40))).losses
    assert isinstance(model, TGN)
    model.loss = lambda *views: DynamicGNN.loss(model, *views)  # type: ignore[method-assign]
    executor = LevelExecutor(Replay(log, model, dtype=torch.float64))
    usual = executor.run(executor.prepare(executor.replay.resolve(0, 40))).losses
    assert_near(losses, usual.detach(), 1e-14)


@pytest.mark.parametrize("options", [{}, {"time_from": "neighbor", "k": 3, "num_negatives": 3}])
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(("dtype", "bound"), DTYPES, ids=["64", "32"])
@pytest.mark.parametrize("counted", ["as in the mean", "alike", "each otherwise"])
def test_losses_of_rows_are_those_of_views(
    monkeypatch: pytest.MonkeyPatch,
    counted: str,
    dtype: torch.dtype,
    bound: float,
    log: str,
    options: dict[str, Any],
) -> None:
    model = strong(new_model(LOGS[log], frequencies="learned", **options), dtype)
    n = len(LOGS[log])
    first, last = {"as in the mean": (1 / n, 1 / n), "alike": (0.7, 0.7)}.get(counted, (0.5, 1.5))
    pull = torch.linspace(first, last, n, dtype=dtype)
    if counted != "as in the mean":
        bound *= 5  # the gradient of a bias is a sum that cancels, and is not divided here

    def found() -> dict[str, Tensor]:
        executor = FusedExecutor(Replay(LOGS[log], model, dtype=dtype))
        losses = executor.run(executor.prepare(executor.replay.resolve(0, len(LOGS[log])))).losses
        named = dict(model.named_parameters())
        first, again = (
            torch.autograd.grad((losses * pull).sum(), list(named.values()), retain_graph=True)
            for _ in range(2)
        )
        assert all(map(torch.equal, first, again))
        return {"losses": losses.detach(), **dict(zip(named, first, strict=True))}

    mine = found()
    assert len(mine) == 1 + len(list(model.parameters()))
    asked = []

    def nothing(self: TGN, *given: Any) -> None:
        asked.append(given)

    monkeypatch.setattr(TGN, "losses_of", nothing)
    for name, right in found().items():
        assert_near(mine[name], right, bound)
    assert len(asked) == 1


class OtherEmbedding(TGN):
    """Its losses are not those that `TGN.losses_of` knows of."""

    def embed(self, *given: Any) -> Tensor:
        return 2.0 * super().embed(*given)


def test_a_model_that_embeds_otherwise_is_shown_views() -> None:
    assert can_price(TGN(4)) and not can_price(OtherEmbedding(4))


@njit
def dots_of(x: Any, read: Any, out: Any, count: int) -> None:
    dots(x, read, out, count)


@njit
def rows_of_both(source: Any, copied: Any, added: Any, size: int) -> None:
    clear(copied)
    for i in range(len(source)):
        copy_row(source, i, copied, i, size)
        add_row(source, i, added, i, size)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_products_of_rows_have_the_same_bits_alone(dtype: Any) -> None:
    draw = np.random.default_rng(0)
    for heads, count, columns in ((1, 1, 16), (3, 7, 32), (2, 10, 208)):
        x, read = (draw.normal(size=(n, columns)).astype(dtype) for n in (heads, count))
        together, alone = np.zeros((2, heads, count), dtype)
        dots_of(x, read, together, count)
        for h in range(heads):
            for j in range(count):
                dots_of(x[h : h + 1], read[j : j + 1], alone[h : h + 1, j : j + 1], 1)
        if "NUMBA_DISABLE_JIT" not in os.environ:
            assert np.array_equal(together, alone)
        right = x.astype(np.float64) @ read.T.astype(np.float64)
        assert np.abs(together - right).max() <= 50 * columns * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_of_rows_as_many_columns_are_taken_as_are_asked_for(dtype: Any) -> None:
    source = np.arange(1, 70, dtype=dtype).reshape(3, 23)
    for size in (0, 1, 3, 4, 16, 23):
        copied, added = np.ones((3, 23), dtype), np.ones((3, 23), dtype)
        rows_of_both(source, copied, added, size)
        kept = np.arange(23) < size
        assert np.array_equal(copied, np.where(kept, source, 0))
        assert np.array_equal(added, np.where(kept, source + 1, 1))


def test_states_are_rows_of_a_table_or_make_one() -> None:
    table = torch.arange(6.0).view(3, 2)
    late = StateRows({"memory": table}, torch.tensor([[2, 0]]))
    right = [[[4.0, 5.0], [0.0, 1.0]]]
    assert list(late) == ["memory"] and len(late) == 1
    assert late["memory"].tolist() == right and late.gather()["memory"].tolist() == right
    assert late.gather()["memory"] is not late.gather().gather()["memory"]
    kept, first, second = rows_of("memory", late, late.gather())
    assert kept is table and first.tolist() == second.tolist() == [[2, 0]]
    made, first, second = rows_of("memory", {"memory": table}, late)
    assert made.tolist() == [*table.tolist(), *right[0]]
    assert first.tolist() == [0, 1, 2] and second.tolist() == [[3, 4]]


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="this is that run")
def test_the_loops_are_right_in_plain_python_too() -> None:
    chosen = "(attention_is_that and one and 64) or eighths or polynomial or of_rows_as"
    run_uncompiled("-x", __file__, "-k", chosen)
