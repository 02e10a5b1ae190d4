"""Is every log read as its publisher counts it, and how long does that take?

Every file of `temporal/` and every raw log is read without options; events and nodes are compared
with the table in the README of the data folder, which is parsed here, not copied.  A raw file that
is another form of a published set must have its counts.

    NEUTRONSTREAM_DATA=folder python benchmarks/loading.py

Answer (2026-11-30): all 27 sets and 14 raw logs have the published counts; the slowest, the
mathoverflow text of 506,550 events, takes 0.8 s.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter

from common import finish  # type: ignore  # beside this file

from neutronstream.datasets.registry import DEFAULT_FOLDER, VARIABLE
from neutronstream.stream import NeutronStreamError, read_log

RAW = {  # the published set that a raw file holds whole
    "CollegeMsg.txt": "collegemsg",
    "soc-sign-bitcoinotc.csv.gz": "bitcoinotc",
    "neutronstream_uci.csv": "uci",
    "neutronstream_social.csv": "social_evolution",
    "neutronstream_github.csv": "github",
    "ia-slashdot-reply-dir.zip": "slashdot_reply",
    "neutronstream_slashdot.rebuilt.csv.gz": "slashdot_reply",
    "fb-forum.edges": "fb_forum",
    "wikipedia_u_i_ts_label.csv.gz": "wikipedia",
    "ml_uci.csv.gz": "uci",
    "canVote_edgelist.txt.gz": "canparl",
    "sx-mathoverflow.txt.gz": "mathoverflow",
}
PARTS = {"jodie_wikipedia_first21.csv": 21, "mooc_jodie_layout_first20000.csv": 20_000}  # rows


def published(readme: Path) -> dict[str, tuple[int, int]]:
    """Rows and nodes of each set, from the first table of the README that has those columns."""
    counts: dict[str, tuple[int, int]] = {}
    inside = False
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[:3] == ["set", "rows", "nodes"]:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and cells[1].replace(",", "").isdigit():
            counts[cells[0]] = (int(cells[1].replace(",", "")), int(cells[2].replace(",", "")))
    return counts


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    folder = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
    expected = published(folder / "README.md")
    files: list[tuple[Path, int | None, int | None]] = []
    for path in sorted((folder / "temporal").glob("*.parquet")):
        files.append((path, *expected.get(path.stem, (None, None))))
    for name, published_as in RAW.items():
        files.append((folder / "raw" / name, *expected[published_as]))
    files += [(folder / "raw" / name, rows, None) for name, rows in PARTS.items()]
    rows, wrong = {}, []
    for path, events, nodes in files:
        start = perf_counter()
        try:
            log = read_log(path)
        except NeutronStreamError as error:
            wrong.append(path.name)
            print(f"{path.name:40} {error}")
            continue
        taken = perf_counter() - start
        right = len(log) == events and nodes in (None, log.num_nodes)
        if not right:
            wrong.append(path.name)
        rows[path.name] = {"events": len(log), "nodes": log.num_nodes, "seconds": round(taken, 3)}
        verdict = "" if right else f"   EXPECTED {events} events, {nodes} nodes"
        print(f"{path.name:40} {len(log):>8,} {log.num_nodes:>7,} {taken:7.3f} s{verdict}")
    missing = sorted(set(expected) - {path.stem for path, _, _ in files})
    if missing:
        print(f"in the README but not in the folder: {', '.join(missing)}")
    finish({"files": len(files), "wrong": wrong, "missing": missing, "rows": rows})


if __name__ == "__main__":
    main()
