"""A report is strict JSON, a table a row a window, and a page that stands alone."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutronstream.experiments.charts import histogram, line_chart, thin, ticks
from neutronstream.experiments.config import TrainConfig
from neutronstream.experiments.page import render_page
from neutronstream.experiments.report import (
    SPLIT_PARTS,
    best_scores,
    epoch_table,
    format_number,
    heading,
    layout_of,
    scoring_line,
    to_json,
    to_plain,
    verdict_lines,
    verdicts,
    window_table,
    write_report,
)

SCORES = {
    "dyrep": {"overall": {"ap": 0.9, "mrr": 0.4, "mar": 3.0, "loss": 1.5, "events": 70}},
    "edgebank": {"overall": {"ap": 0.8, "mrr": 0.4, "mar": 2.0, "events": 70}},
}


def _window(number: int) -> dict[str, Any]:
    """One window as `fit` gives it, numbers of numpy among them."""
    scores = {"ap": 0.5 + number / 100, "auc": 0.5, "mrr": 0.1, "hits@10": 0.3, "mar": 9.5}
    return {
        "start": number * 10,
        "stop": np.int64(number * 10 + 20),
        "test_start": number * 10 + 10,
        "events": 10,
        "loss": np.float32(2.0) if number else math.nan,
        "seconds": 0.1,
        "level_width": 1.5,
        "train_events_per_second": 100.0,
        "baselines": {"edgebank": {"ap": 0.25, "mrr": None}},
        **scores,
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the full disk of Linux")
@pytest.mark.parametrize("name", ["metrics.parquet", "report.html", "report.json"])
def test_a_full_disk_is_named_and_leaves_no_mark_of_a_finished_run(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / f"{name}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        write_report(tmp_path, _report())
    assert error.value.filename == str(tmp_path / name)
    assert not (tmp_path / "report.json").exists()


def _report(windows: int = 5) -> dict[str, Any]:
    half = {name: {**parts, "last_half": parts["overall"]} for name, parts in SCORES.items()}
    return {
        "windows": [_window(number) for number in range(windows)],
        "metrics": half,
        "counts": {"read": 71, "applied": 70, "late": 0, "quarantined": 1},
        "throughput": {"train_events_per_second": 1234.5, "seconds": 3.2},
        "stage_seconds": {"resolve": 1.0, "scan": 3.0},
        "levels": {"average_width": 1.5, "max_width": 3, "histogram": {1: 30, 2: 11, 3: 6}},
        "ranking": {"candidates": "all", "negatives": 5, "tie_rule": "average rank"},
        "config": TrainConfig().model_dump(),
        "versions": {"neutronstream": "0.1.0"},
        "notes": ["<script>alert('1 & 2')</script>"],
    }


def test_numbers_of_numpy_paths_and_nan_become_plain_values() -> None:
    value = {
        1: np.int64(3),
        "a": [np.float32(0.5), math.nan, -math.inf, None, True, np.bool_(False)],
        "b": np.array([[1, 2]]),
        "c": (Path("runs") / "x", range(2), {"z", "y"}),
        "d": np.array(7.0),
    }
    assert to_plain(value) == {
        "1": 3,
        "a": [0.5, None, None, None, True, False],
        "b": [[1, 2]],
        "c": ["runs/x", [0, 1], ["y", "z"]],
        "d": 7.0,
    }


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="a report holds numbers, texts, lists and mappings"):
        to_plain({"model": object()})


def test_json_is_strict() -> None:
    assert json.loads(to_json({"ap": math.nan, "name": "é"})) == {"ap": None, "name": "é"}


def test_a_folder_gets_the_three_files_and_no_others(tmp_path: Path) -> None:
    write_report(tmp_path / "new" / "run", _report())
    files = sorted(path.name for path in (tmp_path / "new" / "run").iterdir())
    assert files == ["metrics.parquet", "report.html", "report.json"]


def test_the_page_says_where_the_time_went() -> None:
    page = render_page(to_plain(_report()))
    assert "Where the time went" in page
    assert "<td>scan</td><td><code>3.00 s</code></td><td><code>75%</code></td>" in page
    assert "Where the time went" not in render_page(to_plain(_report() | {"stage_seconds": {}}))


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(tmp_path / name, _report())
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_the_table_has_a_row_a_window_and_a_column_a_baseline_score(tmp_path: Path) -> None:
    write_report(tmp_path, _report(windows=3))
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.num_rows == 3
    assert table["stop"].to_pylist() == [20, 30, 40]
    assert table["loss"].to_pylist() == [None, 2.0, 2.0]
    assert table["edgebank_ap"].to_pylist() == [0.25, 0.25, 0.25]
    assert table["edgebank_mrr"].to_pylist() == [None, None, None]


def test_no_windows_give_an_empty_table_with_its_columns() -> None:
    table = window_table([])
    assert table.num_rows == 0
    assert table.column_names[:5] == ["start", "stop", "test_start", "events", "loss"]


def test_the_best_score_is_the_lowest_rank_and_the_highest_of_the_others() -> None:
    assert best_scores(SCORES, "overall") == {"ap": 0.9, "mrr": 0.4, "mar": 2.0}
    assert best_scores(SCORES, "last_half") == {}


def test_a_tie_does_not_beat() -> None:
    assert verdicts(SCORES, "dyrep", "overall") == {
        "edgebank": {"ap": True, "mrr": False, "mar": False}
    }
    assert verdict_lines(SCORES, "dyrep", "overall") == [
        "overall: dyrep beats edgebank on AP; does not on MRR, MAR"
    ]
    assert verdict_lines(SCORES, "edgebank", "overall") == [
        "overall: edgebank beats dyrep on MAR; does not on AP, MRR"
    ]


def test_numbers_read_well() -> None:
    shown = [format_number(value) for value in (0, 1234567, 0.123456, 12.3456, 12345.6, None)]
    assert shown == ["0", "1,234,567", "0.1235", "12.35", "12,346", "-"]
    assert format_number(math.nan) == "-"


def _split_report() -> dict[str, Any]:
    """A report of the protocol "split" whose inductive parts hold nothing."""
    figures = {"ap": 0.9, "auc": 0.8, "ap_batch_mean": 0.85, "events": 70}
    nothing = {"ap": None, "auc": None, "ap_batch_mean": None, "events": 0}
    lower = figures | {"ap": 0.7, "auc": 0.85}
    parts = {name: nothing if "_inductive_" in name else figures for name in SPLIT_PARTS}
    others = {name: nothing if "_inductive_" in name else lower for name in SPLIT_PARTS}
    epochs = [
        {"epoch": 1, "train_loss": 1.5, "val_ap": 0.6, "is_best": True, "seconds": 2.0},
        {"epoch": 2, "train_loss": 1.25, "val_ap": 0.7, "is_best": True, "seconds": 2.0},
        {"epoch": 3, "train_loss": 1.0, "val_ap": 0.65, "is_best": False, "seconds": 2.0},
    ]
    ranking = {
        "candidates": "one pair an event and strategy",
        "tie_rule": "ties",
        "negatives": 1,
        "batch_size": 200,
        "consistency": "batch",
        "data_checksum": "0123456789abcdef",
    }
    return {
        "log": "uci",
        "windows": [],
        "epochs": epochs,
        "metrics": {"tgn": parts, "edgebank": others},
        "split": {"best_epoch": 2, "new_nodes": 3},
        "counts": {"read": 70, "applied": 70, "late": 0, "quarantined": 0},
        "throughput": {"train_events_per_second": 1234.5, "seconds": 3.2},
        "levels": {"average_width": 1.5, "max_width": 3, "histogram": {1: 30, 2: 11}},
        "ranking": ranking,
        "config": TrainConfig(protocol="split", model="tgn").model_dump(),
        "versions": {},
        "notes": [],
    }


def test_a_split_has_a_page_with_its_parts_and_epochs() -> None:
    page = render_page(to_plain(_split_report()))
    outline = _Outline()
    outline.feed(page)
    assert outline.stack == [] and outline.addresses == []
    assert outline.labels == [
        "Training loss: tgn from 1.5 to 1",
        "Validation AP: tgn from 0.6 to 0.65",
        "Width of levels: 2 bars, the highest at 1 with 30",
    ]
    for words in (
        "70 events, 3 epochs, tested once with the weights of epoch 2, the best on validation",
        "test, transductive, historical negatives",
        "validation, transductive, inductive negatives",
        "best after epoch 2",
        "tgn beats edgebank on AP; does not on AUC, AP by batch",
    ):
        assert words in page, words
    assert page.count("not available") == 6  # an inductive part each


def test_the_epochs_are_the_rows_of_the_table(tmp_path: Path) -> None:
    write_report(tmp_path, _split_report())
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column_names[:3] == ["epoch", "train_loss", "val_ap"]
    assert table["epoch"].to_pylist() == [1, 2, 3]
    assert table["val_ap"].to_pylist() == [0.6, 0.7, 0.65]
    assert epoch_table([]).num_rows == 0


def test_what_the_figures_depend_on_stands_beside_them() -> None:
    split = "scored against one negative pair an event and strategy; ties: ties; negatives in "
    assert scoring_line(_split_report()) == (
        f"{split}the loss: 1; batches of 200, batch; data 0123456789ab"
    )
    ranked = scoring_line({"ranking": {"candidates": "all"}})
    assert ranked == "scored against all known destinations, each once; ties: average rank"
    assert scoring_line({}) == ""


def test_the_layout_is_that_of_the_protocol() -> None:
    assert layout_of({}).headline == "last_half"
    layout = layout_of(_split_report())
    assert layout.headline == "test_transductive_random"
    assert [heading(name) for name in layout.metrics] == ["AP", "AUC", "AP by batch"]
    assert len(layout.parts) == 12 and set(part for part, _ in layout.tiles) <= set(layout.parts)


class _Outline(HTMLParser):
    """What a page opens and closes, and the addresses it names."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.labels: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        self.labels += [str(value) for name, value in attrs if name == "aria-label"]
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.mark.parametrize("windows", [0, 1, 2, 500])
def test_the_page_is_well_formed_and_needs_nothing_from_outside(windows: int) -> None:
    page = render_page(to_plain(_report(windows)))
    outline = _Outline()
    outline.feed(page)
    assert outline.stack == []
    assert outline.addresses == []
    assert "script" not in outline.tags
    assert "http" not in page and "url(" not in page and "@import" not in page
    assert len(page) < 400_000


