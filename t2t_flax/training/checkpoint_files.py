"""Files of checkpoints: CHECKPOINTS/STEP/meta/metadata, JSON with a digest of itself; listing, deleting, setting aside."""

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
from t2t_flax.training.damage import check_digest, with_digest


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
