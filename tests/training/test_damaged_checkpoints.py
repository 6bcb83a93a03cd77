"""Damaged checkpoints are named and set aside; nothing intact is moved, overwritten or deleted."""

import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import requests
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.refusals import assert_names, refused
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax import config as config_lib
from t2t_flax.config.schema import Checkpoint
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.training.checkpoint_selection import restore_params
from t2t_flax.training.checkpoints import (
    Checkpoints,
    DamagedCheckpoint,
    StoredStep,
    is_damage,
    kept_steps,
)
from t2t_flax.training.parametrization import parametrization_of
from t2t_flax.training.train_state import abstract_state

DIGESTS = {"tokenizer": "t" * 64, "training data": "d" * 64}


@pytest.fixture(scope="module")
def training_setup():
    keys = dict(model=dict(d_model=8, d_ff=8, num_heads=2), optimizer=dict(ema_decay=0.9))
    config = small_config(**keys, checkpoint=dict(every_steps=1))
    model, tx, state, _ = model_and_state(config)
    return (
        config,
        state,
        abstract_state(config, model, tx, parametrization_of(config), devices_mesh())[0],
    )


def meta_of(config, step, **more):
    values = {"step": step, "updates_per_epoch": 1, "config": config_lib.as_json(config)}
    return values | {"digests": DIGESTS, "progress": {}} | more


def state_at(training_setup, step):
    scaled = jax.tree.map(lambda x: x * step if x.dtype == jnp.float32 else x, training_setup[1])
    return scaled.replace(step=jnp.int32(step))


def write(folder, training_setup, steps=(1, 2, 3), metric=lambda step: float(step), **keys):
    checkpoints = Checkpoints(folder, **{"keep_last": 9, "keep_best": 1} | keys)
    for step in steps:
        checkpoints.save(
            state_at(training_setup, step), meta_of(training_setup[0], step), metric(step)
        )
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
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def content(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
    }


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
    """Damages a file of the newest checkpoint.

    It or the previous one is restored, and nothing else changes.
    """
    shutil.copytree(three_checkpoints, workdir / "checkpoints")
    damage(workdir / "checkpoints" / "3" / name)
    before = content(workdir)
    assert Checkpoints(workdir / "checkpoints").steps() == [1, 2, 3] and content(workdir) == before
    state, step = restored(workdir / "checkpoints", training_setup)
    assert step in (2, 3) and equal(state, state_at(training_setup, step)), name
    after = content(workdir)
    if step == 2:
        assert {
            re.sub(r"3\.damaged-\d+/", "3/", path): data for path, data in after.items()
        } == before
        assert any(".damaged-" in path for path in after)
    else:
        assert after == before


def files_of(three_checkpoints):
    return sorted(
        str(path.relative_to(three_checkpoints / "3"))
        for path in (three_checkpoints / "3").rglob("*")
        if path.is_file()
    )


def test_reads_beside_a_damaged_one_print_no_tracebacks(
    three_checkpoints, training_setup, tmp_path, monkeypatch
):
    """Orbax drops them, and their threads and coroutines tell Python at any time; here at once."""
    real, printed = ocp.StandardCheckpointHandler.restore, []

    def restore(*arguments, **named):
        try:
            return real(*arguments, **named)
        finally:
            sys.unraisablehook(
                SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), object=None)
            )

    monkeypatch.setattr(sys, "unraisablehook", lambda error: printed.append(str(error.exc_value)))
    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", restore)
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    os.truncate(tmp_path / "checkpoints" / "3" / "params" / "array_metadatas" / "process_0", 5)
    assert restored(tmp_path / "checkpoints", training_setup)[1] == 2
    assert printed == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "damage",
    ["one after the other", *(pytest.param(way, marks=pytest.mark.drill) for way in WAYS)],
)
def test_damage_to_every_file_of_the_newest_checkpoint_is_detected(
    three_checkpoints, training_setup, tmp_path, damage
):
    for number, name in enumerate(files_of(three_checkpoints)):
        way = WAYS.get(damage, list(WAYS.values())[number % len(WAYS)])
        check_damaged_file(three_checkpoints, training_setup, tmp_path / str(number), name, way)


