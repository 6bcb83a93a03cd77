"""Dropout with reproducible masks.

A mask is a function of (seed, update, site, global row, position), never of microbatch or device.
So gradient accumulation, the mesh and the number of processes do not change the masks of an update.
The bits come from a counter hash (two multiplications and three shifts per element, after
C. Wellons' search for low-bias 32-bit mixers) instead of threefry: XLA fuses it into the
surrounding operation. On GPUs masks are stored for the backward pass.
"""

import zlib

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

_ODD = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)


def mix(x: jax.Array) -> jax.Array:
    """Hash uint32 by a bijection.

    Each input bit flips each output bit about half the time.
    """
    x = x ^ (x >> 16)
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


@flax.struct.dataclass
class Noise:
    """Inputs of a dropout mask besides its site.

    They are two key words and each row's global number.
    """

    key: jax.Array  # uint32 [2]
    row_B: jax.Array  # uint32 [B]


def noise_key(seed: int, update: jax.Array | int) -> jax.Array:
    """Return the key words of an update under `seed.dropout`, uint32 [2].

    Args:
        seed: value of seed.dropout.
        update: scalar, can be traced.
    """
    word = mix(
        np.uint32(seed % 2**32) + jnp.asarray(update).astype(jnp.uint32) * np.uint32(_ODD[0])
    )
    return jnp.stack([word, mix(word ^ np.uint32(_ODD[1]))])


def random_bits(noise: Noise, site: int, shape: tuple[int, ...]) -> jax.Array:
    """Return uint32 bits of `shape`, one pattern for each (row, index, ..., index).

    The first axis is the batch.
    """
    bits = mix(noise.key[0] + np.uint32(site)) ^ mix(
        noise.row_B * np.uint32(_ODD[2]) + noise.key[1]
    )
    for axis, size in enumerate(shape[1:]):
        index = jnp.arange(size, dtype=jnp.uint32) * np.uint32(_ODD[axis % 4])
        bits = mix(bits[..., None] + index)
    return bits


class Dropout(nn.Module):
    """Zero elements with probability `rate`, scale the others by 1 / (1 - rate) (5.4).

    Takes x [B, ...] of any float type. Returns x if `noise` is None. The site is the module's path.
    """

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, noise: Noise | None) -> jax.Array:
        if noise is None or self.rate == 0.0:
            return x
        site = zlib.crc32("/".join(self.path).encode())
        keep = random_bits(noise, site, x.shape) >= np.uint32(self.rate * 2**32)
        # In float32: 1 / (1 - rate) in bfloat16 would shift the mean (by -0.16 % at a rate of 0.1).
        scaled = (x.astype(jnp.float32) * np.float32(1 / (1 - self.rate))).astype(x.dtype)
        return jnp.where(keep, scaled, jnp.zeros((), x.dtype))
