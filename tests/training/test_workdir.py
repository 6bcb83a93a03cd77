"""Workdirs: foreign files are not touched, and a trained run never starts over."""

import concurrent.futures
import dataclasses
import fcntl
import json
import os
import shutil
import types

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.refusals import refused

from t2t_flax import config as config_lib
from t2t_flax.cli import prepare, train
from t2t_flax.extensions.shared.parameters_run import write_params_run
from t2t_flax.locks import exclusive_writer
from t2t_flax.training.workdir import (
    adopt_config,
    check_run_folder,
    completed,
    mark_as_training,
    read_config,
    writing,
)


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


FOREIGN = {
    "a tokenizer and a config of another library": {
        "tokenizer/vocab.json": "my precious",
        "config.json": '{"architectures": ["Bert"]}',
    },
    "a tokenizer alone": {"tokenizer/my_work.txt": "work"},
    "a project": {"setup.py": "", "metrics.jsonl": '{"step": 1}\n'},
    "a config that is no JSON": {"config.json": "{"},
    "a config that is a list": {"config.json": "[1]"},
    "a config that is a number": {"config.json": "5"},
    "checkpoints of another program": {"checkpoints/5/x": ""},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_folder_is_refused_and_unchanged(tmp_path, name):
    folder = tmp_path / "theirs"
    for path, text in FOREIGN[name].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    before = content(folder)
    with refused(str(folder)):
        adopt_config(epath.Path(folder), small_config())
    for command in (train, prepare):
        with refused(str(folder)):
            command.run(
                ["--config=configs/toy.py", f"--workdir={folder}", "--config.mesh.cpu_devices=1"]
            )
    assert content(folder) == before


def test_file_is_refused_as_workdir(tmp_path):
    (tmp_path / "file").write_text("x")
    with refused(f"{tmp_path / 'file'}"):
        check_run_folder(epath.Path(tmp_path / "file"))


def test_log_file_does_not_make_a_folder_foreign(tmp_path):
    (tmp_path / "train.log").write_text("")
    (tmp_path / "lost+found").mkdir()
    adopt_config(epath.Path(tmp_path), small_config())
    assert read_config(tmp_path) == small_config()


def test_the_tokenizer_of_an_attempt_is_removed_and_foreign_files_stay(tmp_path):
    adopt_config(epath.Path(tmp_path), small_config())
    folder = tmp_path / "tokenizer"
    for others in ([], ["my_work.txt"]):
        folder.mkdir()
        for name in ("tokenizer.model", *others):
            (folder / name).write_text("text")
        adopt_config(epath.Path(tmp_path), small_config())
        assert folder.exists() == bool(others)
    assert [path.name for path in folder.iterdir()] == ["my_work.txt"]


def run_folder(folder, *, trained=True):
    """A workdir as a run leaves it, with a checkpoint in name."""
    adopt_config(epath.Path(folder), small_config(checkpoint=dict(every_steps=10)))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": 1.0}) + "\n" for n in range(1, 16))
    )
    if trained:
        (folder / "checkpoints" / "10").mkdir(parents=True)
        (folder / "trained.json").write_text("{}")
    return folder


def test_run_with_missing_checkpoints_does_not_start_over(tmp_path):
    run_folder(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    before = content(tmp_path)
    for config in (
        small_config(checkpoint=dict(every_steps=10)),
        small_config(model=dict(d_model=32)),
    ):
        with refused("trained.json", f"{tmp_path / 'checkpoints'}"):
            adopt_config(epath.Path(tmp_path), config)
    assert content(tmp_path) == before


def test_run_without_checkpoint_starts_over_with_any_config(tmp_path):
    run_folder(tmp_path, trained=False)
    (tmp_path / "checkpoints" / "10.orbax-checkpoint-tmp").mkdir(parents=True)
    other = small_config(model=dict(dropout=0.3))
    adopt_config(epath.Path(tmp_path), other)
    assert read_config(tmp_path) == other


def test_unmounted_checkpoint_disk_is_reported(tmp_path):
    os.symlink(tmp_path / "other" / "checkpoints", tmp_path / "checkpoints")
    with refused("other/checkpoints"):
        (tmp_path / "config.json").write_text(config_lib.to_json(small_config()))
        adopt_config(epath.Path(tmp_path), small_config())


def test_prepare_does_not_change_a_trained_run(tmp_path):
    run_folder(tmp_path)
    (tmp_path / "complete.json").write_text("{}")
    before = content(tmp_path)
    more = small_config(checkpoint=dict(every_steps=10), train=dict(steps=7))
    more = dataclasses.replace(more, train=dataclasses.replace(more.train, steps=9))
    adopt_config(epath.Path(tmp_path), more, train=False)
    assert content(tmp_path) == before
    with refused("config.json"):
        adopt_config(epath.Path(tmp_path), small_config(model=dict(d_model=32)), train=False)
    adopt_config(epath.Path(tmp_path), more)
    assert content(tmp_path) == before  # the start may still be refused
    mark_as_training(epath.Path(tmp_path), more)
    assert not (tmp_path / "complete.json").exists() and read_config(tmp_path) == more


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00\x00"])
def test_damaged_completion_marker_repeats_the_final_evaluation(tmp_path, text):
    run_folder(tmp_path)
    (tmp_path / "complete.json").write_text(text)
    assert completed(epath.Path(tmp_path), read_config(tmp_path)) is None


def test_commands_are_refused_while_another_process_writes(tmp_path):
    workdir = run_folder(tmp_path / "run")
    before = content(workdir)
    with writing(epath.Path(workdir), "train"):
        for command in (train, prepare):
            with refused(str(workdir), f"process {os.getpid()}"):
                command.run(
                    [
                        "--config=configs/toy.py",
                        f"--workdir={workdir}",
                        "--config.mesh.cpu_devices=1",
                    ]
                )
    after = content(workdir)
    del after[".lock"]
    assert after == before


def test_unfinished_files_of_killed_writers_are_removed(tmp_path):
    workdir = run_folder(tmp_path / "run")
    before = content(workdir)
    unfinished = f".partial-{'0' * 32}"
    (workdir / "eval").mkdir()
    (workdir / "tokenizer").mkdir()
    for name in (f"config.json{unfinished}", f"tokenizer/tokenizer.model{unfinished}", f"eval/old.json{unfinished}",
                 f"eval/new.json{unfinished}"):  # fmt: skip
        (workdir / name).write_text("{")
    (workdir / f"tokenizer{unfinished}").mkdir()
    with open(workdir / f"eval/new.json{unfinished}") as file:  # as `evaluate` does while it writes
        fcntl.flock(file, fcntl.LOCK_EX)
        with writing(epath.Path(workdir), "train"):
            pass
    new_files = content(workdir).keys() - before.keys()
    assert new_files == {".lock", "eval", "tokenizer", f"eval/new.json{unfinished}"}


def test_second_average_into_a_folder_waits_and_is_refused(tmp_path):
    output, tokenizers = tmp_path / "mean", types.SimpleNamespace(digest="")
    arguments = epath.Path(output), small_config(), tokenizers, None, {"step": 1}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with exclusive_writer(output, "average"):
            second = pool.submit(write_params_run, *arguments, flag="--output", command="average")
            with pytest.raises(concurrent.futures.TimeoutError):
                second.result(0.5)
            (output / "checkpoints").mkdir(parents=True)
        with refused(f"--output={output}"):
            second.result(60)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "mean"]
