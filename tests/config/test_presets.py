"""Known runs by name: their exact values, and that a config file or an unknown name says so."""

from pathlib import Path

import pytest

from t2t_flax import config as config_lib
from t2t_flax.config.presets import PRESETS, find, preset
from t2t_flax.errors import UserError
from t2t_flax.training.optimizer import schedule

CONFIGS = Path(__file__).parents[2] / "configs"

# The table of published settings, column by column.
COLUMNS = ("aiayn_base", "aiayn_big", "t2t_v3", "fairseq_scaling_nmt", "wu2021_tiny", "flax_wmt")
TABLE = {
    "model.num_encoder_layers": (6, 6, 6, 6, 4, 6),
    "model.num_decoder_layers": (6, 6, 6, 6, 4, 6),
    "model.d_model": (512, 1024, 512, 1024, 128, 1024),
    "model.d_ff": (2048, 4096, 2048, 4096, 256, 4096),
    "model.num_heads": (8, 16, 8, 16, 4, 16),
    "model.norm": ("post", "post", "pre", "post", "post", "pre"),
    "model.norm_eps": (1e-6, 1e-6, 1e-6, 1e-5, 1e-5, 1e-6),
    "model.position": ("sinusoid_interleaved",) * 2 + ("sinusoid_halves",) * 4,
    "model.position_start": (0, 0, 0, 2, 2, 0),
    "model.embed_scale": ("sqrt_d",) * 5 + ("none",),
    "model.embed_init": ("normal_rsqrt_d",) * 5 + ("normal_1",),
    "model.logit_scale": ("none",) * 5 + ("rsqrt_d",),
    "model.tying": ("all",) * 6,
    "model.decoder_start": ("zeros", "zeros", "zeros", "eos", "eos", "pad_row"),
    "model.attention_bias": (False, False, False, True, True, False),
    "model.output_bias": (False,) * 6,
    "model.kernel_init": ("xavier",) * 3 + ("xavier_qkv_rsqrt2",) * 2 + ("xavier",),
    "model.activation": ("relu",) * 6,
    "model.attention_score": ("scaled_dot",) * 6,
    "model.dropout": (0.1, 0.3, 0.1, 0.3, 0.3, 0.1),
    "model.dropout_attention": (0, 0, 0.1, 0, 0, 0.1),
    "model.dropout_ffn": (0, 0, 0.1, 0, 0, 0.1),
    "loss.label_smoothing": (0.1,) * 6,
    "loss.smoothing_mass": ("all", "all", "others", "others", "all", "others"),
    "optimizer.b1": (0.9,) * 6,
    "optimizer.b2": (0.98, 0.98, 0.997, 0.98, 0.98, 0.98),
    "optimizer.eps": (1e-9, 1e-9, 1e-9, 1e-8, 1e-8, 1e-9),
    "optimizer.schedule": ("noam",) * 3 + ("inverse_sqrt",) * 3,
    "optimizer.constant": (1.0, 1.0, 2.0, None, None, None),
    "optimizer.peak_lr": (None, None, None, 5e-4, 5e-3, 2e-3),
    "optimizer.warmup_steps": (4000, 4000, 8000, 4000, 2000, 1000),
    "optimizer.warmup_init": (0, 0, 0, 1e-7, 1e-7, 0),
    "optimizer.step_origin": (1, 1, 0, 0, 0, 0),
    "optimizer.clip_norm": (0, 0, 0, 0, 25, 0),
    "optimizer.weight_decay": (0,) * 6,
    "data.vocab_size": (37_000, 37_000, 32_768, 32_768, 9711, 32_000),
    "data.source_eos": (True,) * 6,
    "data.batch_tokens": (25_000, 25_000, 32_768, 28_672, 8192, 65_536),
    "data.batch_count": ("real", "real", "padded_max", "padded_max", "padded_max", "real"),
    "data.packed_shift": ("restart",) * 5 + ("carry",),
    "data.max_length": (256, 256, 256, 1024, 1024, 256),
    "train.steps": (100_000, 300_000, 300_000, None, 8000, 100_000),
    "checkpoint.average_last": (5, 20, 5, 10, 10, 0),
    "checkpoint.every_steps": (1500, 600, 1500, 0, 0, None),
    "checkpoint.every_epochs": (0, 0, 0, 1, 1, 0),
    "decode.beam_size": (4, 4, 4, 4, 5, 4),
    "decode.length_penalty": ("gnmt", "gnmt", "gnmt", "power", "power", "gnmt"),
    "decode.alpha": (0.6, 0.6, 0.6, 0.6, 1.0, 0.6),
    "decode.max_ratio": (1, 1, 1, 0, 0, 0),
    "decode.max_extra": (50, 50, 100, 200, 200, 256),
    "decode.stop": ("bound", "bound", "bound", "beam_full", "beam_full", "bound"),
}


