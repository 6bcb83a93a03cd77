"""Details that implementations get wrong: rows of docs/fidelity.md that no other test covers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import model_and_state, rows_alone, small_config

from t2t_flax.config import Config, Optimizer
from t2t_flax.data.dataset import prepare_corpus, split_store
from t2t_flax.decoding.translator import Translator
from t2t_flax.tasks import task_of
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.train_state import make_model

PAIRS = [([5, 6, 7, 1], [8, 9, 1]), ([10, 11, 1], [12, 13, 14, 1])]
D = 16


def logits(config, params, batch):
    return np.asarray(make_model(config, 37, 37).apply({"params": params}, batch))


def params_of(**model):
    config = small_config(model=dict(dropout=0.0) | model)
    return config, jax.device_get(model_and_state(config)[2].params)


def packed_row():
    """Both pairs in one row, with restarting positions."""
    arrays = {}
    for n, side in enumerate(("source", "target")):
        first, second = PAIRS[0][n], PAIRS[1][n]
        ids = np.zeros((1, 24), np.int32)
        segments, positions = np.zeros_like(ids), np.zeros_like(ids)
        for start, number, pair in ((0, 1, first), (len(first), 2, second)):
            at = slice(start, start + len(pair))
            ids[0, at], segments[0, at], positions[0, at] = pair, number, np.arange(len(pair))
        arrays |= {side: ids, f"{side}_segments": segments, f"{side}_positions": positions}
    return arrays


def test_scaled_lookups_equal_scaled_logits():
    """A table of std 1 with logits divided by sqrt(d) equals the paper's model with the table divided by sqrt(d)."""
    config, params = params_of()
    other = small_config(model=dict(dropout=0.0, embed_scale="none", logit_scale="rsqrt_d"))
    table = params["shared_embedding"]["table"]
    scaled = params | {"shared_embedding": {"table": table * np.float32(D**0.5)}}
    batch = rows_alone(PAIRS)
    np.testing.assert_allclose(logits(config, params, batch), logits(other, scaled, batch), atol=2e-5)


@pytest.mark.parametrize(
    ("tying", "tables"),
    [
        ("all", {"shared_embedding"}),
        ("decoder", {"source_embedding", "target_embedding"}),
        ("none", {"source_embedding", "target_embedding", "output_embedding"}),
    ],
)
def test_tie_embeddings_sets_the_number_of_tables(tying, tables):
    _, params = params_of(tie_embeddings=tying)
    assert {name for name in params if name.endswith("_embedding")} == tables


@pytest.mark.parametrize("start", ["zeros", "eos", "bos", "pad"])
def test_decoder_start_tokens(start):
    """The first prediction depends on the start vector and on no other row of the table."""
    config, params = params_of(decoder_start_token=start, tie_embeddings="none")
    batch = rows_alone(PAIRS)
    before = logits(config, params, batch)[:, 0]

    def moved(row):
        table = params["target_embedding"]["table"].copy()
        table[row] += 1.0
        return logits(config, params | {"target_embedding": {"table": table}}, batch)[:, 0]

    rows = {row for row in (0, 1, 2, 8) if np.abs(moved(row) - before).max() > 1e-4}
    assert rows == {"zeros": set(), "eos": {1}, "bos": set(), "pad": {0}}[start]
    if start == "bos":
        shifted = params | {"decoder_start_token": {"bos": params["decoder_start_token"]["bos"] + 1}}
        assert np.abs(logits(config, shifted, batch)[:, 0] - before).max() > 1e-4


def test_packed_pairs_begin_with_the_decoder_start():
    """The second pair of a row has the logits that it has alone."""
    config, params = params_of(tie_embeddings="none")
    second = logits(config, params, packed_row())[0, len(PAIRS[0][1]) :][: len(PAIRS[1][1])]
    by_itself = logits(config, params, rows_alone(PAIRS))[1, : len(PAIRS[1][1])]
    assert np.abs(second - by_itself).max() < 1e-4


