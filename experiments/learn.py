"""What every protocol shares: a model of the configuration, an executor for a log, and one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..models import DynamicGNN, build
from ..parallel import EXECUTORS, Executor, Replay
from ..stream import EventLog
from .config import TrainConfig


def make_model(log: EventLog, config: TrainConfig) -> DynamicGNN:
    """The model that `config` names, for the kinds and features of `log`.

    Raises:
        ValueError: if there is no such model, or it has no such option.
    """
    features = log.events.features
    model = build(
        config.model,
        width=config.width,
        kinds=log.kinds,
        num_features=0 if features is None else features.shape[1],
        negatives=config.negatives,
        options=config.options,
    )
    return model.to(config.device, getattr(torch, config.dtype))


def make_executor(log: EventLog, model: DynamicGNN, config: TrainConfig) -> Executor[Any]:
    """An executor of `config` at the start of `log`, with a replay of its own."""
    replay = Replay(
        log,
        model,
        seed=config.seed,
        dtype=getattr(torch, config.dtype),
        device=config.device,
        check=config.check,
        consistency=config.consistency,
    )
    return EXECUTORS["batch" if config.consistency == "batch" else config.executor](replay)


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
    loss.backward()  # type: ignore[no-untyped-call]
    for weight in executor.model.parameters():
        if weight.grad is None:  # Adam skips None but moves on at 0: executors differ in which
            weight.grad = torch.zeros_like(weight)
    if config.clip:
        torch.nn.utils.clip_grad_value_(executor.model.parameters(), config.clip)
    optimiser.step()
    executor.model.constrain()
    outcome.commit()
    return value
