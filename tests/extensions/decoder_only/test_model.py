"""The decoder-only model: its formula, what a position sees, packing, cached decoding, FLOPs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import numpy_transformer as reference
from conformance.test_numpy_reference import random_params
from helpers.configs import VOCAB, model_and_state, random_pairs, rows_alone, small_config, write_store
from helpers.updates import run_updates

from t2t_flax.extensions.planning import flops
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.training.model_summary import abstract_state

KEYS = dict(architecture="decoder_only", num_encoder_layers=0, num_decoder_layers=2, dropout=0.0)
CASES = {
    "full": (KEYS, "full"),
    "causal, pre-norm, grouped heads": (
        KEYS | dict(norm_placement="pre", num_kv_heads=2, position="sinusoid_halves", decoder_start_token="bos"),
        "causal",
    ),
    "biases, other widths": (
        KEYS | dict(attention_bias=True, output_bias=True, d_k=3, d_v=5, decoder_start_token="eos", activation="gelu"),
        "full",
    ),
}


def config_of(case: str, **more):
    keys, attention = CASES[case]
    return small_config(model=keys | more, decoder_only=dict(source_attention=attention))


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, batch):
    return model.apply({"params": params}, batch)


@pytest.fixture(scope="module", params=CASES)
def model_and_params(request):
    model, *_ = model_and_state(config_of(request.param))
    return model, random_params(model, seed=1)


def numpys_logits(p, m, source, target, *, causal: bool):
    """One row of source and shifted target; each position attends to what it may, found by hand."""
    table, factor = p["shared_embedding"]["table"], np.sqrt(m.d_model)
    start = {"zeros": np.zeros(m.d_model), "eos": factor * table[1]}.get(m.decoder_start_token)
    start = factor * p["decoder_start_token"]["bos"] if start is None else start
    x = np.stack([*(factor * table[source]), start, *(factor * table[target[:-1]])])
    x = x + reference.positions(None, m, len(x))
    first = len(source)

    def attention(y, layer):
        ends = [i + 1 if causal or i >= first else first for i in range(len(y))]
        return np.concatenate([
            reference.attention(y[i : i + 1], y[:end], layer["self_attention"], m, False) for i, end in enumerate(ends)
        ])  # fmt: skip

    for n in range(m.num_decoder_layers):
        layer = p[f"decoder_{n}"]
        x = reference.residual(x, functools.partial(attention, layer=layer), layer["residual_attention"], m)
        x = reference.residual(
            x, lambda y, layer=layer: reference.feed_forward(y, layer["feed_forward"], m), layer["residual_ffn"], m
        )
    x = reference.norm(x, p["decoder_norm"], m) if m.norm_placement == "pre" else x
    return x[first:] @ table[:VOCAB].T + (p["output_bias"][:VOCAB] if m.output_bias else 0.0)


def test_logits_equal_numpys(model_and_params):
    model, params = model_and_params
    wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    causal = model.config.group("decoder_only").source_attention == "causal"
    for pair in random_pairs(3, longest=9):
        logits = logits_of(model, params, rows_alone([pair], 12))[0]
        expected = numpys_logits(wide, model.config, *map(np.array, pair), causal=causal)
        np.testing.assert_allclose(logits[: len(pair[1]), :VOCAB], expected, atol=2e-4)


def test_packed_pairs_equal_pairs_alone(model_and_params):
    model, params = model_and_params
    one, two = random_pairs(2, longest=9, seed=3)
    alone = logits_of(model, params, rows_alone([one, two], 24))
    packed = {}
    for n, side in enumerate(("source", "target")):
        a, b = one[n], two[n]
        pad = [0] * (24 - len(a) - len(b))
        packed[side] = np.array([[*a, *b, *pad]], np.int32)
        packed[f"{side}_segments"] = np.array([[*[1] * len(a), *[2] * len(b), *pad]], np.int32)
        packed[f"{side}_positions"] = np.array([[*range(len(a)), *range(len(b)), *pad]], np.int32)
    together = logits_of(model, params, packed)[0]
    np.testing.assert_allclose(together[: len(one[1])], alone[0, : len(one[1])], atol=5e-5)
    np.testing.assert_allclose(together[len(one[1]) :][: len(two[1])], alone[1, : len(two[1])], atol=5e-5)


@pytest.mark.parametrize("beams", [1, 3, 9])
def test_cached_decoding_equals_a_forward_pass(model_and_params, beams):
    """Nine beams have slots of their own."""
    model, params = model_and_params
    pairs, variables = random_pairs(4, longest=12), {"params": params}
    batch = rows_alone(pairs, 16)
    full = logits_of(model, params, batch)
    cache = model.apply(variables, batch["source"], beams, 16, method="start_cache")
    decode_step = jax.jit(lambda *args: model.apply(variables, *args, method="decode_step"))
    for position in range(12):
        previous = batch["target"][:, position - 1] if position else np.zeros(4, np.int32)
        step, cache = decode_step(np.stack([previous] * beams, axis=1), jnp.int32(position), cache)
        for i, (_, target) in enumerate(pairs):
            if position < len(target):
                np.testing.assert_allclose(step[i], np.stack([full[i, position]] * beams), atol=5e-5)


def test_dropout_of_source_and_target_differs():
    """They pass through the same modules at the same positions: of equal tokens, the masks of the embeddings are not equal."""
    model, _, state, _ = model_and_state(config_of("full", dropout=0.5, position="none"))
    pair = ([7, 7, 7, 1], [7, 7, 7, 1])
    batch = rows_alone([pair], 4)
    noise = Noise(noise_key(0, jnp.uint32(0)), jnp.zeros(1, jnp.uint32))
    _, kept = model.apply({"params": state.params}, batch, noise, capture_intermediates=True, mutable=["intermediates"])
    source, target = kept["intermediates"]["dropout"]["__call__"]
    assert not np.array_equal(source[0, 1] == 0, target[0, 1] == 0)  # token 0 of the shifted target is in slot 1


def test_training_is_the_same_on_two_devices(tmp_path):
    """Packed rows, with dropout."""
    config, store = config_of("full", dropout=0.1), write_store(tmp_path / "store", random_pairs(60))
    *_, metrics = run_updates(config, store, updates=2)
    *_, others = run_updates(config, store, (2, 1, 1), updates=2)
    assert metrics[1]["loss"] == pytest.approx(others[1]["loss"], rel=1e-5) and metrics[1]["grad_norm"] > 0


def test_formula_agrees_with_the_compilers_count():
    config = config_of("full", d_model=128, d_ff=512)
    vocab = 1024
    model, _, state, _ = model_and_state(config, vocab=vocab)
    batch = rows_alone([([3] * 31 + [1], [4] * 31 + [1])] * 2, 32)
    counted = jax.jit(model.apply).lower({"params": state.params}, batch).compile().cost_analysis()["flops"]
    params = abstract_state(config, (vocab, vocab)).params
    products = flops.forward_products(config.model, vocab, params)
    assert products.flops(config.model, flops.padded_tokens(2, 32)) == pytest.approx(counted, rel=0.05)
    whole = flops.training_products(config, vocab, params)
    assert whole.flops(config.model, flops.padded_tokens(2, 32)) == pytest.approx(3 * counted, rel=0.05)


@pytest.mark.smoke
def test_it_has_half_of_the_layers_parameters_of_an_encoder_decoder():
    """A layer of each side against one that serves both: 12 d^2 to 28 d^2."""
    both = dataclasses.replace(config_of("full").model, architecture="encoder_decoder", num_encoder_layers=2)
    sizes = []
    for model in (config_of("full").model, both):
        params = abstract_state(dataclasses.replace(config_of("full"), model=model), (VOCAB, VOCAB)).params
        sizes.append(sum(x.size for path, x in jax.tree.leaves_with_path(params) if "kernel" in str(path)))
    d, d_ff = 16, 32
    assert sizes == [2 * (4 * d * d + 2 * d * d_ff), 2 * (12 * d * d + 4 * d * d_ff)]
