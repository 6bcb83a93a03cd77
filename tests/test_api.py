"""The Python API: one small run, from config to records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.configs import SMALL_KEYS
from helpers.refusals import assert_names, refused

import t2t_flax
from t2t_flax.config import default_config, load_config
from t2t_flax.evaluation.restore import stored_config

KEYS = SMALL_KEYS | {"train.steps": 4, "eval.every_steps": 2, "checkpoint.every_steps": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return t2t_flax.train("toy", tmp_path_factory.mktemp("api") / "run", KEYS)


def test_train_returns_the_records_it_wrote(result):
    assert result.finished and (result.step, result.reason) == (4, "steps")
    record = json.loads(result.records["test"].read_text())
    assert record["counts"]["sentences"] == 20 and "signature" in record["scores"]["sacrebleu"]


def test_complete_run_is_returned_unchanged(result):
    repeated = t2t_flax.train("toy", result.workdir, KEYS)
    assert repeated == result


def test_evaluate_scores_other_splits_and_averages(result):
    records = t2t_flax.evaluate(result.workdir, "valid", average=2)
    assert (
        records["valid"]["checkpoint"]["averaged"] == [4, 2]
        and records["valid"]["counts"]["sentences"] == 20
    )


def test_loaded_run_translates_and_scores(result):
    run = t2t_flax.load(result.workdir, step=2, overrides={"decode.n_best": 2})
    assert len(run.translate(["It is late.", ""])) == 2 and run.steps == (2,)
    assert run.score([("It is late.", "Es ist spät.")])[0].log_prob < 0


LATER = """
import jax, t2t_flax
run = t2t_flax.load("pretrained:toy", overrides={"decode.beam_size": 1})
assert run.translate(["It is late."])[0].text
print(jax.config.jax_compilation_cache_dir, len(jax.devices()))
assert "parameters" in t2t_flax.explain("aiayn_base", {"mesh.cpu_devices": 4})
again = t2t_flax.load("pretrained:toy", overrides={"decode.n_best": 2})
try:
    t2t_flax.load("pretrained:toy", overrides={"mesh.cpu_devices": 3})
except t2t_flax.errors.UserError as error:
    print(error)
"""


@pytest.mark.slow
def test_load_keeps_compiled_programs_and_explain_comes_after_it(tmp_path):
    """As in a notebook: a process of its own, whose cache is new."""
    variables = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(t2t_flax.__file__).parents[1])}
    variables |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    inherited = {name: x for name, x in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    words = [sys.executable, "-c", LATER]
    done = subprocess.run(
        words, env=inherited | variables, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr
    cache, devices, *message = done.stdout.split(None, 2)
    assert int(devices) == stored_config("pretrained:toy").mesh.cpu_devices and list(
        Path(cache).iterdir()
    )
    assert_names(message[0], "config.mesh.cpu_devices", "3")


def test_prepare_returns_the_pairs_of_each_split(tmp_path):
    assert t2t_flax.prepare("toy", tmp_path / "run", KEYS) == {"train": 500, "valid": 20}


def test_explain_accepts_every_form_of_a_config(tmp_path):
    config = load_config("aiayn_base")
    edited = default_config()
    edited.train.steps = config.train.steps
    texts = {t2t_flax.explain("aiayn_base"), t2t_flax.explain(config)}
    assert len(texts) == 1 and "63,0" in texts.pop()
    assert "parameters" in t2t_flax.explain(edited, {"model.d_model": 64})


def test_user_errors_name_the_key(tmp_path):
    with refused("'model.dropuot'", "'model.dropout'"):
        t2t_flax.train("aiayn_base", tmp_path / "run", {"model.dropuot": 0.1})
    with refused("model.norm_placement", "'middle'"):
        t2t_flax.explain("aiayn_base", {"model.norm_placement": "middle"})
    with refused("aiayn_bsae"):
        t2t_flax.explain("aiayn_bsae")
    assert not (tmp_path / "run").exists()
