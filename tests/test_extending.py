"""The decoder, the hook and the extension of docs/extending.md, used through the commands."""

import dataclasses
import io
import sys

import pytest
from helpers import documented_modules
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.registry import POSITIONS
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics


@pytest.fixture
def documented(monkeypatch, tmp_path):
    """Imports an example: a file, or the module of a section of the page."""

    def example(name):
        if name.endswith(".py"):
            return documented_modules.use(documented_modules.EXAMPLES / name, monkeypatch)
        return documented_modules.load(name, monkeypatch, tmp_path)

    yield example
    documented_modules.forget()


def test_new_decoder_translates(documented, tmp_path, cache, monkeypatch, capsys):
    config = tiny_run(tmp_path / "run", steps=1)
    loop.train(start(config, tmp_path / "run", cache), score=None)
    documented("silence.py")
    command = ["translate", f"--workdir={tmp_path / 'run'}", "--config.decode.engine=silence"]
    refused_command(command, "config.decode.engine", "silence")
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It is late.\nA dog.\n")))
    assert main([*command, "--config.decode.strategy=greedy"]) == 0
    assert capsys.readouterr().out == "\n\n"


@pytest.mark.slow
def test_new_hook_logs_the_gradient_norm_of_every_layer(documented, tmp_path, cache):
    keys = documented("layer_norms.py").LayerNorms
    for log in (False, True):
        config = dataclasses.replace(tiny_run(tmp_path, steps=3), extensions=(("layer_norms", keys(log=log)),))
        loop.train(start(config, tmp_path / str(log), cache), score=None)
    for line, plain in zip(read_metrics(tmp_path / "True"), read_metrics(tmp_path / "False"), strict=True):
        norms = [value for name, value in line.items() if name.startswith("grad_norm/")]
        assert "grad_norm/encoder_0" in line and sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(
            line["grad_norm"]
        )
        assert line["loss"] == pytest.approx(plain["loss"]) and not any("/" in name for name in plain)


def test_unknown_name_is_refused_with_those_of_the_table():
    with refused("polar", "sinusoid_halves", error=ValueError):
        POSITIONS.load("polar")


def test_new_extension_has_a_key_and_a_command(documented, capsys):
    documented("A new extension")
    assert main(["greet", "--config=toy"]) == 0 and capsys.readouterr().out == "Hello\n"
    assert main(["greet", "--config=toy", "--config.greeting.words=Servus"]) == 0
    assert capsys.readouterr().out == "Servus\n"
    refused_command(["greet", "--config=toy", "--config.greeting.words="], "greeting.words")
    assert main(["explain", "--keys"]) == 0 and "greeting.words" in capsys.readouterr().out
