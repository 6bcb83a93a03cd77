"""`export` on the command line: the folder, its README as written, and messages."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import fake_hub
from helpers.refusals import assert_names, refused_command

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.extensions.interop import export as export_lib
from t2t_flax.extensions.interop import hub


def export(workdir, tmp_path, *words):
    """The exported folder."""
    folder = tmp_path / "exported"
    assert main(["export", f"--workdir={workdir}", f"--output={folder}", *words]) == 0
    return folder


def test_ctranslate2_folder_translates_as_its_readme_says(workdir, tmp_path):
    pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    folder = export(workdir, tmp_path, "--format=ctranslate2", "--quantization=float32", "--step=1")
    readme = (folder / "README.md").read_text()
    assert_names(readme, "en-de", "ctranslate2 float32", "step 1")
    code = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.torch
def test_hugging_face_folder_translates_as_its_readme_says(workdir, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="loads the folder with Hugging Face's library")
    folder = export(workdir, tmp_path, "--format=huggingface")
    readme = (folder / "README.md").read_text()
    assert readme.startswith('---\nlanguage: ["en", "de"]\nlicense: "unknown"\n')
    code = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("['"), done.stderr


@pytest.mark.smoke
def test_safetensors_folder_has_parameters_config_and_tokenizers(workdir, tmp_path):
    from t2t_flax.extensions.interop.safetensors_file import flatten, read_safetensors

    (tmp_path / f"exported.partial-{0:032x}").mkdir()  # of an export that was killed
    folder = export(workdir, tmp_path, "--format=safetensors")
    assert os.listdir(tmp_path) == ["exported"]
    params, config = read_safetensors(folder / "model.safetensors")
    assert config["model"]["d_model"] == 16 and (folder / "tokenizer" / "tokenizer.model").exists()
    assert flatten(params).keys() == flatten(t2t_flax.load(workdir).params).keys()


def test_wrong_use_is_refused_and_leaves_nothing(workdir, tmp_path):
    folder = tmp_path / "exported"
    for words, names in [
        (
            ["--format=ctranslate2", "--quantization=int4"],
            ["--quantization=int4", "--format=ctranslate2"],
        ),
        (["--format=safetensors", "--step=77"], ["77"]),
        (["--format=onnx"], ["'onnx'"]),
        (["--format=safetensors", "--license=Apache 2.0"], ["--license=Apache 2.0"]),
        (["--format=safetensors", "--public"], ["--public", "--push"]),
        (["--format=safetensors", "--push=toy"], ["hub:USER/NAME"]),
    ]:
        refused_command(["export", f"--workdir={workdir}", f"--output={folder}", *words], *names)
        assert os.listdir(tmp_path) == []
    folder.mkdir()
    for output in (str(folder), "gs://bucket/toy"):
        refused_command(
            ["export", f"--workdir={workdir}", f"--output={output}", "--format=safetensors"], output
        )


def test_a_folder_that_another_process_makes_meanwhile_stays(workdir, tmp_path, monkeypatch):
    def write(folder, *_, **__):
        (tmp_path / "exported").mkdir()
        (tmp_path / "exported" / "results.txt").write_text("of another process")

    monkeypatch.setattr(export_lib, "write_model", write)
    folder = tmp_path / "exported"
    refused_command(
        ["export", f"--workdir={workdir}", f"--output={folder}", "--format=safetensors"],
        str(folder),
    )
    assert os.listdir(tmp_path) == ["exported"] and os.listdir(folder) == ["results.txt"]


def test_model_card_has_scores_and_licence(workdir, tmp_path):
    """As huggingface_hub reads and checks it."""
    hf = pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    record = {
        "split": "test",
        "data": {
            "corpus": "",
            "spec": "/home/someone/test.en,/home/someone/test.de",
            "sentences": 200,
        },
        "scores": {
            "sacrebleu": {"score": 27.456, "signature": "nrefs:1|case:mixed|version:2.5.1"},
            "chrf": {"score": 55.5, "signature": "nrefs:1|case:mixed"},
            "nll": 1.0,
        },
        "checkpoint": {"averaged": [2]},
        "config": json.loads((workdir / "config.json").read_text()),
    }
    run = tmp_path / "run"
    shutil.copytree(workdir, run, ignore=shutil.ignore_patterns("eval"))
    (run / "eval").mkdir()
    for name, steps in (
        ("test-2", [2]),
        ("test-2-best", [2]),
        ("test-1", [1]),
        ("test-2-mean2", [2, 1]),
    ):
        (run / "eval" / f"{name}.json").write_text(
            json.dumps(record | {"checkpoint": {"averaged": steps}})
        )
    together = record | {
        "checkpoint": {"averaged": [2], "models": ["a", "b"]},
        "scores": {"sacrebleu": {"score": 30.0}},
    }
    (run / "eval" / "test-2-of-two.json").write_text(json.dumps(together))
    for name, keys in (
        ("greedy", {"strategy": "greedy"}),
        ("beam", {"strategy": "beam", "beam_size": 8, "alpha": 0.9}),
    ):
        decode = record["config"]["decode"] | keys
        other = record | {"config": record["config"] | {"decode": decode}}
        (run / "eval" / f"test-2-{name}.json").write_text(json.dumps(other))
    folder = export(run, tmp_path, "--format=safetensors", "--license=cc-by-4.0")
    card = hf.ModelCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0" and card.data.language == ["en", "de"]
    assert card.data.pipeline_tag == "translation"
    assert "30.00" not in card.content, "the score of two models together"
    assert "/home/" not in card.content and "toy:train:300 (en-de)" in card.text
    signature = r"`nrefs:1\|case:mixed\|version:2.5.1`"
    first = "| test.en,test.de (test, 200 sentences) |"
    rows = [line for line in card.text.splitlines() if line.startswith(first)]
    searches = ["beam of 8, decode.alpha = 0.9", "beam of 4", "greedy"]
    scores = [f"BLEU | 27.46 | {signature} |", r"chrF | 55.50 | `nrefs:1\|case:mixed` |"]
    assert rows == [f"{first} {search} | {score}" for search in searches for score in scores]
    with fake_hub.serve() as (server, address), pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf.constants, "ENDPOINT", address)
        card.validate()
        assert server.cards == [card.content]


def test_files_that_are_no_records_are_left_out_with_a_warning(workdir, tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(workdir, run, ignore=shutil.ignore_patterns("eval"))
    (run / "eval").mkdir()
    data, entry = {"corpus": "corpus", "spec": "", "sentences": 3}, {"score": 1.0, "signature": "s"}
    record = {
        "split": "test",
        "data": data,
        "scores": {"sacrebleu": entry},
        "checkpoint": {"averaged": [2]},
        "config": json.loads((workdir / "config.json").read_text()),
    }
    bad = ["{", "[]", "{}", record | {"config": {}}, record | {"scores": {"sacrebleu": {}}}, record | {"scores": [1]}, record | {"split": {}},
           record | {"data": {}}, record | {"scores": {"sacrebleu": entry | {"score": float("nan")}}},
           record | {"scores": {"sacrebleu": entry | {"signature": ["s"]}}}, record | {"checkpoint": None}]  # fmt: skip
    for i, content in enumerate(bad):
        (run / "eval" / f"bad{i}.json").write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    markup = data | {"corpus": "a|b`c`\n\n# <img src=x> [d](http://e)"}
    (run / "eval" / "markup.json").write_text(json.dumps(record | {"data": markup}))
    readme = (export(run, tmp_path, "--format=safetensors") / "README.md").read_text()
    warned = [name for name in (f"bad{i}.json" for i in range(len(bad))) if name in caplog.text]
    assert len(warned) == len(bad) and "markup.json" not in caplog.text
    (row,) = [line for line in readme.splitlines() if "| BLEU |" in line]
    assert row == (
        "| a&#124;b&#96;c&#96; # &#60;img src=x&#62; &#91;d&#93;(http://e) (test, 3 sentences) | beam of 4 | BLEU | 1.00 | `s` |"
    )


def test_export_pushes_the_folder_it_wrote(workdir, tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(hub, "check_push", lambda name: pushed.append(name))
    monkeypatch.setattr(
        hub,
        "push",
        lambda folder, name, public: pushed.append((sorted(os.listdir(folder)), name, public)),
    )
    export(workdir, tmp_path, "--format=safetensors", "--push=hub:me/toy", "--public")
    assert pushed == [
        "hub:me/toy",
        (["README.md", "model.safetensors", "tokenizer"], "hub:me/toy", True),
    ]


def test_import_reads_what_the_hub_has(workdir, tmp_path, monkeypatch):
    folder = export(workdir, tmp_path, "--format=safetensors")
    monkeypatch.setattr(hub, "pull", {"hub:me/toy@v1": folder}.__getitem__)
    assert main(["import", "--from=hub:me/toy@v1", f"--workdir={tmp_path / 'imported'}"]) == 0
    assert (tmp_path / "imported" / "config.json").exists()
