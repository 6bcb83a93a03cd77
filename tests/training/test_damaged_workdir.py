"""With any file of a workdir damaged, the run goes on bit for bit, or an error names the file."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath
from helpers.refusals import assert_names
from helpers.runs import start, tiny_run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.progress import MetricsWriter, read_metrics
from t2t_flax.training.run import restore_or_init
from t2t_flax.training.workdir import completed


@pytest.fixture(scope="module")
def intact_run(tmp_path_factory, cache):
    """(config, workdir, state by step) of a run of 8 updates with checkpoints at 4 and 8."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    config = tiny_run(workdir, steps=8, eval=dict(every_steps=4))
    run = start(config, workdir, cache)
    loop.train(run, score=None)
    marker = dict(step=8, reason="steps", records={}, summary="", seconds={})
    (workdir / "complete.json").write_text(json.dumps(marker))
    states = {}
    for step in (4, 8):
        other = workdir.parent / str(step)
        shutil.copytree(workdir, other)
        for later in {4, 8} - set(range(step + 1)):
            shutil.rmtree(other / "checkpoints" / str(later))
        states[step] = Checkpoints(other / "checkpoints").restore_latest(run.abstract, run.config)[
            0
        ]
    return run.config, workdir, states


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def evaluate(workdir, states):
    loaded = load(workdir, overrides={"mesh.data": "-1"})
    assert equal(loaded.params, states[loaded.steps[0]].params)


def resume(config, workdir, cache, states):
    """The steps of `train` before the first update."""
    workdir = epath.Path(workdir)
    completed(workdir, config)
    run = start(config, workdir, cache)
    run = dataclasses.replace(run, workdir=workdir)
    state, progress = restore_or_init(run, Checkpoints(workdir / "checkpoints"), lambda text: None)
    assert progress.step in states and equal(state, states[progress.step])
    MetricsWriter(workdir, resume_step=progress.step).close()
    return progress.step


NAMES = st.sampled_from(
    ["config.json", "trained.json", "complete.json", "metrics.jsonl", "tokenizer", "checkpoints"]
)


@settings(max_examples=10)
@given(
    NAMES,
    st.sampled_from(["flip", "truncate", "empty", "delete"]),
    st.floats(0, 1),
    st.integers(0, 10**6),
)
@example("config.json", "empty", 0.0, 0)
@example("config.json", "delete", 0.0, 0)
@example("tokenizer", "truncate", 0.0, 0)
@example("tokenizer", "delete", 0.0, 0)
@example("metrics.jsonl", "flip", 0.2, 0)
@pytest.mark.slow
def test_damaged_workdir_files_are_harmless_or_reported(
    intact_run, tmp_path_factory, cache, entry, damage, position, number
):
    config, source, states = intact_run
    workdir = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(source, workdir)
    names = [name for name in sorted(files(workdir)) if name.split("/")[0] == entry]
    path = workdir / names[number % len(names)]
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    else:
        at = min(int(position * len(data)), len(data) - 1)
        data[at] ^= 0x10
        path.write_bytes({"flip": bytes(data), "truncate": bytes(data[:at]), "empty": b""}[damage])
    before = files(workdir)
    with jax.default_device(jax.devices()[0]):
        for action in (
            lambda: evaluate(workdir, states),
            lambda: resume(config, workdir, cache, states),
        ):
            try:
                action()
            except UserError as error:
                assert_names(str(error), str(workdir), entry)
    after = files(workdir)
    moved = {re.sub(r"8\.damaged-\d+/", "8/", name): data for name, data in after.items()}
    for name, data in before.items():
        if name in ("config.json", "complete.json", "metrics.jsonl"):  # rewritten by a resumed run
            continue
        assert moved.get(name) == data, f"{damage} {path.name}: {name} was lost"


def test_zeroed_bytes_of_metrics_are_left_out(intact_run, tmp_path, caplog):
    """As after a power failure while the file was being written."""
    _, source, _ = intact_run
    shutil.copy(source / "metrics.jsonl", tmp_path)
    text = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(text + bytes(100) + b'\n{"step": 9, "lo')
    assert [line["step"] for line in read_metrics(tmp_path)] == [
        line["step"] for line in read_metrics(source)
    ]
    assert_names(caplog.text, "1 lines", "line 11")
    MetricsWriter(epath.Path(tmp_path), resume_step=8).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == text
