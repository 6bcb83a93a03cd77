"""Checkpoints are restored exactly, or an error says what is damaged."""

import errno
import json
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.full_disk import full_disk
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax.distributed.signals import PROGRESS
from t2t_flax.errors import UserError
from t2t_flax.training.checkpoints import Checkpoints, reporting_full_disk
from t2t_flax.training.checksums import _checksums, checksums
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state


@pytest.fixture(scope="module")
def training_setup():
    config = small_config(optimizer=dict(ema_decay=0.9), checkpoint=dict(every_steps=1))
    return config, *model_and_state(config)


@pytest.fixture(scope="module")
def three(tmp_path_factory, training_setup):
    """Checkpoints 1, 2 and 3; tests change a copy."""
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=3)
    for step in (1, 2, 3):
        save(checkpoints, training_setup, step)
    checkpoints.close()
    return folder


def meta_of(config, step):
    values = json.loads(config_lib.to_json(config))
    return {"step": step, "updates_per_epoch": 1, "config": values, "digests": {}, "progress": {}}


def state_at(training_setup, step):
    scaled = jax.tree.map(lambda x: x * step if x.dtype == jnp.float32 else x, training_setup[3])
    return scaled.replace(step=jnp.int32(step))


def save(checkpoints, training_setup, step, metric=None):
    state = state_at(training_setup, step)
    checkpoints.save(state, meta_of(training_setup[0], step), metric)
    return state


def abstract(training_setup, mesh=None):
    config, model, tx, _, _ = training_setup
    return abstract_state(config, model, tx, parametrization_of(config), mesh or devices_mesh())[0]


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def largest_file(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_restores_bit_for_bit_on_any_mesh(tmp_path, training_setup, monkeypatch):
    monkeypatch.setenv(PROGRESS, str(tmp_path / "saved"))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    saved = save(checkpoints, training_setup, 3)
    checkpoints.wait()
    assert (tmp_path / "saved").exists()  # a launcher counts its restarts anew
    for shape in ((1, 1, 1), (2, 2, 2)):
        mesh = devices_mesh(*shape)
        state, meta = Checkpoints(tmp_path / "checkpoints").restore_latest(
            abstract(training_setup, mesh), training_setup[0]
        )
        assert equal(
            (state.params, state.opt_state, state.ema), (saved.params, saved.opt_state, saved.ema)
        )
        assert int(state.step) == 3 == meta["step"]
        assert {x.sharding.mesh.size for x in jax.tree.leaves(state.params)} == {mesh.size}
    assert meta["config"]["model"]["d_model"] == 16


def test_newest_and_best_are_kept(tmp_path, training_setup):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=2, keep_best=2)
    for step, metric in enumerate([1.0, 9.0, 3.0, 8.0, None, 2.0, 1.0], 1):
        save(checkpoints, training_setup, step, metric)
    checkpoints.close()
    assert checkpoints.steps() == Checkpoints(tmp_path / "checkpoints").steps() == [2, 4, 6, 7]


def test_checkpoint_gets_the_metric_of_a_late_evaluation(tmp_path, training_setup):
    """The run was stopped before its evaluation.

    Metadata and deletions are the same as without the stop.
    """
    for metrics, kept in (([9.0, None, 2.0], [1, 3]), ([1.0, None, 4.0], [3])):
        metas = []
        for late in (False, True):
            folder = tmp_path / f"{metrics[0]} {late}" / "checkpoints"
            checkpoints = Checkpoints(folder, keep_best=1)
            for step, metric in enumerate(metrics, 1):
                save(checkpoints, training_setup, step, None if late else metric)
                if late:  # by the run that resumes
                    checkpoints.close()
                    checkpoints = Checkpoints(folder, keep_best=1)
                    checkpoints.delete_old()
                    checkpoints.add_evaluation(step, {}, metric)
            checkpoints.close()
            left = Checkpoints(folder)
            metas.append({step: left.meta(step) for step in left.steps()})
        assert metas[0] == metas[1] and list(metas[0]) == kept