def test_damaged_checkpoints_stay_on_their_disk(
    three_checkpoints, training_setup, tmp_path, monkeypatch
):
    """`checkpoints` is a link; a rename to another disk would fail. A step may be damaged twice."""
    shutil.copytree(three_checkpoints, tmp_path / "disk" / "run7")
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "disk" / "run7", tmp_path / "run" / "checkpoints")
    rename = os.rename

    def on_one_disk(source, target, **keys):
        if (
            Path(source).parts[: len(tmp_path.parts) + 1]
            != Path(target).parts[: len(tmp_path.parts) + 1]
        ):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target, **keys)

    monkeypatch.setattr(os, "rename", on_one_disk)
    for times in (1, 2):
        flip(tmp_path / "run" / "checkpoints" / "3" / "meta" / "metadata")
        assert restored(tmp_path / "run" / "checkpoints", training_setup)[1] == 2
        assert len([*(tmp_path / "disk" / "run7").glob("3.damaged-*/params")]) == times
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
    assert_names(caplog.text, "checkpoint 3", "checkpoint 5", str(folder))
    assert Checkpoints(folder).steps() == [1, 2]
    write(folder, training_setup, (3,))
    assert restored(folder, training_setup)[1] == 3
    assert sorted(p.name.partition("-")[0] for p in folder.glob("*-*")) == [
        "3.damaged",
        "5.damaged",
    ]


def test_where_all_checkpoints_are_damaged_they_stay(three_checkpoints, training_setup, tmp_path):
    folder = shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    for step in (1, 2, 3):
        flip(folder / str(step) / "meta" / "metadata")
    with refused(f"{folder / '3'}"):
        restored(folder, training_setup)
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("word", ['"step": 3', '"d_model": 8', '"progress": {}', '"t2t'])
def test_changed_metadata_is_detected(three_checkpoints, training_setup, tmp_path, word):
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "3" / "meta" / "metadata"
    text = path.read_text()
    word = word if word in text else "tttt"
    path.write_text(text.replace(word, word[:-1] + {"3": "4", "8": "9"}.get(word[-1], "x"), 1))
    assert restored(tmp_path / "checkpoints", training_setup)[1] == 2
    assert [*(tmp_path / "checkpoints").glob("3.damaged-*")]


def test_reading_modifies_no_file(three_checkpoints, training_setup, tmp_path):
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir()
    flip(tmp_path / "checkpoints" / "3" / "meta" / "metadata")
    names, before = sorted(tmp_path.rglob("*")), content(tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(DamagedCheckpoint):
        restore_params(checkpoints, 3, training_setup[2].params)
    restore_params(checkpoints, 2, training_setup[2].params)
    checkpoints.close()
    assert Checkpoints(tmp_path / "none" / "checkpoints").steps() == []
    assert sorted(tmp_path.rglob("*")) == names and content(tmp_path) == before


def test_leftovers_of_killed_saves_are_removed_on_resume(
    three_checkpoints, training_setup, tmp_path
):
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    for name in ("9.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp-17"):
        (tmp_path / "checkpoints" / name / "params").mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "params" / "x").write_text("half")
    Checkpoints(tmp_path / "checkpoints").clean_up()
    assert content(tmp_path / "checkpoints") == content(three_checkpoints)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1", "2", "3"]


def test_state_of_another_optimizer_is_refused_by_leaf_name(
    three_checkpoints, training_setup, tmp_path
):
    """As after a library upgrade or a change of parameter names."""
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    before = content(tmp_path)
    config, _, abstract = training_setup
    twice = lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype)  # noqa: E731
    for other, names in (
        (
            abstract.replace(opt_state=(abstract.opt_state, abstract.step)),
            ["opt_state", "0.1.count"],
        ),
        (abstract.replace(opt_state=abstract.opt_state[:1]), ["opt_state", "1.mu.decoder_0"]),
        (abstract.replace(params=jax.tree.map(twice, abstract.params)), ["params", "float32[2,"]),
    ):
        with refused("checkpoint 3", *names):
            Checkpoints(tmp_path / "checkpoints").restore_latest(other, config, DIGESTS)
    assert content(tmp_path) == before


@pytest.mark.parametrize("what", DIGESTS)
def test_digests_are_compared_before_arrays_are_read(
    three_checkpoints, training_setup, what, monkeypatch
):
    monkeypatch.setattr(ocp.StandardCheckpointHandler, "restore", None)
    with refused("checkpoint 3", what, DIGESTS[what][:12]):
        Checkpoints(three_checkpoints).restore_latest(
            training_setup[2], training_setup[0], DIGESTS | {what: "0" * 64}
        )


class SecondProcess(ProcessGroup):
    """Process 1 of two: process 0 sends `lead_values`.

    What process 1 sends is collected in `sent`.
    """

    def __init__(self, lead_values):
        super().__init__(1, 2)
        self.lead_values, self.sent = lead_values, []

    def all_gather(self, what, mine="", seconds=0.0):
        self.sent.append((what, mine))
        return [self.lead_values.get(what, ""), mine]

    def barrier(self, name, seconds=0.0):
        assert seconds <= 3600.0, f"{name}: it would wait too long for a dead process"


