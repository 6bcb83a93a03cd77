"""Exported models as workdirs, and the one that ships with the package: `pretrained:toy`."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

import t2t_flax
from t2t_flax.__main__ import main
from t2t_flax.config import differences
from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load, stored_config
from t2t_flax.extensions.interop.safetensors_file import (
    read_metadata,
    read_safetensors,
    write_safetensors,
)
from t2t_flax.model_forms import run_folder
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.run import restore_or_init

LINES = ["It is late.", "The house is red."]
SHORT = {"decode.max_length_offset": "4"}
HERE = "--config.mesh.cpu_devices=1"  # this process has its devices


@pytest.fixture(scope="module")
def exported(workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    assert (
        main(["export", f"--workdir={workdir}", "--format=safetensors", f"--output={folder}"]) == 0
    )
    return folder


@pytest.fixture(scope="module")
def half(workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "half"
    words = [
        f"--workdir={workdir}",
        "--format=safetensors",
        "--quantization=float16",
        f"--output={folder}",
    ]
    assert main(["export", *words]) == 0
    return folder


@pytest.fixture(scope="module")
def toy_model():
    return t2t_flax.load("pretrained:toy")


def assert_equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


def test_an_exported_model_is_the_run(workdir, exported):
    run, model = load(workdir), load(exported)
    assert_equal(run.params, model.params)
    assert (run.steps, run.config, run.stored) == (model.steps, model.config, model.stored)
    assert all(
        x.sharding == y.sharding
        for x, y in zip(*map(jax.tree.leaves, (run.params, model.params)), strict=True)
    )
    assert [t.text for t in run.translate(LINES)] == [t.text for t in model.translate(LINES)]


def test_halves_are_the_rounded_parameters_and_the_record_says_so(
    workdir, exported, half, tmp_path
):
    rounded = jax.tree.map(
        lambda x: np.asarray(x, np.float16).astype(np.float32), load(workdir).params
    )
    assert_equal(load(half).params, rounded)
    test_set = SHORT | {"data.test": "toy:test:2"}
    record = t2t_flax.evaluate(half, overrides=test_set, output=tmp_path)["test"]
    assert record["checkpoint"]["weights"] == "rounded to float16" and record["checkpoint"][
        "averaged"
    ] == [2]
    assert sorted(os.listdir(tmp_path)) == ["data", "eval"] and not (half / "eval").exists()


def test_checkpoints_of_an_exported_model_cannot_be_chosen(exported):
    assert load(exported, step=2).steps == load(exported, average=1).steps == (2,)
    for choice in (dict(step=1), dict(average=2), dict(best=True)):
        with refused("step 2,"):
            load(exported, **choice)


def test_files_that_do_not_fit_are_refused(exported, tmp_path):
    broken = tmp_path / "model"
    shutil.copytree(exported, broken)
    params, config = read_safetensors(broken / "model.safetensors")
    _, checkpoint = read_metadata(broken / "model.safetensors")

    def rewrite(params, config, checkpoint):
        write_safetensors(broken / "model.safetensors", params, config, checkpoint=checkpoint)

    rewrite(params, config, checkpoint | {"tokenizer": "0" * 64})
    with refused(f"{broken}/tokenizer"):
        load(broken)
    rewrite(params, config, {})
    with refused("'steps'"):
        load(broken)
    rewrite(params, config | {"model": config["model"] | {"none": 1}}, checkpoint)
    with refused(f"{broken}/model.safetensors", "model.none"):
        load(broken)
    wider = config | {"model": config["model"] | {"d_ff": 64}}
    rewrite(params, wider, checkpoint)
    with refused("feed_forward", "(32,)", "(64,)"):
        load(broken)
    (broken / "model.safetensors").unlink()
    with refused(str(broken), "config.json"):
        load(broken)


def test_training_starts_from_an_exported_model(workdir, exported, tmp_path, cache):
    same = dict(model=dict(norm_eps=1e-5), finetuning=dict(init_from=str(exported)))
    run = start(tiny_run(tmp_path, steps=4, **same), tmp_path / "tuned", cache)
    state, progress = restore_or_init(run, Checkpoints(run.workdir / "checkpoints"), print)
    assert_equal(state.params, load(workdir).params)
    assert progress.step == 0
    other = tiny_run(tmp_path, finetuning=dict(init_from="pretrained:toy"))
    run = start(other, tmp_path / "other", cache)
    assert (
        run.corpus.tokenizers.digest
        == read_metadata(run_folder("pretrained:toy") / "model.safetensors")[1]["tokenizer"]
    )
    with refused("config.finetuning.init_from", "model.num_encoder_layers:"):
        restore_or_init(run, Checkpoints(run.workdir / "checkpoints"), print)


def test_the_folder_of_an_exported_model_is_not_trained_in(exported):
    for folder in (str(exported), "pretrained:toy"):
        refused_command(["train", "--config=toy", HERE, f"--workdir={folder}"], folder)


def test_unknown_names_list_the_known():
    refused_command(["translate", "--workdir=pretrained:tyo"], "pretrained:tyo", "pretrained:toy")


def lines(record, kind) -> list[str]:
    """The texts beside a record: "hyp" or "ref"."""
    return record.with_suffix(f".{kind}.txt").read_text().split("\n")[:-1]


def test_translations_equal_the_recorded_ones(toy_model):
    (path,) = (run_folder("pretrained:toy") / "eval").glob("*.json")
    hypotheses = lines(path, "hyp")
    chosen = range(3, 500, 31)
    pairs = list(toy.pairs("test", 500))
    ours = toy_model.translate([pairs[i][0] for i in chosen])
    assert [t.text for t in ours] == [hypotheses[i] for i in chosen]


def test_evaluation_of_the_pretrained_model_needs_a_folder(tmp_path):
    folder = run_folder("pretrained:toy")
    before = sorted(os.walk(folder))
    refused_command(["evaluate", "--workdir=pretrained:toy"], "--output=DIR")
    with refused("--output=DIR"):
        t2t_flax.evaluate("pretrained:toy")
    words = [HERE, "--config.data.test=toy:test:8", f"--output={tmp_path / 'out'}"]
    assert main(["evaluate", "--workdir=pretrained:toy", *words]) == 0
    (path,) = (tmp_path / "out" / "eval").glob("*.json")
    assert json.loads(path.read_text())["scores"]["sacrebleu"]["score"] > 60
    assert sorted(os.walk(folder)) == before


def test_the_preset_is_the_config_of_the_pretrained_model():
    """`train --config=toy --config.finetuning.init_from=pretrained:toy` goes on from it.

    A run stores the values that were chosen for its devices.
    """
    changed = differences(stored_config("pretrained:toy"), t2t_flax.api.resolve("toy"))
    assert set(changed) <= {"model.attention_kernel", "loss.logits_chunk_size", "train.precision"}
