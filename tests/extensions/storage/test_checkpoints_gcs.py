"""Checkpoints and locks in a bucket."""

import jax.numpy as jnp
import pytest
from etils import epath
from helpers.configs import devices_mesh, model_and_state, small_config

from t2t_flax import config as config_lib
from t2t_flax import filesystem as files
from t2t_flax import locks
from t2t_flax.errors import UserError
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.train_state import init_state
from t2t_flax.training.workdir import adopt_config, checkpoint_steps, writing

RUN = "gs://bucket/run"


@pytest.mark.slow
def test_damaged_and_unfinished_checkpoints_are_skipped(gcs):
    """The damaged one is set aside and the leftover of a killed save is removed; opening alone changes nothing."""
    config = small_config(model=dict(d_model=8, d_ff=8, num_heads=2), checkpoint=dict(every_steps=1))
    model, tx, state, _ = model_and_state(config)
    checkpoints = Checkpoints(f"{RUN}/checkpoints", keep_last=3)
    for step in (1, 2):
        meta = {
            "step": step,
            "updates_per_epoch": 1,
            "config": config_lib.as_json(config),
            "digests": {},
            "progress": {},
        }
        checkpoints.save(state.replace(step=jnp.int32(step)), meta, float(step))
    checkpoints.close()
    assert "run/trained.json" in gcs.names()
    name = "run/checkpoints/2/meta/metadata"
    gcs.put("bucket", name, gcs.read(name).replace(b'"step": 2', b'"step": 3'), {})
    gcs.put("bucket", "run/checkpoints/5/params/x", b"half", {})
    before = {name: gcs.read(name) for name in gcs.names()}
    reopened = Checkpoints(f"{RUN}/checkpoints", keep_last=3)
    assert reopened.steps() == [1, 2] == checkpoint_steps(epath.Path(RUN))
    assert {name: gcs.read(name) for name in gcs.names()} == before
    reopened.clean_up()
    assert before.keys() - set(gcs.names()) == {"run/checkpoints/5/params/x"}
    abstract, _ = init_state(config, model, tx, devices_mesh(), abstract=True)
    assert reopened.restore_latest(abstract, config)[1]["step"] == 1
    assert "run/damaged/2-0/meta/metadata" in gcs.names() and reopened.steps() == [1]


def test_foreign_folder_in_bucket_is_left_untouched(gcs):
    files.atomic_write(f"{RUN}/tokenizer/vocab.json", "{}")
    with pytest.raises(UserError, match="not a run of t2t_flax"):
        adopt_config(epath.Path(RUN), small_config())
    assert gcs.names() == ["run/tokenizer/vocab.json"]


def test_bucket_has_one_writer_at_a_time(gcs):
    with writing(epath.Path(RUN), "train"):
        assert gcs.names() == ["run/.lock-1"]
        with pytest.raises(UserError, match="is in use by another process: train, process"):
            locks.lock_folder(RUN, "prepare")
    adopt_config(epath.Path(RUN), small_config())  # what the lease leaves is not a foreign file
