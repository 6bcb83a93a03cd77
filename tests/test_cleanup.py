"""Clean-up deletes this project's leftovers in a folder, and nothing else beside them."""

import os
import re
from pathlib import Path

import pytest
from etils import epath
from helpers.foreign_files import HEX32, content, put_beside

import t2t_flax
from t2t_flax.locks import exclusive_writer
from t2t_flax.training import workdir
from t2t_flax.training.checkpoints import Checkpoints

PARTIAL = f".partial-{HEX32}"


def enter(folder):
    with exclusive_writer(folder / "mean", "average"):
        pass


CLEAN_UPS = {
    "a new writer": (enter, [f"mean{PARTIAL}"]),
    "opening a workdir": (
        lambda folder: workdir._remove_unfinished(epath.Path(folder)),
        [f"config.json{PARTIAL}", f"tokenizer{PARTIAL}"],
    ),
    "another tokenizer": (
        lambda folder: workdir._remove_tokenizer(epath.Path(folder)),
        ["source.model", f"tokenizer.model{PARTIAL}"],
    ),
    "resuming": (
        lambda folder: Checkpoints(folder).clean_up(),
        ["3.orbax-checkpoint-tmp", "9.orbax-checkpoint-tmp-17", "4.orbax-checkpoint-tmp-deleted"],
    ),
}


@pytest.mark.parametrize("clean_up, ours", CLEAN_UPS.values(), ids=CLEAN_UPS)
def test_a_clean_up_deletes_only_files_of_this_project(tmp_path, clean_up, ours):
    """The others include an unfinished `export`, and parts of a running `translate_file`."""
    for name in ours:
        if name.partition(".partial-")[0].endswith((".json", ".model")):
            (tmp_path / name).write_text("half")
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text("half")
        os.utime(tmp_path / name, (0, 0))
    foreign = put_beside(tmp_path, ours)
    for name in (
        f"exported{PARTIAL}/model",
        "big.de.partial-0-of-2",
        "big.de.partial-0-of-2.json",
        "mean.lock",
        "mean.partial",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        foreign[name] = name
    clean_up(tmp_path)
    assert content(tmp_path) == foreign


def test_folders_are_deleted_in_one_place():
    package = Path(t2t_flax.__file__).parent
    found = {
        path.name
        for path in package.rglob("*.py")
        if re.search(r"\brmtree\b|\bremovedirs\b", path.read_text())
    }
    assert found == {"files.py"}
