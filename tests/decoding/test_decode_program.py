"""The compiled loop of a beam search leaves keys and values where they are."""

import re

import jax
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config

from t2t_flax.config import Decode
from t2t_flax.decoding.aot import compile_search

ROWS, BEAMS, SOURCE, LENGTH, HEADS, WIDTH = 3, 5, 24, 32, 2, 16
KEYS, VALUES = [ROWS, HEADS, WIDTH, LENGTH * BEAMS], [ROWS, HEADS, LENGTH * BEAMS, WIDTH]


@pytest.fixture(scope="module")
def body() -> str:
    """The instructions of the loop: the computations of the program but its entry."""
    config = small_config(model=dict(d_model=HEADS * WIDTH, num_heads=HEADS, num_decoder_layers=2))
    model, _, state, _ = model_and_state(config, vocab=300)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
    decode = Decode(batch_size=ROWS, beam_size=BEAMS)
    lengths = dict(source_length=SOURCE, length=LENGTH)
    _, stage = compile_search(model, params, devices_mesh(1), decode, **lengths)
    return stage.as_text().split("\nENTRY ")[0]


def instructions(body: str, shape: list[int]) -> list[str]:
    """The kinds of instructions with a result of this shape."""
    return re.findall(rf"= f32\[{','.join(map(str, shape))}\]\S* ([\w-]+)\(", body)


@pytest.mark.parametrize("shape", [KEYS, VALUES], ids=["keys", "values"])
def test_a_step_neither_copies_nor_reorders_nor_transposes_the_cache(body, shape):
    kinds = instructions(body, shape)
    assert kinds.count("dynamic-update-slice") == 2  # one for each layer
    assert not {"copy", "gather", "transpose", "select", "concatenate"} & set(kinds)


def test_products_read_the_cache_as_it_is_stored(body):
    """Four of each layer: over its own keys and values, and over those of the source."""
    operands = [f"f32[{','.join(map(str, shape))}]" for shape in (KEYS, VALUES)]
    source = [[ROWS, HEADS, WIDTH, SOURCE], [ROWS, HEADS, SOURCE, WIDTH]]
    operands += [f"f32[{','.join(map(str, shape))}]" for shape in source]
    for operand in operands:
        assert operand in body
    for shape in source:
        assert not {"copy", "transpose"} & set(instructions(body, shape))
