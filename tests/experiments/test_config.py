"""A configuration is checked at the door, read from TOML and flags, and written back equal."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from neutronstream.experiments.config import TrainConfig, load_config
from neutronstream.experiments.settings import Settings, parse_options, to_toml
from neutronstream.experiments.snapshots import SnapshotConfig


def test_the_defaults_are_these() -> None:
    assert TrainConfig().model_dump() == {
        "model": "dyrep",
        "width": 64,
        "options": {},
        "protocol": "prequential",
        "val_ratio": 0.15,
        "test_ratio": 0.15,
        "split_seed": 2020,
        "patience": 5,
        "evaluate_from": "trained",
        "window": "fixed",
        "size": None,
        "stride": None,
        "down": 50,
        "up": 300,
        "rate": 0.2,
        "batch_size": 50,
        "epochs": 1,
        "learning_rate": 3e-3,
        "clip": 100.0,
        "negatives": None,
        "candidates": 50,
        "edgebank_window": None,
        "consistency": "exact",
        "executor": "auto",
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "seed": 0,
        "check": False,
        "limit": None,
        "checkpoint_seconds": 30.0,
    }


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(TrainConfig(), "seed", 3)  # noqa: B010


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 3\nwidth = 32\n")
    config = load_config(path, {"width": 16})
    assert (config.seed, config.width, config.epochs) == (3, 16, 1)


@pytest.mark.parametrize(
    ("value", "kept"), [(600, 600), ("600", 600), ("7d", "7d"), (" 1H30m ", "1h30m"), (None, None)]
)
def test_a_window_length_is_a_count_or_a_duration(value: Any, kept: Any) -> None:
    assert TrainConfig(size=value).size == kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeed": 1}, "unknown setting `seeed`: did you mean 'seed'"),
        ({"zzzz": 1}, "unknown setting `zzzz`: see `neutronstream train --help`"),
        ({"rate": 2.0}, "`rate` must be less than or equal to 1: got 2.0"),
        ({"rate": 0}, "`rate` must be greater than 0: got 0"),
        ({"learning_rate": -1}, "`learning_rate` must be greater than or equal to 0: got -1"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be a finite number: got nan"),
        ({"clip": float("inf")}, "`clip` must be a finite number: got inf"),
        ({"width": True}, "`width` must be a valid integer: got True"),
        ({"width": "64"}, "`width` must be a valid integer: got '64'"),
        ({"limit": 0}, "`limit` must be greater than or equal to 1: got 0"),
        ({"window": "ring"}, "`window` must be 'fixed', 'tumbling', 'growing' or 'adaptive'"),
        ({"device": "gpu"}, "`device` must be cpu, mps, cuda or cuda:N: got 'gpu'"),
        ({"model": "A b"}, "in small letters, such as dyrep: got 'A b'"),
        ({"size": 0}, "`size` must be at least 1: got 0"),
        ({"size": -5}, "`size` must be at least 1: got -5"),
        ({"size": 2.5}, "`size` must be a count of events or a duration such as 7d"),
        ({"size": "7 parsecs"}, "`size` must be a count of events or a duration such as 7d"),
        ({"size": True}, "`size` must be a count of events or a duration such as 7d"),
        ({"options": 3}, "`options` must be a table of options by name, such as {"),
        ({"options": {"K": 1}}, "`options` must have names such as k, which 'K' is not"),
        ({"options": {"k": [1]}}, "`options` must give `k` a finite number, true, false or a text"),
        ({"options": {"k": float("nan")}}, "`options` must give `k` a finite number"),
        ({"options": {"k": None}}, "`options` must give `k` a finite number"),
        ({"protocol": "holdout"}, "`protocol` must be 'prequential' or 'split': got 'holdout'"),
        ({"protocol": "split", "size": 5}, "the `protocol` split has no windows: leave `window`"),
        ({"protocol": "split", "window": "growing"}, "the `protocol` split has no windows"),
        (
            {"protocol": "split", "val_ratio": 0.5, "test_ratio": 0.5},
            "`val_ratio` and `test_ratio` must leave a part to train on: got 0.5 and 0.5",
        ),
        ({"test_ratio": 1.0}, "`test_ratio` must be less than 1: got 1.0"),
        (
            {"consistency": "batch", "executor": "sequential"},
            "`executor` sequential is exact by its nature: with `consistency` batch leave it out",
        ),
        ({"size": 5, "stride": 6}, "`stride` must not exceed `size`, .*: got 6 > 5"),
        ({"size": 5, "stride": "1d"}, "must both be counts or both be durations: got 5 and 1d"),
        ({"stride": 5}, "`stride` needs a `size` beside it: got stride 5 alone"),
        ({"window": "tumbling", "size": 5, "stride": 5}, "a tumbling `window` moves by its `size`"),
        ({"window": "adaptive", "size": 5}, "an adaptive `window` has no `size` and `stride`"),
        ({"down": 9, "up": 8}, "`down` must not exceed `up`: got 9 > 8"),
        ({"width": 10**12}, "`width` must be less than or equal to 65536: got 1000000000000"),
        ({"candidates": 10**11}, "`candidates` must be less than or equal to 100000: got 1000"),
        ({"negatives": 10**11}, "`negatives` must be less than or equal to 10000: got 10000"),
        ({"threads": 10**11}, "`threads` must be less than or equal to 1024: got 1000000000"),
        ({"edgebank_window": 10**23}, "`edgebank_window` must be less than 9223372036854775808"),
        ({"limit": 10**20}, "`limit` must be less than 9223372036854775808: got 1000000000000"),
        ({"learning_rate": 1e38}, "`learning_rate` must be less than or equal to 1000: got 1e"),
        ({"clip": 1e308}, "`clip` must be less than or equal to 1000000000: got 1e"),
        ({"size": 10**20}, "`size` must be less than 9223372036854775808: got 1000000000000"),
        ({"size": str(10**20)}, "`size` must be less than 9223372036854775808: got '10000000"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_config(None, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (TrainConfig, {"seeed": 1}, "unknown setting `seeed`: did you mean 'seed'?"),
        (TrainConfig, {"zzzz": 1}, "unknown setting `zzzz`: see `neutronstream train --help`"),
        (SnapshotConfig, {"perod": "7d"}, "unknown setting `perod`: did you mean 'period'?"),
        (SnapshotConfig, {"zz": 1}, "unknown setting `zz`: see `neutronstream snapshots --help`"),
        (TrainConfig, {"rate": 2.0}, "`rate` must be less than or equal to 1: got 2.0"),
        (
            TrainConfig,
            {"width": 0, "bach_size": 3},
            "`width` must be greater than or equal to 1: got 0; "
            "unknown setting `bach_size`: did you mean 'batch_size'?",
        ),
    ],
)
def test_python_is_refused_a_setting_in_the_same_words_as_a_file(
    kind: type[Settings], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError) as caught:
        kind(**settings)
    assert str(caught.value) == words
    assert caught.value.__suppress_context__  # pydantic's own words are not shown above these


def test_a_configuration_can_be_copied_and_sent() -> None:
    config = TrainConfig(size="7d", options={"k": 3})
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert config.model_copy(update={"seed": 2}) == TrainConfig(size="7d", options={"k": 3}, seed=2)


def test_every_number_has_a_largest_value() -> None:
    for name, field in TrainConfig.model_fields.items():
        kinds = set(get_args(field.annotation) or (field.annotation,))
        if kinds & {int, float}:
            for value in (10**30, 1e305):
                if isinstance(value, int) or float in kinds:
                    with pytest.raises(ValueError, match=f"`{name}` must be less than"):
                        load_config(None, {name: value})


def test_a_bad_key_of_a_file_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("batchsize = 3\n[train]\nseed = 1\n")
    with pytest.raises(ValueError, match=r"run.toml: unknown setting `batchsize`: did you mean 'b"):
        load_config(path)
    with pytest.raises(ValueError, match=r"run.toml: unknown setting `train`"):
        load_config(path)


def test_a_bad_flag_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 1\n")
    with pytest.raises(ValueError, match=r"^`width` must be"):
        load_config(path, {"width": 0})


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"just words"])
def test_a_file_that_is_not_toml_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run.toml is not a TOML file"):
        load_config(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run\.toml"):
        load_config(tmp_path / "run.toml")


def test_a_field_that_may_be_none_is_none_by_default() -> None:
    for name, field in TrainConfig.model_fields.items():
        if "None" in str(field.annotation):
            assert field.default is None, name


def test_a_split_has_more_epochs_unless_told_otherwise(tmp_path: Path) -> None:
    assert (TrainConfig().epochs, TrainConfig(protocol="split").epochs) == (1, 20)
    assert load_config(None, {"protocol": "split", "epochs": 3}).epochs == 3
    path = tmp_path / "run.toml"
    path.write_text(to_toml(TrainConfig(protocol="split", epochs=1)))
    assert load_config(path).epochs == 1


def test_options_are_a_table_of_the_file_and_flags_win_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[options]\nk = 5\nembedding = "sum"\n')
    assert load_config(path).options == {"k": 5, "embedding": "sum"}
    assert load_config(path, {"options": {"k": 7}}).options == {"k": 7, "embedding": "sum"}
    path.write_text("options = { k = 5 }\n")
    assert load_config(path, {"options": {"heads": 2}}).options == {"k": 5, "heads": 2}
    path.write_text("options = 5\n")
    with pytest.raises(ValueError, match=r"run.toml: `options` must be a table of options"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("false", False),
        ("attention", "attention"),
        ("two words", "two words"),
        ("'10'", "10"),
        ('"a # b"', "a # b"),
        ("5#x", "5#x"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nk = 2", "1\nk = 2"),
    ],
)
def test_a_value_is_read_as_in_toml_and_a_bare_word_is_a_text(text: str, value: Any) -> None:
    (found,) = parse_options([f"k={text}"]).values()
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("k", "--set must be NAME=VALUE, such as k=10: got 'k'"),
        ("=3", "--set must be NAME=VALUE"),
        ("k=[1, 2]", r"--set must give a number, true, false or a text to `k`: got \[1, 2\]"),
        ("k={a = 1}", "--set must give a number"),
        ("k=2020-01-01", "--set must give a number"),
    ],
)
def test_what_is_no_option_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_options([text])


lengths = st.one_of(
    st.none(), st.tuples(st.integers(5, 9), st.integers(1, 5)), st.just(("2d", "1h30m"))
)


@given(
    lengths=lengths,
    seed=st.integers(0, 2**63 - 1),
    learning_rate=st.floats(0, 10),
    limit=st.none() | st.integers(1, 10**12),
    check=st.booleans(),
    options=st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8"), max_size=9),
        max_size=3,
    ),
    device=st.sampled_from(["cpu", "cuda:1"]),
)
def test_what_is_written_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, lengths: Any, **settings: Any
) -> None:
    size, stride = lengths or (None, None)
    config = TrainConfig(size=size, stride=stride, **settings)
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_bytes(to_toml(config).encode())
    assert load_config(path) == config


def test_every_setting_stands_in_the_written_text_with_its_meaning() -> None:
    lines = to_toml(TrainConfig()).splitlines()
    assert lines[1] == "width = 64  # Width of a node's state."
    assert len(lines) == len(TrainConfig.model_fields)
