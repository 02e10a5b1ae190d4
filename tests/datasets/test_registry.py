"""Named data sets have the published counts, units and initial links."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import neutronstream.datasets as datasets
from neutronstream.datasets import describe, load, names
from neutronstream.datasets.registry import DEFAULT_FOLDER, VARIABLE
from neutronstream.stream import LogError, adapt, read_links, read_log

FOLDER = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
needs_data = pytest.mark.skipif(
    not (FOLDER / "temporal").is_dir(), reason=f"{VARIABLE} names no folder of data sets"
)

# name: events, nodes, distinct pairs, distinct times, unit
PUBLISHED = {
    "bitcoinotc": (35_592, 5_881, 35_592, 35_592, "us"),
    "canparl": (74_478, 734, 51_331, 14, "step"),
    "collegemsg": (59_835, 1_899, 20_296, 58_911, "s"),
    "dblp_cldhg": (185_480, 25_387, 129_202, 25, "step"),
    "dnc": (39_264, 1_891, 5_598, 19_383, "s"),
    "email_eu": (332_334, 986, 24_929, 207_880, "s"),
    "enron": (125_235, 184, 3_125, 22_632, "s"),
    "enron_employees": (50_572, 151, 2_235, 16_067, "s"),
    "fb_forum": (33_720, 899, 7_089, 33_515, "s"),
    "github": (20_726, 282, 4_131, 20_201, "s"),
    "mathoverflow": (506_550, 24_818, 239_978, 505_784, "s"),
    "mooc": (411_749, 7_144, 178_443, 345_600, "s"),
    "patent_dtgc": (41_916, 12_214, 41_916, 891, "step"),
    "reality_call": (52_050, 6_809, 9_484, 51_572, "s"),
    "slashdot_reply": (140_778, 51_083, 131_175, 90_345, "s"),
    "social_evolution": (54_369, 83, 749, 52_715, "s"),
    "sp_highschool2011": (28_560, 126, 1_709, 5_609, "s"),
    "sp_highschool2012": (45_047, 180, 2_239, 11_273, "s"),
    "sp_highschool2013": (188_508, 327, 5_818, 7_375, "s"),
    "sp_hospital": (32_424, 75, 1_139, 9_453, "s"),
    "sp_hypertext2009": (20_818, 113, 2_498, 5_246, "s"),
    "sp_sfhh_conference": (70_261, 403, 9_889, 3_509, "s"),
    "sp_workplace2013": (9_827, 92, 755, 7_104, "s"),
    "uci": (59_835, 1_899, 20_296, 58_911, "s"),
    "uslegis": (60_396, 225, 26_423, 12, "step"),
    "wikipedia": (157_474, 9_227, 18_257, 152_757, "s"),
    "yago_tkg": (201_089, 10_585, 20_293, 189, "step"),
}

# file: events, nodes, first time, unit
RAW = {
    "CollegeMsg.txt": (59_835, 1_899, 1082040961, "s"),
    "canVote_edgelist.txt.gz": (74_478, 734, 2006, "s"),
    "fb-forum.edges": (33_720, 899, 1084585996, "s"),
    "ia-slashdot-reply-dir.zip": (140_778, 51_083, 0, "s"),
    "jodie_wikipedia_first21.csv": (21, 17, 0, "s"),
    "ml_uci.csv.gz": (59_835, 1_899, 0, "s"),
    "mooc_jodie_layout_first20000.csv": (20_000, 1_456, 0, "s"),
    "neutronstream_github.csv": (20_726, 282, 1357059184, "s"),
    "neutronstream_slashdot.rebuilt.csv.gz": (140_778, 51_083, 0, "s"),
    "neutronstream_social.csv": (54_369, 83, 1221102974, "s"),
    "neutronstream_uci.csv": (59_835, 1_899, 1082008561, "s"),
    "soc-sign-bitcoinotc.csv.gz": (35_592, 5_881, 1289241911728360, "us"),
    "sx-mathoverflow.txt.gz": (506_550, 24_818, 1254192988, "s"),
    "wikipedia_u_i_ts_label.csv.gz": (157_474, 9_227, 0, "s"),
}


def test_public_names_are_sorted_and_exist() -> None:
    assert datasets.__all__ == sorted(datasets.__all__)
    assert all(hasattr(datasets, name) for name in datasets.__all__)


def test_every_published_set_is_known() -> None:
    assert names() == sorted(PUBLISHED)
    for name, (events, nodes, _, _, unit) in PUBLISHED.items():
        known = describe(name)
        assert (known["name"], known["events"], known["nodes"]) == (name, events, nodes)
        assert known["unit"] == unit


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_has_the_published_counts(name: str) -> None:
    log, known = load(name), describe(name)
    events = log.events
    pairs = len(np.unique(events.src * log.num_nodes + events.dst))
    counts = (len(log), log.num_nodes, pairs, len(np.unique(events.time)), log.unit)
    assert counts == PUBLISHED[name]
    assert log.name == name and log.was_sorted and log.quarantined == 0
    assert (0 if log.initial is None else len(log.initial)) == known["initial_links"]
    assert known["bipartite"] == (len(np.intersect1d(events.src, events.dst)) == 0)


@needs_data
def test_initial_links_and_kinds_of_the_dyrep_sets() -> None:
    social, github = load("social_evolution"), load("github")
    assert social.initial is not None and len(social.initial) == 575
    assert github.initial is not None and len(github.initial) == 298
    kinds = np.bincount(social.events.kind)[social.kinds.index("AE")]
    assert (kinds, np.bincount(github.events.kind)[github.kinds.index("AE")]) == (438, 1_455)


@needs_data
def test_columns_of_the_sets() -> None:
    mooc, wikipedia, yago = load("mooc"), load("wikipedia"), load("yago_tkg")
    assert mooc.events.features is not None and mooc.events.features.shape == (411_749, 4)
    assert mooc.events.label is not None and mooc.events.label.sum() == 4_066
    assert wikipedia.events.label is not None and wikipedia.events.label.sum() == 217
    assert sorted(yago.kinds) == [str(kind) for kind in range(10)]
    weights = load("bitcoinotc").events.weight
    assert weights is not None and (weights.min(), weights.max()) == (-10, 10)


@needs_data
def test_a_limit_gives_the_first_events_as_they_are_in_the_whole() -> None:
    whole, part = load("dblp_cldhg"), load("dblp_cldhg", limit=50_000)
    assert len(part) == 50_000 and part.unit == whole.unit
    assert np.array_equal(part.events.time, whole.events.time[:50_000])
    assert part.num_nodes == whole.nodes_before(50_000)


@needs_data
@pytest.mark.parametrize("file", RAW)
def test_files_as_users_have_them_are_read_without_options(file: str) -> None:
    if not (FOLDER / "raw" / file).exists():
        pytest.skip("the file is not there")
    log = read_log(FOLDER / "raw" / file)
    first = int(log.events.time[0])
    assert (len(log), log.num_nodes, first, log.unit) == RAW[file]
    assert log.was_sorted == (file not in ("ia-slashdot-reply-dir.zip", "sx-mathoverflow.txt.gz"))


@needs_data
def test_raw_files_and_named_sets_are_the_same_events() -> None:
    raw = FOLDER / "raw"
    social = read_log(
        raw / "neutronstream_social.csv", initial=raw / "neutronstream_social_graph0.txt"
    )
    assert social.checksum == load("social_evolution").checksum
    github = read_log(
        raw / "neutronstream_github.csv", initial=raw / "neutronstream_github_graph0.txt"
    )
    assert github.checksum == load("github").checksum
    assert len(read_links(raw / "neutronstream_uci_graph0.txt")[0]) == 0
    uci = read_log(raw / "neutronstream_uci.csv")  # it names its one kind, the named set does not
    assert uci.kinds == ("Communication",)
    assert replace(uci, kinds=("event",)).checksum == load("uci").checksum
    trust = read_log(raw / "soc-sign-bitcoinotc.csv.gz")
    assert trust.checksum == load("bitcoinotc").checksum
    part = read_log(raw / "mooc_jodie_layout_first20000.csv")
    whole = load("mooc", limit=20_000)
    assert np.array_equal(part.events.src, whole.events.src)
    assert np.array_equal(part.events.dst, whole.events.dst)
    assert np.array_equal(part.events.time, whole.events.time)


@needs_data
def test_adaptive_windows_have_the_published_geometry() -> None:
    sizes = [len(window) for window in adapt(load("social_evolution"), 50, 300, rate=0.2)]
    assert (len(sizes), max(sizes), float(np.median(sizes))) == (3_610, 300, 63.0)
    assert round(float(np.mean(sizes))) == 77


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(ValueError, match=r"`wikipeda` is no data set: did you mean 'wikipedia'\?"):
        load("wikipeda")
    with pytest.raises(ValueError, match="`zzz` is no data set: known are bitcoinotc, canparl"):
        describe("zzz")


def test_a_missing_folder_or_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(LogError, match="none`, which is no folder: set NEUTRONSTREAM_DATA"):
        load("uci")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LogError, match=r"uci.parquet is not there; the folder has no data sets"):
        load("uci")
