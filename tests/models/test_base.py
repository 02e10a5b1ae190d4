"""A model that cannot be run exactly, or whose reads name nothing, is refused."""

from __future__ import annotations

import pytest
from torch import nn

from neutronstream.models import DyRep, Reads

from .small import Counter, GruMemory, RecentMean


def test_sound_models_pass() -> None:
    for model in (DyRep(4), DyRep(4, intensity="bilinear"), GruMemory(), RecentMean(), Counter()):
        model.check()


def test_a_layer_that_mixes_events_is_refused() -> None:
    model = GruMemory()
    model.add_module("norm", nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError, match=r"`norm\.0` is a BatchNorm1d.*use LayerNorm"):
        model.check()
    model.norm = nn.LayerNorm(4)
    model.check()


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        (Reads(ends=("memroy",)), "`reads.ends` must name tables .*'memory'.*got 'memroy'"),
        (Reads(scored=("key",)), "`reads.scored` must name .*got 'key'"),
        (Reads(neighborhood="recent"), "`reads.k` must say how many recent neighbours: got 0"),
        (Reads(neighbors=("memory",)), "must be 'links' or 'recent' .* reads 'memory' .*'none'"),
    ],
)
def test_reads_that_do_not_fit_are_named(reads: Reads, message: str) -> None:
    model = GruMemory()
    model.reads = reads
    with pytest.raises(ValueError, match=message):
        model.check()


def test_values_on_links_need_links() -> None:
    model = Counter()
    model.reads = Reads(("total",), ("total",), ("total",), "recent", 3)
    with pytest.raises(ValueError, match="must be 'links' for a model with `link_tables`: got 're"):
        model.check()
