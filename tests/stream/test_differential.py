"""A random log, written in every text form, reads back as the same events."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutronstream.stream import read_log

START = 1_600_000_000


def random_rows(rng: np.random.Generator, ids: str) -> list[tuple[Any, ...]]:
    pools: dict[str, list[Any]] = {
        "small": list(range(40)),
        "sparse": [int(i) for i in rng.integers(-(10**15), 10**15, 40)],
        "text": [f"n{i} é" if i % 3 else f"{i}" for i in range(40)],
    }
    pool, n = pools[ids], 300
    times = START + np.sort(rng.integers(0, 200, n))  # many equal times
    if rng.random() < 0.5:
        rng.shuffle(times)
    pick = rng.integers(0, len(pool), (n, 2))
    return [
        (pool[u], pool[v], int(t), f"k{k}", float(w), int(y))
        for (u, v), t, k, w, y in zip(
            pick.tolist(),
            times,
            rng.integers(0, 5, n),
            rng.normal(size=n),
            rng.integers(0, 2, n),
            strict=True,
        )
    ]


def slow_log(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: row[2])  # stable


def as_date(time: int, form: str) -> str:
    moment = datetime.fromtimestamp(time, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S") if form == "naive" else moment.isoformat()


@pytest.mark.parametrize("ids", ["small", "sparse", "text"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("dates", ["numbers", "floats", "naive", "offset"])
def test_every_way_of_writing_gives_the_same_log(
    tmp_path: Path, ids: str, delimiter: str, dates: str
) -> None:
    rng = np.random.default_rng([len(ids), ord(delimiter), len(dates)])
    rows = random_rows(rng, ids)
    if delimiter == " " and ids == "text":
        rows = [(u.replace(" ", "_"), v.replace(" ", "_"), *rest) for u, v, *rest in rows]
    out = io.StringIO()
    out.write(rng.choice(["", "\ufeff", "% a comment\n"]))
    if rng.random() < 0.3:
        writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    else:
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["source", "target", "time", "type", "weight", "label"])
    for src, dst, time, kind, weight, label in rows:
        text = {"numbers": str(time), "floats": f"{time}.0"}.get(dates) or as_date(time, dates)
        writer.writerow([src, dst, text, kind, repr(weight), label])
        if rng.random() < 0.02:
            out.write("\n")
    data = out.getvalue().encode()
    if rng.random() < 0.5:
        data = gzip.compress(data)
    path = tmp_path / "log"
    path.write_bytes(data)
    log = read_log(path)
    events = log.events
    assert events.weight is not None and events.label is not None
    back = list(
        zip(
            log.name_of(events.src),
            log.name_of(events.dst),
            events.time.tolist(),
            [log.kinds[k] for k in events.kind],
            events.weight.tolist(),
            events.label.tolist(),
            strict=True,
        )
    )
    assert log.unit == "s"
    assert back == slow_log(rows)
    assert log.was_sorted == (rows == slow_log(rows))


@pytest.mark.parametrize("seed", range(20))
def test_rows_read_are_events_and_rows_put_aside(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, good = [], []
    for number in range(2, 202):
        fields = [str(rng.integers(30)), str(rng.integers(30)), str(rng.integers(100))]
        fault = rng.integers(12)
        if fault < 3:
            fields[fault] = ["", "nan", "inf" if fault == 2 else ""][rng.integers(3)]
        elif fault == 3:
            fields.append("more")
        elif fault == 4:
            fields.pop()
        else:
            good.append((int(fields[2]), number, int(fields[0]), int(fields[1])))
        lines.append(",".join(fields))
    path = tmp_path / "log.csv"
    path.write_text("src,dst,t\n" + "\n".join(lines))
    log = read_log(path, quarantine=tmp_path / "q.csv")
    assert len(log) + log.quarantined == 200
    back = zip(log.name_of(log.events.src), log.name_of(log.events.dst), strict=True)
    assert list(back) == [(u, v) for _, _, u, v in sorted(good)]
    with (tmp_path / "q.csv").open() as file:
        aside = list(csv.DictReader(file))
    numbers = {number for _, number, _, _ in good}
    assert [int(row["line"]) for row in aside] == [n for n in range(2, 202) if n not in numbers]
    assert [row["text"] for row in aside] == [lines[int(row["line"]) - 2] for row in aside]
