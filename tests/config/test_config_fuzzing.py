"""Any config file, command line or stored config gives a valid Config or a UserError."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.config import Config, default_config, from_json, override, resolve, to_json
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
    st.text(max_size=20),
    st.sampled_from([*NUMBERS, "", " ", "\0", "\udcff", "(0, 5)", "(1,)", "none", "true", "٣"]),
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
                assert (
                    math.isfinite(number)
                    and abs(number) < 2**63
                    and (math.copysign(1, number) > 0 or number < 0)
                )


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
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
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
