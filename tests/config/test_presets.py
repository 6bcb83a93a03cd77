"""Presets: their exact values, and errors for config files and unknown names."""

from pathlib import Path

import pytest

from t2t_flax import config as config_lib
from t2t_flax.config.presets import PRESETS, Preset, find, preset, presets
from t2t_flax.errors import UserError
from t2t_flax.training.optimizer import learning_rate_schedule

CONFIGS = Path(__file__).parents[2] / "configs"

# The table of published settings, column by column.
COLUMNS = ("aiayn_base", "aiayn_big", "t2t_v3", "fairseq_scaling_nmt", "wu2021_tiny", "flax_wmt")
TABLE = {
    "model.num_encoder_layers": (6, 6, 6, 6, 4, 6),
    "model.num_decoder_layers": (6, 6, 6, 6, 4, 6),
    "model.d_model": (512, 1024, 512, 1024, 128, 1024),
    "model.d_ff": (2048, 4096, 2048, 4096, 256, 4096),
    "model.num_heads": (8, 16, 8, 16, 4, 16),
    "model.norm_placement": ("post", "post", "pre", "post", "post", "pre"),
    "model.norm_eps": (1e-6, 1e-6, 1e-6, 1e-5, 1e-5, 1e-6),
    "model.position": ("sinusoid_interleaved",) * 2 + ("sinusoid_halves",) * 4,
    "model.position_offset": (0, 0, 0, 2, 2, 0),
    "model.embed_scale": ("sqrt_d",) * 5 + ("none",),
    "model.embed_init": ("normal_rsqrt_d",) * 5 + ("normal_1",),
    "model.logit_scale": ("none",) * 5 + ("rsqrt_d",),
    "model.tie_embeddings": ("all",) * 6,
    "model.decoder_start_token": ("zeros", "zeros", "zeros", "eos", "eos", "pad"),
    "model.attention_bias": (False, False, False, True, True, False),
    "model.output_bias": (False,) * 6,
    "model.kernel_init": ("xavier",) * 3 + ("xavier_qkv_rsqrt2",) * 2 + ("xavier",),
    "model.activation": ("relu",) * 6,
    "model.attention_score": ("scaled_dot",) * 6,
    "model.dropout": (0.1, 0.3, 0.1, 0.3, 0.3, 0.1),
    "model.dropout_attention": (0, 0, 0.1, 0, 0, 0.1),
    "model.dropout_ffn": (0, 0, 0.1, 0, 0, 0.1),
    "loss.label_smoothing": (0.1,) * 6,
    "loss.label_smoothing_over": ("all", "all", "non_target", "non_target", "all", "non_target"),
    "optimizer.b1": (0.9,) * 6,
    "optimizer.b2": (0.98, 0.98, 0.997, 0.98, 0.98, 0.98),
    "optimizer.eps": (1e-9, 1e-9, 1e-9, 1e-8, 1e-8, 1e-9),
    "optimizer.schedule": ("noam",) * 3 + ("inverse_sqrt",) * 3,
    "optimizer.lr_scale": (1.0, 1.0, 2.0, None, None, None),
    "optimizer.peak_lr": (None, None, None, 5e-4, 5e-3, 2e-3),
    "optimizer.warmup_steps": (4000, 4000, 8000, 4000, 2000, 1000),
    "optimizer.warmup_init": (0, 0, 0, 1e-7, 1e-7, 0),
    "optimizer.schedule_first_step": (1, 1, 0, 0, 0, 0),
    "optimizer.max_grad_norm": (0, 0, 0, 0, 25, 0),
    "optimizer.weight_decay": (0,) * 6,
    "data.vocab_size": (37_000, 37_000, 32_768, 32_768, 9711, 32_000),
    "data.source_eos": (True,) * 6,
    "data.batch_tokens": (25_000, 25_000, 32_768, 28_672, 8192, 65_536),
    "recipes.batch_groups": (0, 0, 8, 8, 2, 0),
    "data.max_length": (256, 256, 256, 1024, 1024, 256),
    "train.steps": (100_000, 300_000, 300_000, None, 8000, 100_000),
    "checkpoint.average_last": (5, 20, 5, 10, 10, 0),
    "checkpoint.every_steps": (1500, 600, 1500, 0, 0, None),
    "checkpoint.every_epochs": (0, 0, 0, 1, 1, 0),
    "decode.beam_size": (4, 4, 4, 4, 5, 4),
    "decode.length_penalty": ("gnmt", "gnmt", "gnmt", "power", "power", "gnmt"),
    "decode.alpha": (0.6, 0.6, 0.6, 0.6, 1.0, 0.6),
    "decode.max_length_ratio": (1, 1, 1, 0, 0, 0),
    "decode.max_length_offset": (50, 50, 100, 200, 200, 256),
    "decode.early_stopping": ("exact", "exact", "exact", "beam_full", "beam_full", "exact"),
}


@pytest.mark.parametrize("key", TABLE)
def test_presets_have_the_published_values(key):
    for name, expected in zip(COLUMNS, TABLE[key], strict=True):
        if expected is not None:
            assert config_lib.resolve(preset(name)).value(key) == expected, name


@pytest.mark.parametrize("name", presets())
def test_every_preset_resolves_and_has_a_source(name):
    config_lib.resolve(preset(name))
    assert find(name).source


def test_preset_with_keys_of_an_absent_extension(monkeypatch):
    monkeypatch.setitem(PRESETS, "odd", Preset("nowhere", {"absent.key": 1}))
    with pytest.raises(UserError, match="preset odd sets config.absent.key, which is unknown"):
        preset("odd")


