"""What a training run can be told: one frozen `TrainConfig`, one field a command-line flag.

A configuration is read from a TOML file, flat but for the table `options`, and flags, flags win;
`to_toml` writes it so that reading it back gives an equal one.  A field that may be `None` is
`None` by default: TOML has no null, so the writer leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from .settings import END, Settings, check_options, is_name, load_settings

_DURATION = re.compile(r"(\d+(\.\d+)?(w|d|h|min|m|s|ms|us|ns))+")
_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")

EPOCHS_OF_A_SPLIT = 20


class TrainConfig(Settings):
    """The settings of a run: what to train, on which windows, how, and how it is scored.

    >>> config = TrainConfig(size="7d", stride="1d", seed=3)
    >>> config.batch_size, config.size, config.limit
    (50, '7d', None)
    """

    command: ClassVar[str] = "train"

    model: str = Field(
        default="dyrep", description="Model to train: dyrep, ldg, dygnn, jodie or tgn."
    )
    width: int = Field(default=64, description="Width of a node's state.", ge=1, le=65_536)
    options: dict[str, Any] = Field(  # Option: checked below, with one message for all kinds
        default={}, description="Options of the model by name, such as k=10."
    )

    protocol: Literal["prequential", "split"] = Field(
        default="prequential",
        description="Predict each event, then learn it; or train, validate and test on parts.",
    )
    val_ratio: float = Field(
        default=0.15, description="Split: part of the log to validate on.", gt=0, lt=1
    )
    test_ratio: float = Field(
        default=0.15, description="Split: part of the log, its end, to test on.", gt=0, lt=1
    )
    split_seed: int = Field(
        default=2020, description="Split: seed of new nodes and test negatives.", ge=0, lt=END
    )
    patience: int = Field(
        default=5,
        description="Split: epochs in a row without a better validation AP that end training.",
        ge=1,
        lt=END,
    )
    evaluate_from: Literal["trained", "replay"] = Field(
        default="trained",
        description="Split: validate and test from the states that training left, or from the "
        "whole log replayed with the weights held.",
    )

    window: Literal["fixed", "tumbling", "growing", "adaptive"] = Field(
        default="fixed", description="How windows move over the log."
    )
    size: int | str | None = Field(
        default=None,
        description="Window length: a number of events, or a duration such as 7d; else suggested.",
    )
    stride: int | str | None = Field(
        default=None,
        description="How far the window moves, like --size (growing: by how much it grows).",
    )
    down: int = Field(
        default=50, description="Adaptive: the events of a window's core.", ge=1, lt=END
    )
    up: int = Field(default=300, description="Adaptive: the most events of a window.", ge=1, lt=END)
    rate: float = Field(
        default=0.2, description="Adaptive: stride as a part of the window.", gt=0, le=1
    )

    batch_size: int = Field(
        default=50, description="Events between two optimiser steps.", ge=1, lt=END
    )
    epochs: int = Field(
        default=1,
        description="Passes over each window; split: at most so many over the part to train on, "
        "20 unless given.",
        ge=1,
        lt=END,
    )
    learning_rate: float = Field(
        default=3e-3, description="Adam's step; 0 leaves the weights.", ge=0, le=1_000
    )
    clip: float = Field(
        default=100.0,
        description="Largest gradient entry; 0 does not clip.",
        ge=0,
        le=1_000_000_000,
    )
    negatives: int | None = Field(
        default=None,
        description="Negatives an event (and side) in the loss; else as the model has it.",
        ge=1,
        le=10_000,
    )

    candidates: int = Field(
        default=50,
        description="Negatives an event is ranked against; 0 = all known destinations.",
        ge=0,
        le=100_000,
    )
    edgebank_window: int | None = Field(
        default=None,
        description="Ticks that EdgeBank with a window remembers; else it suits the log.",
        ge=1,
        lt=END,
    )

    consistency: Literal["exact", "batch"] = Field(
        default="exact",
        description="Each event sees all before it; or, stale, those before its batch alone.",
    )
    executor: Literal["auto", "fused", "levels", "sequential"] = Field(
        default="auto",
        description="All events of a step in one scan, a level of them at a time, or one event; "
        "auto scans where the model can.",
    )
    dtype: Literal["float32", "float64"] = Field(
        default="float32", description="Number type of states."
    )
    device: str = Field(default="cpu", description="cpu, mps, cuda or cuda:N.")
    threads: int = Field(
        default=1,
        description="Threads of a process: of compiled scans and losses, or of torch elsewhere.",
        ge=1,
        le=1_024,
    )
    seed: int = Field(default=0, description="Seed of weights, negatives and states.", ge=0, lt=END)
    check: bool = Field(
        default=False, description="Compare every sampled neighbourhood with the oracle."
    )

    limit: int | None = Field(
        default=None, description="Only the first N events of the log.", ge=1, lt=END
    )
    checkpoint_seconds: float = Field(
        default=30.0,
        description="Least seconds between checkpoints; 0 = after every window or epoch.",
        ge=0,
        le=1e9,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_epochs(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("protocol") == "split":
            return {"epochs": EPOCHS_OF_A_SPLIT} | given
        return given

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, given: Any) -> Any:
        """A copy, each value a TOML scalar."""
        return check_options(given)

    @field_validator("size", "stride", mode="before")
    @classmethod
    def _read_length(cls, value: Any) -> Any:
        """A count as int, a duration as text."""
        if isinstance(value, str):
            value = "".join(value.lower().split())
            if re.fullmatch(r"-?\d+", value):
                value = int(value)
            elif not _DURATION.fullmatch(value):
                raise ValueError("must be a count of events or a duration such as 7d or 1h30m")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
            raise ValueError("must be a count of events or a duration such as 7d or 1h30m")
        if isinstance(value, int) and not 1 <= value < END:
            raise ValueError("must be at least 1" if value < 1 else f"must be less than {END}")
        return value

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str) -> str:
        if not is_name(value):
            raise ValueError("must be the name of a model, in small letters, such as dyrep")
        return value

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError("must be cpu, mps, cuda or cuda:N")
        return value

    @model_validator(mode="after")
    def _check_execution(self) -> Self:
        if self.consistency == "batch" and self.executor != "auto":
            raise ValueError(
                f"`executor` {self.executor} is exact by its nature: with `consistency` batch "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_split(self) -> Self:
        if self.protocol != "split":
            return self
        if self.val_ratio + self.test_ratio >= 1:
            raise ValueError(
                "`val_ratio` and `test_ratio` must leave a part to train on: "
                f"got {self.val_ratio} and {self.test_ratio}"
            )
        if self.window != "fixed" or self.size is not None or self.stride is not None:
            raise ValueError(
                "the `protocol` split has no windows: leave `window`, `size` and `stride` out, or "
                "take the prequential one"
            )
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        size, stride = self.size, self.stride
        if self.down > self.up:
            raise ValueError(f"`down` must not exceed `up`: got {self.down} > {self.up}")
        if self.window == "adaptive" and (size, stride) != (None, None):
            raise ValueError(
                "an adaptive `window` has no `size` and `stride`: use `down`, `up` and `rate`"
            )
        if self.window == "tumbling" and stride is not None:
            raise ValueError("a tumbling `window` moves by its `size`: leave `stride` out")
        if stride is not None and size is None:
            raise ValueError(f"`stride` needs a `size` beside it: got stride {stride} alone")
        if stride is not None and type(stride) is not type(size):
            raise ValueError(
                "`size` and `stride` must both be counts or both be durations: "
                f"got {size} and {stride}"
            )
        if isinstance(size, int) and isinstance(stride, int) and self.window == "fixed":
            if stride <= size:
                return self
            raise ValueError(
                "`stride` must not exceed `size`, or events between windows are lost: "
                f"got {stride} > {size}"
            )
        return self


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, Any] | None = None
) -> TrainConfig:
    """The configuration of the TOML file at `path` under `overrides`, which win.

    Without a `path` the overrides stand over the defaults.  `options` win one by one.

    Raises:
        ValueError: if the file is not TOML, a key is unknown or a value is refused; one line that
            names the file (or the flag), the key, the value and, for a key, the nearest known one.
        FileNotFoundError: if there is no such file.
    """
    return load_settings(TrainConfig, path, overrides)