def test_every_chart_says_in_words_what_it_shows() -> None:
    outline = _Outline()
    outline.feed(render_page(to_plain(_report())))
    assert [label.split(":")[0] for label in outline.labels] == [
        "Loss",
        "AP",
        "MRR",
        "Events a second",
        "Width of levels",
    ]
    assert outline.labels[1] == "AP: dyrep from 0.5 to 0.54; edgebank from 0.25 to 0.25"


def test_texts_of_the_run_are_escaped() -> None:
    assert "<script>" not in render_page(to_plain(_report()))
    assert "&lt;script&gt;" in render_page(to_plain(_report()))


def test_an_empty_report_gives_a_page() -> None:
    assert "Nothing was scored" in render_page({})


def test_a_line_is_broken_where_a_value_is_missing() -> None:
    chart = line_chart("AP", {"a": [(0, 0.0), (1, None), (2, 1.0), (3, 1.0)]}, x_label="x")
    root = ET.fromstring(chart)
    (line,) = root.findall("g/path")
    assert [step[0] for step in line.get("d", "").replace("L", " L").replace("M", " M").split()][
        ::2
    ] == ["M", "M", "L"]


def test_a_histogram_has_a_bar_a_value_and_shares_bars_beyond_24() -> None:
    few = ET.fromstring(histogram("w", {1: 5, 3: 2}, x_label="x"))
    assert [bar[0].text for bar in few.findall("rect")] == ["1: 5", "2: 0", "3: 2"]
    many = ET.fromstring(histogram("w", {width: 1 for width in range(1, 101)}, x_label="x"))
    bars = [bar[0].text for bar in many.findall("rect")]
    assert (len(bars), bars[0], bars[-1]) == (20, "1-5: 5", "96-100: 5")


def test_a_chart_without_values_says_so() -> None:
    assert "no values" in line_chart("AP", {"a": [(0, None)]}, x_label="x")
    assert "no values" in histogram("w", {}, x_label="x")


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_cover_the_range_and_are_few(low: float, width: float) -> None:
    found = ticks(low, low + width)
    slack = 1e-6 * max(1.0, abs(low), width)
    assert found[0] <= low + slack and found[-1] >= low + width - slack
    assert 2 <= len(found) <= 9


@given(st.lists(st.floats(0, 1), min_size=1, max_size=400), st.integers(1, 50))
def test_thinning_keeps_the_weighted_mean(values: list[float], most: int) -> None:
    points = [(float(place), value) for place, value in enumerate(values)]
    thinned = thin(points, [1.0] * len(points), most)
    assert len(thinned) == min(most, len(points))
    if len(points) % most == 0:
        mean = sum(y for _, y in thinned if y is not None) / len(thinned)
        assert mean == pytest.approx(sum(values) / len(values))
