"""Files of checkpoints: CHECKPOINTS/STEP/meta/metadata, JSON with a digest of itself; listing, deleting, setting aside."""

import contextlib
import errno
import hashlib
import json
import math
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import stored_config
from t2t_flax.distributed.coordination import broken_connection
from t2t_flax.errors import first_line
from t2t_flax.filesystem import atomic_write, by_storage, is_transient, list_names, list_numbers, move_folder
from t2t_flax.json_file import parse_json
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


def is_scheduled(config: Config, updates_per_epoch: int, step: int) -> bool:
    """Whether config.checkpoint asks for a checkpoint after update `step` >= 1."""
    c = config.checkpoint
    return any(every and step % every == 0 for every in (c.every_steps, c.every_epochs * updates_per_epoch))


def regular_steps(config: Config, updates_per_epoch: int, last: int) -> Iterator[int]:
    """The regular steps from `last` down to 1: the scheduled ones, and the last update of the run, config.train.steps,
    unless checkpoints go by epochs.

    `config` is the run's own as it is now. The last update of a run that is extended later is therefore regular only if it
    is scheduled, and the longer run averages the same checkpoints as one that was started with its length. After a change of
    checkpoint.every_steps, the new interval says which checkpoints an average wants, older ones included.
    """
    end = 0 if config.checkpoint.every_epochs else config.train.steps
    return (step for step in range(last, 0, -1) if step == end or is_scheduled(config, updates_per_epoch, step))


def was_scheduled(meta: dict[str, Any]) -> bool:
    """Whether the checkpoint with this metadata was scheduled when it was written: by its own config, so that another
    interval in a resumed run deletes none of the older checkpoints at once.
    """
    return not meta.get("params_only") and is_scheduled(stored_config(meta), meta["updates_per_epoch"], meta["step"])


def kept_steps(facts: Mapping[int, tuple[bool | None, float | None]], last: int, best: int) -> set[int]:
    """Which checkpoints to keep: the newest, the `last` scheduled ones, the `best` by metric (the earlier of two equal ones),
    and those whose metadata cannot be read, which are not counted. It does not depend on what was deleted before, so it may
    be applied at any time.

    facts: {step: (whether it was scheduled, None = unknown; metric, higher is better, None = none)}.
    """
    steps = sorted(facts)
    scheduled = [step for step in steps if facts[step][0]]
    unknown = [step for step in steps if facts[step][0] is None]
    measured = sorted((-metric, step) for step in steps if (metric := facts[step][1]) is not None)
    return {*scheduled[-last:], *unknown, *(step for _, step in measured[:best]), *steps[-1:]}


def finished_steps(folder: epath.PathLike) -> list[int]:
    """Steps with a finished checkpoint in a folder of checkpoints, ascending."""
    return [step for step in list_numbers(folder) if is_finished(epath.Path(folder) / str(step))]


@by_storage
def is_finished(checkpoint: epath.Path) -> bool:
    """True: the folder of a checkpoint is renamed to its step when it is finished."""
    return True


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """The metadata. Raises DamagedCheckpoint where it was changed, OSError or ValueError where it cannot be read."""
    return check_digest(parse_json((checkpoint / "meta" / "metadata").read_text()))


def scheduled_and_metric(checkpoint: epath.Path) -> tuple[bool | None, float | None]:
    """Whether the checkpoint was saved on schedule, and the metric of the evaluation after it. The first is None where the
    metadata cannot be read, the second also where there is none, or one that is not finite.
    """
    try:
        meta = read_meta(checkpoint)
        scheduled = was_scheduled(meta)
    except Exception:  # noqa: BLE001 - whatever the damage, this checkpoint is not deleted
        return None, None
    metric = None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        metric = float(meta["metric"])
    return scheduled, metric if metric is not None and math.isfinite(metric) else None


def metrics(folder: epath.Path) -> dict[int, float]:
    """The metrics of the checkpoints that have one, by step."""
    known = {step: scheduled_and_metric(folder / str(step))[1] for step in finished_steps(folder)}
    return {step: metric for step, metric in known.items() if metric is not None}


def write_evaluation(checkpoint: epath.Path, progress: dict[str, Any], metric: float | None) -> None:
    """Adds an evaluation to the metadata; Orbax cannot change a checkpoint once it is written."""
    meta = read_meta(checkpoint)
    meta |= {"progress": meta["progress"] | progress} | ({} if metric is None else {"metric": metric})
    atomic_write(checkpoint / "meta" / "metadata", json.dumps(with_digest(meta)))


@by_storage
def delete_checkpoint(checkpoint: epath.Path) -> None:
    """Deletes a checkpoint. A kill in between leaves no half of it under its number."""
    remove_unfinished(checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.orbax-checkpoint-tmp-deleted")))


def set_aside(folder: epath.Path, workdir: epath.Path, steps: Iterable[int]) -> None:
    """Moves damaged checkpoints to `damaged/STEP-N` beside `folder`: on the same disk even if `checkpoints` is a link."""
    linked = folder.parent != workdir
    target = folder.parent / (f"{folder.name}.damaged" if linked else "damaged")
    for step in steps:
        existing = set(list_names(target))
        number = next(n for n in range(len(existing) + 1) if f"{step}-{n}" not in existing)
        move_folder(folder / str(step), target / f"{step}-{number}")


def remove_unfinished(folder: epath.Path, timeout: float = 60.0) -> None:
    """Removes the folder of a save that failed. In the same process its threads may still be writing
    other arrays into it, so removal is repeated for up to `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return folder.rmtree(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
