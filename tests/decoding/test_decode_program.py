"""The compiled loop of a beam search leaves keys and values where they are."""

import re

import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config

from t2t_flax.decoding.beam_search import BeamSearch
from t2t_flax.decoding.search_loop import Sentences, run_stage
from t2t_flax.decoding.translator import DecodeStep, start_search
from t2t_flax.distributed import mesh as mesh_lib

ROWS, BEAMS, SOURCE, LENGTH, HEADS, WIDTH = 3, 5, 24, 32, 2, 16
KEYS, VALUES = [ROWS, HEADS, WIDTH, LENGTH * BEAMS], [ROWS, HEADS, LENGTH * BEAMS, WIDTH]


@pytest.fixture(scope="module")
def body() -> str:
    """The instructions of the loop: the computations of the program but its entry."""
    config = small_config(model=dict(d_model=HEADS * WIDTH, num_heads=HEADS, num_decoder_layers=2))
    model, _, state, _ = model_and_state(config, vocab=300)
    search, sentences = BeamSearch(BEAMS, 0.6, 1), Sentences(np.full(ROWS, LENGTH, np.int32))
    with mesh_lib.use(devices_mesh(1)):
        cache = start_search(model, state.params, np.ones((ROWS, SOURCE), np.int32), BEAMS, LENGTH)
        shared, own = {name: tree for name, tree in cache.items() if name != "self"}, cache["self"]
        position, first = np.int32(0), search.start(sentences, LENGTH)
        arguments = state.params, shared, sentences, position, position, first, own
        stage = run_stage.lower(DecodeStep(model), search, *arguments).compile()
    return stage.as_text().split("\nENTRY ")[0]


def instructions(body: str) -> list[tuple[str, list[int], list[str]]]:
    """(kind, shape of the result, operands) of each instruction with one float32 result."""
    found = re.findall(r"= f32\[([\d,]*)\]\S* ([\w-]+)\(([^)]*)\)", body)
    return [
        (kind, [int(n) for n in shape.split(",") if n], operands.split(", "))
        for shape, kind, operands in found
    ]


@pytest.mark.parametrize("shape", [KEYS, VALUES], ids=["keys", "values"])
def test_a_step_neither_copies_nor_reorders_nor_transposes_the_cache(body, shape):
    kinds = [kind for kind, result, _ in instructions(body) if result == shape]
    assert kinds.count("dynamic-update-slice") == 2  # one for each layer
    moved = [kind for kind, result, _ in instructions(body) if np.prod(result) == np.prod(shape)]
    assert not {"copy", "gather", "transpose", "select", "concatenate"} & set(moved)


def test_products_read_the_cache_as_it_is_stored(body):
    """Each layer has two over its own keys and values and two over the source's.

    None transposes.
    """
    cross = [[ROWS, HEADS, WIDTH, SOURCE], [ROWS, HEADS, SOURCE, WIDTH]]
    moved = [kind for kind, result, _ in instructions(body) if np.prod(result) == np.prod(cross[0])]
    assert not {"copy", "gather", "transpose"} & set(moved)
    products = [
        result for kind, result, _ in instructions(body) if kind == "dot" and len(result) == 4
    ]
    for keys in (LENGTH * BEAMS, SOURCE):
        assert products.count([ROWS, HEADS, BEAMS, keys]) == 2  # scores
    assert products.count([ROWS, HEADS, BEAMS, WIDTH]) == 4  # weighted values