# Changes of each row of the paper's Table 3, with its perplexity and BLEU on newstest2013.
TABLE_3 = {
    "a_h1": ({"num_heads": 1}, 5.29, 24.9), "a_h4": ({"num_heads": 4}, 5.00, 25.5),
    "a_h16": ({"num_heads": 16}, 4.91, 25.8), "a_h32": ({"num_heads": 32}, 5.01, 25.4),
    "b_dk16": ({"d_k": 16, "d_v": 64}, 5.16, 25.1), "b_dk32": ({"d_k": 32, "d_v": 64}, 5.01, 25.4),
    "c_n2": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, 6.11, 23.7),
    "c_n4": ({"num_encoder_layers": 4, "num_decoder_layers": 4}, 5.19, 25.3),
    "c_n8": ({"num_encoder_layers": 8, "num_decoder_layers": 8}, 4.88, 25.5),
    "c_d256": ({"d_model": 256}, 5.75, 24.5), "c_d1024": ({"d_model": 1024}, 4.66, 26.0),
    "c_ff1024": ({"d_ff": 1024}, 5.12, 25.4), "c_ff4096": ({"d_ff": 4096}, 4.75, 26.2),
    "d_dropout_0": ({"dropout": 0.0}, 5.77, 24.6), "d_dropout_02": ({"dropout": 0.2}, 4.95, 25.5),
    "d_smoothing_0": ({"label_smoothing": 0.0}, 4.67, 25.3), "d_smoothing_02": ({"label_smoothing": 0.2}, 5.47, 25.7),
    "e_learned": ({"position": "learned"}, 4.92, 25.7),
}  # fmt: skip
WIDTHS = {"a_h1": 512, "a_h4": 128, "a_h16": 32, "a_h32": 16, "c_d256": 32, "c_d1024": 128}


@pytest.mark.parametrize("row", TABLE_3)
def test_table_3_rows_change_only_their_own_keys(row):
    changes, perplexity, bleu = TABLE_3[row]
    base, changed = (config_lib.resolve(preset(f"table3_{name}")) for name in ("base", row))
    differ = {key.split(".")[1]: new for key, (_, new) in config_lib.differences(base, changed).items()}
    assert {key: value for key, value in differ.items() if key in changes} == changes
    assert set(differ) - set(changes) <= {"d_k", "d_v"}  # stated explicitly because the head width changes
    assert changed.model.head_widths == (changes.get("d_k", WIDTHS.get(row, 64)), WIDTHS.get(row, 64))
    assert f"perplexity {perplexity:.2f}, {bleu}" in find(f"table3_{row}").published


def test_table_3_is_complete():
    names = {name for name in presets() if name.startswith("table3_")}
    assert names == {f"table3_{row}" for row in (*TABLE_3, "base", "big")}
    base, big = (config_lib.resolve(preset(f"table3_{name}")) for name in ("base", "big"))
    assert (base.train.steps, big.train.steps) == (100_000, 300_000)
    assert base.checkpoint.average_last == big.checkpoint.average_last == 0
    assert (big.model.d_model, big.model.d_ff, big.model.num_heads, big.model.dropout) == (1024, 4096, 16, 0.3)


def test_parsing_has_the_papers_values():
    """(6.3): 4 layers, d_model 1024, 16K words, beam 21, penalty 0.3, input + 300."""
    c = config_lib.resolve(preset("aiayn_parsing"))
    assert (c.model.num_encoder_layers, c.model.num_decoder_layers, c.model.d_model) == (4, 4, 1024)
    assert (c.model.num_heads, c.model.head_widths, c.model.d_ff, c.model.tie_embeddings) == (
        8,
        (128, 128),
        2048,
        "none",
    )
    assert (c.data.vocab_size, c.decode.beam_size, c.decode.alpha, c.decode.max_length_offset) == (16_000, 21, 0.3, 300)


def test_large_batch_recipe_has_the_published_values():
    c = config_lib.resolve(preset("mlperf_big"))
    assert (c.model.d_model, c.model.d_ff, c.model.num_heads, c.model.num_encoder_layers) == (1024, 4096, 16, 6)
    assert (c.optimizer.b1, c.optimizer.b2, c.optimizer.eps, c.optimizer.warmup_steps) == (0.9087, 0.9199, 1e-9, 664)
    assert (c.data.pack_length, round(c.data.batch_tokens / (256 * 0.97))) == (256, 2045)  # 2,048 rows, 97 % full
    peak = max(float(learning_rate_schedule(c)(step)) for step in (600, 663, 664, 665, 800))
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


def test_french_multi30k_is_the_german_recipe_on_other_text():
    german, french = (config_lib.load_config(f"{CONFIGS / 'multi30k.py'}:{language}") for language in ("de", "fr"))
    texts = {"data.train", "data.valid", "data.test", "data.target_language", "data.tokenizer_model", "data.vocab_size"}
    assert set(config_lib.differences(german, french)) == texts
    with pytest.raises(UserError, match="variant 'cs': expected de or fr"):
        config_lib.load_config(f"{CONFIGS / 'multi30k.py'}:cs")


def test_presets_load_by_name_with_overrides():
    config = config_lib.load_config("t2t_v3", {"model.dropout": "0.2"})
    assert (config.model.norm_placement, config.model.dropout) == ("pre", 0.2)
    with pytest.raises(UserError, match="no preset 't2t_v4'. Did you mean 't2t_v"):
        config_lib.load_config("t2t_v4")
