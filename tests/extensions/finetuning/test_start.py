"""What finetuning.init_from takes from another run.

The chosen checkpoint, and rows by piece for another vocabulary.
"""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, small_config
from helpers.refusals import assert_names, refused
from helpers.runs import start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.finetuning import parse_init_checkpoint
from t2t_flax.extensions.finetuning.start import rows_by_piece, start_params, tables_by_piece
from t2t_flax.extensions.finetuning.tokenizer import FineTuningHook
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.parts import TrainingSetup
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.train_state import init_state, make_model


@pytest.fixture(scope="module")
def first(tmp_path_factory, cache):
    """A run with four checkpoints, of which the best by its metric is set to be the second."""
    workdir = tmp_path_factory.mktemp("first")
    config = tiny_run(
        workdir, steps=4, checkpoint=dict(every_steps=1, keep_last=9), eval=dict(every_steps=1)
    )
    loop.train(start(config, workdir, cache), score=None)
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=9)
    for step in range(1, 5):
        checkpoints.add_evaluation(step, {}, -abs(step - 2))
    return workdir


@pytest.fixture(scope="module")
def tuned(first, tmp_path_factory, cache) -> TrainingSetup:
    workdir = tmp_path_factory.mktemp("tuned")
    return start(tiny_run(workdir, finetuning=dict(init_from=str(first))), workdir, cache)


def test_the_start_is_evaluated_and_competes_for_the_best(first, tmp_path, cache):
    """The run makes it worse, in two parts.

    Runs that start from random parameters have no evaluation before update 1.
    """
    said = []
    for steps in (2, 4):
        keys = dict(
            eval=dict(every_steps=2),
            optimizer=dict(lr_scale=1e3),
            finetuning=dict(init_from=str(first)),
        )
        config = tiny_run(tmp_path, steps=steps, checkpoint=dict(keep_last=1), **keys)
        loop.train(start(config, tmp_path, cache), score=None, say=said.append)
    lines = [line for line in read_metrics(tmp_path) if "valid_nll" in line]
    assert [line["step"] for line in lines] == [0, 2, 4] and lines[0]["valid_nll"] < lines[2][
        "valid_nll"
    ]
    before = [line for line in read_metrics(first) if "valid_nll" in line]
    assert [line["step"] for line in before] == [1, 2, 3, 4]
    assert lines[0]["valid_nll"] == pytest.approx(before[-1]["valid_nll"], rel=1e-5)
    params, expected = (
        load(workdir, best=best).params for workdir, best in ((tmp_path, True), (first, False))
    )
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(expected))
    assert_names(
        said[-1],
        "valid_nll",
        f"{lines[0]['valid_nll']:.4f}",
        f"{lines[2]['valid_nll']:.4f}",
        "--best",
    )


def with_checkpoint(setup: TrainingSetup, text: str) -> TrainingSetup:
    return dataclasses.replace(
        setup, config=setup.config.with_values({"finetuning.init_checkpoint": text})
    )


@pytest.mark.parametrize(
    ("text", "choice", "reported"),
    [
        ("newest", dict(step=4), "step 4"),
        ("best", dict(step=2), "step 2"),
        ("3", dict(step=3), "step 3"),
        ("average:2", dict(average=2), "4, 3"),
    ],
)
def test_init_checkpoint_chooses_what_load_chooses(first, tuned, text, choice, reported):
    said = []
    params = start_params(with_checkpoint(tuned, text), {}, say=said.append)
    expected = load(first, overrides={"mesh.data": "-1"}, **choice).params
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(expected))
    assert_names(said[0], str(first), reported)


def test_another_tokenizer_than_that_of_the_first_run_is_refused(first, tmp_path):
    own = small_config(finetuning=dict(init_from=str(first)))
    same = own.with_values({"data.tokenizer_model": str(first / "tokenizer" / "tokenizer.model")})
    folder = own.with_values({"data.tokenizer_model": str(first / "tokenizer")})
    for config in (own, same, folder):
        assert FineTuningHook(config).tokenizer_folder() == first / "tokenizer"
    source = open_source("toy:valid:80", source_language="en", target_language="de")
    other = train_tokenizers(source, dataclasses.replace(own.data, vocab_size=400))
    other.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        config = own.with_values({"data.tokenizer_model": str(path)})
        with refused("finetuning.init_from", "by_piece"):
            FineTuningHook(config).tokenizer_folder()
    assert (
        FineTuningHook(
            config.with_values({"finetuning.init_vocabulary": "by_piece"})
        ).tokenizer_folder()
        is None
    )


def test_a_checkpoint_that_is_not_there_is_refused(tuned):
    with refused("finetuning.init_checkpoint", "[1, 2,"):
        start_params(with_checkpoint(tuned, "7"), {})
    with refused("average 5"):
        start_params(with_checkpoint(tuned, "average:5"), {})


