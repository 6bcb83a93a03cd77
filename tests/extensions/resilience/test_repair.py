"""Damaged checkpoints are reported and set aside, and the run goes on from an older one."""

import errno
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax import config as config_lib
from t2t_flax.errors import UserError
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.train_state import init_state

# TensorStore drops concurrent reads beside the damaged array with a long warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
DIGESTS = {"tokenizer": "t" * 64, "training data": "d" * 64}


@pytest.fixture(scope="module")
def training_setup():
    keys = dict(model=dict(d_model=8, d_ff=8, num_heads=2), optimizer=dict(ema_decay=0.9))
    config = small_config(**keys, checkpoint=dict(every_steps=1))
    model, tx, state, _ = model_and_state(config)
    return config, state, init_state(config, model, tx, devices_mesh(), abstract=True)[0]


def meta_of(config, step, **more):
    values = {"step": step, "updates_per_epoch": 1, "config": config_lib.as_json(config)}
    return values | {"digests": DIGESTS, "progress": {}} | more


def state_at(training_setup, step):
    scaled = jax.tree.map(lambda x: x * step if x.dtype == jnp.float32 else x, training_setup[1])
    return scaled.replace(step=jnp.int32(step))


def write(folder, training_setup, steps=(1, 2, 3), metric=lambda step: float(step), **keys):
    checkpoints = Checkpoints(folder, **{"keep_last": 9, "keep_best": 1} | keys)
    for step in steps:
        checkpoints.save(state_at(training_setup, step), meta_of(training_setup[0], step), metric(step))
    checkpoints.close()


@pytest.fixture(scope="module")
def three_checkpoints(tmp_path_factory, training_setup):
    """Checkpoints 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    write(folder, training_setup)
    return folder


def restored(folder, training_setup, **keys):
    state, meta = Checkpoints(folder, keep_last=9, keep_best=1).restore_latest(
        training_setup[2], training_setup[0], DIGESTS, **keys
    )
    return state, meta["step"]


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def flip(path, position=0.5):
    data = bytearray(path.read_bytes()) or bytearray(b"\x01")
    data[min(int(len(data) * position), len(data) - 1)] ^= 0x04
    path.write_bytes(data)


WAYS = {
    "flip": flip,
    "empty": lambda path: path.write_bytes(b""),
    "delete": lambda path: path.unlink(),
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "truncate": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
}


def check_damaged_file(three_checkpoints, training_setup, workdir, name, damage):
    """Damages a file of the newest checkpoint: it or the previous one is restored, and nothing else changes."""
    shutil.copytree(three_checkpoints, workdir / "checkpoints")
    damage(workdir / "checkpoints" / "3" / name)
    before = content(workdir)
    assert Checkpoints(workdir / "checkpoints").steps() == [1, 2, 3] and content(workdir) == before
    state, step = restored(workdir / "checkpoints", training_setup)
    assert step in (2, 3) and equal(state, state_at(training_setup, step)), name
    after = content(workdir)
    if step == 2:
        assert {path.replace("damaged/3-0/", "checkpoints/3/"): data for path, data in after.items()} == before
        assert any(path.startswith("damaged/3-0/") for path in after)
    else:
        assert after == before


def files_of(three_checkpoints):
    return sorted(
        str(path.relative_to(three_checkpoints / "3"))
        for path in (three_checkpoints / "3").rglob("*")
        if path.is_file()
    )


@pytest.mark.slow
@settings(max_examples=4)
@given(data=st.data())
def test_damage_to_any_file_of_the_newest_checkpoint_is_detected(
    three_checkpoints, training_setup, tmp_path_factory, data
):
    name = data.draw(st.sampled_from(files_of(three_checkpoints)))
    position = data.draw(st.floats(0, 1))
    damage = data.draw(st.sampled_from(sorted(WAYS)))
    apply_damage = (lambda path: flip(path, position)) if damage == "flip" else WAYS[damage]
    workdir = tmp_path_factory.mktemp("any")
    check_damaged_file(three_checkpoints, training_setup, workdir, name, apply_damage)
    kept = Checkpoints(workdir / "checkpoints").steps()
    write(workdir / "checkpoints", training_setup, sorted({3, 4} - set(kept)))  # as a resumed run would
    assert restored(workdir / "checkpoints", training_setup)[1] == 4


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "damage",
    ["one after the other", *(pytest.param(way, marks=pytest.mark.drill) for way in WAYS)],
)
def test_damage_to_every_file_of_the_newest_checkpoint_is_detected(three_checkpoints, training_setup, tmp_path, damage):
    for number, name in enumerate(files_of(three_checkpoints)):
        way = WAYS.get(damage, list(WAYS.values())[number % len(WAYS)])
        check_damaged_file(three_checkpoints, training_setup, tmp_path / str(number), name, way)


def test_damaged_checkpoints_stay_on_their_disk(three_checkpoints, training_setup, tmp_path, monkeypatch):
    """`checkpoints` is a link; a rename to another disk would fail. Numbers that are taken are left out."""
    shutil.copytree(three_checkpoints, tmp_path / "disk" / "run7")
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "disk" / "run7", tmp_path / "run" / "checkpoints")
    rename = os.rename

    def on_one_disk(source, target, **keys):
        if Path(source).parts[: len(tmp_path.parts) + 1] != Path(target).parts[: len(tmp_path.parts) + 1]:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target, **keys)

    monkeypatch.setattr(os, "rename", on_one_disk)
    (tmp_path / "disk" / "run7.damaged" / "3-1").mkdir(parents=True)
    (tmp_path / "disk" / "run7.damaged" / "2-0").mkdir()
    for number in ("3-0", "3-2"):
        flip(tmp_path / "run" / "checkpoints" / "3" / "meta" / "metadata")
        assert restored(tmp_path / "run" / "checkpoints", training_setup)[1] == 2
        assert (tmp_path / "disk" / "run7.damaged" / number / "params").is_dir()
        write(tmp_path / "run" / "checkpoints", training_setup, (3,))


@pytest.mark.smoke
def test_the_newest_intact_checkpoint_is_restored_and_damaged_ones_are_set_aside(
    three_checkpoints, training_setup, tmp_path, caplog
):
    """An empty folder with a number is damaged too. What was set aside can be written again."""
    folder = shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    shutil.rmtree(folder / "3" / "params")
    (folder / "5").mkdir()
    state, step = restored(folder, training_setup)
    assert step == 2 and equal(state.params, state_at(training_setup, 2).params)
    assert all(f"checkpoint {step} in {folder} is damaged" in caplog.text for step in (3, 5))
    assert Checkpoints(folder).steps() == [1, 2]
    write(folder, training_setup, (3,))
    assert restored(folder, training_setup)[1] == 3
    assert sorted(p.name for p in (tmp_path / "damaged").iterdir()) == ["3-0", "5-0"]


def test_where_all_checkpoints_are_damaged_they_stay(three_checkpoints, training_setup, tmp_path):
    folder = shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    for step in (1, 2, 3):
        flip(folder / str(step) / "meta" / "metadata")
    with pytest.raises(UserError, match="all checkpoints in .* are damaged; they are left where they are:\n.*/3: "):
        restored(folder, training_setup)
    assert Checkpoints(folder).steps() == [1, 2, 3] and not (tmp_path / "damaged").exists()
