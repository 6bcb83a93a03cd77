"""Filters that look at one pair, and values that are refused."""

import pytest
from helpers.refusals import refused

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.hooks import training_policies
from t2t_flax.data.preprocess import Pair
from t2t_flax.extensions.corpora.rules import Copies, LengthRatio


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [("Foo", "Foo", False), ("Foo ", " Foo", False), ("Foo", "foo", True), ("Foo", "Fu", True)],
)
def test_copies_are_pairs_with_equal_sides(source, target, kept):
    assert Copies().drops([Pair(source, target, [5], [6], 0)]) == [not kept]


def test_lengths_are_those_of_the_tokens():
    pairs = [
        Pair("x", "y", [5] * source, [6] * target, 0)
        for source, target in ((2, 6), (6, 2), (7, 2), (2, 7))
    ]
    assert LengthRatio(3.0).drops(pairs) == [False, False, True, True]


def test_all_filters_of_a_config_are_set_and_shown():
    keys = {
        "duplicates": "True",
        "length_ratio": "3",
        "copies": "True",
        "held_out": "pair",
        "language": "0.95",
    }
    keys = {f"filters.{name}": value for name, value in keys.items()}
    config = resolve(
        override(default_config(), keys | {"data.train": "x=a,b; y=c,d", "data.valid": "e,f"})
    )
    filters = training_policies(config).filters
    assert [rule.reason for rule in filters] == [
        "duplicate",
        "length_ratio",
        "copy",
        "held_out",
        "language",
    ]
    assert (
        all(rule.rule for rule in filters) and "3" in filters[1].rule and "0.95" in filters[4].rule
    )


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("held_out", "all", ("source, target",)),
        ("held_out", "pair", ("data.valid", "data.test")),
        ("scorer", "mine.py", ("mine.py",)),
        ("score", "0.5", ("filters.scorer",)),
        ("length_ratio", "0.5", ("0.5",)),
        ("length_ratio", "-1", ("-1",)),
        ("language", "0.3", ("0.3",)),
        ("language", "1.5", ("1.5",)),
        ("language", "0.95", ("data.task", "parsing")),
        ("held_out", "either", ("data.task", "parsing")),
        ("held_out", "target", ("data.task", "parsing")),
    ],
)
def test_impossible_values_are_refused(key, value, names):
    task = {"data.task": "parsing", "data.valid": "trees"} if "data.task" in names else {}
    with refused(f"filters.{key}", *names):
        resolve(override(default_config(), {f"filters.{key}": value} | task))
