"""TGN is what its equations say, attends as torch_geometric does, and is its TGN when stale."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from neutronstream.datasets.registry import VARIABLE
from neutronstream.models.tgn import TGN
from neutronstream.models.time_encoding import TimeEncoding
from neutronstream.parallel import EXECUTORS, Replay
from neutronstream.stream import EventLog

from ..data import data_folder, real_log
from ..naive import random_log
from .memories import LOGS, with_features
from .naive_tgn import NaiveTGN
from .twins import (
    assert_every_parameter_learns,
    assert_gradients_are_slopes,
    assert_levels_equal,
    assert_near,
    assert_scored_alike,
    replayed,
    strong,
    weights_of,
)

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


OPTIONS: dict[str, dict[str, Any]] = {
    "attention": {},
    "attention, neighbor, rnn": {"time_from": "neighbor", "memory": "rnn", "heads": 3, "k": 3},
    "sum": {"embedding": "sum", "time_width": 4, "num_negatives": 3},
    "time": {"embedding": "time", "memory": "rnn"},
    "identity": {"embedding": "identity", "time_width": 5},
    "learned": {"frequencies": "learned"},
}


def new_model(log: EventLog, width: int = 6, **options: Any) -> Callable[[], TGN]:
    features = log.events.features
    count = 0 if features is None else features.shape[1]
    return lambda: TGN(width, log.kinds, num_features=count, **options)


def naive(log: EventLog, model: TGN, **options: Any) -> NaiveTGN:
    names = ("embedding", "time_from", "heads", "k", "num_negatives")
    chosen = {name: options[name] for name in names if name in options}
    return NaiveTGN(log, weights_of(model), model.tables["memory"], **chosen)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["64", "32"]
)
def test_the_model_is_that_of_the_equations(
    name: str, options: str, dtype: torch.dtype, bound: float
) -> None:
    log, chosen = LOGS[name], OPTIONS[options]
    model = strong(new_model(log, **chosen), dtype)
    assert isinstance(model, TGN)
    replay, segment, outcome = replayed(log, model)
    slow = naive(log, model, **chosen)
    assert_scored_alike(segment, outcome, slow, bound)
    outcome.commit()
    memory = [slow.state(node) for node in range(log.num_nodes)]
    assert_near(replay.state["memory"], memory, bound)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_the_slopes_of_the_slow_model(options: str) -> None:
    log, chosen = with_features(random_log(3, 20, 6, kinds=("a", "b")), step=2), OPTIONS[options]
    model = strong(new_model(log, **chosen))
    assert isinstance(model, TGN)
    _, _, outcome = replayed(log, model)
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert_gradients_are_slopes(model, lambda: naive(log, model, **chosen))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
def test_levels_equal_one_event_at_a_time(name: str, options: str) -> None:
    """Learned frequencies need short gaps: by long ones rounding grows without bound."""
    log = LOGS[name].head(80)
    if options == "learned":
        log = EventLog.from_arrays(log.events.src, log.events.dst, np.arange(len(log)))
    assert_levels_equal(log, new_model(log, **OPTIONS[options]), size=40, num_candidates=2)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
def test_every_parameter_learns(name: str, options: str) -> None:
    log = LOGS[name].head(60)
    model = new_model(log, **OPTIONS[options])().double()
    assert_every_parameter_learns(log, model)


def test_a_memory_of_one_number_can_be_followed_by_hand() -> None:
    """s' = tanh(1/4 + s_own + 2 s_other + cos(pi/2 dt) / 2), from zero."""
    log = EventLog.from_arrays(["a", "b"], ["b", "c"], [0, 2])
    model = TGN(1, memory="rnn", embedding="identity", heads=1).double()
    with torch.no_grad():
        model.time.base.fill_(math.pi / 2)
        model.cell.weight_ih.copy_(torch.tensor([[1.0, 2.0, 0.5]]))
        model.cell.weight_hh.zero_()
        model.cell.bias_ih.fill_(0.25)
        model.cell.bias_hh.zero_()
    replay, _, outcome = replayed(log, model)
    outcome.commit()
    first = math.tanh(0.25 + 0.5)  # a and b after the first event, gap 0
    b = math.tanh(0.25 + first - 0.5)  # 2 seconds later
    c = math.tanh(0.25 + 2 * first - 0.5)  # new: it waits since the first event of the log
    assert first == pytest.approx(0.635149, abs=1e-6)
    assert replay.state["memory"].flatten().tolist() == pytest.approx([first, b, c], abs=1e-12)