def test_all_processes_use_the_list_of_process_0(three_checkpoints, monkeypatch):
    """On a network file system another host may see a new or a deleted folder late."""
    group = SecondProcess({"the list of checkpoints": "[1, 2]"})
    assert Checkpoints(three_checkpoints, group=group).steps() == [1, 2]
    monkeypatch.setattr("t2t_flax.distributed.coordination.time.sleep", lambda seconds: None)
    with refused("process 1", "checkpoint 7"):
        Checkpoints(three_checkpoints, group=SecondProcess({"the list of checkpoints": "[3, 7]"}))


STEPS = st.integers(1, 40).flatmap(
    lambda n: st.lists(
        st.tuples(st.sampled_from([True, False, None]), st.none() | st.integers(0, 5).map(float)),
        min_size=n,
        max_size=n,
    )
)


@given(STEPS, st.integers(1, 5), st.integers(0, 3))
def test_retention_keeps_newest_scheduled_and_best(about, last, best):
    """Keep the newest, the last scheduled, the best, and ones without metadata."""
    facts = dict(enumerate(about, 1))
    regular = [step for step, (scheduled, _) in facts.items() if scheduled]
    unknown = {step for step, (scheduled, _) in facts.items() if scheduled is None}
    measured = sorted((-metric, step) for step, (_, metric) in facts.items() if metric is not None)
    stored = {step: StoredStep(*fact) for step, fact in facts.items()}
    assert kept_steps(stored, last, best) == {
        max(facts),
        *regular[-last:],
        *unknown,
        *(step for _, step in measured[:best]),
    }


def test_new_interval_on_resume_deletes_no_scheduled_checkpoint(training_setup, tmp_path):
    """Whether a checkpoint is scheduled follows from its own config.

    Every 10 updates until 40, then every 25 until 50.
    """
    every = lambda n: dataclasses.replace(training_setup[0], checkpoint=Checkpoint(every_steps=n))  # noqa: E731
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=4)
    for step, interval in ((10, 10), (20, 10), (30, 10), (40, 10), (43, 25), (47, 25), (50, 25)):
        checkpoints.save(state_at(training_setup, step), meta_of(every(interval), step))
    checkpoints.close()
    assert Checkpoints(tmp_path / "checkpoints").steps() == [20, 30, 40, 50]


def wrapped_error(error):
    """An exception as Orbax raises it, with TensorStore's error as its cause."""
    wrapper = Exception("Encountered error while reading array index ()")
    wrapper.__cause__ = error
    return wrapper


@pytest.mark.parametrize(
    ("error", "damage"),
    [(json.JSONDecodeError("Expecting value", "", 0), True), (FileNotFoundError(errno.ENOENT, "no such file"), True),
     (Exception("Encountered error while reading array index (slice(0, 2),)"), True), (KeyError("params"), True),
     (ValueError("NOT_FOUND: Error opening zarr"), True), (ValueError("DATA_LOSS: Error reading x"), True),
     (OSError(errno.EIO, "Input/output error"), False), (OSError(errno.EROFS, "Read-only"), False),
     (jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE"), False), (ImportError("zstandard"), False),
     (RuntimeError("something else"), False), (KeyboardInterrupt(), False),
     (ConnectionError("reset by peer"), False), (PermissionError("no"), False), (MemoryError("no room"), False),
     (ValueError("UNAVAILABLE: try later"), False), (OSError(errno.ESTALE, "Stale file handle"), False),
     (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), False),
     (jax.errors.JaxRuntimeError("FAILED_PRECONDITION: CUDA_ERROR_LAUNCH_FAILED"), False),
     (wrapped_error(ValueError("INTERNAL: Error reading x [OS error 5: EIO Input/output error]")), False),
     (wrapped_error(OSError(errno.EIO, "Input/output error")), False),
     (OSError("Forbidden: https://storage/bucket/x"), False), (requests.ConnectionError(), False),
     (requests.exceptions.ProxyError(), False)],
    ids=lambda x: repr(x)[:40],
)  # fmt: skip
def test_errors_classified_as_damage(error, damage):
    assert is_damage(error) == damage


def test_failing_disk_is_reported_despite_an_older_checkpoint(
    three_checkpoints, training_setup, tmp_path, monkeypatch, caplog
):
    shutil.copytree(three_checkpoints, tmp_path / "checkpoints")
    read = type(Checkpoints(three_checkpoints).folder).read_text

    def fail(self, *args, **keys):
        if "/3/meta" in os.fspath(self):
            raise OSError(errno.EIO, "Input/output error")
        return read(self, *args, **keys)

    monkeypatch.setattr(type(Checkpoints(three_checkpoints).folder), "read_text", fail)
    with caplog.at_level(logging.WARNING, "t2t_flax"), refused("Input/output", error=OSError):
        restored(tmp_path / "checkpoints", training_setup)
    assert "damaged" not in caplog.text and content(tmp_path / "checkpoints") == content(
        three_checkpoints
    )
