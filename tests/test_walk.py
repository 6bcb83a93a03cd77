"""How far the loss is from the command."""

import sys
from pathlib import Path

import pytest
from helpers.configs import TINY_FLAGS

from t2t_flax.__main__ import main
from t2t_flax.training import train_step

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "t2t_flax"


class Reached(Exception):
    """The loss is called for the first time."""


def test_ten_frames_from_the_command_to_the_loss(tmp_path, monkeypatch):
    """Trace the train step on several devices with accumulation; docs/architecture.md lists it."""
    walk = []

    def loss_sums(*arguments):
        frame = sys._getframe()
        while frame := frame.f_back:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                name = frame.f_code.co_qualname.replace("<locals>.", "")
                walk.insert(0, (path.relative_to(PACKAGE).as_posix(), name))
        raise Reached

    monkeypatch.setattr(train_step, "loss_sums", loss_sums)
    keys = (
        "mesh.data=-1",
        "data.microbatch_tokens=64",
        "data.batch_tokens=1024",
        "data.test=",
        "trackers.names=",
    )
    with pytest.raises(Reached):
        main(["train", *TINY_FLAGS, f"--workdir={tmp_path}", *(f"--config.{key}" for key in keys)])
    walk.append(("training/losses.py", "loss_sums"))
    assert walk[0] == ("__main__.py", "main")  # traced in the thread that called
    assert len(walk) <= 10 and len(set(walk)) <= 12, walk
    text = (ROOT / "docs" / "architecture.md").read_text()
    missing = [
        f"`{file}` {name}"
        for file, name in walk
        if f"`{file}`" not in text or f"`{name}`" not in text
    ]
    assert not missing
