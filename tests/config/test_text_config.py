"""`configs/text.py` chooses its values by the number of pairs."""

from pathlib import Path

import pytest

from t2t_flax import config as config_lib
from t2t_flax.tasks import count_text
from tests.helpers.refusals import assert_names, refused

TEXT = str(Path(__file__).parents[2] / "configs" / "text.py")


def write_pairs(folder, count):
    for language in ("en", "de"):
        (folder / f"train.{language}").write_text("a b\n" * count)
    return {"data.root": str(folder), "data.train": "train.en,train.de"}


def test_small_text_gets_a_row_of_its_own(tmp_path, capsys):
    data = write_pairs(tmp_path, 2001)
    config = config_lib.load_config(TEXT, data)
    assert config == config_lib.load_config(f"{TEXT}:2001", data)
    assert config != config_lib.load_config(f"{TEXT}:29000", data)
    assert_names(capsys.readouterr().err, "2,001", str(config.model.d_model))


def test_a_script_of_many_characters_gets_a_piece_for_each(tmp_path, capsys):
    """A tokenizer has no piece to spare for words where the characters take them all."""
    data = write_pairs(tmp_path, 260)
    chosen = config_lib.load_config(f"{TEXT}:260", data)
    words = ["".join(chr(0x4E00 + 10 * row + i) for i in range(10)) for row in range(260)]
    (tmp_path / "train.de").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = config_lib.load_config(TEXT, data)
    assert config.data.vocab_size - chosen.data.vocab_size >= 2600 - 300
    assert_names(capsys.readouterr().err, "2,603", f"{config.data.vocab_size:,}")


def test_overrides_replace_values_of_the_row(tmp_path):
    data = write_pairs(tmp_path, 20)
    chosen = config_lib.load_config(TEXT, data)
    config = config_lib.load_config(TEXT, data, {"model.d_model": "96", "data.vocab_size": "300"})
    assert set(config_lib.differences(chosen, config)) == {"model.d_model", "data.vocab_size"}


def test_a_sweep_reads_the_file_once_and_says_so_once(tmp_path, capsys):
    data = write_pairs(tmp_path, 30)
    for rate in ("0.1", "0.2"):
        config_lib.load_config(TEXT, data, {"model.dropout": rate})
    assert capsys.readouterr().err.count("\n") == 1


def test_bleu_ends_the_run_where_there_is_validation_text():
    config = config_lib.load_config(TEXT, {"data.valid": "a,b"})
    assert config.eval.metric == "bleu" and config.eval.patience
    assert not config_lib.load_config(TEXT).eval.patience


@pytest.mark.parametrize(
    ("train", "count"),
    [("toy:train:40", 40), ("x=toy:train:40;y=toy:train:30", 70), ("toy:train:5000", 1000)],
)
def test_pairs_are_counted_in_any_source(train, count):
    overrides = {"data.train": train, "model.d_model": "not a number"}
    assert count_text(overrides, most=1000).pairs == count


def test_files_that_cannot_be_counted_are_named(tmp_path):
    data = write_pairs(tmp_path, 3) | {"data.train": "train.en,missing.de"}
    with refused("missing.de"):
        config_lib.load_config(TEXT, data)
    with refused("text.py", "'many'"):
        config_lib.load_config(f"{TEXT}:many")
