"""`import` on the command line.

Runs that every other command takes, round trips of `export`, and messages.
"""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import shutil

import numpy as np
import pytest
from helpers.refusals import refused_command

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.extensions.interop.safetensors_file import (
    flatten,
    read_metadata,
    read_safetensors,
    write_safetensors,
)

LINES = ["Where is the dog?", "It is late."]


@pytest.fixture(scope="module")
def imported(workdir, tmp_path_factory):
    """(exported folder, imported run) by format."""
    made = {}

    def of(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            exported, run = folder / "exported", folder / "a run"
            assert (
                main(["export", f"--workdir={workdir}", f"--format={kind}", f"--output={exported}"])
                == 0
            )
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert main(["import", f"--from={exported}", f"--workdir={run}"]) == 0
            translate, train = re.findall(
                r"python -m t2t_flax.*?(?=\. |$)", said.getvalue().strip().splitlines()[-1]
            )
            assert shlex.split(translate)[4].split(" (")[0] == f"--workdir={run}"
            assert f"--config.finetuning.init_from={run}" in shlex.split(train)
            made[kind] = exported, run
        return made[kind]

    return of


def flat(run):
    return flatten(run.params)


def test_safetensors_come_back_exactly(workdir, imported, capsys):
    exported, folder = imported("safetensors")
    ours, run = t2t_flax.load(workdir), t2t_flax.load(folder)
    assert run.stored == ours.stored and run.tokenizers.digest == ours.tokenizers.digest
    for path, x in flat(ours).items():
        np.testing.assert_array_equal(flat(run)[path], x, err_msg=path)
    again = folder.parent / "again"
    assert main(["export", f"--workdir={folder}", "--format=safetensors", f"--output={again}"]) == 0
    # Of its metadata the order varies.
    read = [read_safetensors(path / "model.safetensors") for path in (exported, again)]
    assert read[0][1] == read[1][1] and flatten(read[0][0]).keys() == flatten(read[1][0]).keys()
    assert main(["evaluate", f"--workdir={folder}", "--config.data.test=toy:test:4"]) == 0
    assert (
        "sacreBLEU" in capsys.readouterr().out
        and len(list((folder / "eval").glob("test-2-*.json"))) == 1
    )


def test_ctranslate2_folder_comes_back(workdir, imported):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    exported, folder = imported("ctranslate2")
    ours, run = t2t_flax.load(workdir), t2t_flax.load(folder)
    # Which the format does not have.
    given = {
        "pad_vocab_to_multiple": 1,
        "dropout": run.config.model.dropout,
    }
    assert run.config.model == dataclasses.replace(ours.config.model, **given)
    assert (run.config.data.source_language, run.config.data.target_language) == ("en", "de")
    assert [t.text for t in run.translate(LINES)] == [t.text for t in ours.translate(LINES)]
    again = folder.parent / "again"
    assert main(["export", f"--workdir={folder}", "--format=ctranslate2", f"--output={again}"]) == 0
    for name in ("model.bin", "config.json", "shared_vocabulary.json", "tokenizer/tokenizer.model"):
        assert (again / name).read_bytes() == (exported / name).read_bytes(), name


def test_hugging_face_folder_comes_back(workdir, imported):
    exported, folder = imported("huggingface")
    ours, run = t2t_flax.load(workdir), t2t_flax.load(folder)
    assert run.tokenizers.digest == ours.tokenizers.digest and run.config.data == run.stored.data
    pairs = [(line, "Wo ist der Hund?") for line in LINES]
    for a, b in zip(run.score(pairs), ours.score(pairs), strict=True):
        # Padding has no probability there; an untrained model gives it that of any piece.
        assert b.log_prob < a.log_prob < b.log_prob + 0.1
    again = folder.parent / "again"
    assert main(["export", f"--workdir={folder}", "--format=huggingface", f"--output={again}"]) == 0
    for name in (
        "model.safetensors",
        "vocab.json",
        "source.spm",
        "target.spm",
        "tokenizer_config.json",
    ):
        assert (again / name).read_bytes() == (exported / name).read_bytes(), name


def test_wrong_use_is_refused_and_leaves_nothing(workdir, imported, tmp_path):
    target = f"--workdir={tmp_path / 'new'}"
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a")
    exported, _ = imported("safetensors")
    before = sorted(os.listdir(tmp_path))
    for words, names in [
        ([f"--from={tmp_path / 'nowhere'}", target], [f"{tmp_path}/nowhere"]),
        ([f"--from={empty}", target], [str(empty), "model.safetensors"]),
        ([f"--from={tmp_path / 'text' / 'a.txt'}", target], ["a.txt"]),
        ([f"--from={other}", target], ["model_type", "'t5'", "marian"]),
        ([f"--from={workdir}", target], [str(workdir)]),
        ([f"--from={exported}", f"--workdir={workdir}"], [str(workdir)]),
        ([f"--from={exported}", "--workdir=pretrained:toy"], ["pretrained:toy"]),
        ([f"--from={exported}", target, "--config.model.num_heads=2"], ["model.num_heads"]),
        ([f"--from={exported}", target, "--config.decode.beamsize=2"], ["'decode.beam_size'"]),
    ]:
        refused_command(["import", *words], *names)
        assert sorted(os.listdir(tmp_path)) == before


def test_safetensors_of_another_model_are_refused(imported, tmp_path):
    """A parameter that is missing, one too many, one of another shape.

    A tokenizer of another size.
    """
    exported, _ = imported("safetensors")
    params, _ = read_safetensors(exported / "model.safetensors")
    config, checkpoint = read_metadata(exported / "model.safetensors")
    shutil.copytree(exported, tmp_path / "bad")
    layer = params["encoder_0"]
    words = ["import", f"--from={tmp_path / 'bad'}", f"--workdir={tmp_path / 'run'}"]
    for changed, name in [
        ({k: v for k, v in params.items() if k != "decoder_0"}, "decoder_0.cross_attention"),
        (params | {"extra": {"table": np.ones(3, np.float32)}}, "extra.table"),
        (params | {"encoder_0": layer | {"feed_forward": layer["feed_forward"] | {
            "Einsum_0": {"kernel": np.ones((16, 5), np.float32), "bias": np.ones(32, np.float32)}}}},
         "Einsum_0.kernel"),
    ]:  # fmt: skip
        write_safetensors(
            tmp_path / "bad" / "model.safetensors", changed, config, checkpoint=checkpoint
        )
        refused_command(words, name)
    shutil.rmtree(tmp_path / "bad" / "tokenizer")
    write_safetensors(tmp_path / "bad" / "model.safetensors", params, config, checkpoint=checkpoint)
    refused_command(words, "tokenizer.model")
    assert not (tmp_path / "run").exists()
