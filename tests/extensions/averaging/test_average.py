"""The mean of checkpoints as a workdir: what it holds, and what is refused."""

import jax
import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.averaging.average import average
from t2t_flax.registry import COMMANDS
from t2t_flax.training import loop
from t2t_flax.training.checkpoints import Checkpoints

ALL = {"mesh.data": "-1"}  # all simulated devices


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("run") / "run"
    config = tiny_run(
        folder,
        steps=6,
        checkpoint=dict(every_steps=2, keep_last=3),
        decode=dict(batch_size=2, max_length_offset=3),
    )
    loop.train(start(config, folder, cache), score=None)
    return folder


def test_average_is_a_loadable_workdir(workdir, tmp_path):
    averaged = average([workdir], tmp_path / "mean", steps=[2, 6], overrides=ALL)
    assert averaged == [(str(workdir), 6), (str(workdir), 2)]
    mean = load(tmp_path / "mean", overrides=ALL)
    parts = [load(workdir, step=s, overrides=ALL).params for s in (2, 6)]
    jax.tree.map(
        lambda m, a, b: np.testing.assert_allclose(m, (a + b) / 2, atol=1e-7), mean.params, *parts
    )
    assert mean.steps == (6, 2) and mean.translate(["The train leaves."])
    last = average([workdir], tmp_path / "last", last=3, overrides=ALL)
    assert [step for _, step in last] == [6, 4, 2]


def test_the_command_writes_a_workdir_once(workdir, tmp_path, capsys):
    output = tmp_path / "mean"
    words = ["average", f"--workdir={workdir}", f"--output={output}", "--config.mesh.data=-1"]
    assert main([*words, "--step=2", "--step=6"]) == 0
    assert load(output, overrides=ALL).steps == (6, 2)
    refused_command([*words, "--average=1"], str(output))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("", "--average"),
        ("--average=1 --step=2 --step=4", "--average"),
        ("--best --average=1", "--best"),
        ("--average=-1", "--average"),
        ("--step=2 --step=5", "step 5"),
        ("--average=4", "4 checkpoints"),
        ("--step=4 --step=2 --step=4", "--step"),
        ("--workdir={workdir} --average=1", "--workdir"),
        ("--workdir={workdir}/../run --average=1", "--workdir"),
    ],
)
def test_wrong_arguments_are_refused(workdir, tmp_path, flags, named):
    words = [
        "average",
        f"--workdir={workdir}",
        "--config.mesh.data=-1",
        f"--output={tmp_path / 'mean'}",
    ]
    refused_command([*words, *flags.format(workdir=workdir).split()], named)
    assert not list(tmp_path.iterdir())


def test_average_on_a_full_disk_raises_and_leaves_nothing(workdir, tmp_path, monkeypatch):
    """The array writer raises a ValueError, not an OSError."""

    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr("orbax.checkpoint.AsyncCheckpointer.save", full)
    with refused("RESOURCE_EXHAUSTED"):
        average([workdir], tmp_path / "mean", steps=[2], overrides=ALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_average_refuses_other_models_and_existing_outputs(workdir, tmp_path, cache):
    other = tmp_path / "other"
    loop.train(start(tiny_run(other, steps=1, model=dict(d_ff=48)), other, cache), score=None)
    with refused("model.d_ff:"):
        average([workdir, other], tmp_path / "x", last=1, overrides=ALL)
    with refused(str(other)):
        average([workdir], other, last=1)


def test_average_cannot_be_resumed(workdir, tmp_path, cache):
    average([workdir], tmp_path / "mean", last=2, overrides=ALL)
    config = tiny_run(
        tmp_path / "mean",
        steps=8,
        checkpoint=dict(every_steps=2, keep_last=3),
        decode=dict(batch_size=2, max_length_offset=3),
    )
    with refused(str(tmp_path)):
        loop.train(start(config, tmp_path / "mean", cache), score=None)


def test_average_removes_what_a_killed_one_left(workdir, tmp_path):
    (tmp_path / f"mean.partial-{'0' * 32}" / "checkpoints").mkdir(parents=True)
    average([workdir], tmp_path / "mean", last=2, overrides=ALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mean"]


def test_average_keeps_a_folder_created_meanwhile(workdir, tmp_path, monkeypatch):
    original = Checkpoints.save

    def save(self, *arguments):
        (tmp_path / "mean" / "theirs").mkdir(parents=True)
        original(self, *arguments)

    monkeypatch.setattr(Checkpoints, "save", save)
    with refused(str(tmp_path / "mean")):
        average([workdir], tmp_path / "mean", last=2, overrides=ALL)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mean", "theirs"]


def test_averages_of_exported_models(workdir, tmp_path):
    if "export" not in COMMANDS:
        pytest.skip("needs the extension interop")
    exported = tmp_path / "model"
    assert (
        main(["export", f"--workdir={workdir}", "--format=safetensors", f"--output={exported}"])
        == 0
    )
    words = [
        f"--workdir={exported}",
        f"--workdir={workdir}",
        "--average=1",
        f"--output={tmp_path / 'mean'}",
    ]
    assert main(["average", *words, "--config.mesh.data=-1"]) == 0
    mean, own = (load(folder, overrides=ALL).params for folder in (tmp_path / "mean", workdir))
    jax.tree.map(np.testing.assert_array_equal, mean, own)


def test_mean_of_the_best_checkpoint_is_that_checkpoint(tmp_path, cache):
    config = tiny_run(
        tmp_path / "run",
        steps=2,
        eval=dict(every_steps=1),
        checkpoint=dict(every_steps=1, keep_last=2),
    )
    loop.train(start(config, tmp_path / "run", cache), score=None)
    steps = average([tmp_path / "run"], tmp_path / "best", best=True, overrides=ALL)
    assert load(tmp_path / "best", overrides=ALL).steps == (steps[0][1],)
    assert load(tmp_path / "run", best=True, overrides=ALL).steps == (steps[0][1],)
