"""Errors speak alike: what was meant is guessed in one place."""

from __future__ import annotations

import pytest

from neutronstream.stream.errors import did_you_mean

from ..data import ROOT

KNOWN = ("dyrep", "jodie", "tgn", "tgat")
FOLDERS = ("stream", "storage", "models", "parallel", "datasets", "experiments")


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [
        ("dyrap", 1, "did you mean 'dyrep'?"),
        ("tga", 1, "did you mean 'tgat'?"),
        ("tga", 3, "did you mean 'tgat' or 'tgn'?"),
        ("zzz", 3, "known are all"),
    ],
)
def test_the_closest_names_are_asked_for(name: str, most: int, words: str) -> None:
    assert did_you_mean(name, KNOWN, most=most, otherwise="known are all") == words


def test_nothing_close_and_nothing_else_to_say_is_no_text() -> None:
    assert did_you_mean("zzz", KNOWN) == did_you_mean("zzz", ()) == ""


def test_no_other_file_words_it() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    words = ("get_close" + "_matches", "did you " + "mean ")
    found = {
        p.relative_to(ROOT).as_posix() for p in files if any(w in p.read_text() for w in words)
    }
    assert found == {"stream/errors.py"}
