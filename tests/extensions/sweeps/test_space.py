"""Search spaces of sweeps, and the trials they expand to."""

import importlib.util
import json
import math

import hypothesis
import pytest
from helpers.refusals import refused
from hypothesis import strategies as st

from t2t_flax.extensions.sweeps import space
from t2t_flax.extensions.sweeps.space import (
    Search,
    Sweep,
    choice,
    concat,
    integers,
    log_uniform,
    named,
    over,
    product,
    uniform,
    zipped,
)
from t2t_flax.extensions.sweeps.trials import expand, folder_name, is_folder_name, row_names

TOY = "configs/toy.py"


def test_product_zipped_and_concat():
    a, b = over("model.dropout", [0.1, 0.2]), over("optimizer.warmup_steps", [10, 20])
    assert [tuple(row.values()) for row in product(a, b)] == [
        (0.1, 10),
        (0.1, 20),
        (0.2, 10),
        (0.2, 20),
    ]
    assert [tuple(row.values()) for row in zipped(a, b)] == [(0.1, 10), (0.2, 20)]
    assert concat(a, b) == [*a, *b]
    assert product(named("small", {"model.d_model": 64}), a)[1] == {
        "name": "small",
        "model.d_model": 64,
        "model.dropout": 0.2,
    }


@pytest.mark.parametrize("make, name", [
    (lambda: product(over("a.b", [1]), over("a.b", [2])), "a.b"),
    (lambda: zipped(over("a.b", [1]), over("a.c", [2, 3])), "zipped()"),
    (lambda: Sweep(), "search"),
    (lambda: Sweep(rows=named("base"), seeds=0), "seeds=0"),
    (lambda: Search({}, 3, "valid_nll"), "space"),
    (lambda: Search({"model.dropout": choice(0.1)}, 3, "sacrebleu"), "sacrebleu"),
    (lambda: Search({"model.dropout": choice(0.1)}, 3, "valid_nll", method="bayes"), "bayes"),
    (lambda: Search({"model.dropout": choice(0.1)}, 3, "valid_nll", prune="often"), "often"),
    (lambda: Search({"model.dropout": [0.1, 0.2]}, 3, "valid_nll"), "model.dropout"),
    (lambda: log_uniform(0, 1), "(0, 1)"),
    (lambda: integers(5, 4), "(5, 4)"),
    (lambda: uniform(0, math.inf), "inf"),
    (lambda: choice(), "range"),
    (lambda: Search({"model.width": choice(1, 2)}, 3, "valid_nll").validate(), "model.width"),
    (lambda: Search({"model.norm_placement": choice("post", "prex")}, 3, "valid_nll").validate(), "model.norm_placement"),
    (lambda: Search({"model.dropout": uniform(0.1, 1.5)}, 3, "valid_nll").validate(), "model.dropout"),
    (lambda: Search({"train.steps": uniform(1, 2.5)}, 3, "valid_nll").validate(), "train.steps"),
])  # fmt: skip
def test_invalid_spaces_are_refused(make, name):
    with refused(name):
        make()


def test_search_survives_json():
    space = {
        "train.steps": integers(3, 9, log=True),
        "model.dropout": uniform(0, 0.5),
        "optimizer.peak_lr": log_uniform(1e-4, 1),
    }
    search = Search(
        space | {"model.norm_placement": choice("pre", "post")},
        3,
        "valid_nll",
        method="tpe",
        prune="halving",
    )
    search.validate()
    assert Search.from_json(json.loads(json.dumps(search.to_json()))) == search
    assert choice((1, 2), None).choices == ("(1,2)", None)


def test_search_without_optuna_is_refused(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name)
    )
    with refused("optuna"):
        uniform(0, 1)


@hypothesis.given(st.text(max_size=200), st.integers(0, 99_999), st.integers(0, 10**6))
def test_generated_names_are_accepted(text, number, seed):
    assert is_folder_name(f"{folder_name(text)},seed={seed}")
    assert is_folder_name(f"{number:03d},{folder_name(text)},seed={seed}")


def test_rows_are_named_after_their_overrides():
    rows = product(over("model.dropout", [0.1]), over("seed.dropout", [3]))
    assert row_names(rows) == ["model.dropout=0.1,seed.dropout=3"]
    assert row_names([{}, {"model.dropout": 0.5}, {"name": "no/slash"}])[:2] == [
        "base",
        "dropout=0.5",
    ]
    (odd,) = row_names([{"name": "no/slash"}])
    assert "/" not in odd and odd != row_names([{"name": "no_slash"}])[0]
    (long,) = row_names([{"name": "x" * 300}])
    assert len(long) <= 120 and long != row_names([{"name": "x" * 301}])[0]


def test_seed_is_added_to_the_seeds_of_the_config():
    for config in ("wu2021_tiny", TOY):
        first, second = expand(config, {"seed.init": "5"}, named("base"), 2)
        assert (first.config.seed.init, second.config.seed.init) == (5, 6)
        assert (
            second.config.seed.data == first.config.seed.data + 1 and second.name == "base,seed=1"
        )


@pytest.mark.parametrize("rows, fixed, seeds, name", [
    (over("model.dropoutt", [1]), {}, 1, "model.dropoutt"),
    (over("model.dropout", ["much"]), {}, 1, "model.dropout"),
    (over("model.num_heads", [3]), {}, 1, "model.num_heads"),
    (over("model.dropout", [0.1, 0.1]), {}, 1, "dropout=0.1"),
    (over("model.dropout", ["0.1", "0.10"]), {}, 1, "dropout=0.10"),
    ([{"name": 3}], {}, 1, "row 0"),
    (over("model.dropout", [0.1]), {"model.dropout": "0.2"}, 1, "model.dropout"),
    (over("seed.init", [1, 2]), {}, 2, "seed.init"),
])  # fmt: skip
def test_every_value_is_validated(rows, fixed, seeds, name):
    with refused(name):
        expand(TOY, fixed, rows, seeds)


def test_values_as_command_line_text():
    assert [space.as_text(v) for v in (True, None, (1, 2), 1e-9, 0.1, "post")] == [
        "true",
        "none",
        "(1,2)",
        "1e-09",
        "0.1",
        "post",
    ]
