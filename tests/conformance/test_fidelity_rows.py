"""Details that implementations get wrong: rows of docs/paper.md that no other test covers."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, rows_alone, small_config

from t2t_flax.config import Config, Optimizer
from t2t_flax.data.dataset import prepare_corpus, split_store
from t2t_flax.decoding.translator import Translator
from t2t_flax.tasks import task_of
from t2t_flax.training.optimizer import learning_rate_schedule, make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state, make_model

PAIRS = [([5, 6, 7, 1], [8, 9, 1]), ([10, 11, 1], [12, 13, 14, 1])]


def logits(config, params, batch):
    return np.asarray(jax.jit(make_model(config, 37, 37).apply)({"params": params}, batch))


def params_of(**model):
    config = small_config(model=dict(dropout=0.0) | model)
    return config, jax.device_get(model_and_state(config)[2].params)


@pytest.mark.parametrize(
    ("tying", "tables"),
    [
        ("all", {"shared_embedding"}),
        ("decoder", {"source_embedding", "target_embedding"}),
        ("none", {"source_embedding", "target_embedding", "output_embedding"}),
    ],
)
def test_tie_embeddings_sets_the_number_of_tables(tying, tables):
    config = small_config(model=dict(tie_embeddings=tying))
    model, optimizer = (
        make_model(config, 37, 37),
        make_optimizer(config, parametrization_of(config)),
    )
    params = abstract_state(config, model, optimizer, parametrization_of(config), devices_mesh())[
        0
    ].params
    assert {name for name in params if name.endswith("_embedding")} == tables


@pytest.mark.parametrize("eos", [True, False])
def test_source_eos_in_training_and_translation(tmp_path, eos, monkeypatch):
    data = dict(
        train="toy:train:150",
        vocab_size=300,
        byte_fallback=False,
        max_length=64,
        pack_length=64,
        batch_tokens=256,
    )
    config = small_config(data=data | dict(source_eos=eos), model=dict(dropout=0.0))
    corpus = prepare_corpus(task_of(config), tmp_path / "run")
    assert (corpus.train.source(0)[-1] == 1) == eos and corpus.train.target(0)[-1] == 1
    model, _, state, _ = model_and_state(config, vocab=300)
    translator = Translator(model, corpus.tokenizers, devices_mesh(), config)

    class Decoded(Exception):
        """Ends the translation where its batch would be decoded."""

    def decode(params, source, *_, **__):
        raise Decoded(source)

    monkeypatch.setattr(translator, "_decode", decode)
    with pytest.raises(Decoded) as raised:
        translator.translate(state.params, ["The train leaves."])
    (source,) = raised.value.args
    assert (np.trim_zeros(np.asarray(source)[0])[-1] == 1) == eos


def test_schedule_first_step_is_the_number_of_the_first_update():
    """Update 1 has t = 1 in the paper.

    With origin 0 its rate is 0 (noam) or warmup_init (inverse_sqrt).
    """
    rates = [
        float(learning_rate_schedule(Config(optimizer=Optimizer(schedule_first_step=o)))(1))
        for o in (1, 0)
    ]
    np.testing.assert_allclose(rates, [1.746928e-07, 0.0], rtol=1e-6)
    o = Optimizer(
        schedule="inverse_sqrt",
        peak_lr=5e-3,
        warmup_steps=2000,
        warmup_init=1e-7,
        schedule_first_step=0,
    )
    later = learning_rate_schedule(Config(optimizer=o))
    np.testing.assert_allclose(
        [float(later(u)) for u in (1, 2001, 8001)], [1e-7, 5e-3, 2.5e-3], rtol=1e-6
    )


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
    """All keys of the row are masked.

    The loss ignores it, but a NaN would spread through the gradient.
    """
    config, params = params_of(attention_score=score)
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, precision=precision)
    )
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
