"""The decoder and the extension of docs/extending.md, used through the commands."""

import io
import sys

import pytest
from helpers import documented_modules
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.training import loop


@pytest.fixture
def documented(monkeypatch, tmp_path):
    """Imports the module of a section of the page."""
    yield lambda heading: documented_modules.load(heading, monkeypatch, tmp_path)
    documented_modules.forget()


def test_new_decoder_translates(documented, tmp_path, cache, monkeypatch, capsys):
    config = tiny_run(tmp_path / "run", steps=1)
    loop.train(start(config, tmp_path / "run", cache), score=None)
    documented("A new decoder")
    command = ["translate", f"--workdir={tmp_path / 'run'}", "--config.decode.engine=silence"]
    assert main(command) == 2
    assert "config.decode.engine = silence: it has no beam." in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It is late.\nA dog.\n")))
    assert main([*command, "--config.decode.strategy=greedy"]) == 0
    assert capsys.readouterr().out == "\n\n"


def test_new_extension_has_a_key_and_a_command(documented, capsys):
    documented("A new extension")
    assert main(["greet", "--config=toy"]) == 0 and capsys.readouterr().out == "Hello\n"
    assert main(["greet", "--config=toy", "--config.greeting.words=Servus"]) == 0
    assert capsys.readouterr().out == "Servus\n"
    assert main(["greet", "--config=toy", "--config.greeting.words="]) == 2
    assert "say something" in capsys.readouterr().err
    assert main(["explain", "--keys"]) == 0 and "greeting.words = 'Hello'" in capsys.readouterr().out
