"""What train.init_from takes from another run: the chosen checkpoint."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.runs import start, tiny_run

from t2t_flax import config as config_lib
from t2t_flax.config.fine_tuning import parse_init_checkpoint
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop
from t2t_flax.training.pretrained import pretrained_params
from t2t_flax.training.setup import TrainingSetup


@pytest.fixture(scope="module")
def first(tmp_path_factory, cache):
    """A run with four checkpoints, of which the best by its metric is set to be the second."""
    workdir = tmp_path_factory.mktemp("first")
    config = tiny_run(workdir, steps=4, checkpoint=dict(every_steps=1, keep_last=9), eval=dict(every_steps=1))
    loop.train(start(config, workdir, cache), score=None)
    for step in range(1, 5):
        (workdir / "checkpoints" / str(step) / "metrics" / "metrics").write_text(f'{{"metric": {-abs(step - 2)}}}')
    return workdir


@pytest.fixture(scope="module")
def tuned(first, tmp_path_factory, cache) -> TrainingSetup:
    workdir = tmp_path_factory.mktemp("tuned")
    return start(tiny_run(workdir, train=dict(init_from=str(first))), workdir, cache)


def with_checkpoint(setup: TrainingSetup, text: str) -> TrainingSetup:
    train = dataclasses.replace(setup.config.train, init_checkpoint=text)
    return dataclasses.replace(setup, config=dataclasses.replace(setup.config, train=train))


@pytest.mark.parametrize(
    ("text", "choice", "reported"),
    [
        ("newest", dict(step=4), "update 4"),
        ("best", dict(step=2), "update 2"),
        ("3", dict(step=3), "update 3"),
        ("average:2", dict(average=2), "the mean of updates 4, 3"),
    ],
)
def test_init_checkpoint_chooses_what_load_chooses(first, tuned, text, choice, reported):
    said = []
    params = pretrained_params(with_checkpoint(tuned, text), say=said.append)
    expected = load(first, overrides={"mesh.data": "-1"}, **choice).params
    jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(expected))
    assert said == [f"parameters start from {first}, {reported}"]


def test_a_checkpoint_that_is_not_there_is_refused(tuned):
    with pytest.raises(
        UserError, match=r"config.train.init_checkpoint = 7: .* no checkpoint of step 7: it has \[1, 2, 3, 4\]"
    ):
        pretrained_params(with_checkpoint(tuned, "7"))
    with pytest.raises(UserError, match="cannot average 5 checkpoints"):
        pretrained_params(with_checkpoint(tuned, "average:5"))


@pytest.mark.parametrize("text", ["", "last", "0", "-1", "average:0", "average:", "average:2.5", "best:3"])
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match="config.train.init_checkpoint = .* expected newest, best"):
        parse_init_checkpoint(text)


def test_init_checkpoint_needs_init_from():
    with pytest.raises(UserError, match="name its workdir in config.train.init_from"):
        config_lib.load_config("aiayn_base", {"train.init_checkpoint": "best"})
