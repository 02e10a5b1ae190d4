"""What docs/snapshots.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from ...data import ROOT
from ...test_docs import run

PAGE = (ROOT / "docs/snapshots.md").read_text()


def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "page.py").write_text(block)
    printed = run(["page.py"], tmp_path)
    assert re.search(r"^gconvgru +AP 0\.\d+  MRR 0\.\d+$", printed, re.MULTILINE)
    assert re.search(r"^squared error \d\.\d+$", printed, re.MULTILINE)
    code = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert len(code) <= 20


def test_every_flag_of_the_page_is_there() -> None:
    from typer.testing import CliRunner

    from neutronstream.experiments.cli import app

    shown = CliRunner().invoke(app, ["snapshots", "--help"], env={"COLUMNS": "200"}).stdout
    for flag in set(re.findall(r"--[a-z][a-z-]+", PAGE)):
        assert flag in shown, flag
