"""Several models on one log, several seeds each: one table, one page.

Every run stands in a folder of its own below that of the comparison, so what is finished is not
repeated and what was interrupted goes on.  Invariant: all rows are scored on the same events
against the same candidates, seed by seed; the baselines, which every run scores anew, prove it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...models import MODELS
from ...storage import has_checkpoint, write_whole
from ...stream import EventLog
from ...stream.errors import did_you_mean
from .. import runs
from ..config import TrainConfig, load_config
from ..fit import fit
from ..learn import make_model
from ..settings import parse_options
from ..windows import windows_of
from .report import make_comparison, write_comparison

BASELINES = {
    "prequential": ("edgebank", "edgebank_window", "popularity", "recent_partner"),
    "split": ("edgebank", "edgebank_window", "edgebank_stale", "edgebank_window_stale"),
}
"""Rows that need no training: every run of a protocol scores them."""

SHARED = (
    *("model", "options", "seed", "limit", "candidates", "edgebank_window"),
    *("protocol", "val_ratio", "test_ratio", "split_seed"),
)
"""Settings that all rows have in common: they decide what is scored."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that is trained: a model, and what of the settings is its own."""

    name: str  # as it was given, such as tgn:k=5
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of `TrainConfig`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model

    @property
    def slug(self) -> str:
        """The name as a part of a path."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.name)

    def config(self, config: TrainConfig, seed: int) -> TrainConfig:
        """The settings of this row's run with `seed`, from those that all rows share."""
        options = {**config.options, **self.options}
        own = {"model": self.model, "options": options, "seed": seed, **self.settings}
        try:
            return load_config(None, config.model_dump() | own)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Run:
    """One model trained with one seed, in its own folder."""

    entry: Entry
    config: TrainConfig
    folder: Path

    @property
    def name(self) -> str:
        """What its progress is called."""
        return f"{self.entry.name} seed {self.config.seed}"


