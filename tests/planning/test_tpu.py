"""What the real TPU compiler says of a small model on four chips; skipped where it is not installed."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.configs import small_config

from t2t_flax.planning.ask import ask, has_libtpu
from t2t_flax.planning.plan import complete
from t2t_flax.planning.topology import parse

pytestmark = pytest.mark.skipif(not has_libtpu(), reason="libtpu is not installed (extra plan)")
SIZES = dict(d_model=64, d_ff=128, pad_vocab_to_multiple=128)


@functools.cache
def told(parts=("train",), **mesh):
    config = small_config(model=SIZES, mesh=mesh)
    return config, ask(config, parse("v5e:2x2"), (512, 512), parts)


def kinds(answer: dict) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in answer["train"]["collectives"]:
        found[row["kind"]] = found.get(row["kind"], 0) + row["bytes"]
    return found


def test_data_parallelism_sends_its_gradients_as_the_formula_has_it():
    config, answer = told(("train", "decode"))
    assert answer["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1} and answer["train"]["fits"]
    (by_formula,) = answer["formula"]["collectives"]
    assert kinds(answer)["all-reduce"] == pytest.approx(by_formula["bytes"], rel=0.02)
    assert answer["train"]["memory"]["argument"] >= answer["state_bytes"]
    plan = complete(config, parse("v5e:2x2"), answer)
    assert plan["by"] == "compiler" and plan["prediction"]["seconds"] > 0
    # The cache of the search is divided over the chips: whole it would be larger than this.
    decode, c = answer["decode"], config
    cache = 2 * 4 * c.decode.batch_size * c.decode.beam_size * decode["cache_length"] * c.model.d_model * 2
    assert decode["memory"]["argument"] - answer["state_bytes"] / 3 < 0.7 * cache


def test_fully_sharded_arguments_are_smaller():
    _, whole = told(("train", "decode"))
    _, divided = told(fsdp=4, data=1)
    assert divided["train"]["memory"]["argument"] < 0.75 * whole["train"]["memory"]["argument"]
    assert divided["state_bytes"] < 0.35 * whole["state_bytes"]
    assert "all-gather" in kinds(divided) and "all-gather" not in kinds(whole)


def test_zero_1_scatters_gradients_and_gathers_parameters_once():
    """On a mesh where a wrong reading of the groups would show: 4 x 4, the state divided over one axis."""
    config = small_config(model=SIZES, mesh=dict(fsdp=4, fsdp_mode="zero1"))
    answer = ask(config, parse("v5e:4x4"), (512, 512), ("train",))
    assert answer["mesh"] == {"data": 4, "fsdp": 4, "tensor": 1}
    rows = {(r["kind"], r["devices"]): r["bytes"] for r in answer["train"]["collectives"]}
    formula = {(r["kind"], r["devices"]): r["bytes"] for r in answer["formula"]["collectives"]}
    assert rows["all-gather", 4] == pytest.approx(formula["all-gather", 4], rel=0.1)
    # A few small matrices are summed whole instead of scattered.
    assert 0.7 * formula["reduce-scatter", 4] < rows["reduce-scatter", 4] <= 1.02 * formula["reduce-scatter", 4]
    assert ("all-gather", 16) not in rows


def test_two_slices_exchange_parts_of_their_gradients_over_the_network():
    """Summed within a slice first; each chip then exchanges its part with its peer."""
    config = small_config(model=SIZES)
    answer = ask(config, parse("2xv5e:2x2"), (512, 512), ("train",))
    assert answer["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1} and answer["train"]["fits"]
    (by_formula,) = answer["formula"]["collectives"]
    assert by_formula["slices"] == 2
    rows = answer["train"]["collectives"]
    between = [row for row in rows if row["kind"] == "all-reduce" and row["slices"] == 2]
    assert all(row["devices"] == 1 for row in between)
    assert by_formula["bytes"] / 4 < sum(row["bytes"] for row in between) < by_formula["bytes"]
    within = sum(row["bytes"] for row in rows if row["kind"] in ("reduce-scatter", "all-reduce") and row["slices"] == 1)
    assert within == pytest.approx(by_formula["bytes"], rel=0.05)


def test_tensor_parallelism_sends_activations():
    _, whole = told(("train", "decode"))
    _, divided = told(tensor=4, data=1)
    runs = lambda answer: sum(row["runs"] for row in answer["train"]["collectives"])  # noqa: E731
    assert runs(divided) > runs(whole)
    assert divided["state_bytes"] < 0.35 * whole["state_bytes"]


def test_two_plans_at_the_same_time_both_get_an_answer():
    """libtpu is loaded by one process of a machine at a time unless told that no TPU is meant."""
    config = small_config(model=SIZES)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: ask(config, parse("v5e:2x2"), (512, 512), ("train",)), range(2)))
    first, second = (answer["train"] for answer in answers)
    assert first["fits"] and first["memory"] == second["memory"] and first["collectives"] == second["collectives"]
