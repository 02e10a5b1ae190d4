"""Tries models on a device that is not the CPU; `test_devices.py` starts it, a process of its own.

Prints JSON: by model nothing, or what `check_model` finds there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from neutronstream.models import DynamicGNN, Level, Written, build
from neutronstream.parallel.checks.battery import Battery
from neutronstream.parallel.checks.runs import EXACT
from tests import elsewhere
from tests.models.small import Attentive, Counter, Drawn, GruMemory, RecentMean, Spread

BOX: dict[str, tuple[str, dict[str, Any]]] = {
    "dygnn": ("dygnn", {}),
    "dyrep": ("dyrep", {}),
    "dyrep, drift": ("dyrep", {"drift": True}),
    "jodie": ("jodie", {}),
    "ldg": ("ldg", {"num_sampled": 5}),
    "tgn": ("tgn", {}),
    "tgn, sum": ("tgn", {"embedding": "sum", "aggregation": "mean"}),
}


class Forgetful(GruMemory):
    """Makes a tensor on the CPU, wherever its states are."""

    def update(self, level: Level) -> Written:
        written = super().update(level)
        states = {
            name: each + torch.ones(1, each.shape[-1]) for name, each in written.states.items()
        }
        return Written(states)


def of_box(
    name: str, options: dict[str, Any], kinds: tuple[str, ...], num_features: int
) -> DynamicGNN:
    return build(name, width=4, kinds=kinds, num_features=num_features, options=options)


def found(model: Callable[..., DynamicGNN]) -> str:
    battery = Battery(model, None, torch.float64, tuple(EXACT), ("cpu", elsewhere.NAME))
    checks = list(battery.checks(["moved"]))
    if "moved" not in {check.name for check in checks}:
        return "not tried"
    return "; ".join(finding for check in checks for finding in check.findings)


def main() -> None:
    elsewhere.load()
    models: dict[str, Callable[..., DynamicGNN]] = {
        name: partial(of_box, *given) for name, given in BOX.items()
    }
    own = Attentive, Counter, Drawn, GruMemory, RecentMean, Spread, Forgetful
    models |= {each.__name__: each for each in own}
    json.dump({name: found(model) for name, model in models.items()}, sys.stdout)


if __name__ == "__main__":
    main()
