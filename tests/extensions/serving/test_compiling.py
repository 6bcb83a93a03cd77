"""Programs that are compiled in a child process."""

import dataclasses

import pytest

from t2t_flax.decoding.search_loop import Program
from t2t_flax.extensions.serving import compiling

pytestmark = pytest.mark.slow


@pytest.fixture
def compiler():
    before, compiler = Program.run, compiling.Compiler()
    compiler.begin()
    yield compiler
    compiler.stop()
    assert Program.run is before


@pytest.mark.parametrize("strategy", ["beam", "sample"])
def test_results_are_those_of_this_process(run, compiler, strategy, caplog):
    decode = dataclasses.replace(run.config.decode, strategy=strategy)
    model = dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))

    def results():
        return (
            model.translate(["It is late.", "a"]),
            model.translate(["a"], prefixes=["Der"]),
            model.score([("a", "b")]),
        )

    got = results()
    assert not caplog.records  # nothing was compiled here
    compiler.stop()
    assert got == results()


def test_child_that_ends_is_started_again_and_one_that_fails_is_done_without(run, compiler, monkeypatch, caplog):
    expected = run.translate(["a"])
    compiler._child.kill()
    compiler._compiled.clear()
    assert run.translate(["a"]) == expected and not caplog.records
    compiler._compiled.clear()
    compiler._child.kill()
    monkeypatch.setattr(compiling.sys, "executable", "/nothing")
    assert run.translate(["a"]) == expected
    assert "compiled in the server itself" in caplog.text
