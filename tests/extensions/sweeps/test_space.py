"""Search spaces of sweeps, and the trials they expand to."""

import math
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from t2t_flax.errors import UserError
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
    zipped,
)
from t2t_flax.extensions.sweeps.trials import expand, row_names

TOY = "configs/toy.py"


def test_product_zipped_and_concat():
    a, b = over("model.dropout", [0.1, 0.2]), over("optimizer.warmup_steps", [10, 20])
    assert [tuple(row.values()) for row in product(a, b)] == [(0.1, 10), (0.1, 20), (0.2, 10), (0.2, 20)]
    assert [tuple(row.values()) for row in zipped(a, b)] == [(0.1, 10), (0.2, 20)]
    assert concat(a, b) == [*a, *b]
    assert product(named("small", {"model.d_model": 64}), a)[1] == {
        "name": "small",
        "model.d_model": 64,
        "model.dropout": 0.2,
    }


@pytest.mark.parametrize("make, message", [
    (lambda: product(over("a.b", [1]), over("a.b", [2])), "a.b twice"),
    (lambda: zipped(over("a.b", [1]), over("a.c", [2, 3])), "1, 2"),
    (lambda: Sweep(), "either rows or a search"),
    (lambda: Sweep(rows=named("base"), seeds=0), "at least 1"),
    (lambda: Search({}, 3, "valid_nll"), "at least one config key"),
    (lambda: Search({"model.dropout": choice(0.1)}, 3, "sacrebleu"), "fits the test set"),
    (lambda: Search({"model.dropout": choice(0.1)}, 3, "valid_nll", method="bayes"), "random or tpe"),
    (lambda: Search({"model.dropout": [0.1, 0.2]}, 3, "valid_nll"), "use choice"),
    (lambda: log_uniform(0, 1), "above 0"),
    (lambda: integers(5, 5), "the first below the second"),
    (lambda: integers(0.5, 3), "give integers"),
    (lambda: space.uniform(0, float("inf")), "give finite numbers"),
])  # fmt: skip
def test_invalid_spaces_are_rejected(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_random_search_is_a_function_of_its_seed():
    ranges = {
        "optimizer.peak_lr": log_uniform(1e-4, 1e-2),
        "model.num_heads": choice(1, 2, 4),
        "train.steps": integers(3, 5),
    }
    rows = Search(ranges, 50, "valid_nll", seed=1).rows()
    assert rows[:20] == Search(ranges, 20, "valid_nll", seed=1).rows()
    assert rows != Search(ranges, 50, "valid_nll", seed=2).rows()
    rates = [row["optimizer.peak_lr"] for row in rows]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates) and 10 < sum(rate < 1e-3 for rate in rates) < 40
    assert {row["model.num_heads"] for row in rows} == {1, 2, 4} and {row["train.steps"] for row in rows} == {3, 4, 5}
    search = Search(ranges, 2, "valid_nll")
    assert Search.from_json(search.to_json()).to_json() == search.to_json()


@pytest.mark.parametrize("ranges, message", [
    ({"model.width": choice(1, 2)}, "unknown config key"),
    ({"model.norm_placement": choice("post", "prex")}, "expected one of"),
    ({"model.dropout": space.uniform(0.1, 1.5)}, "at most"),
    ({"train.steps": space.uniform(1, 2.5)}, "expected int"),
])  # fmt: skip
def test_choices_and_bounds_are_validated(ranges, message):
    with pytest.raises(UserError, match=message):
        Search(ranges, 3, "valid_nll").validate()
    Search({"train.steps": integers(3, 9), "model.dropout": space.uniform(0, 0.5)}, 3, "valid_nll").validate()


