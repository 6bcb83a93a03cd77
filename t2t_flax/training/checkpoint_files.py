"""The metadata of a checkpoint, CHECKPOINTS/STEP/meta/metadata: JSON, with a digest of itself. Moves damaged ones aside."""

import contextlib
import errno
import json
import math
import time
from collections.abc import Iterable
from typing import Any

from etils import epath

from t2t_flax.filesystem import atomic_write, by_storage, list_names, list_numbers, move_folder
from t2t_flax.json_file import parse_json
from t2t_flax.training.checkpoint_schedule import was_scheduled
from t2t_flax.training.damage import DamagedCheckpoint, check_digest, with_digest


def read_meta(checkpoint: epath.Path) -> dict[str, Any]:
    """The metadata. Raises DamagedCheckpoint where it was changed, OSError or ValueError where it cannot be read."""
    return check_digest(parse_json((checkpoint / "meta" / "metadata").read_text()))


def read_scheduled(checkpoint: epath.Path) -> bool | None:
    """Whether the checkpoint was saved on schedule; None where its metadata cannot be read."""
    try:
        return was_scheduled(read_meta(checkpoint))
    except Exception:  # noqa: BLE001 - whatever the damage, this checkpoint is not deleted
        return None


def read_metric(checkpoint: epath.Path) -> float | None:
    """The metric of the evaluation after this step; None where it is missing, unreadable or not finite."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, DamagedCheckpoint):
        value = float(read_meta(checkpoint)["metric"])
        return value if math.isfinite(value) else None
    return None


def write_evaluation(checkpoint: epath.Path, progress: dict[str, Any], metric: float | None) -> None:
    """Adds an evaluation to the metadata; Orbax cannot change a checkpoint once it is written."""
    meta = read_meta(checkpoint)
    meta |= {"progress": meta["progress"] | progress} | ({} if metric is None else {"metric": metric})
    atomic_write(checkpoint / "meta" / "metadata", json.dumps(with_digest(meta)))


def finished_steps(folder: epath.PathLike) -> list[int]:
    """Steps with a finished checkpoint in a folder of checkpoints, ascending."""
    return [step for step in list_numbers(folder) if is_finished(epath.Path(folder) / str(step))]


@by_storage
def is_finished(checkpoint: epath.Path) -> bool:
    """True: the folder of a checkpoint is renamed to its step when it is finished."""
    return True


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