def test_an_interrupted_deletion_leaves_no_step_and_is_finished_later(tmp_path, three, monkeypatch):
    folder = tmp_path / "checkpoints"
    shutil.copytree(three, folder)

    def interrupted(*args):
        raise OSError(errno.EIO, "interrupted")

    with monkeypatch.context() as patch:
        patch.setattr("t2t_flax.training.checkpoints.delete", interrupted)
        Checkpoints(folder, keep_last=1).delete_old()
    assert Checkpoints(folder).steps() == [3] and len([*folder.iterdir()]) == 3
    Checkpoints(folder).clean_up()
    assert [path.name for path in folder.iterdir()] == ["3"]


def test_failing_device_is_not_damage(tmp_path, three, training_setup, monkeypatch):
    """Intact checkpoints stay in place, and the error is raised unchanged."""
    shutil.copytree(three, tmp_path / "checkpoints")
    error = jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE")

    def restore(*args, **kwargs):
        raise error

    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", restore)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(type(error)) as raised:
        checkpoints.restore_latest(abstract(training_setup), training_setup[0])
    assert raised.value is error
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2", "3"]


def test_failed_save_deletes_no_older_checkpoint(tmp_path, training_setup):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=1)
    save(checkpoints, training_setup, 1)
    checkpoints.wait()
    with full_disk():
        save(checkpoints, training_setup, 2)
        with refused("checkpoints: 1"):
            for _ in range(20_000):
                checkpoints.check_for_errors()
                time.sleep(0.01)
        checkpoints.close()
    assert Checkpoints(tmp_path / "checkpoints").steps() == [1]


@pytest.mark.parametrize(
    ("error", "exception"),
    [(OSError(errno.ENOSPC, "No space left on device"), UserError), (OSError(errno.EDQUOT, "x"), UserError),
     (ValueError("RESOURCE_EXHAUSTED: File too large [OS error 27]"), UserError), (OSError(errno.EIO, "x"), OSError),
     (ConnectionError("reset"), ConnectionError)],
)  # fmt: skip
def test_only_refused_writes_are_reported_as_user_errors(tmp_path, error, exception):
    """Other errors are failures, after which a launcher restarts the run."""

    with pytest.raises(exception), reporting_full_disk(tmp_path / "checkpoints"):
        raise error


def test_checkpoint_of_another_model_is_refused_by_key(tmp_path, training_setup):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    save(checkpoints, training_setup, 1)
    checkpoints.close()
    other = small_config(model=dict(d_model=32, norm_placement="pre"))
    with refused("model.d_model", "16", "32", "model.norm_placement", "'post'", "'pre'"):
        Checkpoints(tmp_path / "checkpoints").restore_latest(abstract(training_setup), other)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [1]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(jnp.float32, ()), (jnp.float32, (4, 3, 6)), (jnp.float32, (0, 3)), (jnp.bfloat16, (7,)), (jnp.bfloat16, (3, 5)),
     (jnp.int32, (1,)), (jnp.uint8, (7,)), (jnp.bool_, (3, 5))],
)  # fmt: skip
def test_checksum_on_the_host_is_that_of_the_devices(dtype, shape):
    x = jax.random.normal(jax.random.key(3), shape) * 100
    tree = {"a": {"b": x.astype(dtype)}, "c": x}
    assert [*checksums(tree).values()] == [*map(int, _checksums(jax.tree.leaves(tree)))]


def test_checksum_depends_on_every_bit_but_not_on_the_mesh():
    x = jax.random.normal(jax.random.key(0), (37, 5))
    base = checksums({"x": x})
    for index, bit in [(0, 0), (100, 31), (184, 7)]:
        bits = np.asarray(x).view(np.uint32).copy()
        bits.reshape(-1)[index] ^= np.uint32(1 << bit)
        assert checksums({"x": jnp.asarray(bits.view(np.float32))}) != base
    swapped = np.asarray(x).copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert checksums({"x": jnp.asarray(swapped)}) != base
    states = [model_and_state(small_config(), devices_mesh(*s))[2] for s in ((1, 1, 1), (2, 2, 2))]
    moved = jax.device_put(states[0].params, jax.tree.map(lambda a: a.sharding, states[1].params))
    assert checksums(moved) == checksums(states[0].params)
