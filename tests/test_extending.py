"""The decoder, the hook and the extension of docs/extending.md, used through the commands."""

import dataclasses
import importlib
import io
import statistics
import sys

import pytest
from helpers import documented_modules
from helpers.refusals import refused, refused_command
from helpers.runs import start, tiny_run

import t2t_flax.extensions
from t2t_flax.__main__ import main
from t2t_flax.registry import POSITIONS, SCHEDULES
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


def test_new_hook_logs_padding(documented, tmp_path, cache):
    keys = documented("padding.py").Padding
    config = dataclasses.replace(
        tiny_run(tmp_path, steps=11), extensions=(("padding", keys(log=True)),)
    )
    loop.train(start(config, tmp_path, cache), score=None)
    found = {
        line["step"]: (line["padding"], line["fill"])
        for line in read_metrics(tmp_path)
        if "padding" in line
    }
    assert list(found) == [10] and found[10][0] == pytest.approx(1 - found[10][1])


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


def test_modules_outside_the_package_are_named_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "own_rates.py").write_text(
        "from t2t_flax.registry import SCHEDULES\nSCHEDULES.add('own', 'own_rates:rate')\n"
    )
    (tmp_path / "runs").mkdir()  # Python can import a folder
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("T2T_EXTENSIONS", "own_rates")
    importlib.reload(t2t_flax.extensions)
    assert SCHEDULES.pop("own") == "own_rates:rate"
    for name in ("absent", "runs"):
        monkeypatch.setenv("T2T_EXTENSIONS", f"own_rates,{name}")
        with refused("T2T_EXTENSIONS", repr(name)):
            importlib.reload(t2t_flax.extensions)


def test_row_without_its_object_is_refused(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "lost", "statistics:lost")
    with refused("'lost'", "statistics:lost"):
        SCHEDULES.load("lost")


def test_function_as_a_row_is_refused():
    with refused("'mean'", "statistics:mean", error=TypeError):
        SCHEDULES.add("mean", statistics.mean)
