"""Compiled programs that are kept on disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import start, tiny_run
from jax import random
from jax.experimental.compilation_cache import compilation_cache

from t2t_flax.decoding.sampling import random_keys
from t2t_flax.decoding.search_loop import grow
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.serving import programs
from t2t_flax.extensions.serving.programs import Programs
from t2t_flax.training import loop

LINES = ["It is late.", "a", "Where is the dog? " * 6]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A function that runs programs as a new process with this folder would, and counts what it compiles."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    all_opened, compiled = [], []
    make = Programs.make
    monkeypatch.setattr(Programs, "make", lambda self, *args: (compiled.append(args[0]), make(self, *args))[1])

    def new_process():
        if all_opened:
            all_opened[-1]._threads.shutdown()  # as at the end of a process: what is compiled is written
            all_opened.pop().close()
        jax.clear_caches()  # XLA cannot write some programs that have run
        all_opened.append(Programs(tmp_path / "programs"))
        return compiled

    yield new_process
    all_opened.pop().close()
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("programs") / "tiny"
    loop.train(start(tiny_run(folder, steps=2, checkpoint=dict(every_steps=2)), folder, cache), score=None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"decode.strategy": "sample"}, {"mesh.data": "4", "mesh.tensor": "2"}], ids=str
)
def test_kept_programs_give_the_same_translations_without_compiling(run, opened, changes):
    def results():
        model = load(run, overrides={"decode.max_length_offset": "40", "decode.beam_size": "4", **changes})
        return model.translate(LINES), model.translate(["a"], prefixes=["Der"]), model.score([("a", "b")])

    expected = results()
    compiled = opened()
    assert results() == expected and compiled
    compiled.clear()
    opened()
    assert results() == expected
    assert compiled == []


def test_other_shapes_shardings_settings_and_damaged_files_are_compiled_again(opened, tmp_path, monkeypatch):
    tree, sharded = (
        {"a": jnp.ones((8, 1, 2))},
        jax.sharding.NamedSharding(jax.make_mesh((8,), ("data",)), jax.P("data")),
    )
    compiled = opened()

    def lengths(tree, length):
        compiled.clear()
        return grow(tree, length)["a"].shape[2], len(compiled)

    assert lengths(tree, 3) == (3, 1)
    opened()
    assert lengths(tree, 3) == (3, 0)
    assert lengths(tree, 4) == (4, 1)
    assert lengths(jax.device_put(tree, sharded), 3) == (3, 1)
    opened()
    assert lengths(jax.device_put(tree, sharded), 3) == (3, 0)
    for path in (tmp_path / "programs").glob("*/*"):
        path.write_bytes(path.read_bytes()[:-100])
    opened()
    assert lengths(tree, 3) == (3, 1)
    for module, name, other in ((programs, "source_digest", lambda: "edited"), (programs.flax, "__version__", "other")):
        opened()
        assert lengths(tree, 3) == (3, 0)
        monkeypatch.setattr(module, name, other)
        opened()
        assert lengths(tree, 3) == (3, 1)


def test_abstract_arguments_have_a_program_made_and_abstract_results(opened):
    compiled = opened()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = grow(grow({"a": jax.ShapeDtypeStruct((2, 1, 2), jnp.float32, sharding=sharding)}, 3), 5)
    assert abstract["a"].shape == (2, 1, 5) and len(compiled) == 2
    assert grow(grow({"a": jnp.ones((2, 1, 2))}, 3), 5)["a"].sum() == 4 and len(compiled) == 2
    opened()
    compiled.clear()
    assert grow(grow({"a": jnp.ones((2, 1, 2))}, 3), 5)["a"].sum() == 4 and not compiled


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"decode.strategy": "sample"}, {"mesh.data": "4", "mesh.tensor": "2"}, {"mesh.data": "8"}], ids=str
)
def test_programs_compiled_beforehand_are_those_that_a_search_needs(run, opened, changes):
    compiled = opened()
    model = load(run, overrides={"decode.max_length_offset": "40", "decode.beam_size": "4", **changes})
    shards = mesh_lib.batch_shards(model.mesh)
    model.decoder.compile((shards, 32), 1000)
    made = len(compiled)
    model.translate(["a"])
    assert made and len(compiled) == made


def test_equal_arrays_out_of_a_program_and_from_the_host_share_a_kept_program(opened):
    compiled = opened()
    grow({"a": grow({"a": jnp.ones((2, 1, 2))}, 3)["a"]}, 5)
    opened()
    compiled.clear()
    grow({"a": jnp.ones((2, 1, 3))}, 5)
    assert compiled == []


def test_programs_of_other_versions_are_deleted_after_a_month(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    programs.os.utime(old, (0, 0))
    Programs(tmp_path).close()
    assert not old.exists() and new.exists() and len(list(tmp_path.iterdir())) == 2


def test_numpy_arrays_are_arguments_like_others():
    """What a program follows from is their shape, not what is in them."""
    each = Programs()
    try:
        for ids in np.arange(3), np.arange(3) + 5:
            expected = [random.key_data(k) for k in random_keys(1, jnp.asarray(ids), 2)]
            np.testing.assert_array_equal(random.key_data(random_keys(1, ids, 2)), expected)
        assert len(each._made) == 2  # of jax.Array, whose ids are int32, and of NumPy, whose are int64
    finally:
        each.close()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    each = Programs()
    try:
        assert grow({"a": jnp.ones((1, 1, 2))}, 7)["a"].shape == (1, 1, 7)
    finally:
        each.close()
    assert list(tmp_path.iterdir()) == []
