"""Detects damaged checkpoints, and distinguishes them from failing devices, disks and networks.

Damaged: a checksum does not match, or a file is missing or cannot be parsed. Only such checkpoints are skipped or moved. Orbax
does not detect flipped bits, so each checkpoint stores checksums of its arrays, which do not depend on their sharding.
"""

import errno
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.distributed.coordination import broken_connection
from t2t_flax.errors import first_line
from t2t_flax.filesystem import is_transient
from t2t_flax.models.dropout import mix

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_PARSING = (ValueError, LookupError, EOFError, TypeError, AttributeError, zlib.error)
_UINT = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_SMALL = 2**22
"""Elements in all that NumPy sums up sooner than a program is compiled."""


class DamagedCheckpoint(Exception):
    """A file of a checkpoint is missing or cannot be parsed, or its contents differ from what was saved."""


def is_damage(error: BaseException) -> bool:
    """Whether an error while reading a checkpoint means that its files differ from those written."""
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, jax.errors.JaxRuntimeError | MemoryError | ImportError | NotImplementedError):
            return False
        if broken_connection(one) or is_transient(one):
            return False
        if isinstance(one, OSError) and one.errno not in (*_MISSING, None):
            return False
    # Orbax raises a bare Exception where TensorStore cannot read an array.
    return any(isinstance(one, (OSError, *_PARSING)) or type(one) is Exception for one in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def describe_error(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error, limit=280)}"


def with_digest(meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` with a digest of itself, so that any later change is detected."""
    return meta | {"digest": _digest(meta)}


def check_digest(meta: Any) -> dict[str, Any]:
    """The metadata without its digest. Raises DamagedCheckpoint where they disagree."""
    if not isinstance(meta, dict):
        raise DamagedCheckpoint("meta/metadata is not a JSON object")
    content = {name: value for name, value in meta.items() if name != "digest"}
    if meta.get("digest") != _digest(content):
        raise DamagedCheckpoint("meta/metadata is not what was saved")
    return content


def _digest(meta: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(meta))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def array_shapes(tree: Any) -> dict[str, list]:
    """[dtype, shape] of each leaf, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def shape_differences(stored: Mapping[str, list], wanted: Mapping[str, list]) -> str:
    """The differing leaves of two trees, for a message; empty if there are none."""
    word = lambda about: f"{about[0]}{list(about[1])}"  # noqa: E731
    other = [
        f"{name} is {word(stored[name])} there, {word(wanted[name])} here"
        for name in wanted
        if name in stored and word(stored[name]) != word(wanted[name])
    ]
    missing, more = [n for n in wanted if n not in stored], [n for n in stored if n not in wanted]
    parts = [
        *(other[:3] + [f"{len(other) - 3} more of another shape or type"] * (len(other) > 3)),
        *([f"it lacks {_some(missing)}"] if missing else []),
        *([f"it has {_some(more)}, which this run does not"] if more else []),
    ]
    return "; ".join(parts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@jax.jit  # arrays of the same shape are traced once
def _checksum(x: jax.Array) -> jax.Array:
    """Sum of each element's bits times an odd weight of its index, modulo 2^32: any single changed element changes it."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(x, _UINT[x.dtype.itemsize]).astype(jnp.uint32)
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return jnp.sum(bits * (mix(index) | np.uint32(1)), dtype=jnp.uint32)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
    return [_checksum(x) for x in leaves]


def _checksum_on_host(x: np.ndarray) -> int:
    bits = x.reshape(-1).view(np.dtype(f"uint{8 * x.dtype.itemsize}")).astype(np.uint32)
    weights = mix(np.arange(x.size, dtype=np.uint32)) | np.uint32(1)  # type: ignore[arg-type]  # the same arithmetic
    return int(np.sum(bits * weights, dtype=np.uint32))


def checksums(tree: Any, *, once: bool = False) -> dict[str, int]:
    """The checksum of each leaf, by path. Leaves are arrays of at most 4 bytes per element, on any mesh. once: they are
    computed once, so that compiling a program for small arrays is not worth it.
    """
    paths, leaves = zip(*jax.tree.leaves_with_path(tree), strict=True) if jax.tree.leaves(tree) else ((), ())
    small = once and sum(x.size for x in leaves) <= _SMALL and all(x.is_fully_addressable for x in leaves)
    values = map(_checksum_on_host, jax.device_get(leaves)) if small else jax.device_get(_checksums(list(leaves)))
    return {jax.tree_util.keystr(path): int(value) for path, value in zip(paths, values, strict=True)}