REFUSED = [({"init_checkpoint": "best"}, "init_from"), ({"init_vocabulary": "by_piece"}, "init_from"),
           ({"lora_alpha": "8"}, "lora_rank"), ({"lora_modules": "*"}, "lora_rank"),
           ({"lora_rank": "4"}, "init_from"),
           ({"init_from": "x", "lora_rank": "4", "freeze": "encoder_*"}, "freeze")]  # fmt: skip


@pytest.mark.parametrize(("keys", "named"), REFUSED)
def test_keys_that_do_not_fit_are_refused(keys, named):
    with refused(f"finetuning.{named}"):
        config_lib.load_config(
            "aiayn_base", {f"finetuning.{key}": value for key, value in keys.items()}
        )


@pytest.mark.parametrize("text", ["", "last", "0", "average:2.5"])
def test_other_texts_are_refused(text):
    with refused("finetuning.init_checkpoint"):
        parse_init_checkpoint(text)


OLD = TokenizerPair(*(SymbolTokenizer.of([text]) for text in ("a b c d", "p q r")))
NEW = TokenizerPair(*(SymbolTokenizer.of([text]) for text in ("d x b y z a", "r s p t u v w")))


@pytest.mark.parametrize(("tie", "shape"), [("decoder", (1, 1, 1)), ("none", (2, 2, 2))])
def test_rows_follow_their_pieces(tie, shape):
    """Oracle: a loop over the pieces of each side, with NumPy."""
    config = small_config(
        model=dict(tie_embeddings=tie, output_bias=True), data=dict(joint_vocabulary=False)
    )
    mesh = devices_mesh(*shape)
    (old_model, old_params), (model, own) = (initial(config, pair, mesh) for pair in (OLD, NEW))
    old_params = jax.tree.map(lambda x: x + 0.25, old_params)
    params, counts = tables_by_piece(model, own, old_params, OLD, NEW)
    assert ["6 of 9" in counts[0], "5 of 10" in counts[1]] == [True, True]
    tables = {
        name: ("source" if name.startswith("source") else "target")
        for name in params
        if name.endswith("_embedding")
    }
    assert len(tables) == (3 if tie == "none" else 2)
    for name, side in (tables | {"output_bias": "target"}).items():
        before, after, start = (
            np.asarray(jax.tree.leaves(tree[name])[0]) for tree in (old_params, params, own)
        )
        old, new = getattr(OLD, side), getattr(NEW, side)
        for i, piece in enumerate(new.pieces(range(new.vocab_size))):
            row = old.ids.get(piece)
            mean = before[: old.vocab_size].astype(np.float64).mean(0)
            expected = mean + 0.1 * start[i] if row is None else before[row]
            np.testing.assert_allclose(after[i], expected, rtol=0, atol=1e-6 if row is None else 0)
        assert jax.tree.leaves(params[name])[0].sharding == jax.tree.leaves(own[name])[0].sharding
    unchanged = [name for name in params if name not in tables and name != "output_bias"]
    assert all(params[name] is old_params[name] for name in unchanged) and len(unchanged) == 2


def initial(config, pair, mesh):
    model = make_model(config, *pair.vocab_sizes)
    return model, init_state(
        config,
        model,
        make_optimizer(config, parametrization_of(config)),
        parametrization_of(config),
        mesh,
    )[0].params


def test_vocabularies_without_a_common_piece_are_refused():
    with refused("by_piece"):
        rows_by_piece(SymbolTokenizer.of(["a b"]), SymbolTokenizer.of(["c d"]))


@pytest.mark.slow
def test_a_run_with_another_vocabulary_starts_by_piece(first, tmp_path, cache):
    """A larger joint vocabulary, tied tables.

    Known pieces have their rows, and the run's own tokenizer is used.
    """
    keys = dict(init_from=str(first), init_vocabulary="by_piece")
    data = dict(vocab_size=340, train="toy:train:400")
    run = start(tiny_run(tmp_path, steps=2, finetuning=keys, data=data), tmp_path, cache)
    old, new = TokenizerPair.load(first / "tokenizer").source, run.corpus.tokenizers.source
    assert (old.vocab_size, new.vocab_size) == (300, 340)
    own = init_state(run.config, run.model, run.tx, run.parametrization, run.mesh)[0].params
    said = []
    params = start_params(run, own, say=said.append)
    table, old_table = (
        np.asarray(p["shared_embedding"]["table"]) for p in (params, load(first).params)
    )
    common = set(old.pieces(range(300))) & set(new.pieces(range(340)))
    assert f"{len(common)} of 340" in said[1] and 150 < len(common) < 340
    ids = {piece: i for i, piece in enumerate(old.pieces(range(300)))}
    for i, piece in enumerate(new.pieces(range(340))):
        if piece in ids:
            np.testing.assert_array_equal(table[i], old_table[ids[piece]])
    outcome = loop.train(run, score=None)
    assert (
        outcome.step == 2
        and TokenizerPair.load(tmp_path / "tokenizer").digest == run.corpus.tokenizers.digest
    )
