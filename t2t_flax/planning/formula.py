"""What the compiler is not asked: memory, HBM traffic and collectives of a train step by formula.

Exact: the bytes of the state on a device, from its shardings. The rest is arithmetic on the model's sizes and stands
beside the compiler's figures, or in their place where nothing is compiled.
"""

import math
from typing import Any

import jax
import numpy as np

from t2t_flax.data.batching.batches import Shape
from t2t_flax.planning.collectives import Collective

_FLOAT32 = 4


def facts(subject, shape: Shape) -> dict[str, Any]:
    """`state_bytes` of a device (exact), `formula`: its memory, hbm_bytes and collectives, in the form of
    `compiled.facts`; `sizes`: devices and shards, `shape`: of the batch.
    """
    state = tree_bytes(subject.abstract)
    batch = 6 * shape.micro * shape.rows // subject.shards * shape.length * 4
    gradients = tree_bytes(subject.abstract.params)
    kept = activation_bytes(subject, shape)
    memory = {"argument": state + batch, "output": state, "alias": state, "temp": gradients + kept, "generated_code": 0}
    memory["peak"] = state + batch + gradients + kept
    return {
        "state_bytes": state,
        "shape": [shape.length, shape.rows, shape.micro],
        "shards": subject.shards,
        "devices": subject.mesh.size,
        "formula": {
            "memory": memory,
            "hbm_bytes": traffic(subject, shape),
            "collectives": subject.places.summary(collectives(subject, shape)),
        },
    }


def tree_bytes(tree: Any) -> int:
    """Bytes of abstract arrays on one device, by their shardings."""
    shard = lambda x: math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize  # noqa: E731
    return sum(shard(x) for x in jax.tree.leaves(tree))


def _item(subject) -> int:
    return subject.model.dtype.itemsize


def _rows(subject, shape: Shape) -> int:
    return shape.rows // subject.shards


def activation_bytes(subject, shape: Shape) -> int:
    """What the backward pass of one microbatch needs again: inputs of the products, attention weights, the sums before
    the norms; with train.remat = full the inputs of the layers alone. And the logits of a chunk, three times.
    """
    m, t = subject.config.model, subject.mesh.shape["tensor"]
    tokens = _rows(subject, shape) * shape.length
    d, ff, weights = m.d_model, m.d_ff // t, m.num_heads // t * shape.length
    attention = 2 * d + 4 * d // t + weights
    feed_forward = 2 * d + ff
    encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
    if subject.config.train.remat == "full":
        encoder = decoder = d
    layers = (m.num_encoder_layers * encoder + m.num_decoder_layers * decoder) * tokens * _item(subject)
    chunk = min(subject.config.loss.logits_chunk_size or tokens, tokens)
    return int(layers + 3 * chunk * subject.model.target_vocab // t * _FLOAT32)


def traffic(subject, shape: Shape) -> int:
    """HBM bytes of an update: every matrix product reads its operands and writes its result, once forward and twice
    backward; the optimizer reads parameter, gradient and both moments and writes all but the gradient.
    """
    m, t = subject.config.model, subject.mesh.shape["tensor"]
    tokens = shape.micro * _rows(subject, shape) * shape.length
    d, ff, scores = m.d_model, m.d_ff / t, m.num_heads / t * shape.length
    attention = 4 * (d + d / t) + 2 * (2 * d / t + scores)
    feed_forward = 2 * (d + ff)
    layers = m.num_encoder_layers * (attention + feed_forward) + m.num_decoder_layers * (2 * attention + feed_forward)
    logits = tokens * (d * _item(subject) + subject.model.target_vocab / t * _FLOAT32)
    params, state = tree_bytes(subject.abstract.params), tree_bytes(subject.abstract)
    weights = 3 * shape.micro * params * _item(subject) / _FLOAT32
    # A device updates the parameters whose moments it holds: two moments read and written, parameter and gradient read,
    # parameter written. Its gradients it writes whole.
    moments = state - params
    update = 2 * moments + 3 * moments / 2 + params
    return int(3 * (layers * tokens * _item(subject) + logits) + weights + update)


def collectives(subject, shape: Shape, sizes: dict[str, int] | None = None) -> list[Collective]:
    """Which arrays the mesh sends in an update, none of them while something else runs. `sizes` of the axes (data, fsdp,
    tensor): those of the subject's mesh, or of a larger one on which a device does the same.

    Gradients of matrices go in the type of the products, as the TPU compiler sends them; each use of a table is reduced
    whole and by itself, in float32. With mesh.fsdp the matrices' gradients are scattered, and their parts summed over the
    data axis; parameters are gathered before each of two uses, or with ZeRO-1 once, in float32, after the update.
    """
    m, sizes = subject.config.model, sizes or dict(subject.mesh.shape)
    matrices, tables = _parameters(subject)
    item, tokens = _item(subject), _rows(subject, shape) * shape.length
    whole, table = matrix_bytes(subject), tables * item / sizes["tensor"]
    of_tables = gradient_bytes(subject) - whole
    found: list[tuple[str, float, tuple[str, ...], int]] = []
    if sizes["fsdp"] == 1:
        found += [("all-reduce", whole + of_tables, ("data",), shape.micro)]
    else:
        found += [("reduce-scatter", whole, ("fsdp",), shape.micro)]
        found += [("all-reduce", whole / sizes["fsdp"], ("data",), shape.micro)]
        found += [("all-reduce", of_tables, ("data", "fsdp"), shape.micro)]
    if sizes["fsdp"] > 1 and subject.config.mesh.fsdp_mode == "full":
        found += [("all-gather", whole + table, ("fsdp",), 2 * shape.micro)]
    elif sizes["fsdp"] > 1:
        found += [("all-gather", (matrices + tables) * _FLOAT32 / sizes["tensor"], ("fsdp",), 1)]
    if sizes["tensor"] > 1:
        times = 2 * (2 * m.num_encoder_layers + 3 * m.num_decoder_layers + 1) * shape.micro
        found += [("all-reduce", tokens * m.d_model * item, ("tensor",), times)]
    made = [Collective(kind, int(n), group_of(sizes, axes), times, True, False) for kind, n, axes, times in found]
    return [c for c in made if len(c.group) > 1]


def gradient_bytes(subject) -> float:
    """Of the gradients that data parallelism sums: matrices in the type of the products, each use of a table in float32."""
    matrices, tables = _parameters(subject)
    uses = {"all": 2, "decoder": 1.5, "none": 1}[subject.config.model.tie_embeddings]
    return (matrices * _item(subject) + uses * tables * _FLOAT32) / subject.mesh.shape["tensor"]


def matrix_bytes(subject) -> float:
    """The matrices' part of `gradient_bytes`."""
    return _parameters(subject)[0] * _item(subject) / subject.mesh.shape["tensor"]


def group_of(sizes: dict[str, int], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Places in a mesh of these sizes of the devices that differ from the first along these axes alone."""
    places = np.arange(math.prod(sizes.values())).reshape([*sizes.values()])
    index = tuple(slice(None) if axis in axes else slice(0, 1) for axis in sizes)
    return tuple(int(n) for n in places[index].ravel())


def _parameters(subject) -> tuple[int, int]:
    """Elements of the matrices (and vectors) of the layers, and of the tables of pieces."""
    matrices = tables = 0
    for path, leaf in jax.tree.leaves_with_path(subject.abstract.params):
        if path[0].key.endswith("embedding"):
            tables += leaf.size
        else:
            matrices += leaf.size
    return matrices, tables
