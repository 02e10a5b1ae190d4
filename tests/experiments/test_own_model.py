"""A model of one's own is trained like one in the box: windows, splits, checkpoints and reports."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from neutronstream import TrainConfig, fit
from neutronstream.datasets import messages
from neutronstream.experiments.learn import RIVALS
from neutronstream.models import DynamicGNN
from neutronstream.stream import CheckpointError

from ..models.small import Attentive, GruMemory

LOG = messages(300, seed=0)
SETTINGS: dict[str, Any] = {"size": 100, "stride": 50, "batch_size": 25, "candidates": 5}


def test_its_report_is_under_the_name_of_its_class() -> None:
    report = fit(LOG, TrainConfig(**SETTINGS), model=Attentive)
    assert report["config"]["model"] == "attentive"
    assert report["metrics"]["attentive"]["overall"]["ap"] > 0.4
    named = fit(LOG, TrainConfig(model="mine", **SETTINGS), model=lambda: GruMemory(8))
    assert named["metrics"].keys() >= {"mine", "edgebank"}


@pytest.mark.parametrize("protocol", ["prequential", "split"])
@pytest.mark.parametrize("consistency", ["exact", "batch"])
def test_it_goes_through_every_protocol_and_the_seed_decides_all(
    protocol: str, consistency: str
) -> None:
    settings = SETTINGS if protocol == "prequential" else {"batch_size": 25, "epochs": 2}
    config = TrainConfig(protocol=protocol, consistency=consistency, **settings)  # type: ignore[arg-type]
    first, again = (fit(LOG, config, model=Attentive)["metrics"] for _ in range(2))
    other = fit(LOG, config.model_copy(update={"seed": 1}), model=Attentive)["metrics"]
    assert first["attentive"] == again["attentive"] != other["attentive"]


def test_it_is_resumed_exactly(tmp_path: Path) -> None:
    config = TrainConfig(checkpoint_seconds=0, **SETTINGS)

    def stop(window: dict[str, Any]) -> None:
        if window["start"] >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(LOG, config, tmp_path / "run", model=Attentive, progress=stop)
    resumed = fit(LOG, config, tmp_path / "run", model=Attentive, resume=True)
    whole = fit(LOG, config, model=Attentive)
    assert resumed["metrics"] == whole["metrics"]
    with pytest.raises(CheckpointError, match="of a run with `model` 'attentive': got 'grumemory'"):
        fit(LOG, config, tmp_path / "run", model=GruMemory, resume=True)


class Other(Attentive):
    """The same weights in another class."""


@pytest.mark.parametrize("protocol", ["prequential", "split"])
@pytest.mark.parametrize("ended", [False, True])
def test_it_is_not_gone_on_with_by_another_class(
    tmp_path: Path, ended: bool, protocol: str
) -> None:
    rest = SETTINGS if protocol == "prequential" else {"batch_size": 25, "epochs": 2}
    config = TrainConfig(model="own", checkpoint_seconds=0, protocol=protocol, **rest)  # type: ignore[arg-type]

    def stop(figures: dict[str, Any]) -> None:
        if not ended and figures["done_events"] > 280:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if not ended else nullcontext():
        fit(LOG, config, tmp_path, model=Attentive, progress=stop)
    with pytest.raises(
        CheckpointError, match=r"is of a run of .*small\.Attentive: got .*\.Other as"
    ):
        fit(LOG, config, tmp_path, model=Other, resume=True)
    resumed = fit(LOG, config, tmp_path, model=Attentive, resume=True)
    assert resumed["metrics"] == fit(LOG, config, model=Attentive)["metrics"]
    assert resumed["model_class"].endswith("small.Attentive")


def test_weights_of_another_shape_are_one_clear_error(tmp_path: Path) -> None:
    config = TrainConfig(model="own", checkpoint_seconds=0, **SETTINGS)
    fit(LOG, config, tmp_path, model=lambda: GruMemory(8))
    (tmp_path / "report.json").unlink()
    with pytest.raises(CheckpointError, match=r"weights in .* do not fit the model: resume with"):
        fit(LOG, config, tmp_path, model=lambda: GruMemory(9), resume=True)


@pytest.mark.parametrize(
    ("settings", "model", "error", "message"),
    [
        ({"options": {"k": 3}}, Attentive, ValueError, "`options` and `negatives` are for the mo"),
        ({"negatives": 3}, Attentive, ValueError, "give them to your own where you make it; got 3"),
        ({"model": "tgn"}, Attentive, ValueError, "must be a name of its own .*: got 'tgn'"),
        (
            {"model": "popularity"},
            Attentive,
            ValueError,
            "got 'popularity', which is that of a bas",
        ),
        ({}, dict, TypeError, "`model` must make a DynamicGNN: got a dict"),
        ({}, GruMemory(4), TypeError, "`model` must be a class or a function .*: got 'GruMemory'"),
        (
            {},
            "tgn",
            TypeError,
            "must be a class or a function .*: got 'tgn'; a model in the box is",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    settings: dict[str, Any], model: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit(LOG, TrainConfig(**settings), model=model)


def test_the_name_of_a_model_in_the_box_is_not_taken() -> None:
    class DyRep(GruMemory):
        """Somebody's own."""

    with pytest.raises(ValueError, match="got 'dyrep', which is one in the box"):
        fit(LOG, TrainConfig(**SETTINGS), model=DyRep)


def test_the_names_that_stand_beside_a_model_are_all_refused() -> None:
    names = set(fit(LOG, TrainConfig(**SETTINGS))["metrics"])
    names |= set(fit(LOG, TrainConfig(protocol="split", epochs=1))["metrics"])
    assert names - {"dyrep"} <= RIVALS
    assert {"running_mean", "running_median"} <= RIVALS


def test_the_base_class_cannot_be_trained() -> None:
    with pytest.raises(TypeError, match="abstract"):
        fit(LOG, TrainConfig(**SETTINGS), model=DynamicGNN)
