"""Restoring a finished run for evaluation.

The right parameters, on any mesh, from the workdir alone.
"""

import json
import shutil

import jax
import numpy as np
import pytest
from helpers.configs import rows_alone
from helpers.refusals import assert_names, refused
from helpers.runs import start, tiny_run

from t2t_flax.evaluation.evaluate import evaluate, summary
from t2t_flax.evaluation.restore import load
from t2t_flax.tasks import task_of
from t2t_flax.training.losses import loss_sums
from t2t_flax.training.validation import ValidationLoss

ONE_DEVICE = {"mesh.data": "-1"}


def test_evaluation_uses_the_moving_average(finished):
    workdir, outcome = finished
    loaded = load(workdir, overrides=ONE_DEVICE)
    assert loaded.steps == (6,)
    for a, b, c in zip(
        *map(jax.tree.leaves, (loaded.params, outcome.state.ema, outcome.state.params)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


def test_mean_of_the_last_checkpoints(finished):
    parts = [load(finished[0], step=s, overrides=ONE_DEVICE).params for s in (6, 4)]
    loaded = load(finished[0], average=2, overrides=ONE_DEVICE)
    assert loaded.steps == (6, 4)
    for a, b, c in zip(*map(jax.tree.leaves, (loaded.params, *parts)), strict=True):
        np.testing.assert_allclose(
            a, (np.asarray(b, np.float64) + np.asarray(c, np.float64)) / 2, atol=1e-7
        )
    with refused("average 9"):
        load(finished[0], average=9, overrides=ONE_DEVICE)


@pytest.mark.parametrize(
    "mesh",
    [
        {"mesh.data": "2", "mesh.fsdp": "2", "mesh.tensor": "2"},
        {"mesh.data": "1", "mesh.fsdp": "8"},
    ],
)
def test_restores_on_another_mesh(finished, mesh):
    single, sharded = load(finished[0], overrides=ONE_DEVICE), load(finished[0], overrides=mesh)
    for a, b in zip(jax.tree.leaves(single.params), jax.tree.leaves(sharded.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_mesh_that_does_not_fit_falls_back_to_data_parallelism(finished, tmp_path, caplog):
    """Trained with fsdp=2 and tensor=3 on other devices than these eight: a warning.

    An explicitly requested mesh is an error.
    """
    copy = shutil.copytree(finished[0], tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["mesh"] |= {"data": 1, "fsdp": 2, "tensor": 3, "slices": 2}
    (copy / "config.json").write_text(json.dumps(config))
    loaded = load(copy, local=True)
    assert dict(loaded.mesh.shape) == {"data": 8, "fsdp": 1, "tensor": 1}
    assert_names(caplog.text, "config.mesh", "x 3")
    for a, b in zip(
        *map(jax.tree.leaves, (loaded.params, load(finished[0], overrides=ONE_DEVICE).params)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with refused("x 3"):
        load(copy, overrides={"mesh.data": "-1"}, local=True)


def test_validation_loss_is_the_nll_of_every_pair(finished, cache):
    """No dropout, no smoothing, no pair dropped; compared with each pair in its own row."""
    workdir, outcome = finished
    run = start(tiny_run(workdir, optimizer=dict(ema_decay=0.5)), workdir / "again", cache)
    store = run.corpus.valid["valid"]
    means = ValidationLoss(run.config, run.model, run.mesh, run.abstract.params, store)(
        outcome.state.params
    )
    pairs = [(store.source(i).tolist(), store.target(i).tolist()) for i in range(store.num_pairs)]
    _, sums = jax.jit(lambda p, b: loss_sums(run.config, run.model, p, b, None))(
        outcome.state.params, rows_alone(pairs, 64)
    )
    assert int(sums["tokens"]) == sum(len(t) for _, t in pairs)
    assert means["nll"] == pytest.approx(float(sums["nll"] / sums["tokens"]), rel=1e-5)
    assert means["accuracy"] == pytest.approx(float(sums["accuracy"] / sums["tokens"]), rel=1e-5)


def test_record_describes_how_the_score_was_computed(finished):
    workdir, _ = finished
    loaded = load(workdir, overrides=ONE_DEVICE)
    record, triples = evaluate(loaded, "test")
    stored = json.loads((workdir / "eval" / "test-6.json").read_text())
    assert stored == json.loads(json.dumps(record))
    assert record["counts"]["sentences"] == 30 == len(triples)
    assert record["scores"]["sacrebleu"]["signature"].startswith("nrefs:1|case:mixed")
    assert record["scores"]["perplexity"] == pytest.approx(
        np.exp(record["scores"]["nll"]), rel=1e-5
    )
    translations = loaded.translate([source for source, _, _ in triples])
    assert [t.text for t in translations] == [output for _, _, output in triples]
    assert record["counts"]["hit_max_length"] == sum(t.hit_cap for t in translations)
    assert record["checkpoint"] == {"step": 6, "averaged": [6]}
    assert {"jax", "flax", "sacrebleu", "python", "t2t_flax"} <= set(record["versions"])
    assert record["data"]["corpus"] == "built-in captions"
    for digest in (
        record["data"]["digest"],
        record["digests"]["tokenizer"],
        record["digests"]["config"],
    ):
        assert len(digest) == 64
    hypotheses = (workdir / "eval" / record["hypotheses"]).read_text().split("\n")[:-1]
    assert hypotheses == [output for _, _, output in triples]
    text = summary(record, task_of(loaded.config))
    assert_names(text, "BLEU", "30 sentences")


def test_a_damaged_checkpoint_is_an_error(finished, tmp_path):
    copy = shutil.copytree(finished[0], tmp_path / "copy")
    (copy / "checkpoints" / "6" / "meta" / "metadata").write_text("{")
    for choice in ({}, dict(step=6), dict(average=2), dict(average=3, at_most=True)):
        with refused("checkpoint 6"):
            load(copy, **choice, overrides=ONE_DEVICE)
    assert load(copy, step=4, overrides=ONE_DEVICE).steps == (4,)


def test_for_decoding_matrices_have_the_type_that_multiplies(finished):
    wide = load(finished[0])
    narrow = load(finished[0], overrides={"decode.precision": "bfloat16"})
    held = narrow.for_decoding()
    assert {x.dtype.name for x in jax.tree.leaves(held.params) if x.ndim > 1} == {"bfloat16"}
    assert held.translate(["It is late."]) == narrow.translate(["It is late."])
    assert wide.for_decoding().params is wide.params
