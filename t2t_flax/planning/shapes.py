"""The shape of a run's batches, and what an update of it computes."""

import math

from t2t_flax.config import Config
from t2t_flax.data.batching.batches import Batches, Shape, shape_of
from t2t_flax.data.batching.shape_list import bucket_edges
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.monitoring.flops import Tokens, forward_flops

FILL = 0.97  # of packed rows, as `explain` estimates


def estimated(config: Config, shards: int) -> Shape:
    """The largest shape of a run over `shards` devices along the batch, before its data is known."""
    d = config.data
    if d.batching == "packed":
        length, rows = d.pack_length, math.ceil(d.batch_tokens / int(d.pack_length * FILL))
    else:
        edges = [4, *bucket_edges(d.max_length)]
        length, rows = edges[-1], math.ceil(d.batch_tokens / edges[-2])
    return shape_of(length, rows, d.microbatch_tokens, shards)


def of_store(config: Config, store: TokenStore, shards: int) -> Shape:
    """The largest shape that a run over this store will use."""
    batches = Batches(store, config.data, seed=config.seed.data, shards=shards)
    return max(batches.shapes, key=lambda s: s.length * s.rows * s.micro)


def update_flops(config: Config, vocab: int, shape: Shape) -> float:
    """FLOPs of one update over every slot of the shape, padding included; forward once and backward twice that.

    With train.remat = full the forward pass of the layers runs twice.
    """
    slots = float(shape.micro * shape.rows * shape.length)
    every = Tokens(slots, slots, slots * shape.length, slots * shape.length, slots * shape.length)
    whole = forward_flops(config.model, vocab, every)
    again = whole - 2.0 * slots * config.model.d_model * vocab if config.train.remat == "full" else 0.0
    return 3.0 * whole + again


def real_tokens(config: Config, shape: Shape) -> float:
    """Target tokens of an update, padding not counted: at most what config.data.batch_tokens says."""
    return float(min(config.data.batch_tokens, shape.micro * shape.rows * shape.length))
