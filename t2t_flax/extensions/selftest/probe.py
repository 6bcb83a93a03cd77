"""Probe of the self-test: a small model, its parameters and a batch.

It has the run's widths. It is the same on every host. NumPy draws numbers from uniform
distributions, whose bits do not depend on the machine.
"""

import dataclasses
import math
import zlib
from typing import Any

import jax
import numpy as np

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.matrices import matrix_axes_of
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.parametrization import parametrization_of, path_names
from t2t_flax.training.train_state import abstract_state, make_model

_LAYERS = 2
_MOST_MICRO = 3
_LONGEST = 128
"""Tokens of a row: the minimum for the kernels of TPUs."""
_TOKENS = 4096
"""Real tokens of the batch, which bound the time of the CPU."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """A small model and a batch.

    Args:
        arrays: int32 [A, B, L], A microbatches of B rows; the columns from `real` on are padding.
    """

    config: Config
    mesh: jax.sharding.Mesh
    vocab: tuple[int, int]
    arrays: dict[str, np.ndarray]
    real: int

    @property
    def shards(self) -> int:
        return mesh_lib.batch_shards(self.mesh)

    @property
    def size(self) -> tuple[int, int, int]:
        micro, rows, length = self.arrays["target"].shape
        return micro, rows, length


def make_probe(
    config: Config, mesh: jax.sharding.Mesh, vocab: tuple[int, int], shape: Shape
) -> Probe:
    """Return the probe of a run.

    The run has this config, these vocabulary sizes and this batch shape.
    """
    config = _small(config, mesh, vocab)
    shards = mesh_lib.batch_shards(mesh)
    micro, rows = min(shape.micro, _MOST_MICRO), shards * (2 if shards <= 4 else 1)
    length, m = min(shape.length, _LONGEST), config.model
    longest = min(length, m.max_positions) if m.position == "learned" else length
    real = max(min(8, longest), min(longest, _TOKENS // (micro * rows)))
    packed = config.data.batching == "packed"
    arrays = _batch((micro, rows, length), real, vocab, pairs=3 if packed and real >= 12 else 1)
    return Probe(config, mesh, vocab, arrays, real)


def _small(config: Config, mesh: jax.sharding.Mesh, vocab: tuple[int, int]) -> Config:
    """Return the config with two layers a stack.

    A rectifier becomes a swish: its derivative jumps, so that any rounding of an input near 0
    changes gradients by more than the precision explains.
    """
    m = config.model
    smooth = config.with_values(
        {"model.activation": "swish" if m.activation == "relu" else m.activation}
    )
    layers = {
        "model.num_encoder_layers": min(m.num_encoder_layers, _LAYERS),
        "model.num_decoder_layers": min(m.num_decoder_layers, _LAYERS),
    }
    small = smooth.with_values(layers)
    try:
        config_lib.from_json(config_lib.to_json(small))
        abstract_state(
            small,
            make_model(small, *vocab),
            make_optimizer(small, parametrization_of(small)),
            parametrization_of(small),
            mesh,
        )
    except UserError:  # a key names a layer that the probe lacks
        return smooth
    return small


def _batch(
    size: tuple[int, int, int], real: int, vocab: tuple[int, int], pairs: int
) -> dict[str, np.ndarray]:
    """Return rows of some pairs.

    Pairs begin at other places in the source than in the target; every third row ends in padding,
    as long on both sides.
    """
    rng, (micro, rows, length) = np.random.default_rng(0), size
    arrays: dict[str, np.ndarray] = {}
    for side, classes in zip(("source", "target"), vocab, strict=True):
        ids, segments, positions = (np.zeros((micro * rows, length), np.int32) for _ in range(3))
        for row in range(micro * rows):
            end = real - real // 4 if row % 3 == 1 else real
            cuts = [0, *sorted(rng.choice(np.arange(1, end), pairs - 1, replace=False)), end]
            for pair, (first, last) in enumerate(zip(cuts[:-1], cuts[1:], strict=True), 1):
                ids[row, first:last] = rng.integers(min(3, classes - 1), classes, last - first)
                ids[row, last - 1] = EOS
                segments[row, first:last] = pair
                positions[row, first:last] = np.arange(last - first)
        named = {side: ids, f"{side}_segments": segments, f"{side}_positions": positions}
        arrays |= {name: x.reshape(size) for name, x in named.items()}
    return arrays


def draw_parameters(structs: Any) -> Any:
    """Return random float32 arrays like `structs`.

    They have the variance of Xavier's initialization. Vectors are drawn around 0, scales around 1,
    so that each has an effect.
    """

    def draw(path, struct):
        names = path_names(path)
        rng = np.random.default_rng(zlib.crc32("/".join(names).encode()))
        x = 2 * rng.random(struct.shape, np.float32) - 1
        return (
            np.float32(names[-1] == "scale") + x * np.float32(_limit(names, struct.shape))
        ).astype(struct.dtype)

    return jax.tree_util.tree_map_with_path(draw, structs)


def _limit(names: tuple[str, ...], shape: tuple[int, ...]) -> float:
    if len(shape) < 2 or names[-1].endswith(("bias", "scale")):
        return 0.1
    if names[-1] == "table":
        return math.sqrt(3 / shape[-1])
    try:
        axes = matrix_axes_of(names, shape) or (0, 1)
    except ValueError:
        axes = 0, 1
    fans = sum(math.prod(shape[axis] for axis in np.atleast_1d(part)) for part in axes)
    return math.sqrt(6 / fans)
