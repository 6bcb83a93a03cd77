"""Programs that are compiled in a child process."""

import dataclasses

import jax.numpy as jnp
import pytest

from t2t_flax.decoding.programs import Program
from t2t_flax.decoding.search_loop import grow
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.serving import compiling

pytestmark = pytest.mark.slow


@pytest.fixture
def compiler():
    before, compiler = Program.run, compiling.Compiler()
    compiler.begin()
    yield compiler
    compiler.stop()
    compiler.close()
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
    compiler.close()
    assert got == results()


def test_arrays_of_other_shardings_have_programs_of_their_own(run, compiler):
    """The cache comes out of a program sharded otherwise than it went in, and two models may differ in their mesh alone."""
    lines, overrides = ["a"], {"decode.max_length_offset": "60", "decode.beam_size": "2"}
    meshes = ({"mesh.data": "8"}, {"mesh.data": "4", "mesh.tensor": "2"})
    texts = [[t.text for t in load(run.workdir, overrides=overrides | mesh).translate(lines)] for mesh in meshes]
    compiler.stop()
    compiler.close()
    assert texts[1] == [t.text for t in load(run.workdir, overrides=overrides | meshes[1]).translate(lines)]


def test_child_that_ends_is_started_again_and_one_that_fails_is_done_without(compiler, monkeypatch, caplog):
    tree = {"a": jnp.ones((1, 1, 2))}

    def shapes(*lengths):
        return [grow(tree, length)["a"].shape[2] for length in lengths]

    assert shapes(3) == [3]
    compiler._child.kill()
    assert shapes(3, 4) == [3, 4] and not caplog.records
    compiler._child.kill()
    monkeypatch.setattr(compiling.sys, "executable", "/nothing")
    assert shapes(5) == [5]
    assert "grow is compiled in the server itself" in caplog.text
