"""Sizes by rule: the factors, an unchanged model of the base size, and refused configs."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from helpers.configs import model_and_state, random_pairs, rows_alone, small_config, write_store
from helpers.refusals import refused
from helpers.updates import run_updates, updates_of
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.extensions.mup.parametrization import scales_of
from t2t_flax.extensions.mup.rule import kind_of, rules
from t2t_flax.models.layers import Residual
from t2t_flax.registry import load_extensions
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of, path_names
from t2t_flax.training.train_state import make_model, parameter_shapes

load_extensions()
RATES = dict(schedule="inverse_sqrt", peak_lr=1e-2)
"""Do not fall with the width, as the paper's do."""
MODELS = {
    "the paper's": {},
    "pre-norm": dict(
        norm_placement="pre", position="learned", attention_bias=True, output_bias=True
    ),
    "three tables": dict(tie_embeddings="none", decoder_start_token="bos"),
    "scaled logits": dict(
        embed_scale="none", embed_init="normal_1", logit_scale="rsqrt_d", final_norm="both"
    ),
    "gated": dict(
        feed_forward="gated", norm_type="rmsnorm", num_kv_heads=2, tie_embeddings="decoder"
    ),
}


def wide(base: int = 4, model: dict | None = None, **groups) -> Config:
    """A config of width 16, of a base of this width."""
    return small_config(
        model=dict(dropout=0.0) | (model or {}), optimizer=RATES | groups, mup=dict(base_width=base)
    )


@pytest.mark.smoke
def test_at_the_base_width_a_run_has_the_bits_of_one_without(tmp_path):
    store = write_store(tmp_path, random_pairs(40))
    states = [jax.device_get(run_updates(wide(base), store)[1]) for base in (0, 16)]
    jax.tree.map(np.testing.assert_array_equal, *states)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_parameter_has_a_rule_and_at_the_base_width_it_changes_nothing(model):
    config = wide(16, model)
    factors = scales_of(config, parameter_shapes(make_model(config, 37, 37)))
    assert {(x.initial, x.rate, x.gradient) for x in factors.values()} == {(1.0, 1.0, 1.0)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_lookups_logits_and_scores_grow_as_in_table_8(model, width=4):
    """Relative to the base, by which the factors of the formulas grow too.

    Entries of lookups and their updates stay, the factor of the logits falls with the width, that
    of the scores with d_k and not with its root.
    """
    config = wide(16 // width, model)
    m, by_kind = config.model, rules(config)
    lookup = width**0.5 if m.embed_scale == "sqrt_d" else 1.0
    initial = width**-0.5 if m.embed_init == "normal_rsqrt_d" else 1.0
    own = width**-0.5 if m.logit_scale == "rsqrt_d" else 1.0
    tables, norm, softmax = by_kind["tables"], by_kind["last norm"], by_kind["softmax table"]
    assert lookup * initial * tables.initial == pytest.approx(1.0)
    assert lookup * tables.rate == pytest.approx(1.0)
    assert lookup * width**-0.5 * by_kind["start vector"].initial == pytest.approx(1.0)
    assert lookup * by_kind["start vector"].rate == pytest.approx(1.0)
    output = softmax if m.tie_embeddings == "none" else tables
    assert norm.initial == norm.rate
    assert own * norm.initial * output.rate == pytest.approx(1 / width)
    assert own * norm.initial * output.initial * initial == pytest.approx(1 / width)
    assert by_kind["matrices"].rate == pytest.approx(1 / width)
    queries = by_kind["queries"]
    # Heads are wider here, by as much as all else.
    assert width**-0.5 * queries.initial == pytest.approx(1 / width)
    assert queries.rate == pytest.approx(queries.initial / width)


def test_residual_branches_are_smaller_in_deeper_stacks():
    """CompleteP, table 1 with alpha = 1.

    Outputs of branches times base depth / depth, rates of all else and what epsilon weighs as in
    the base. Stacks have depths of their own.
    """
    model = dict(
        norm_placement="pre", num_encoder_layers=6, num_decoder_layers=2, attention_bias=True
    )
    width, both = (
        scales_of(c, parameter_shapes(make_model(c, 37, 37)))
        for c in (wide(4, model), wide(4, model).with_values({"mup.base_layers": 2}))
    )
    changed = set()
    for path, factors in both.items():
        by_width = width[path]
        found = [
            getattr(factors, name) / getattr(by_width, name)
            for name in ("initial", "rate", "gradient")
        ]
        if path[0].startswith("encoder_") and path[0] != "encoder_norm":
            outputs = path[-2] in ("out", "Einsum_1")
            changed |= {path[1:]} if outputs else set()
            assert found == pytest.approx([1 / 3, 1 / 3, 1] if outputs else [1, 1, 3]), path
        else:
            assert found == [1, 1, 1], path
    ends = {("self_attention", "out"), ("feed_forward", "Einsum_1")}
    assert changed == {(*end, name) for end in ends for name in ("kernel", "bias")}


@pytest.mark.parametrize("feed_forward", ["dense", "gated"])
def test_scaled_outputs_are_scaled_branches(feed_forward):
    """With the factors in its parameters a layer computes x + f(x) / depth."""
    pytest.importorskip("t2t_flax.extensions.layer_types")
    model = dict(
        norm_placement="pre", num_encoder_layers=2, num_decoder_layers=2, feed_forward=feed_forward
    )
    config = wide(16, model).with_values({"mup.base_layers": 1})
    _, _, state, _ = model_and_state(config)
    rows = rows_alone(random_pairs(3))

    def outputs(params, scale: float):
        def scaled(call, args, kwargs, context):
            module = context.module
            if isinstance(module, Residual) and context.method_name == "__call__":
                x, sublayer, noise = args
                return call(x, lambda y: scale * sublayer(y), noise)
            return call(*args, **kwargs)

        with nn.intercept_methods(scaled):
            return make_model(config, 37, 37).apply({"params": params}, rows)

    plain = jax.tree_util.tree_map_with_path(
        lambda path, x: x / scales_of(config, state.params)[path_names(path)].initial, state.params
    )
    np.testing.assert_allclose(
        outputs(state.params, 1.0), outputs(plain, 0.5), rtol=1e-5, atol=1e-6
    )


def test_heads_of_the_same_width_keep_their_scores():
    config = wide(4, dict(d_k=4, d_v=4))
    assert rules(config)["queries"] == rules(config)["matrices"]
    assert (
        rules(wide(4, dict(num_heads=2)).with_values({"mup.base_head_width": 2}))["queries"].initial
        == 0.5
    )


@given(width=st.sampled_from([1, 2, 4, 8]), eps=st.sampled_from([1e-9, 1e-3, 1.0]))
def test_updates_are_the_rule_times_adams_whatever_its_epsilon(width, eps):
    """A wide model's gradients shrink by the factors: epsilon weighs as in the base model."""
    config, rng = wide(16 // width, eps=eps), np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: rng.normal(size=x.shape), parameter_shapes(make_model(config, 37, 37))
    )
    grads = [
        jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)
        for _ in range(2)
    ]
    factors = scales_of(config, params)
    times = lambda tree, name: jax.tree_util.tree_map_with_path(  # noqa: E731
        lambda path, x: x * getattr(factors[path_names(path)], name), tree
    )
    smaller = [
        jax.tree_util.tree_map_with_path(lambda p, x: x / factors[path_names(p)].gradient, g)
        for g in grads
    ]
    plain = updates_of(
        make_optimizer(wide(16, eps=eps), parametrization_of(wide(16, eps=eps))), grads, params
    )
    for update, expected in zip(
        updates_of(make_optimizer(config, parametrization_of(config)), smaller, params),
        plain,
        strict=True,
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-9),
            update,
            times(expected, "rate"),
        )


