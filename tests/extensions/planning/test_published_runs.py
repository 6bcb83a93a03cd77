"""The bound of a chip beside what others measured on it (docs/planning.md)."""

import pytest

from t2t_flax.config import Config, Model
from t2t_flax.extensions.planning.chips import GPUS
from t2t_flax.training.flops import Tokens, padded_tokens, training_products
from t2t_flax.training.model_summary import state_on_one_device
from t2t_flax.training.parametrization import parametrization_of

BIG = Model(num_encoder_layers=6, num_decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16)
T5_LARGE = Model(
    num_encoder_layers=24, num_decoder_layers=24, d_model=1024, d_ff=2816, num_heads=16, feed_forward="gated",
    tie_embeddings="none", norm_type="rmsnorm", norm_placement="pre",
)  # fmt: skip
T5_TOKENS = Tokens(512, 114, 512**2, 114**2, 512 * 114)


@pytest.mark.parametrize(
    "chip, model, vocab, tokens, units, measured, shown",
    [
        ("a100", BIG, 33_712, padded_tokens(1, 27), 27, 82_059, 0.33),
        ("a100", BIG, 33_712, padded_tokens(1, 27), 27, 551_599 / 8, 0.28),
        ("a100", T5_LARGE, 32_128, T5_TOKENS, 1, 75.8, 0.36),
        ("h100", T5_LARGE, 32_128, T5_TOKENS, 1, 174.1, 0.26),
    ],
    ids=["big, 1 A100", "big, 8 A100", "T5 large, A100", "T5 large, H100"],
)
def test_no_published_run_exceeds_the_bound(chip, model, vocab, tokens, units, measured, shown):
    """A published speed: `measured` units (tokens or sequences) a second.

    shown: share in the page.
    """
    config = Config(model=model)
    products = training_products(
        config,
        vocab,
        state_on_one_device(config, (vocab, vocab)).params,
        parametrization_of(config),
    )
    bound = GPUS[chip].peak_flops * units / products.flops(model, tokens)
    assert measured / bound == pytest.approx(shown, abs=0.005)
