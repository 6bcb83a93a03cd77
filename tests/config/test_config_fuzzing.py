"""Fuzzing of configs: any config file, command line or stored config gives a valid Config or a UserError."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.cli import arguments
from t2t_flax.config import Config, default_config, from_json, load_config, override, resolve, to_json
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError

KEYS = st.sampled_from(sorted(fields()))
NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "-0.0",
    "1e400",
    "1e308",
    str(2**31),
    str(2**32),
    str(2**64),
    "-1",
    "0",
    "1",
    "9" * 5000,
]
TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from([*NUMBERS, "", " ", "\0", "\udcff", "(0, 5)", "(1,)", "none", "true", "٣"])
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
    | st.sampled_from([10**400, -(10**400), 2**64, object()]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def config_or_none(make):
    """The config that `make` returns, or None if it raises a UserError with a printable message."""
    try:
        return make()
    except UserError as error:
        assert str(error).encode() and len(str(error)) < 5000
        return None


def check_invariants(config: Config) -> None:
    """The config survives a JSON round trip, and every number fits float32 or int32."""
    assert from_json(to_json(config)) == config
    for name in fields():
        group, item = name.split(".")
        value = getattr(config.group(group), item)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                assert math.isfinite(number) and abs(number) < 2**63 and (math.copysign(1, number) > 0 or number < 0)


@given(st.dictionaries(KEYS, TEXTS, max_size=3))
def test_random_text_for_every_key(keys):
    if config := config_or_none(lambda: resolve(override(default_config(), keys))):
        check_invariants(config)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=2), VALUES)
def test_random_values_set_by_a_config_file(keys, group):
    values = default_config().to_dict()
    for name, value in keys.items():
        values[name.split(".")[0]][name.split(".")[1]] = value
    if config := config_or_none(lambda: resolve(values)):
        check_invariants(config)
    config_or_none(lambda: resolve(group))
    config_or_none(lambda: resolve({"model": group}))
    config_or_none(lambda: resolve({"model": {}, 3: group}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@given(KEYS, JSON, st.integers(0, 6000))
def test_random_stored_configs(name, value, cut):
    values = json.loads(to_json(Config()))
    config_or_none(lambda: from_json(json.dumps(values)[:cut]))
    group, item = name.split(".")
    values.setdefault(group, {})[item] = value
    if config := config_or_none(lambda: from_json(json.dumps(values))):
        check_invariants(config)
    config_or_none(lambda: from_json(json.dumps(value)))


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("model.dropout", "nan", "config.model.dropout = nan: must be a finite number"),
        ("optimizer.lr_scale", "inf", "config.optimizer.lr_scale = inf: must be a finite number"),
        ("optimizer.eps", "0", "config.optimizer.eps = 0.0: must be at least 1e-30"),
        ("seed.init", str(2**32), "config.seed.init = 4294967296: must be at most 4294967295"),
        ("data.batch_tokens", "1" + "0" * 30, "must be at most 268435456"),
        ("train.steps", str(2**31), "config.train.steps = 2147483648: must be at most 2147483647"),
        ("data.train", "a\0b", "contains a control character"),
        ("data.train", "\udcff", "not valid Unicode text"),
    ],
)
def test_out_of_range_values_are_refused(key, text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        resolve(override(default_config(), {key: text}))


def test_huge_integers_are_refused():
    with pytest.raises(UserError, match="config.train.steps = a value of type int: must be at most"):
        resolve({"train": {"steps": 10**5000}})


@pytest.mark.parametrize(
    "body",
    ["def get_config(:", "def get_config():\n    return 3", "def get_config():\n    return {3: 4}", "raise SystemExit(0)", "1 / 0",
     "def get_config():\n    return None", "get_config = 3", "import nowhere_at_all", "def get_config():\n    return get_config()"],
)  # fmt: skip
def test_config_files_must_return_a_config(tmp_path, body):
    path = tmp_path / "c.py"
    path.write_text(body + "\n")
    with pytest.raises(UserError, match=r"c\.py|expected a config|no group"):
        load_config(str(path))


def test_wrong_config_paths_are_refused(tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "junk.json").write_bytes(b"\xff\xfe")
    (tmp_path / "list.json").write_text("[]")
    for name in ("folder.py", "junk.json", "list.json", "missing.json"):
        with pytest.raises(UserError, match=name):
            load_config(str(tmp_path / name))


def parsed(*argv: str):
    parser = arguments.parser("x", "")
    arguments.add_workdir(parser, "")
    arguments.add_checkpoint(parser)
    named = any(arg.startswith("--workdir") for arg in argv)
    return arguments.parse(parser, [*([] if named else ["--workdir=w"]), *argv])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--average=-3"], "--average: must be at least 0, not -3"),
        (["--step=-1"], "must be at least 0"),
        (["--step=1e3"], "expected a whole number, not '1e3'"),
        (["--step=" + "9" * 30], "must be at most"),
        (["--workdir="], "--workdir= is empty"),
        (["--workdir=--"], "--workdir= is empty"),
        (["--workdir=\udcff"], "bytes that are not UTF-8"),
        (["--config.model.d_model"], "has no value"),
        (["--no-such-flag"], "unrecognized arguments"),
    ],
)
def test_flags_have_ranges(argv, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parsed(*argv)


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["--average", "--step=1", "--config.", "--config.=", "--"]), max_size=4
    )
)
def test_random_command_lines_are_parsed_or_refused(argv):
    if any(arg in ("-h", "--help") for arg in argv):
        return
    config_or_none(lambda: parsed(*argv))
