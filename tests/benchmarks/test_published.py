"""Published recipes: their text, preparation, training and score."""

import lzma
import random

import pytest
from helpers.refusals import refused

from benchmarks import published
from t2t_flax.config import load_config

TINY = {
    "model.num_encoder_layers": "1", "model.num_decoder_layers": "1", "model.d_model": "16", "model.d_ff": "16",
    "model.num_heads": "2", "model.dropout_attention": "0.0", "data.vocab_size": "300", "data.batch_tokens": "600",
    "train.precision": "float32", "train.steps": "20", "checkpoint.every_steps": "10", "checkpoint.average_last": "2",
    "decode.max_length_offset": "3", "log.every_steps": "10",
}  # fmt: skip


@pytest.mark.parametrize("name", published.RECIPES)
def test_recipes_are_presets_whose_text_is_compressed_files(name):
    recipe = published.RECIPES[name]
    files = published.text_files(load_config(recipe.preset, recipe.keys))
    assert len(files) in (6, 7) and all(file.endswith((".xz", ".gz")) for file in files)


def test_a_folder_that_was_not_prepared_is_refused(tmp_path):
    with refused(str(tmp_path / "multi30k"), "benchmarks.published"):
        published.train("multi30k", tmp_path, 60, {})


@pytest.mark.slow
def test_a_recipe_is_prepared_trained_and_scored_as_published(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    rng, texts = random.Random(0), tmp_path / "data" / "iwslt15-envi"
    texts.mkdir(parents=True)
    for name, count in (("train", 300), ("tst2012", 10), ("tst2013", 10)):
        for code, words in (("en", "a big dog &apos;s house ."), ("vi", "một con chó to lớn .")):
            lines = [" ".join(rng.choices(words.split(), k=8)) for _ in range(count)]
            (texts / f"{name}.{code}.xz").write_bytes(
                lzma.compress("\n".join([*lines, ""]).encode())
            )
    flags = [f"--config.{key}={value}" for key, value in TINY.items()]
    published.main(
        [f"--data={tmp_path / 'data'}", f"--prepared={tmp_path}", "--recipes=envi_t2t", *flags]
    )
    row = published.train("envi_t2t", tmp_path, 600, TINY)
    assert row["complete"] and row["update"] == 20 and "failed" not in row
    assert "tok:intl" in row["signature"] and row["record"] == "test-20-mean2.json"
