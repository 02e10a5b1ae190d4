"""Static graphs have the published sizes, masks and features; random splits are as asked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from neutronstream.datasets import StaticGraph, graph_names, load_graph, random_split
from neutronstream.datasets.registry import DEFAULT_FOLDER, VARIABLE
from neutronstream.datasets.static import SparseRows
from neutronstream.stream import LogError

FOLDER = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
needs_data = pytest.mark.skipif(
    not (FOLDER / "static").is_dir(), reason=f"{VARIABLE} names no folder of static graphs"
)

# name: nodes, edges as listed, undirected edges without loops, features, classes
PUBLISHED = {
    "chameleon_heterophilous": (2_277, 31_371, 31_371, 2_325, 5),
    "chameleon_musae": (2_277, 36_101, 31_371, 3_132, 5),
    "citeseer": (3_327, 9_228, 4_552, 3_703, 6),
    "cora": (2_708, 10_556, 5_278, 1_433, 7),
    "facebook_page": (22_470, 171_002, 170_823, 4_714, 4),
    "lastfm_asia": (7_624, 27_806, 27_806, None, 18),
    "pubmed": (19_717, 88_651, 44_324, None, 3),
    "squirrel_musae": (5_201, 217_073, 198_353, 3_148, 5),
}


def test_every_published_graph_is_known() -> None:
    assert graph_names() == sorted(PUBLISHED)


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_graph_has_the_published_counts(name: str) -> None:
    graph = load_graph(name)
    rows = graph.sparse_features
    src, dst = graph.both_ways
    assert (
        *(graph.num_nodes, len(graph.src), len(src) // 2),
        *(None if rows is None else rows.num_columns, graph.num_classes),
    ) == PUBLISHED[name]
    assert graph.name == name and len(graph.labels) == graph.num_nodes
    assert not (src == dst).any()
    there = src * graph.num_nodes + dst
    assert np.array_equal(np.sort(there), np.sort(dst * graph.num_nodes + src))


@needs_data
def test_the_public_splits_are_there_and_disjoint() -> None:
    for name, sizes in {"cora": (140, 500, 1_000), "citeseer": (120, 500, 1_000)}.items():
        graph = load_graph(name)
        masks = [mask for mask in (graph.train, graph.val, graph.test) if mask is not None]
        assert tuple(int(mask.sum()) for mask in masks) == sizes
        assert (np.sum(masks, axis=0) <= 1).all()
    splits = [load_graph("chameleon_heterophilous", split=at) for at in (0, 9)]
    masks = [graph.train for graph in splits if graph.train is not None]
    assert [int(mask.sum()) for mask in masks] == [1_092, 1_092]
    assert len(masks) == 2 and not np.array_equal(masks[0], masks[1])
    assert load_graph("facebook_page").train is None
    with pytest.raises(ValueError, match="`split` must be from 0 to 0 for cora: got 1"):
        load_graph("cora", split=1)


@needs_data
def test_features_are_written_out_when_they_are_asked_for() -> None:
    graph = load_graph("cora")
    assert graph.features is not None and graph.features.shape == (2_708, 1_433)
    assert graph.features.dtype == np.float32 and graph.features.sum() == 49_216
    assert load_graph("pubmed").features is None


def test_sparse_rows_stand_where_they_belong() -> None:
    values = np.array([3, 1, 5], np.float32)
    rows = SparseRows(3, np.array([0, 2, 2, 3]), np.array([2, 0, 1]), values)
    assert rows.dense().tolist() == [[1, 0, 3], [0, 0, 0], [0, 5, 0]]
    assert rows.unit_rows().dense().tolist() == [[0.25, 0, 0.75], [0, 0, 0], [0, 1, 0]]


def test_an_edge_goes_both_ways_once() -> None:
    ends = np.array([0, 1, 2, 2]), np.array([1, 0, 2, 0])
    graph = StaticGraph("small", 3, 1, *ends, np.zeros(3, np.int64))
    assert list(zip(*(part.tolist() for part in graph.both_ways), strict=True)) == [
        *((1, 0), (2, 0), (0, 1), (0, 2))
    ]


def test_a_random_split_is_disjoint_and_as_large_as_asked() -> None:
    labels = np.random.default_rng(0).integers(-1, 4, 500)
    known = int((labels >= 0).sum())
    train, val, test = random_split(labels, per_class=7, val=30, seed=3)
    assert np.bincount(labels[train]).tolist() == [7] * 4
    assert (int(val.sum()), int(test.sum())) == (30, known - 58)
    assert not (train & val | train & test | val & test | (train | val | test) & (labels < 0)).any()
    again = random_split(labels, per_class=7, val=30, seed=3)
    assert all(np.array_equal(*pair) for pair in zip(again, (train, val, test), strict=True))
    assert not np.array_equal(random_split(labels, per_class=7, val=30, seed=4)[0], train)
    shares = random_split(np.zeros(200, np.int64), train=0.25, val=0.5, test=10)
    assert [int(mask.sum()) for mask in shares] == [50, 100, 10]


def test_a_split_that_cannot_be_made_says_why() -> None:
    labels = np.array([0, 0, 0, 1])
    with pytest.raises(ValueError, match="got 2, but class 1 has 1 nodes"):
        random_split(labels, per_class=2)
    with pytest.raises(ValueError, match="give either `per_class` or `train`"):
        random_split(labels)
    with pytest.raises(ValueError, match="must not exceed 4 nodes with a label: got 3 to train on"):
        random_split(labels, train=3, val=2)
    with pytest.raises(ValueError, match="`val` must be a number of nodes or a share up to 1"):
        random_split(labels, train=1, val=1.5)


def test_an_unknown_graph_is_answered_with_close_ones() -> None:
    with pytest.raises(ValueError, match=r"`coar` is no static graph: did you mean 'cora'\?"):
        load_graph("coar")
    with pytest.raises(ValueError, match="`zzz` is no static graph: known are chameleon_"):
        load_graph("zzz")


def test_a_missing_folder_or_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(LogError, match="none`, which is no folder: set NEUTRONSTREAM_DATA"):
        load_graph("cora")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LogError, match=r"cora.npz is not there; the folder has no graphs"):
        load_graph("cora")
