"""The package's front door: its names, its version, and that it opens quickly."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import neutronstream
from neutronstream import experiments


@pytest.mark.parametrize("module", [neutronstream, experiments])
def test_the_public_names_are_sorted_and_all_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
        neutronstream.nonesuch  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    root = Path(neutronstream.__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert neutronstream.__version__ == project["version"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, neutronstream; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    source = str(Path(neutronstream.__file__).parents[1])
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[]\n"
