"""`export` on the command line: the folder, its README as written, and messages."""

import os
import re
import subprocess
import sys

import pytest
from helpers.runs import start, tiny_run

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.training import loop


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("export") / "run"
    config = tiny_run(folder, steps=2, checkpoint=dict(every_steps=1, keep_last=2))
    loop.train(start(config, folder, cache), score=None)
    return folder


def export(workdir, tmp_path, *words, code=0):
    """The exported folder."""
    folder = tmp_path / "exported"
    assert main(["export", f"--workdir={workdir}", f"--output={folder}", *words]) == code
    return folder


def test_ctranslate2_folder_translates_as_its_readme_says(workdir, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    folder = export(workdir, tmp_path, "--format=ctranslate2", "--step=1")
    readme = (folder / "README.md").read_text()
    assert "# en-de model, ctranslate2 float32" in readme and "step 1 of run" in readme
    code = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_ctranslate2_translates_the_toy_test_set_with_the_same_tokens(tmp_path, beams):
    """Of the trained run, under CTranslate2's rules; one near tie in 200 sentences may fall the other way."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    toy_run = os.environ.get("T2T_FLAX_TOY_RUN")
    if not toy_run:
        pytest.skip("T2T_FLAX_TOY_RUN names no trained run of configs/toy.py")
    folder = export(toy_run, tmp_path, "--format=ctranslate2", "--config.mesh.data=-1", "--config.mesh.cpu_devices=8")
    lines = [source for source, _ in toy.pairs("test", 200)]
    rules = {"decode.length_penalty": "power", "decode.early_stopping": "beam_full", "decode.beam_size": str(beams)}
    run = t2t_flax.load(toy_run, overrides=rules | {"mesh.data": "-1", "mesh.cpu_devices": "8"})
    side = run.tokenizers.source
    theirs = ctranslate2.Translator(str(folder)).translate_batch(
        [side.pieces(side.encode(line)) for line in lines], beam_size=beams, length_penalty=0.6 if beams > 1 else 1,
        min_decoding_length=0, suppress_sequences=[["<pad>"]],
    )  # fmt: skip
    ours = [side.pieces(t.hypotheses[0].tokens) for t in run.translate(lines)]
    assert sum(a != result.hypotheses[0] for a, result in zip(ours, theirs, strict=True)) <= 1


@pytest.mark.torch
def test_hugging_face_folder_translates_as_its_readme_says(workdir, tmp_path):
    pytest.importorskip("safetensors", reason="needs the extra hf")
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="loads the folder with Hugging Face's library")
    folder = export(workdir, tmp_path, "--format=huggingface")
    readme = (folder / "README.md").read_text()
    assert readme.startswith("---\nlanguage:\n- en\n- de\nlicense: unknown\n")
    code = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("['"), done.stderr


def test_safetensors_folder_has_parameters_config_and_tokenizers(workdir, tmp_path):
    from t2t_flax.interop.safetensors_file import flatten, read_safetensors

    folder = export(workdir, tmp_path, "--format=safetensors")
    params, config = read_safetensors(folder / "model.safetensors")
    assert config["model"]["d_model"] == 16 and (folder / "tokenizer" / "tokenizer.model").exists()
    assert flatten(params).keys() == flatten(t2t_flax.load(workdir).params).keys()


def test_wrong_use_is_refused_and_leaves_nothing(workdir, tmp_path, capsys):
    for words, message in [
        (["--format=ctranslate2", "--quantization=int4"], "--quantization=int4 is not a type of --format=ctranslate2"),
        (["--format=safetensors", "--step=77"], "77"),
        (["--format=onnx"], "invalid choice: 'onnx'"),
    ]:
        folder = export(workdir, tmp_path, *words, code=2)
        assert message in capsys.readouterr().err
        assert not folder.exists() and os.listdir(tmp_path) == []
    (tmp_path / "exported").mkdir()
    export(workdir, tmp_path, "--format=safetensors", code=2)
    assert "already exists: name a new folder" in capsys.readouterr().err
