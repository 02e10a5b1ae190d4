"""What the README and the examples show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from neutronstream.datasets import messages

ROOT = Path(__file__).parents[1]


def run(code: list[str], folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    assert run([str(path)], tmp_path).strip()


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    log = messages(1_200, seed=3)
    ids = log.nodes.to_pylist()
    table = pa.table(
        {
            "src": [f"user{ids[node]}" for node in log.events.src],
            "dst": [f"user{ids[node]}" for node in log.events.dst],
            "time": log.events.time,
        }
    )
    pyarrow.csv.write_csv(table, tmp_path / "messages.csv")
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "readme.py").write_text(block)
    printed = run(["readme.py"], tmp_path)
    assert "1200 events" in printed
    assert re.search(r"^dyrep +AP 0\.\d+  MRR 0\.\d+$", printed, re.MULTILINE)
    assert (tmp_path / "runs/messages/report.html").exists()


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
