"""How lazy training goes: one frozen `LazySettings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from .stages import Kind

Payload = Literal["raw+hidden", "hidden", "logits"]
Rounding = Literal["none", "bf16", "fp16"]
Negatives = Literal["local", "global"]

ROUNDED: dict[Rounding, torch.dtype | None] = {
    "none": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class LazySettings:
    """How to train.

    `payload` says what crosses: `raw+hidden` the features of boundary nodes, then embeddings (the
    newer form); `hidden` and `logits` no features: stage 0 sees each node alone, and then
    embeddings or class scores cross (the older form, one stage more).

    `temporal` adds a last stage, a GRU along the snapshots of a window, for which no row crosses.

    Two settings save messages and change what is learned: `rounding` sends gradients in half as
    many bytes (of float32), and with `local_steps` above 1 each rank takes so many optimiser steps
    on its own loss before the ranks' weights are averaged (FedAvg; moments stay with their rank).

    `negatives` and `per_link` are for links: see `links.Links`.
    """

    kind: Kind = "gcn"
    payload: Payload = "raw+hidden"
    hops: int = 2
    temporal: Literal["gru"] | None = None
    hidden: int = 64
    heads: int = 8
    rounds: int = 200
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    every: int = 1  # rounds between evaluations
    patience: int | None = None  # evaluations without a better one after which a stage ends
    seed: int = 0
    double: bool = False  # float64
    rounding: Rounding = "none"
    local_steps: int = 1
    negatives: Negatives = "local"
    per_link: int = 1  # negatives of each link

    def __post_init__(self) -> None:
        if self.payload not in get_args(Payload):
            raise ValueError(
                f"`payload` must be raw+hidden, hidden or logits: got {self.payload!r}"
            )
        if self.kind not in ("mlp", "gcn", "sage", "gat"):
            raise ValueError(f"`kind` must be mlp, gcn, sage or gat: got {self.kind!r}")
        if self.temporal not in ("gru", None):
            raise ValueError(f"`temporal` must be gru or None: got {self.temporal!r}")
        if min(self.hops, self.rounds, self.every, self.hidden, self.heads) < 1:
            raise ValueError(
                "`hops`, `rounds`, `every`, `hidden` and `heads` must be at least 1: got "
                f"{self.hops}, {self.rounds}, {self.every}, {self.hidden} and {self.heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be a share below 1: got {self.dropout}")
        if self.rounding not in ROUNDED:
            raise ValueError(f"`rounding` must be none, bf16 or fp16: got {self.rounding!r}")
        if self.local_steps < 1 or self.every % self.local_steps:
            raise ValueError(
                "`local_steps` must be at least 1 and divide `every`, since weights are the same "
                f"on all ranks only then: got {self.local_steps} and {self.every}"
            )
        if self.negatives not in get_args(Negatives):
            raise ValueError(f"`negatives` must be local or global: got {self.negatives!r}")
        if self.per_link < 0:
            raise ValueError(f"`per_link` must be at least 0: got {self.per_link}")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of each stage."""
        alone: tuple[Kind, ...] = () if self.payload == "raw+hidden" else ("mlp",)
        last: tuple[Kind, ...] = () if self.temporal is None else (self.temporal,)
        return alone + (self.kind,) * self.hops + last

    @property
    def dtype(self) -> torch.dtype:
        """Of everything that is learned and sent, but for gradients that are rounded."""
        return torch.float64 if self.double else torch.float32