@hypothesis.given(
    st.floats(-1e6, 1e6),
    st.floats(1e-9, 1e6),
    st.sampled_from(["even", "log", "whole", "whole log"]),
    st.integers(0, 99),
)
@hypothesis.example(0.0, 0.99999, "even", 0)
@hypothesis.example(0.123449, 0.0000011, "log", 1)
def test_draws_stay_in_their_range(low, width, kind, seed):
    high = low + width
    if "whole" in kind:
        low, high = round(low), round(low) + max(1, round(width))
    if "log" in kind:
        low, high = abs(low) + (1 if "whole" in kind else 1e-9), abs(low) + 1 + (high - low)
    if low >= high:  # rounding removed the width
        return
    values = space.Range(low, high, log="log" in kind, whole="whole" in kind)
    rng = random.Random(seed)
    for value in [values.draw(rng) for _ in range(20)] + [values.rounded(low), values.rounded(high)]:
        assert low <= value <= high and (isinstance(value, int) if values.whole else isinstance(value, float))


@pytest.mark.parametrize("values, value", [
    (choice(1, "a", 0.5, None), None), (choice(1, "a", 0.5), 0.5), (integers(1, 9), 7), (log_uniform(1e-9, 1), 1.234e-7),
])  # fmt: skip
def test_values_round_trip_as_text(values, value):
    assert values.parse(space.as_text(values.rounded(value))) == value


def test_quasi_random_rows_are_spread_evenly():
    """Of 8 values in base 2 one is in each eighth, of 9 in base 3 one in each ninth; choices come equally often."""
    ranges = {"a": space.uniform(0, 1), "b": log_uniform(1e-4, 1e-1), "c": choice(1, 2, 3, 4, 5)}
    rows = space.quasi_random(ranges, 10, seed=3)
    assert rows == space.quasi_random(ranges, 10, seed=3) != space.quasi_random(ranges, 10, seed=4)
    assert sorted(int(row["a"] * 8) for row in rows[:8]) == list(range(8))
    assert sorted(int((math.log10(row["b"]) + 4) * 3) for row in rows[:9]) == list(range(9))
    assert sorted(row["c"] for row in rows) == sorted([1, 2, 3, 4, 5] * 2)


def test_search_may_draw_a_row_twice():
    rows = Search({"model.num_heads": choice(1, 2)}, 6, "valid_nll").rows()
    names = [trial.row for trial in expand(TOY, {}, rows, 1, numbered=True)]
    assert len(set(names)) == 6 and names[3].startswith("003,num_heads=")


def test_rows_are_named_after_their_overrides():
    rows = product(over("model.dropout", [0.1]), over("seed.dropout", [3]))
    assert row_names(rows) == ["model.dropout=0.1,seed.dropout=3"]
    assert row_names([{}, {"model.dropout": 0.5}, {"name": "no/slash"}])[:2] == ["base", "dropout=0.5"]
    (odd,) = row_names([{"name": "no/slash"}])
    assert "/" not in odd and odd != row_names([{"name": "no_slash"}])[0]
    (long,) = row_names([{"name": "x" * 300}])
    assert len(long) <= 120 and long != row_names([{"name": "x" * 301}])[0]


def test_seed_is_added_to_the_seeds_of_the_config():
    for config in ("wu2021_tiny", TOY):
        first, second = expand(config, {"seed.init": "5"}, named("base"), 2)
        assert (first.config.seed.init, second.config.seed.init) == (5, 6)
        assert second.config.seed.data == first.config.seed.data + 1 and second.name == "base,seed=1"


@pytest.mark.parametrize("rows, fixed, seeds, message", [
    (over("model.dropoutt", [1]), {}, 1, "dropoutt=1.*Did you mean 'model.dropout'"),
    (over("model.dropout", ["much"]), {}, 1, "row dropout=much.*expected float"),
    (over("model.num_heads", [3]), {}, 1, "row num_heads=3.*not a multiple"),
    (over("model.dropout", [0.1, 0.1]), {}, 1, "both named 'dropout=0.1'"),
    (over("model.dropout", ["0.1", "0.10"]), {}, 1, "'dropout=0.1' and 'dropout=0.10' of the sweep are the same config"),
    ([{"name": 3}], {}, 1, "expected a dict of overrides"),
    (over("model.dropout", [0.1]), {"model.dropout": "0.2"}, 1, "varied by the sweep and fixed"),
    (over("seed.init", [1, 2]), {}, 2, "each row has one seed"),
])  # fmt: skip
def test_every_value_is_validated(rows, fixed, seeds, message):
    with pytest.raises(UserError, match=message):
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
