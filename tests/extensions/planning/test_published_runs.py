"""The bound of a chip beside what others measured on it (docs/planning.md)."""

import pytest

from t2t_flax.config import Config, Model
from t2t_flax.extensions.planning.chips import GPUS
from t2t_flax.training.flops import Tokens, padded_tokens, training_products
from t2t_flax.training.model_summary import abstract_state

BIG = Model(num_encoder_layers=6, num_decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16)
T5_LARGE = Model(
    num_encoder_layers=24, num_decoder_layers=24, d_model=1024, d_ff=2816, num_heads=16, feed_forward="gated",
    tie_embeddings="none", norm_type="rmsnorm", norm_placement="pre",
)  # fmt: skip


@pytest.mark.parametrize(
    "model, vocab, tokens, units, measured",
    [
        (BIG, 33_712, padded_tokens(1, 27), 27, 82_059),
        (BIG, 33_712, padded_tokens(1, 27), 27, 551_599 / 8),
        (T5_LARGE, 32_128, Tokens(512, 114, 512**2, 114**2, 512 * 114), 1, 75.8),
    ],
    ids=["big, 1 GPU", "big, 8 GPUs", "T5 large"],
)
def test_no_published_run_exceeds_the_bound(model, vocab, tokens, units, measured):
    """units: tokens or sequences of which `measured` are trained a second."""
    config = Config(model=model)
    products = training_products(config, vocab, abstract_state(config, (vocab, vocab)).params)
    bound = GPUS["a100"].peak_flops * units / products.flops(model, tokens)
    share = measured / bound
    assert 0.2 < share < 0.5  # far below, the bound would say nothing; above, no run has come
