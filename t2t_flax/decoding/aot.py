"""The two programs of a beam search, compiled for abstract inputs: so that they can be weighed on a machine without the
devices that they are for.
"""

from typing import Any

import jax
import numpy as np

from t2t_flax.config import Decode
from t2t_flax.decoding import beam_search as beam
from t2t_flax.decoding import search_loop as stages
from t2t_flax.decoding import translator
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.models.transformer import Transformer


def compile_search(
    model: Transformer, params: Any, mesh: jax.sharding.Mesh, config: Decode, *, source_length: int, length: int
) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
    """(encoder and empty cache, one stage of the loop over target tokens), as `Translator` runs them on this mesh.

    `params`: ShapeDtypeStructs with shardings. The stage takes sources of `source_length` and a cache of `length`
    target tokens, with config.batch_size sentences on each data shard.
    """
    rows = config.batch_size * mesh_lib.batch_shards(mesh)
    by_rows = mesh_lib.named(mesh, mesh_lib.ROWS)
    ints = lambda *shape: jax.ShapeDtypeStruct(shape, np.int32, sharding=by_rows)  # noqa: E731
    placed = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)  # noqa: E731
    options = beam.BeamOptions(
        config.beam_size, config.alpha, config.n_best, config.length_penalty, config.early_stopping
    )
    with mesh_lib.use(mesh):
        told = model, params, ints(rows, source_length), config.beam_size, length
        encode = translator.start_search.lower(*told).compile()
        cache = jax.tree.map(placed, jax.eval_shape(lambda p, s: translator.start_search(model, p, s, *told[3:]), *told[1:3]),
                             encode.output_shardings)  # fmt: skip
        sentences = stages.Sentences(ints(rows), ints(rows, 0))
        state = jax.eval_shape(lambda s: beam.start(options, s, length), sentences)
        state = jax.tree.map(lambda x: placed(x, by_rows), state)
        position = jax.ShapeDtypeStruct((), np.int32, sharding=mesh_lib.named(mesh, mesh_lib.REPLICATED))
        shared = {name: tree for name, tree in cache.items() if name != "self"}
        step = stages.run_stage.lower(
            translator.DecodeStep(model), beam.advance, options, length, params, shared, sentences, position, state,
            cache["self"],
        ).compile()  # fmt: skip
    return encode, step