@pytest.mark.parametrize(("aggregation", "expected"), [("last", (1, 0)), ("mean", (0.5, 0.5))])
def test_of_the_messages_of_a_stale_batch_the_last_or_the_mean_counts(
    aggregation: str, expected: tuple[float, float]
) -> None:
    """a is told of kind x, then of kind y; s' = tanh of what it is told, and y stands for 1."""
    log = EventLog.from_arrays(["a", "a", "a"], ["b", "c", "b"], [0, 0, 0], kind=["x", "y", "x"])
    model = TGN(
        *(2, log.kinds),
        memory="rnn",
        embedding="identity",
        aggregation=aggregation,  # type: ignore[arg-type]
    ).double()
    with torch.no_grad():
        for parameter in model.cell.parameters():
            parameter.zero_()
        model.cell.weight_ih[:, 4:6] = torch.eye(2).flip(0)  # first y, then x
    replay = Replay(log, model, dtype=torch.float64, consistency="batch")
    engine = EXECUTORS["batch"](replay)
    for start, stop in ((0, 2), (2, 3)):
        engine.run(engine.prepare(replay.resolve(start, stop))).commit()
    assert replay.state["memory"][0].tolist() == pytest.approx([math.tanh(x) for x in expected])


@pytest.fixture(scope="module")
def geometric() -> ModuleType:
    """torch_geometric.nn, which warns of its own age when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("torch_geometric.nn")


def convolution(geometric: ModuleType, model: TGN) -> Any:
    """torch_geometric's layer with the weights of the model's attention."""
    layer = model.attention
    assert layer is not None
    width, edge_width = layer.query.in_features, layer.edge.in_features
    peer = geometric.TransformerConv(
        width, width // layer.heads, heads=layer.heads, edge_dim=edge_width
    )
    pairs = ("query", "key", "value", "edge", "skip")
    with torch.no_grad():
        for name in pairs:
            mine, theirs = getattr(layer, name), getattr(peer, f"lin_{name}")
            theirs.weight.copy_(mine.weight)
            if mine.bias is not None:
                theirs.bias.copy_(mine.bias)
    return peer.double()


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_is_that_of_torch_geometric(geometric: ModuleType, heads: int) -> None:
    """Outputs and gradients, for nodes with all, some and no neighbours; its key has a bias."""
    model = strong(lambda: TGN(8, time_width=5, heads=heads))
    assert isinstance(model, TGN) and model.attention is not None
    peer = convolution(geometric, model)
    n, m, k = 3, 2, 4
    own, near, edges = (
        torch.randn(n, m, *shape, dtype=torch.float64, requires_grad=True)
        for shape in ((8,), (k, 8), (k, 5))
    )
    counts = torch.tensor([[4, 0], [1, 3], [2, 4]])
    mask = torch.arange(k) < counts[..., None]
    ours = model.attention(own, near, edges, mask)

    receiver = torch.arange(n * m).repeat_interleave(k)[mask.flatten()]
    index = torch.stack([torch.arange(n * m * k)[mask.flatten()], receiver])
    nodes = (near.flatten(0, 2), own.flatten(0, 1))
    theirs = peer(nodes, index, edges.flatten(0, 2)[mask.flatten()]).view(n, m, 8)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

    way = torch.randn_like(ours)
    inputs = (own, near, edges)
    for mine, right in zip(
        torch.autograd.grad((ours * way).sum(), inputs, retain_graph=True),
        torch.autograd.grad((theirs * way).sum(), inputs, retain_graph=True),
        strict=True,
    ):
        assert right.abs().max() > 0.1
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-10)
    names = ("query", "key", "value", "edge", "skip")
    weights = [getattr(model.attention, name).weight for name in names]
    copies = [getattr(peer, f"lin_{name}").weight for name in names]
    for mine, right in zip(
        torch.autograd.grad((ours * way).sum(), weights),
        torch.autograd.grad((theirs * way).sum(), copies),
        strict=True,
    ):
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("embedding", ["attention", "sum"])
def test_nodes_without_neighbours_are_finite_and_so_are_their_gradients(embedding: str) -> None:
    log = EventLog.from_arrays(["a", "c"], ["b", "d"], [1, 2])  # four nodes, each seen once
    model = TGN(4, embedding=embedding).double()  # type: ignore[arg-type]
    _, _, outcome = replayed(log, model)
    outcome.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert outcome.losses.isfinite().all()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads and all(grad.isfinite().all() for grad in grads)


def test_a_gap_of_months_keeps_its_phase_in_float32() -> None:
    """In float32 numbers around 3e7 are two apart, which the fastest cosine must not notice."""
    encoding = TimeEncoding(8)
    seconds = torch.tensor([31_556_951.0, 31_556_952.0, 31_556_953.0], dtype=torch.float64)
    right = [[math.cos(t * rate) for rate in encoding.base.double().tolist()] for t in seconds]
    assert_near(encoding(seconds), right, 1e-6)


def test_one_step_of_adam_leaves_slow_frequencies_slow() -> None:
    encoding = TimeEncoding(4, learned=True)
    assert encoding.weight is not None
    before = encoding.base * encoding.weight.detach()
    optimiser = torch.optim.Adam(encoding.parameters(), lr=0.01)
    encoding(torch.tensor([1e6, 3e6], dtype=torch.float64)).sum().backward()
    optimiser.step()
    after = encoding.base * encoding.weight.detach()
    assert not torch.equal(before, after)
    torch.testing.assert_close(after / before, torch.ones(4), rtol=0.011, atol=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "`width` must be at least 1: got 0"),
        ({"k": 0}, "`k` must be at least 1: got 0"),
        ({"time_width": 0}, "`time_width` must be at least 1: got 0"),
        ({"num_features": -1}, "`num_features` must be at least 0: got -1"),
        ({"width": 5}, "`width` must be a multiple of `heads`: got 5 and 2"),
        ({"memory": "lstm"}, "`memory` must be one of 'gru', 'rnn': got 'lstm'"),
        ({"aggregation": "sum"}, "`aggregation` must be one of 'last', 'mean': got 'sum'"),
        ({"embedding": "mlp"}, "`embedding` must be one of 'attention', .*: got 'mlp'"),
        ({"time_from": "src"}, "`time_from` must be one of 'query', 'neighbor': got 'src'"),
        ({"frequencies": "free"}, "`frequencies` must be one of 'fixed', 'learned': got 'free'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TGN(**options)


def test_a_log_without_the_features_that_were_promised_is_refused() -> None:
    with pytest.raises(ValueError, match="that of the log: got 2, but its events have 0"):
        replayed(LOGS["uci"].head(5), TGN(4, num_features=2).double())
    with pytest.raises(ValueError, match="that of the log: got 2, but its events have 3"):
        replayed(with_features(random_log(4, 5, 4)), TGN(4, num_features=2).double())


@pytest.mark.parametrize(
    ("dtype", "slower", "bound"), [(torch.float64, 1.0, 1e-10), (torch.float32, 1e3, 1e-5)]
)
def test_stale_it_is_the_tgn_of_torch_geometric(
    geometric: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    slower: float,
    bound: float,
) -> None:
    """Five batches of the benchmark: same weights, batches and negatives, both learning."""
    monkeypatch.setenv(VARIABLE, str(data_folder()))
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("peer_equality")
    log = benchmark.retimed(real_log("uci", 5 * benchmark.BATCH), True)
    found = benchmark.measure(log, dtype, slower)
    assert found.memory <= bound and found.score <= bound and found.weight <= bound
    assert found.largest_memory > 0.1 and found.learned > 1e-4
