"""The preset has AlgoPerf's sizes and targets, and the sweep file its protocol."""

from pathlib import Path

import pytest
from helpers.configs import devices_mesh

from t2t_flax.config import load_config, resolve
from t2t_flax.config.presets import from_python_file, preset
from t2t_flax.extensions.algoperf import AlgoPerf
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.train_state import abstract_params, count_params, make_model

SWEEP = str(Path(__file__).parents[3] / "configs" / "sweeps" / "algoperf.py")


def parameters(norms: int) -> int:
    """By wmt_jax/models.py: a shared table of 32,000; 4 projections of 1024 x 1024 in an attention, without biases; two matrices
    and biases in a feed-forward block of 1,024; a scale and a bias in each norm.
    """
    width, inner = 1024, 1024
    attention, ffn = 4 * width**2, 2 * width * inner + inner + width
    return 32_000 * width + 6 * (attention + ffn) + 6 * (2 * attention + ffn) + norms * 2 * width


@pytest.mark.parametrize(
    ("name", "norms"), [("algoperf_wmt", 6 * 2 + 6 * 3 + 2), ("algoperf_wmt_post_ln", 6 * 2 + 6 * 3)]
)
def test_model_has_algoperfs_parameters(name, norms):
    config = resolve(preset(name))
    params = abstract_params(config.mesh, make_model(config, 32_000, 32_000), devices_mesh())
    assert count_params(params, config, 32_000, 32_000) == parameters(norms)
    assert parameters(32) == 133_521_408


@pytest.mark.smoke
def test_preset_has_algoperfs_values():
    c = load_config("algoperf_wmt")
    keys = AlgoPerf.of(c)
    assert (keys.target, keys.test_target, keys.max_seconds, keys.stop) == (30.8491, 30.7219, 43_336, True)
    assert (c.data.vocab_size, c.data.max_length, c.data.pack_length, c.data.tokenizer) == (32_000, 256, 256, "unigram")
    assert (c.data.source_language, c.data.target_language, c.eval.metric) == ("de", "en", "bleu")
    assert (c.decode.beam_size, c.decode.alpha, c.decode.max_length_ratio, c.decode.max_length_offset) == (
        4,
        0.6,
        0,
        256,
    )
    assert (c.model.dropout, c.model.dropout_ffn, c.model.dropout_attention, c.loss.label_smoothing) == (0.1, 0.1, 0, 0)
    assert c.model.final_norm == "auto" and c.model.norm_placement == "pre"  # a norm at the end of each stack
    rate = learning_rate_schedule(c)  # linear_schedule and cosine_decay_schedule, joined; counted from 0
    assert float(rate(1)) == 0 and float(rate(2401)) == pytest.approx(0.0017486387539278373)
    assert float(rate(2400 + 58_800 + 1)) == pytest.approx(0.0017486387539278373 / 2, rel=1e-5)
    assert float(rate(120_001)) == 0


@pytest.mark.parametrize("variant", ["wmt", "toy"])
def test_sweep_has_five_studies_of_five_trials(variant):
    sweep = from_python_file("--sweep", f"{SWEEP}:{variant}", "get_sweep", "")
    trials = expand(sweep.config, {}, sweep.rows, 1)  # raises for an impossible combination
    assert len(trials) == 75 and len({trial.row for trial in trials}) == 75
    for name in ("adam", "nadamw", "schedule_free_adamw"):
        own = [trial.config for trial in trials if trial.config.optimizer.name == name]
        studies = [AlgoPerf.of(config).study for config in own]
        assert sorted(studies) == sorted([1, 2, 3, 4, 5] * 5)
        assert len({config.seed.init for config in own}) == 25
        points = {(c.optimizer.peak_lr, c.loss.label_smoothing) for c in own}
        assert len(points) == (5 if variant == "wmt" and name != "adam" else 25)
        assert all(config.model.dropout == config.model.dropout_ffn for config in own)
