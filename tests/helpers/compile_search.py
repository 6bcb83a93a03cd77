"""Ahead-of-time compilation of a beam search, to measure its programs without the target devices."""

from typing import Any

import jax
import numpy as np

from t2t_flax.config import Decode
from t2t_flax.decoding import beam_search, search_loop, translator
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.transformer import Transformer


def compile_search(
    model: Transformer, params: Any, mesh: jax.sharding.Mesh, config: Decode, *, source_length: int, length: int
) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
    """(encoder with an empty cache, one stage of the decode loop), as `Translator` runs them on this mesh.

    params: ShapeDtypeStructs with shardings. The encoder takes int32 sources [B, source_length], with B =
    config.batch_size on each data shard; the stage takes a cache of `length` target tokens.
    """
    rows = config.batch_size * mesh_lib.batch_shards(mesh)
    row_sharding, replicated = (mesh_lib.named(mesh, spec) for spec in (mesh_lib.ROWS, mesh_lib.REPLICATED))

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=row_sharding)

    def with_sharding(x: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    search = beam_search.BeamSearch(
        config.beam_size, config.alpha, config.n_best, config.length_penalty, config.early_stopping
    )
    cast = jax.eval_shape(lambda p: translator.in_compute_type(model, p), params)
    params = jax.tree.map(lambda new, old: with_sharding(new, old.sharding), cast, params)
    with mesh_lib.use(mesh):
        source = ints(rows, source_length)
        encode = translator.start_search.lower(model, params, source, config.beam_size, length).compile()
        empty_cache = lambda p, s: translator.start_search(model, p, s, config.beam_size, length)  # noqa: E731
        cache = jax.tree.map(with_sharding, jax.eval_shape(empty_cache, params, source), encode.output_shardings)
        sentences = search_loop.Sentences(ints(rows))
        state = jax.eval_shape(lambda s: search.start(s, length), sentences)
        state = jax.tree.map(lambda x: with_sharding(x, row_sharding), state)
        position = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)
        shared = {name: tree for name, tree in cache.items() if name != "self"}
        decode_step = translator.DecodeStep(model)
        stage = search_loop.run_stage.lower(
            decode_step,
            search,
            params,
            shared,
            sentences,
            position,
            position,
            state,
            cache["self"],
        ).compile()
    return encode, stage
