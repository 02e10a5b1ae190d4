"""Named signals have the shapes of the published sets, and errors say what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neutronstream.datasets import Signal, load_signal, signal_names
from neutronstream.datasets.registry import VARIABLE
from neutronstream.storage import signal_snapshots
from neutronstream.stream import LogError
from tests.data import data_folder


def known(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """What a snapshot has."""
    assert values is not None
    return values


# name: steps, nodes, edges in all, whether the graph is fixed, columns of features
PUBLISHED = {
    "chickenpox": (521, 20, 102, True, 0),
    "england_covid": (61, 129, 82_529, False, 0),
    "montevideo_bus": (744, 675, 690, True, 0),
    "pedalme_london": (35, 15, 225, True, 0),
    "twitter_tennis_rg17": (120, 1000, 40_839, False, 2),
    "twitter_tennis_uo17": (112, 1000, 43_387, False, 2),
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(data_folder()))


def test_all_published_signals_are_known() -> None:
    assert signal_names() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.usefixtures("load")
def test_a_signal_has_the_published_shape(name: str) -> None:
    signal = load_signal(name)
    steps, nodes, edges, fixed, columns = PUBLISHED[name]
    assert (signal.num_steps, signal.num_nodes, signal.is_fixed) == (steps, nodes, fixed)
    assert sum(map(len, signal.src)) == edges
    assert len(signal.src) == (1 if fixed else steps)
    assert (0 if signal.features is None else signal.features.shape[2]) == columns
    snapshots = signal_snapshots(
        signal.src, signal.dst, signal.weight, signal.values, extra=signal.features, lags=4
    )
    assert len(snapshots) == steps - 4
    last = snapshots[-1]
    assert np.array_equal(known(last.target), signal.values[-1])
    assert np.array_equal(known(last.features)[:, 3], signal.values[-2])
    assert known(last.features).shape == (nodes, 4 + columns)


@pytest.mark.usefixtures("load")
def test_rows_land_at_their_step_and_node() -> None:
    rows = pq.read_table(data_folder() / "signals" / "twitter_tennis_rg17_nodes.parquet")
    signal = load_signal("twitter_tennis_rg17")
    for place in (0, 1, 1_234, 119_999):
        row = {name: rows[name][place].as_py() for name in rows.column_names}
        at = row["t"], row["node"]
        assert signal.values[at] == np.float32(row["y"])
        assert signal.features is not None
        assert signal.features[at].tolist() == [np.float32(row["f0"]), np.float32(row["f1"])]
    edges = pq.read_table(data_folder() / "signals" / "twitter_tennis_rg17_edges.parquet")
    step = edges["t"].to_numpy()
    for one in (0, 57, 119):
        assert signal.src[one].tolist() == edges["src"].to_numpy()[step == one].tolist()
        assert signal.weight[one].tolist() == edges["weight"].to_numpy()[step == one].tolist()


def test_an_unknown_signal_names_the_closest() -> None:
    with pytest.raises(ValueError, match="`chickenpocks` is no signal: did you mean 'chickenpox'"):
        load_signal("chickenpocks")


def test_a_file_that_is_not_there_or_has_gaps_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LogError, match=r"chickenpox_edges.parquet is not there: set NEUTRON"):
        load_signal("chickenpox")
    (tmp_path / "signals").mkdir()
    edges = pa.table({"src": [0], "dst": [1], "weight": [1.0]})
    pq.write_table(edges, tmp_path / "signals" / "chickenpox_edges.parquet")
    nodes = pa.table({"t": [0, 0, 1], "node": [0, 1, 1], "y": [1.0, 2.0, 3.0]})
    pq.write_table(nodes, tmp_path / "signals" / "chickenpox_nodes.parquet")
    with pytest.raises(LogError, match="a row for each of 2 nodes at each of 2 steps: got 3"):
        load_signal("chickenpox")
    whole = pa.table({"t": [1, 0, 0, 1], "node": [0, 0, 1, 1], "y": [3.0, 1.0, 2.0, 4.0]})
    pq.write_table(whole, tmp_path / "signals" / "chickenpox_nodes.parquet")
    signal = load_signal("chickenpox")
    assert isinstance(signal, Signal) and signal.values.tolist() == [[1, 2], [3, 4]]