def compare(
    log: EventLog,
    models: str | Sequence[str],
    seeds: int | Sequence[int] = 3,
    config: TrainConfig | None = None,
    folder: str | Path = "runs/compare",
    progress: Callable[[dict[str, Any]], None] | None = None,
    *,
    force: bool = False,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The comparison of `models`, see `parse_models`, trained on `log` once for each of `seeds`.

    Each run has a folder in `folder`; there stand compare.json, compare.parquet (a row a figure of
    a run) and compare.html too.  Finished runs are not repeated and unfinished ones go on, unless
    `force` removes them first.  `seeds` are so many from that of `config` on, or the seeds
    themselves.  `progress` is called as `fit` calls it, with the name of the `run`, its `number`
    from 0 and how many `runs` there are; once with `was_finished` for a run that is not repeated.

    Raises:
        ValueError: if a name is unknown, a setting does not fit (before anything is trained), a
            loss diverges, or runs in the folder were not scored alike.
        TypeError: if `log` is no EventLog, or `config` no TrainConfig.
        CheckpointError: if a run in the folder is damaged, or of another log or other settings.
    """
    config = TrainConfig() if config is None else config
    runs.check_given(log, config)
    folder = Path(folder)
    entries, baselines = parse_models(models, config.protocol)
    plan = plan_runs(log, entries, _seeds(seeds, config), config, folder)
    if not force:
        for run in plan:
            _check_goes_on(run, log)
    reports: dict[str, list[dict[str, Any]]] = {entry.name: [] for entry in entries}
    with runs.locked(folder):
        if force:
            for run in plan:
                with runs.locked(run.folder):
                    runs.clear(run.folder)
        if reading:
            write_whole(folder / "reading.json", json.dumps(reading, indent=1).encode())
        for number, run in enumerate(plan):
            told = {"run": run.name, "number": number, "runs": len(plan)}
            if progress is not None and runs.is_finished(run.folder):
                progress({**told, "was_finished": True})
            report = fit(
                log,
                run.config,
                run.folder,
                resume=True,
                reading=reading,
                progress=None if progress is None else _with(told, progress),
            )
            reports[run.entry.name].append(report | {"folder": run.folder.name})
        own = {entry.name: {**entry.settings, **entry.options} for entry in entries}
        comparison = make_comparison(reports, own, baselines, config)
        write_comparison(folder, comparison)
    return comparison


def default_folder(source: str, config: TrainConfig) -> Path:
    """runs/LOG-compare under the current directory; protocol and consistency if not default.

    >>> default_folder("data/my log.csv", TrainConfig(protocol="split", seed=7)).as_posix()
    'runs/my_log-compare-split'
    """
    run = runs.default_folder(source, config.model_copy(update={"model": "compare", "seed": 0}))
    return run.with_name(run.name.removesuffix("-seed0"))


def parse_models(
    models: str | Sequence[str], protocol: str = "prequential"
) -> tuple[list[Entry], list[str]]:
    """The rows to train and the baselines in `models`, parted by commas; all if it names none.

    A row is a model, or a model with settings and options of its own: `tgn:consistency=batch:k=5`.

    Raises:
        ValueError: if a name is unknown or comes twice, no model is named, or a row sets what all
            rows share.

    >>> entries, baselines = parse_models("dyrep:width=16,edgebank")
    >>> entries
    [Entry(name='dyrep:width=16', model='dyrep', settings={'width': 16}, options={})]
    >>> baselines
    ['edgebank']
    """
    parts = models.split(",") if isinstance(models, str) else list(models)
    known = BASELINES[protocol]
    entries: list[Entry] = []
    baselines: list[str] = []
    for part in filter(None, (part.strip() for part in parts)):
        if part in known:
            baselines.append(part)
        else:
            entries.append(_parse_entry(part, protocol))
    if not entries:
        raise ValueError(
            f"--models must name a model of {', '.join(sorted(MODELS))}: got {models!r} "
            "(baselines are scored in the runs of models)"
        )
    for names in ([*(entry.name for entry in entries), *baselines], [e.slug for e in entries]):
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"--models must name each row once: got {twice[0]!r} twice")
    return entries, baselines or list(known)


def _parse_entry(text: str, protocol: str) -> Entry:
    model, *pairs = (word.strip() for word in text.split(":"))
    if model not in MODELS:
        known = [*sorted(MODELS), *BASELINES[protocol]]
        if model in known:
            raise ValueError(f"{model} is a baseline, which has no settings: got {text!r}")
        hint = did_you_mean(model, known)
        raise ValueError(
            f"--models names {model!r}, which the protocol {protocol} does not know: "
            f"{hint}{' ' if hint else ''}it knows {', '.join(known)}"
        )
    if odd := [pair for pair in pairs if not re.fullmatch(r"[a-z][a-z0-9_]*\s*=.+", pair)]:
        raise ValueError(
            f"a row must be MODEL:NAME=VALUE:..., such as tgn:k=5: got {text!r} with {odd[0]!r}"
        )
    values = parse_options(pairs)
    settings = {name: v for name, v in values.items() if name in TrainConfig.model_fields}
    shared = [*SHARED, "batch_size"] if protocol == "split" else SHARED  # there it draws the pairs
    if taken := [name for name in shared if name in settings]:
        raise ValueError(
            f"{text!r} sets `{taken[0]}`, which all rows must share: give it as a flag of its own"
        )
    options = {name: v for name, v in values.items() if name not in settings}
    return Entry(":".join([model, *pairs]), model, settings, options)


def plan_runs(
    log: EventLog,
    entries: Sequence[Entry],
    seeds: Sequence[int],
    config: TrainConfig,
    folder: Path,
) -> list[Run]:
    """The runs in the order in which they are made: all models with a seed, then with the next.

    Raises:
        ValueError: if settings or options do not fit the log or a model.
    """
    plan = [
        Run(entry, entry.config(config, seed), folder / f"{entry.slug}-seed{seed}")
        for seed in seeds
        for entry in entries
    ]
    for run in plan[: len(entries)]:
        with torch.random.fork_rng():
            try:
                runs.check_device(run.config.device)
                make_model(log, run.config)
            except ValueError as error:
                raise ValueError(f"{run.entry.name}: {error}") from None
        if run.config.protocol == "prequential" and len(log):
            windows_of(log, run.config)
    return plan


def _seeds(seeds: int | Sequence[int], config: TrainConfig) -> list[int]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise ValueError(f"--seeds must be at least 1: got {seeds}")
        return list(range(config.seed, config.seed + seeds))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be distinct numbers, at least one: got {list(seeds)}")
    return list(seeds)


def _check_goes_on(run: Run, log: EventLog) -> None:
    """Refuses a run that stands in the folder with other settings: now, and not hours later."""
    if runs.is_finished(run.folder):
        runs.finished_report(run.folder, log, run.config)
    elif has_checkpoint(run.folder / "checkpoints") and (run.folder / "config.toml").exists():
        settings = load_config(run.folder / "config.toml").model_dump()
        runs.check_is_same(run.folder, settings, log.checksum, log, run.config)


def _with(
    told: Mapping[str, Any], progress: Callable[[dict[str, Any]], None]
) -> Callable[[dict[str, Any]], None]:
    return lambda figures: progress({**figures, **told})
