"""Real logs for tests: the folder named by NEUTRONSTREAM_DATA, by default `../shared/data`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neutronstream.datasets import load
from neutronstream.datasets.registry import DEFAULT_FOLDER, VARIABLE
from neutronstream.stream import EventLog

ROOT = Path(__file__).resolve().parents[1]

SIX = ("social_evolution", "github", "dnc", "uci", "reality_call", "slashdot_reply")
"""The logs of the NeutronStream paper."""


def data_folder() -> Path:
    """The folder of the real logs; the test fails if it is not there."""
    folder = Path(os.environ.get(VARIABLE) or ROOT / DEFAULT_FOLDER)
    if not (folder / "temporal").is_dir():
        pytest.fail(f"{folder} holds no real logs: set {VARIABLE} to the folder of temporal/")
    return folder.resolve()


def real_log(name: str, limit: int | None = None) -> EventLog:
    """A published log, or its first `limit` events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(data_folder()))
        return load(name, limit=limit)


def span_of(log: EventLog, start: int, stop: int) -> EventLog:
    """The events of a span with the initial links, as a log of its own."""
    part, first = log[start:stop], log.initial
    return EventLog.from_arrays(
        log.name_of(part.src),
        log.name_of(part.dst),
        part.time,
        kind=[log.kinds[kind] for kind in part.kind],
        initial=None if first is None else (log.name_of(first.src), log.name_of(first.dst)),
        unit=log.unit,
        name=log.name,
    )
