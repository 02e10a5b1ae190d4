"""The house is in order: public names, links, layers, and who may import what."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("stream", "storage", "models", "parallel", "datasets", "experiments")
PACKAGE = ROOT / "src" / "neutronstream"
DOORS = [ROOT / folder / "__init__.py" for folder in FOLDERS] + [PACKAGE / "__init__.py"]


def _key(name: str) -> tuple[int, list[str | int]]:
    """The order of ruff's RUF022: CONSTANTS, Classes, functions; numbers in a name by value."""
    parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    if name.isupper() and len(name) > 1:
        return 0, parts
    return (1 if name[0].isupper() else 2), parts


def _public(tree: ast.Module) -> set[str]:
    """What a door offers: names that it imports from its own package or assigns."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {n for n in names if not n.startswith("_")}


def _imports(path: Path) -> set[str]:
    """The modules that a file imports from outside its package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.parent.name)
def test_public_names_are_sorted_and_complete(door: Path) -> None:
    tree = ast.parse(door.read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert listed == sorted(listed, key=_key)
    assert len(listed) == len(set(listed))
    assert {name for name in listed if not name.startswith("_")} == _public(tree)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_at_the_root_is_linked_into_the_package(folder: str) -> None:
    link = PACKAGE / folder
    assert (ROOT / folder / "__init__.py").is_file()
    assert link.is_symlink() and os.readlink(link) == f"../../{folder}"
    assert link.resolve() == ROOT / folder


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert {p.name for p in PACKAGE.iterdir() if not p.name.startswith("__pycache__")} == {
        *("__init__.py", "__main__.py", "py.typed", *FOLDERS)
    }


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_does_not_load_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom neutronstream.experiments.cli import run\n"
        f"code = run({arguments!r})\n"
        "heavy = [n for n in ('torch', 'numba', 'sklearn', 'pandas') if n in sys.modules]\n"
        "print('heavy:', heavy, 'code:', code)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == "heavy: [] code: 0"


def test_folders_import_only_what_is_below_them() -> None:
    pytest.importorskip("importlinter")
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    shown = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "2 kept, 0 broken" in shown.stdout


FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=_place)
def test_a_file_imports_only_what_its_place_allows(path: Path) -> None:
    found = _imports(path)
    heads = {name.split(".")[0] for name in found}
    assert "pickle" not in heads
    assert "neutronstream" not in heads, "inside the folders imports are relative"
    if "kernels" not in (path.stem, path.parent.name):
        assert "numba" not in heads, "only kernels.py files and folders of that name import numba"
    if path != ROOT / "parallel" / "comm.py":
        assert "mpi4py" not in heads and not any(n.startswith("torch.distributed") for n in found)
    folder = path.relative_to(ROOT).parts[0]
    if folder == "storage":
        assert not any(name.startswith("torch.nn") for name in found)
    if folder in ("storage", "models", "parallel"):
        assert "pyarrow" not in heads


@pytest.mark.parametrize("path", FILES, ids=_place)
def test_a_file_opens_with_what_it_is_about(path: Path) -> None:
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert about


@pytest.mark.parametrize("path", FILES, ids=_place)
def test_the_examples_in_docstrings_are_true(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(("neutronstream", *parts)).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