def test_weight_decay_shrinks_as_much_at_every_width():
    """The factor of a rate is not one of the decay: it is decoupled."""
    zeros = jax.tree.map(
        lambda x: np.zeros(x.shape, np.float32), parameter_shapes(make_model(wide(), 37, 37))
    )
    ones = jax.tree.map(np.ones_like, zeros)
    updates = [
        updates_of(
            make_optimizer(
                wide(base, weight_decay=0.1), parametrization_of(wide(base, weight_decay=0.1))
            ),
            [zeros],
            ones,
        )
        for base in (4, 16)
    ]
    jax.tree.map(np.testing.assert_array_equal, *updates)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_initial_values_are_those_without_the_rule_times_its_factors(model):
    (_, _, plain, _), (_, _, state, _) = (
        model_and_state(wide(0, model)),
        model_and_state(wide(4, model)),
    )
    factors = scales_of(wide(4, model), plain.params)

    def check(path, x, y):
        np.testing.assert_allclose(x * factors[path_names(path)].initial, y, rtol=1e-6)

    jax.tree_util.tree_map_with_path(check, plain.params, state.params)


def test_the_function_of_the_model_is_the_papers():
    """So decoding, exports and other engines need not know the rule."""
    logits = []
    rows = rows_alone(random_pairs(3))
    params = model_and_state(wide(0))[2].params
    for base in (0, 4):
        model = make_model(wide(base), 37, 37)
        logits.append(model.apply({"params": params}, rows))
    np.testing.assert_array_equal(*logits)


REFUSED = {
    "noam": {"optimizer.schedule": "noam"},
    "adafactor": {"optimizer.name": "adafactor"},
    "lstm": {"model.mixer": "lstm"},
    "additive": {"model.attention_score": "additive"},
    "embed_init = xavier": {"model.embed_init": "xavier"},
    "final_norm = none": {"model.norm_placement": "pre", "model.final_norm": "none"},
    "base_head_width = 8": {"mup.base_width": 0, "mup.base_head_width": 8},
    "base_layers = 2": {"mup.base_width": 0, "mup.base_layers": 2},
    "norm_placement = post": {"mup.base_layers": 2},
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_has_no_rule_is_refused_by_name(named):
    config = config_lib.to_config_dict(
        wide().with_values({"data.batch_tokens": 600} | REFUSED[named])
    )
    with refused(*named.split(" = ")):
        config_lib.resolve(config)


def test_parameters_without_a_rule_and_other_keys_of_parameters_are_refused():
    assert kind_of(("encoder_0", "self_attention", "position_bias", "table"), wide()) is None
    with refused("encoder_0/mixer/gate"):
        scales_of(wide(), {"encoder_0": {"mixer": {"gate": 0}}})
    with refused("norm_type"):
        scales_of(wide(), {"shared_embedding": {"table": 0}})
    with refused("finetuning"):
        parametrization_of(wide().with_values({"finetuning.freeze": "encoder_*"}))
