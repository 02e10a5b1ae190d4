"""Named logs: Parquet files of published data sets, with what their columns mean.

The files are not part of the package: `NEUTRONSTREAM_DATA` names the folder that holds
`temporal/NAME.parquet` (columns src, dst, t and what the set has) and, for links that stand before
the first event, `nodes/NAME_graph0.parquet`.  The counts here are those of the published sets.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..stream import EventLog, LogError, TimeUnit, read_links, read_log
from ..stream.errors import did_you_mean

VARIABLE = "NEUTRONSTREAM_DATA"
DEFAULT_FOLDER = Path("../shared/data")


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is known of a data set before its file is read."""

    name: str
    events: int
    nodes: int  # that occur in events or initial links
    what: str
    unit: TimeUnit = "s"  # of the log's ticks
    tick: str = ""  # what one tick is, where that is no unit of time
    bipartite: bool = False  # sources and targets are disjoint
    initial_links: int = 0
    contacts: bool = False  # undirected contacts, each written once a time window


_PART = "a millionth of the covered period"

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("bitcoinotc", 35_592, 5_881, "ratings of trust on Bitcoin OTC, -10..10", "us"),
        Dataset(
            "canparl", 74_478, 734, "votes among Canadian MPs", "step", "a calendar year, 2006-2019"
        ),
        Dataset("collegemsg", 59_835, 1_899, "messages of an online student community (SNAP)"),
        Dataset("dblp_cldhg", 185_480, 25_387, "co-authors on DBLP", "step", _PART),
        Dataset("dnc", 39_264, 1_891, "e-mails of the 2016 DNC leak"),
        Dataset("email_eu", 332_334, 986, "e-mails in a European research institution"),
        Dataset("enron", 125_235, 184, "e-mails among employees of Enron"),
        Dataset("enron_employees", 50_572, 151, "e-mails among 151 employees of Enron"),
        Dataset("fb_forum", 33_720, 899, "posts in a forum like Facebook's"),
        Dataset(
            "github", 20_726, 282, "follows (AE) and other acts on GitHub, 2013", initial_links=298
        ),
        Dataset("mathoverflow", 506_550, 24_818, "answers and comments on MathOverflow"),
        Dataset("mooc", 411_749, 7_144, "students acting on an online course", bipartite=True),
        Dataset(
            *("patent_dtgc", 41_916, 12_214, "citations of patents", "step"),
            "a billionth of the covered period",
        ),
        Dataset("reality_call", 52_050, 6_809, "phone calls of Reality Mining"),
        Dataset("slashdot_reply", 140_778, 51_083, "replies on Slashdot"),
        Dataset(
            *("social_evolution", 54_369, 83, "friendships (AE), calls and proximity in a dorm"),
            initial_links=575,
        ),
        Dataset("sp_highschool2011", 28_560, 126, "contacts in a high school", contacts=True),
        Dataset("sp_highschool2012", 45_047, 180, "contacts in a high school", contacts=True),
        Dataset("sp_highschool2013", 188_508, 327, "contacts in a high school", contacts=True),
        Dataset("sp_hospital", 32_424, 75, "contacts in a hospital ward", contacts=True),
        Dataset("sp_hypertext2009", 20_818, 113, "contacts at a conference", contacts=True),
        Dataset("sp_sfhh_conference", 70_261, 403, "contacts at a conference", contacts=True),
        Dataset("sp_workplace2013", 9_827, 92, "contacts in an office", contacts=True),
        Dataset("uci", 59_835, 1_899, "messages of an online student community (NeutronStream)"),
        Dataset(
            "uslegis", 60_396, 225, "co-sponsors in the US Senate", "step", "a Congress, two years"
        ),
        Dataset(
            "wikipedia",
            157_474,
            9_227,
            "users who edit pages of Wikipedia, a month",
            bipartite=True,
        ),
        Dataset("yago_tkg", 201_089, 10_585, "a temporal knowledge graph", "step", "a year"),
    )
}


def names() -> list[str]:
    """The names of the known data sets, sorted."""
    return sorted(DATASETS)


def describe(name: str) -> dict[str, Any]:
    """What is known of a data set: name, events, nodes, what, unit, tick, bipartite ...

    Raises:
        ValueError: if there is no data set of that name; it names the closest.

    >>> describe("uci")["events"]
    59835
    """
    return asdict(_dataset(name))


def load(name: str, *, limit: int | None = None) -> EventLog:
    """The log of a data set, or its first `limit` events, with its unit and initial links.

    Raises:
        ValueError: if there is no data set of that name; it names the closest.
        LogError: if the folder or the file is not there.
    """
    dataset = _dataset(name)
    folder = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
    path = folder / "temporal" / f"{name}.parquet"
    if not folder.is_dir():
        raise LogError(
            f"data sets are looked for in `{folder}`, which is no folder: set {VARIABLE} to the "
            "folder that holds temporal/"
        )
    if not path.is_file():
        there = sorted(file.stem for file in path.parent.glob("*.parquet"))
        raise LogError(f"{path} is not there; the folder has {', '.join(there) or 'no data sets'}")
    links = None
    if dataset.initial_links:
        links = read_links(folder / "nodes" / f"{name}_graph0.parquet")
    counted = dataset.unit == "step" and not dataset.tick.endswith("period")
    log = read_log(path, unit="step" if counted else None, initial=links, name=name)
    log = replace(log, unit=dataset.unit)
    return log if limit is None else log.head(limit)  # the unit is that of all times


def _dataset(name: str) -> Dataset:
    if name not in DATASETS:
        hint = did_you_mean(name, DATASETS, most=3, otherwise=f"known are {', '.join(names())}")
        raise ValueError(f"`{name}` is no data set: {hint}")
    return DATASETS[name]
