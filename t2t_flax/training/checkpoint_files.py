"""Files of checkpoints, and which of them are kept: CHECKPOINTS/STEP/meta/metadata is JSON with a digest of itself."""

import errno
import hashlib
import itertools
import json
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import stored_config
from t2t_flax.distributed.coordination import broken_connection
from t2t_flax.errors import UserError
from t2t_flax.filesystem import by_storage, delete, is_transient, list_numbers
from t2t_flax.json_file import parse_json
from t2t_flax.models.dropout import mix

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, None)
_PARSING = (ValueError, LookupError, EOFError, TypeError, AttributeError, zlib.error)
_UINT = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_SMALL = 2**22
"""Up to this many elements in all, NumPy is faster than compiling."""


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing or cannot be parsed, or its contents differ from what was saved. `reason`: how."""

    def __init__(self, checkpoint: epath.Path, reason: str):
        super().__init__(
            f"checkpoint {checkpoint.name} in {checkpoint.parent} is damaged: {reason}. Restore {checkpoint} from a backup, or "
            "move it to another folder and use the checkpoint before it."
        )
        self.reason = reason


def is_damage(error: BaseException | None) -> bool:
    """Whether an error of reading a checkpoint means that its files differ from those written: not one of a device, a disk or
    the network.
    """
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for one in chain:
        if isinstance(one, jax.errors.JaxRuntimeError | MemoryError | ImportError | NotImplementedError):
            return False
        if broken_connection(one) or is_transient(one) or (isinstance(one, OSError) and one.errno not in _MISSING):
            return False
    # Orbax raises a bare Exception where TensorStore cannot read an array.
    return any(isinstance(one, (OSError, *_PARSING)) or type(one) is Exception for one in chain)


def with_digest(meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` with a digest of itself, so that any later change is detected."""
    return meta | {"digest": _digest(meta)}


def _digest(meta: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(meta))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """The metadata, without its digest. Raises OSError or ValueError where it cannot be read or was changed."""
    meta = parse_json((checkpoint / "meta" / "metadata").read_text())
    if not isinstance(meta, dict) or meta.pop("digest", None) != _digest(meta):
        raise ValueError("meta/metadata is not what was saved")
    return meta


def array_shapes(tree: Any) -> dict[str, list]:
    """[dtype, shape] of each leaf, by its path."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def shape_differences(stored: Mapping[str, list], wanted: Mapping[str, list]) -> str:
    """The first leaves in which two trees differ, for a message; empty if there are none."""
    word = lambda about: f"{about[0]}{list(about[1])}" if about else "absent"  # noqa: E731
    pairs = {name: (word(stored.get(name)), word(wanted.get(name))) for name in (*wanted, *stored)}
    differ = [f"{name} is {there} there, {here} here" for name, (there, here) in pairs.items() if there != here]
    return "; ".join(differ[:3] + [f"{len(differ) - 3} more differ"] * (len(differ) > 3))


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


def is_scheduled(config: Config, updates_per_epoch: int, step: int) -> bool:
    """Whether config.checkpoint asks for a checkpoint after update `step`."""
    c = config.checkpoint
    return step > 0 and any(
        every and step % every == 0 for every in (c.every_steps, c.every_epochs * updates_per_epoch)
    )


def regular_steps(config: Config, updates_per_epoch: int, last: int) -> Iterator[int]:
    """The regular steps from `last` down to 1, which averages are of: the scheduled ones, and the last update of the run,
    config.train.steps, unless checkpoints go by epochs.

    `config` is the run's own as it is now. The last update of a run that is extended later is therefore regular only if it
    is scheduled, and the longer run averages the same checkpoints as one that was started with its length.
    """
    end = 0 if config.checkpoint.every_epochs else config.train.steps
    return (step for step in range(last, 0, -1) if step == end or is_scheduled(config, updates_per_epoch, step))


def lost_to_average(config: Config, updates_per_epoch: int, steps: Collection[int]) -> list[int]:
    """Return the steps of checkpoint.average_last that a run with checkpoints of `steps` has passed and lacks."""
    wanted = itertools.islice(
        regular_steps(config, updates_per_epoch, config.train.steps), config.checkpoint.average_last
    )
    return [step for step in wanted if step < max(steps, default=0) and step not in steps]


def kept_steps(facts: Mapping[int, tuple[bool | None, float | None]], last: int, best: int) -> set[int]:
    """Which checkpoints to keep: the newest, the `last` scheduled ones, the `best` by metric (the earlier of two equal ones),
    and those whose metadata cannot be read, which are not counted. It does not depend on what was deleted before, so it may
    be applied at any time. facts: as `scheduled_and_metric` gives them.
    """
    steps = sorted(facts)
    scheduled = [step for step in steps if facts[step][0]]
    unknown = [step for step in steps if facts[step][0] is None]
    measured = sorted((-metric, step) for step in steps if (metric := facts[step][1]) is not None)
    return {*scheduled[-last:], *unknown, *(step for _, step in measured[:best]), *steps[-1:]}


def scheduled_and_metric(folder: epath.Path) -> dict[int, tuple[bool | None, float | None]]:
    """{step: (whether it was scheduled when it was written; the metric of the evaluation after it, higher is better, None =
    none)}; (None, None) where the metadata cannot be read. Its own config says what was scheduled, so that another
    interval in a resumed run deletes none of the older checkpoints at once. Metrics of other data than the newest one's do not
    count.
    """
    facts: dict[int, tuple[bool | None, float | None]] = {}
    metric_of: str | None = None
    for step in reversed(finished_steps(folder)):
        try:
            meta = read_meta(folder / str(step))
            scheduled = not meta.get("params_only") and is_scheduled(
                stored_config(meta), meta["updates_per_epoch"], meta["step"]
            )
            metric, own = meta.get("metric"), meta.get("progress", {}).get("metric_of")
            if metric is not None and metric_of is None:
                metric_of = own
            facts[step] = scheduled, metric if own == metric_of else None
        except Exception:  # noqa: BLE001 - whatever the damage, this checkpoint is not deleted
            facts[step] = None, None
    return dict(sorted(facts.items()))


def finished_steps(folder: epath.PathLike) -> list[int]:
    """Steps with a finished checkpoint in a folder of checkpoints, ascending."""
    return [step for step in list_numbers(folder) if is_finished(epath.Path(folder) / str(step))]


@by_storage
def is_finished(checkpoint: epath.Path) -> bool:
    """True: the folder of a checkpoint is renamed to its step when it is finished."""
    return True


@by_storage
def delete_checkpoint(checkpoint: epath.Path) -> None:
    """Deletes a checkpoint. A kill in between leaves no half of it under its number."""
    remove_unfinished(checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.orbax-checkpoint-tmp-deleted")))


def remove_unfinished(folder: epath.Path, timeout: float = 60.0) -> None:
    """Removes the folder of a save that failed or of a deleted checkpoint. Orbax's threads may still be writing other arrays into
    it, or another process read it on a network file system, so removal is repeated for up to `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return delete(folder.parent, re.escape(folder.name))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
