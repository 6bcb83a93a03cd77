"""`average` on the command line: output, files and error messages."""

import pytest
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.training import loop

PAIRS = list(toy.pairs("test", 3))
LINES = [source for source, _ in PAIRS]
DEVICES = "--config.mesh.data=-1"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("pairs") / "run"
    config = tiny_run(folder, steps=2, checkpoint=dict(every_steps=1, keep_last=2))
    loop.train(start(config, folder, cache), score=None)
    return folder


@pytest.fixture
def files(tmp_path):
    """Writes lines to a named file; returns its path."""

    def write(name, lines):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    return write


def error_of(capsys, *arguments) -> str:
    """The error message of a command that exits with 2."""
    assert main([str(a) for a in arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.smoke
def test_average_writes_a_workdir_that_translates(workdir, files, tmp_path, capsys):
    output = tmp_path / "mean"
    assert main(["average", f"--workdir={workdir}", "--step=1", "--step=2", f"--output={output}", DEVICES]) == 0
    assert "mean of" in capsys.readouterr().out
    lines = files("e.en", [PAIRS[0][0]])
    assert main(["translate", f"--workdir={output}", f"--input={lines}", DEVICES]) == 0
    error = error_of(capsys, "average", f"--workdir={workdir}", "--average=1", f"--output={output}", DEVICES)
    assert "already exists" in error


def test_average_refuses_wrong_arguments(workdir, tmp_path, capsys):
    average = ["average", f"--workdir={workdir}", DEVICES, f"--output={tmp_path / 'mean'}"]
    assert "say which checkpoints" in error_of(capsys, *average)
    assert "say which checkpoints" in error_of(capsys, *average, "--average=1", "--step=1", "--step=2")
    assert "choose different checkpoints" in error_of(capsys, *average, "--best", "--average=1")
    assert "--average: must be at least 0" in error_of(capsys, *average, "--average=-1")
    assert "no checkpoint of step 5" in error_of(capsys, *average, "--step=1", "--step=5")
    assert "3 checkpoints" in error_of(capsys, *average, "--average=3")
    assert not list(tmp_path.iterdir())


def test_average_refuses_duplicates(workdir, tmp_path, capsys):
    command = ["average", f"--workdir={workdir}", f"--output={tmp_path / 'mean'}", DEVICES]
    assert "--step names 2 twice" in error_of(capsys, *command, "--step=2", "--step=1", "--step=2")
    assert f"--workdir names {workdir} twice" in error_of(capsys, *command, f"--workdir={workdir}", "--average=1")
