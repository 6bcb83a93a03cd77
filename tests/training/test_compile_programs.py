"""The programs of a run's batch shapes, compiled before its first update."""

import re
import threading
import types

import jax
import numpy as np
import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run
from jax.experimental.compilation_cache import compilation_cache

from t2t_flax.data.batching.rows import Shape
from t2t_flax.training import setup

SHAPES = [Shape(length, rows, 1) for length, rows in ((8, 2), (8, 16), (16, 4))]
LARGEST_FIRST = ["1 x 16 rows of 8", "1 x 4 rows of 16", "1 x 2 rows of 8"]


@pytest.fixture
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ["data"])


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(setup, "num_cores", lambda: 2)


@pytest.fixture
def no_cache():
    """Each program is compiled, also where an earlier one was the same."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def needed(monkeypatch):
    """Bytes of memory by program, where not 0."""
    sizes = {}
    monkeypatch.setattr(setup, "program_memory", lambda program: {"peak": sizes.get(program, 0)})
    return sizes


def describe(shape):
    return f"the program of {shape}", "Lower it."


def compiled_by(compile, describe=describe):
    """A program that is lowered in the calling thread, and that `compile(str(shape))` compiles."""

    def lower(shape):
        assert threading.current_thread() is threading.main_thread()
        return types.SimpleNamespace(compile=lambda options: compile(str(shape)))

    return setup.Program(types.SimpleNamespace(lower=lower), lambda shape: (shape,), describe)


def test_as_many_programs_are_compiled_at_once_as_there_are_cores(mesh, two_cores):
    first_two, running, most = threading.Barrier(2, timeout=60), set(), []

    def compile(lowered):
        running.add(lowered)
        if lowered in LARGEST_FIRST[:2]:
            first_two.wait()
        most.append(len(running))
        running.remove(lowered)
        return f"compiled {lowered}"

    programs = setup.compile_programs(compiled_by(compile), SHAPES, mesh)
    assert max(most) == 2
    assert programs == {shape.array_shape: f"compiled {shape}" for shape in SHAPES}


def test_programs_of_a_gpu_are_compiled_one_after_the_other(monkeypatch, two_cores):
    device = types.SimpleNamespace(platform="gpu")
    gpu = types.SimpleNamespace(devices=np.array([device]))
    monkeypatch.setattr(setup.mesh_lib, "use", lambda mesh: jax.default_device(jax.devices()[0]))
    one, alone, order = threading.Lock(), [], []

    def compile(lowered):
        alone.append(one.acquire(blocking=False))
        order.append(lowered)
        threading.Event().wait(0.05)  # a second thread would find it running
        one.release()

    setup.compile_programs(compiled_by(compile), SHAPES, gpu)
    assert alone == [True, True, True] and order == LARGEST_FIRST


def test_nothing_is_compiled_after_a_program_that_does_not_fit(
    mesh, two_cores, needed, monkeypatch
):
    """The largest is compiled and checked first, while only the second one is being compiled."""
    compiled, raised = [], threading.Event()
    monkeypatch.setattr(setup, "device_memory", lambda: 2**30)
    needed[LARGEST_FIRST[0]] = 3 * 2**30

    def compile(lowered):
        compiled.append(lowered)
        if lowered != LARGEST_FIRST[0]:
            raised.wait(60)
        return lowered

    def describe_and_go_on(shape):
        threading.Timer(0.2, raised.set).start()  # as the pool is being closed
        return describe(shape)

    with refused("16 rows", "3.00 GiB", "1.00 GiB"):
        setup.compile_programs(
            compiled_by(compile, describe_and_go_on), [*SHAPES, Shape(8, 1, 1)], mesh
        )
    assert set(compiled) <= set(LARGEST_FIRST), "what waited was not cancelled"


def test_an_error_of_the_compiler_is_raised(mesh, two_cores):
    def compile(lowered):
        raise RuntimeError(lowered)

    with refused(LARGEST_FIRST[0][:4], error=RuntimeError):
        setup.compile_programs(compiled_by(compile), SHAPES, mesh)


@pytest.mark.slow
def test_programs_are_the_same_however_many_are_compiled_at_once(
    tmp_path, cache, monkeypatch, no_cache
):
    run = start(
        tiny_run(tmp_path, data=dict(batching="buckets", batch_tokens=512, microbatch_tokens=0)),
        tmp_path / "run",
        cache,
    )
    del run.batches.shapes[2:]
    assert len(run.batches.shapes) == 2

    monkeypatch.undo()

    def instructions(cores):
        monkeypatch.setattr(setup, "num_cores", lambda: cores)
        compiled = setup.compile_programs(setup.train_program(run), run.batches.shapes, run.mesh)
        programs = {shape: program.as_text().splitlines() for shape, program in compiled.items()}
        without_places = lambda line: re.sub(", metadata={[^}]*}", "", line)  # noqa: E731
        return {
            shape: [without_places(line) for line in lines if " = " in line]
            for shape, lines in programs.items()
        }

    one_by_one, at_once = instructions(1), instructions(2)
    assert one_by_one == at_once and all(len(lines) > 100 for lines in at_once.values())
