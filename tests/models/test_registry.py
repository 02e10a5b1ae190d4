"""Models are built by name, and what does not fit is named with what would."""

from __future__ import annotations

from typing import Any

import pytest

from neutronstream.models import MODELS, DyRep, build, options_of


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_built_by_its_name_with_the_width_and_negatives_asked_for(name: str) -> None:
    model = build(name, width=8, kinds=("a", "b"), num_features=3, negatives=2)
    assert type(model) is MODELS[name]
    assert model.num_negatives == 2
    assert 8 in model.tables.values()
    model.check()


@pytest.mark.parametrize("name", MODELS)
def test_the_options_of_a_model_are_what_it_takes_if_nothing_is_said(name: str) -> None:
    options = options_of(name)
    given = {key: value for key, value in options.items() if value is not None}
    build(name, width=8, kinds=("event",), options=given).check()


def test_runs_take_another_intensity_than_the_class() -> None:
    assert options_of("dyrep")["intensity"] == "bilinear"
    assert options_of("dyrep")["drift"] is options_of("ldg")["drift"] is True
    assert build("dyrep", width=4, kinds=("event",)).interaction is not None
    assert DyRep(4).interaction is None


def test_texts_of_several_names_are_split() -> None:
    model = build("dyrep", width=4, kinds=("x", "y"), options={"association": "y, z"})
    assert model.association == ("y",)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tgnn", {}, "must be one of .* tgn.*: got 'tgnn'; did you mean 'tgn'"),
        ("tgn", {"kk": 1}, "model 'tgn' has no option 'kk': did you mean 'k'"),
        ("tgn", {"width": 1}, "model 'tgn' has no option 'width'"),
        ("tgn", {"k": "many"}, "option 'k' of model 'tgn' must be a valid integer: got 'many'"),
        ("tgn", {"k": 2.5}, "option 'k' of model 'tgn' must be a valid integer: got 2.5"),
        ("tgn", {"k": True}, "option 'k' of model 'tgn' must be a valid integer: got True"),
        ("tgn", {"memory": "lstm"}, "option 'memory' of model 'tgn' must be 'gru' or 'rnn'"),
        ("tgn", {"time_width": "wide"}, "option 'time_width' of model 'tgn' must be a valid in"),
        ("jodie", {"shared": 3}, "option 'shared' of model 'jodie' must be a valid boolean: got 3"),
        ("ldg", {"kl_weight": "no"}, "option 'kl_weight' of model 'ldg' must be a valid number"),
        ("tgn", {"k": 0}, "`k` must be at least 1: got 0"),
    ],
)
def test_what_does_not_fit_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, width=8, kinds=("event",), options=options)
