"""What a run on snapshots can be told: one frozen `SnapshotConfig`, one field a flag."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from ..runs import name_of
from ..settings import END, Settings, check_options, is_name, load_settings

PANELS = {  # the first field of each group of flags
    "model": "Model",
    "period": "Snapshots",
    "backend": "Backend",
    "epochs": "Training",
    "candidates": "Scoring",
    "dtype": "Run",
}


class SnapshotConfig(Settings):
    """The settings of a run: which model, on which snapshots, over which backend.

    >>> SnapshotConfig(period="7d", model="gcn").backend
    'auto'
    """

    command: ClassVar[str] = "snapshots"

    model: str = Field(
        default="gconvgru",
        description="Model to train: gconvgru, gconvlstm, gclstm, tgcn, a3tgcn, mpnnlstm, "
        "evolvegcno, evolvegcnh, gcn, sage or gat (classes: the last three).",
    )
    width: int = Field(default=32, description="Width of a node's row.", ge=1, le=65_536)
    options: dict[str, Any] = Field(
        default={}, description="Options of the model by name, such as orders=3."
    )

    period: int | str | None = Field(
        default=None, description="Cut a log into periods of this length, such as 7d, or of ticks."
    )
    count: int | None = Field(
        default=None,
        description="Cut a log into so many parts of equal events. Default: 40, without --period.",
        ge=3,
        le=10_000,
    )
    window: int | None = Field(
        default=None, description="Periods that a snapshot of a log holds, else 1.", ge=1, lt=END
    )
    cumulative: bool = Field(
        default=False, description="A snapshot of a log holds all that came before."
    )
    undirected: bool = Field(
        default=False, description="Messages go along the links of a log both ways."
    )
    names: int = Field(
        default=64,
        description="Random features of a node of a log, by which it is told from others.",
        ge=0,
        le=65_536,
    )
    lags: int = Field(
        default=4, description="Past values of a signal that a model sees.", ge=1, le=10_000
    )
    limit: int | None = Field(
        default=None, description="Only the first N events of a log.", ge=1, lt=END
    )

    backend: str = Field(
        default="auto",
        description="Who sends along the edges: single, halo, tensor, task, hetero, lazy, "
        "broadcast, or what auto takes of the first three.",
    )
    backend_options: dict[str, Any] = Field(
        default={}, description="Options of the backend by name, such as chunks=4."
    )

    epochs: int = Field(
        default=100, description="At most so many passes over the training part.", ge=1, lt=END
    )
    patience: int = Field(
        default=20,
        description="Epochs in a row that are not better on validation and end training.",
        ge=1,
        lt=END,
    )
    bptt: int = Field(
        default=8,
        description="Snapshots between two optimiser steps, through which gradients go back.",
        ge=1,
        lt=END,
    )
    learning_rate: float = Field(
        default=0.01, description="Adam's step; 0 leaves the weights.", ge=0, le=1_000
    )
    weight_decay: float = Field(default=0.0, description="Adam's penalty on weights.", ge=0, le=1e3)
    negatives: int = Field(
        default=1, description="Pairs that are no links, for each link in the loss.", ge=1, le=1_000
    )
    decoder: Literal["dot", "mlp"] = Field(
        default="dot", description="What scores a pair of rows of a log's nodes."
    )
    skip: bool = Field(
        default=False,
        description="Answers are read from a node's features, too, not its row alone.",
    )
    residual: bool = Field(
        default=False, description="A signal's model says by how much the last value changes."
    )
    val_ratio: float = Field(
        default=0.15, description="Part of the snapshots to validate on.", gt=0, lt=1
    )
    test_ratio: float = Field(
        default=0.15, description="Part of the snapshots, their end, to test on.", gt=0, lt=1
    )

    candidates: int = Field(
        default=20, description="Negatives that a link is ranked against.", ge=1, le=10_000
    )

    dtype: Literal["float32", "float64"] = Field(
        default="float32", description="Number type of rows and weights."
    )
    threads: int = Field(default=1, description="Threads of torch.", ge=1, le=1_024)
    seed: int = Field(default=0, description="Seed of weights, names, negatives.", ge=0, lt=END)
    checkpoint_seconds: float = Field(
        default=30.0,
        description="Least seconds between checkpoints; 0 = after every epoch.",
        ge=0,
        le=1e9,
    )

    @field_validator("options", "backend_options", mode="before")
    @classmethod
    def _check_options(cls, given: Any) -> Any:
        return check_options(given)

    @field_validator("model", "backend")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError("must be a name, such as gconvgru or tensor")
        return value

    @model_validator(mode="after")
    def _check_snapshots(self) -> Self:
        if self.period is not None and self.count is not None:
            raise ValueError(
                "`period` and `count` both cut the log: give one of them, got "
                f"{self.period!r} and {self.count}"
            )
        if self.cumulative and self.window is not None:
            raise ValueError(
                f"a `cumulative` snapshot holds all periods: leave `window` out, got {self.window}"
            )
        if self.val_ratio + self.test_ratio >= 1:
            raise ValueError(
                "`val_ratio` and `test_ratio` must leave a part to train on: "
                f"got {self.val_ratio} and {self.test_ratio}"
            )
        return self


def load_snapshot_config(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> SnapshotConfig:
    """The configuration of the TOML file at `path` under `overrides`, which win.

    Raises:
        ValueError: as `load_config`.
        FileNotFoundError: if there is no such file.
    """
    return load_settings(SnapshotConfig, path, overrides)


def default_folder(source: str, config: SnapshotConfig) -> Path:
    """runs/LOG-MODEL-snapshots-seedN under the current directory, with the backend if one is named.

    >>> default_folder("uci", SnapshotConfig(backend="tensor")).as_posix()
    'runs/uci-gconvgru-snapshots-tensor-seed0'
    """
    words = [name_of(source), config.model, "snapshots"]
    words += [config.backend] if config.backend != "auto" else []
    return Path("runs") / "-".join([*words, f"seed{config.seed}"])
