"""What every protocol shares: a model of the configuration, an executor for a log, and one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from ..models import MODELS, DynamicGNN, build
from ..models.threads import using_threads
from ..parallel import EXECUTORS, Comm, Executor, FusedExecutor, Replay
from ..stream import EventLog
from .config import TrainConfig

RIVALS = frozenset(
    {"edgebank", "edgebank_window", "edgebank_stale", "edgebank_window_stale", "popularity"}
    | {"recent_partner", "running_mean", "running_median", "constant", "earlier_events", "idle"}
    | {"both", "calibrated"}
)
"""Names that stand beside the model's in a report."""

NewModel: TypeAlias = Callable[[], DynamicGNN]
"""A class or function that makes a model: called under the run's seed, so that this decides its
weights."""


def named(config: TrainConfig, model: NewModel) -> TrainConfig:
    """The configuration of a run of one's own model, with a name for it.

    The name is that of `config` unless it is left out; then the class's, in small letters.

    Raises:
        ValueError: if options or negatives are given, which only models in the box take, or the
            name is that of one of them or of a baseline.
        TypeError: if `model` cannot be called, or is a model already.
    """
    if isinstance(model, DynamicGNN) or not callable(model):
        got = model if isinstance(model, str) else type(model).__name__
        raise TypeError(
            "`model` must be a class or a function that makes a model, so that the seed decides "
            f"its weights: got {got!r}; a model in the box is named by `TrainConfig(model=...)`"
        )
    if config.options or config.negatives is not None:
        raise ValueError(
            "`options` and `negatives` are for the models in the box: give them to your own where "
            f"you make it; got {config.options or config.negatives}"
        )
    name = getattr(model, "__name__", "model").strip("<>_").lower()
    if "model" in config.model_fields_set:
        name = config.model
    if name in RIVALS:
        raise ValueError(
            f"`model` of the configuration must be a name of its own for your model: got {name!r}, "
            "which is that of a baseline in the report"
        )
    if name in MODELS:
        raise ValueError(
            f"`model` of the configuration must be a name of its own for your model: got {name!r}, "
            "which is one in the box"
        )
    return config.model_copy(update={"model": name})


def make_model(log: EventLog, config: TrainConfig, model: NewModel | None = None) -> DynamicGNN:
    """What `model` makes, or the model that `config` names, for the kinds and features of `log`.

    Raises:
        ValueError: if there is no such model, or it has no such option.
        TypeError: if `model` makes something else.
    """
    if model is not None:
        made = model()
        if not isinstance(made, DynamicGNN):
            raise TypeError(f"`model` must make a DynamicGNN: got a {type(made).__name__}")
        return made.to(config.device, getattr(torch, config.dtype))
    features = log.events.features
    built = build(
        config.model,
        width=config.width,
        kinds=log.kinds,
        num_features=0 if features is None else features.shape[1],
        negatives=config.negatives,
        options=config.options,
    )
    return built.to(config.device, getattr(torch, config.dtype))


def make_optimiser(model: DynamicGNN, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam over all weights, which it goes through once a step."""
    return torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)


def make_executor(
    log: EventLog, model: DynamicGNN, config: TrainConfig, comm: Comm | None = None
) -> Executor[Any]:
    """An executor of `config` at the start of `log`, with a replay of its own."""
    replay = Replay(
        log,
        model,
        seed=config.seed,
        dtype=getattr(torch, config.dtype),
        device=config.device,
        check=config.check,
        consistency=config.consistency,
        comm=comm,
    )
    executor: Executor[Any]
    executor = EXECUTORS["batch" if config.consistency == "batch" else config.executor](replay)
    if isinstance(executor, FusedExecutor):
        torch.set_num_threads(1)  # its loops have threads of their own, and torch's would spin
    return executor


@contextmanager
def threads_of(config: TrainConfig) -> Iterator[None]:
    """Torch and compiled loops take as many threads as `config` says, until the block ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        with using_threads(config.threads):
            yield
    finally:
        torch.set_num_threads(before)


def count_levels(executor: Executor[Any], plan: Any, histogram: dict[int, int]) -> int:
    """How many levels a prepared segment has; their widths go into the `histogram`."""
    widths, counts = np.unique(executor.widths(plan), return_counts=True)
    for width, count in zip(widths.tolist(), counts.tolist(), strict=True):
        histogram[width] = histogram.get(width, 0) + count
    return int(counts.sum())


def step(
    executor: Executor[Any],
    plan: Any,
    optimiser: torch.optim.Optimizer,
    config: TrainConfig,
    where: str,
) -> float:
    """One optimiser step on a prepared segment, whose states become current; its loss before.

    Raises:
        ValueError: if the loss is not finite; it says `where`.
    """
    optimiser.zero_grad(set_to_none=True)
    outcome = executor.run(plan)
    loss = outcome.losses.mean()
    value = float(loss.detach())
    if not np.isfinite(value):
        raise ValueError(
            f"the loss became {value} in {where}: "
            f"try a smaller `learning_rate` than {config.learning_rate}"
        )
    stages = executor.stages
    stages.enter("backward score")
    loss.backward()  # type: ignore[no-untyped-call]
    executor.add_up_gradients()
    stages.enter("step")
    for weight in executor.model.parameters():
        if weight.grad is None:  # Adam skips None but moves on at 0: executors differ in which
            weight.grad = torch.zeros_like(weight)
    if config.clip:
        torch.nn.utils.clip_grad_value_(executor.model.parameters(), config.clip)
    optimiser.step()
    executor.model.constrain()
    stages.enter("commit")
    outcome.commit()
    stages.pause()
    return value
