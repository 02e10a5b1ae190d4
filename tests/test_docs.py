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
from neutronstream.models import MODELS

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


@pytest.mark.parametrize("page", ["tasks", "snapshots", "backends"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL)
    assert blocks
    if page == "tasks":
        blocks.append("assert len(memory) == log.num_nodes and len(torch.cat(scores)) == len(log)")
    (tmp_path / "page.py").write_text("\n".join(blocks))
    run(["page.py"], tmp_path)


BREAK = "-- next block --"


def same_text(text: str) -> list[str]:
    """The lines of a text, with the figures that machines differ in taken out."""
    return [re.sub(r"\d+\.\d+|\de-\d+", "#", line) for line in text.strip().splitlines()]


def test_the_page_on_defining_a_model_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/define_a_model.md").read_text()
    blocks = re.findall(r"```(python|text)\n(.*?)```", page, re.DOTALL)
    code = [text for kind, text in blocks if kind == "python"]
    (tmp_path / "page.py").write_text("".join(f"{text}\nprint({BREAK!r})\n" for text in code))
    printed = run(["page.py"], tmp_path).split(BREAK)
    assert [kind for kind, _ in blocks].count("text") >= 3
    index = -1
    for kind, text in blocks:  # a text is what the code above it prints
        index += kind == "python"
        if kind == "text":
            assert same_text(text) == same_text(printed[index])


def test_the_page_and_the_example_define_the_same_model() -> None:
    page = (ROOT / "docs/define_a_model.md").read_text()
    (model,) = re.findall(r"^class Recall.*?(?=\n```)", page, re.DOTALL | re.MULTILINE)
    assert model in (ROOT / "examples/define_a_model.py").read_text()
    assert len(model.splitlines()) <= 45, "the page promises about forty lines"


def test_every_model_in_the_box_has_its_line_and_section() -> None:
    page = (ROOT / "docs/models.md").read_text()
    for name, model in MODELS.items():
        assert f"| `{name}` | `{model.__name__}` |" in page
        assert f"\n## {model.__name__}\n" in page


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_property_of_the_backends_has_a_test_that_exists() -> None:
    page = (ROOT / "docs/backends.md").read_text()
    folder = ROOT / "tests/parallel/backends"
    rows = re.findall(r"^\| (\d+) \| .* \| (.+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 26), *range(1, 21)]
    for number, shown in rows:
        names = re.findall(r"`([^`]+)`", shown)
        assert names, f"property {number} is shown nowhere"
        for name in names:
            if "/" in name:
                assert (ROOT / name).exists(), f"property {number} names {name}"
                continue
            module, _, test = name.partition(".")
            text = (folder / f"{module}.py").read_text()
            assert f"def {test}(" in text, f"property {number} names {name}"
            if module.endswith("_promises"):
                listed = text.split("PROMISES", 1)[1]
                assert re.search(rf"\b{test}\b", listed), f"{name} is not among the promises"
