"""Recurrent models over changing snapshots agree on every backend, on one rank and on many."""

from __future__ import annotations

from neutronstream.parallel.ranks import ALONE

from . import recurrent_promises
from .run import held_on_ranks


def test_recurrent_models_are_those_of_one_process_on_ranks() -> None:
    for found in held_on_ranks((2, 4), recurrent_promises.__name__):
        assert found.keys() == {promise.__name__ for promise in recurrent_promises.PROMISES}


def test_recurrent_models_are_those_of_one_process_on_one_rank() -> None:
    for promise in recurrent_promises.PROMISES:
        promise(ALONE)