@pytest.mark.parametrize("key", TABLE)
def test_presets_have_the_published_values(key):
    group, item = key.split(".")
    for name, expected in zip(COLUMNS, TABLE[key], strict=True):
        if expected is not None:
            assert getattr(getattr(config_lib.resolve(preset(name)), group), item) == expected, name


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_and_says_where_it_is_from(name):
    config_lib.resolve(preset(name))
    assert find(name).source


def test_a_row_of_table_3_changes_only_what_it_names():
    base = config_lib.resolve(preset("table3_base"))
    row = config_lib.resolve(preset("table3_b_dk16"))
    assert config_lib.differences(base, row) == {"model.d_k": (0, 16), "model.d_v": (0, 64)}
    assert sum(name.startswith("table3_") for name in PRESETS) == 20
    assert "perplexity 5.16, 25.1" in find("table3_b_dk16").published


def test_the_large_batch_recipe_has_the_published_values():
    c = config_lib.resolve(preset("mlperf_big"))
    assert (c.model.d_model, c.model.d_ff, c.model.num_heads, c.model.num_encoder_layers) == (1024, 4096, 16, 6)
    assert (c.optimizer.b1, c.optimizer.b2, c.optimizer.eps, c.optimizer.warmup_steps) == (0.9087, 0.9199, 1e-9, 664)
    assert (c.data.row_length, round(c.data.batch_tokens / (256 * 0.97))) == (256, 2045)  # 2,048 rows, 97 % full
    peak = max(float(schedule(c.optimizer, c.model.d_model)(step)) for step in (600, 663, 664, 665, 800))
    assert abs(peak - 4.0e-3) < 0.02e-3


def test_english_french_has_less_dropout_and_fewer_pieces():
    big, enfr = (config_lib.resolve(preset(name)) for name in ("aiayn_big", "aiayn_big_enfr"))
    assert (enfr.model.dropout, enfr.data.vocab_size, enfr.data.target_language) == (0.1, 32_000, "fr")
    assert not [key for key in config_lib.differences(big, enfr) if not key.startswith(("data.", "model.dropout"))]


def test_config_files_are_presets():
    for file, name in (("wmt14_ende.py:base", "aiayn_base"), ("wmt14_ende.py:big", "aiayn_big"),
                       ("wmt14_enfr.py:base", "aiayn_base_enfr"), ("wmt14_enfr.py:big", "aiayn_big_enfr")):  # fmt: skip
        assert config_lib.load_config(str(CONFIGS / file)) == config_lib.resolve(preset(name))
    differ = config_lib.differences(
        config_lib.resolve(preset("wu2021_tiny")), config_lib.load_config(str(CONFIGS / "multi30k.py"))
    )
    assert set(differ) == {"log.every_steps", "mesh.cpu_devices"}


def test_a_preset_is_chosen_by_name_and_overridden():
    config = config_lib.load_config("t2t_v3", {"model.dropout": "0.2"})
    assert (config.model.norm, config.model.dropout) == ("pre", 0.2)
    with pytest.raises(UserError, match="no preset 't2t_v4'. Did you mean 't2t_v"):
        config_lib.load_config("t2t_v4")