@pytest.mark.parametrize("eos", [True, False])
def test_source_eos_in_training_and_translation(tmp_path, eos, monkeypatch):
    data = dict(
        train="toy:train:150", vocab_size=300, byte_fallback=False, max_length=64, pack_length=64, batch_tokens=256
    )
    config = small_config(data=data | dict(source_eos=eos), model=dict(dropout=0.0))
    corpus = prepare_corpus(task_of(config), tmp_path / "run")
    assert (corpus.train.source(0)[-1] == 1) == eos and corpus.train.target(0)[-1] == 1
    model, _, state, _ = model_and_state(config, vocab=300)
    from helpers.configs import devices_mesh

    translator = Translator(model, corpus.tokenizers, devices_mesh(), config)
    seen = []
    real = translator._decode
    monkeypatch.setattr(
        translator,
        "_decode",
        lambda p, source, *rest, **options: seen.append(source) or real(p, source, *rest, **options),
    )
    translator.translate(state.params, ["The train leaves."])
    assert (np.trim_zeros(np.asarray(seen[-1])[0])[-1] == 1) == eos


def test_schedule_first_step_is_the_number_of_the_first_update():
    """Update 1 has t = 1 in the paper; with origin 0 its rate is 0 (noam) or warmup_init (inverse_sqrt)."""
    rates = [float(learning_rate_schedule(Config(optimizer=Optimizer(schedule_first_step=o)))(1)) for o in (1, 0)]
    np.testing.assert_allclose(rates, [1.746928e-07, 0.0], rtol=1e-6)
    o = Optimizer(schedule="inverse_sqrt", peak_lr=5e-3, warmup_steps=2000, warmup_init=1e-7, schedule_first_step=0)
    later = learning_rate_schedule(Config(optimizer=o))
    np.testing.assert_allclose([float(later(u)) for u in (1, 2001, 8001)], [1e-7, 5e-3, 2.5e-3], rtol=1e-6)


def test_position_offset_shifts_sinusoids():
    config, params = params_of(position_offset=2)
    batch = rows_alone(PAIRS)
    moved = batch | {name: batch[name] + 2 for name in ("source_positions", "target_positions")}
    zero, _ = params_of()
    model = make_model(zero, 37, 37)

    def encode(model, b):
        return model.apply(
            {"params": params}, b["source"], b["source_segments"], jnp.asarray(b["source_positions"]), method="encode"
        )

    np.testing.assert_allclose(encode(make_model(config, 37, 37), batch), encode(model, moved), atol=1e-6)


def test_encoder_without_positions_ignores_token_order():
    config, params = params_of(position="none")
    batch = rows_alone([([5, 6, 7, 1], [8, 1]), ([7, 6, 5, 1], [8, 1])])
    out = logits(config, params, batch)
    np.testing.assert_allclose(out[0, :2], out[1, :2], atol=1e-5)


@pytest.mark.parametrize(
    ("score", "precision"),
    [
        ("scaled_dot", "float32"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("scaled_dot", "bfloat16"), ("dot", "float32"), ("dot", "bfloat16"))
        ),
    ],
)
def test_row_of_padding_gives_finite_values_and_gradients(score, precision):
    """All keys of the row are masked. The loss ignores it, but a NaN would spread through the gradient."""
    config, params = params_of(attention_score=score)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
    batch = rows_alone([PAIRS[0], PAIRS[1]])
    batch = {name: np.concatenate([x, np.zeros_like(x[:1])]) for name, x in batch.items()}
    model = make_model(config, 37, 37)

    def total(p):
        return model.apply({"params": p}, batch)[:2, :3].sum()

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    assert np.isfinite(logits(config, params, batch)).all() and np.isfinite(value)
    assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in jax.tree.leaves(gradients))


def test_nothing_is_dropped_from_test_sets(tmp_path):
    """data.max_length applies to training only."""
    data = dict(train="toy:train:150", test="toy:test:40", vocab_size=300, byte_fallback=False, max_length=30,
                pack_length=64, batch_tokens=256)  # fmt: skip
    config = small_config(data=data)
    corpus = prepare_corpus(task_of(config), tmp_path / "run")
    test = split_store(task_of(config), tmp_path / "run", "test", corpus.tokenizers)
    assert corpus.train.num_pairs < 150 and corpus.train.longest <= 30
    assert test.num_pairs == 40 and test.longest > 30
