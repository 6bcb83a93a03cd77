"""Damaged checkpoints are set aside, and the run goes on from an older one."""

import logging
from collections.abc import Callable
from typing import Any

from t2t_flax.distributed.coordination import appears
from t2t_flax.errors import UserError
from t2t_flax.filesystem import list_names, move_folder
from t2t_flax.training.checkpoint_files import DamagedCheckpoint
from t2t_flax.training.checkpoints import Checkpoints

log = logging.getLogger("t2t_flax")


def restore(checkpoints: Checkpoints, restore: Callable[[int], Any]) -> Any:
    """`restore(step)` of the newest intact checkpoint. Once it is restored, damaged ones are moved to `damaged/`. Raises
    UserError, and changes nothing, where all are damaged.
    """
    damaged: dict[int, str] = {}
    for step in reversed(checkpoints.steps()):
        try:
            restored = restore(step)
        except DamagedCheckpoint as damage:
            damaged[step] = damage.reason
            if checkpoints.group.is_lead:
                log.warning(
                    "checkpoint %d in %s is damaged (%s); using the previous one",
                    step,
                    checkpoints.folder,
                    damage.reason,
                )
            continue
        if damaged:
            _set_aside(checkpoints, list(damaged))
        return restored
    reasons = "\n".join(f"  {checkpoints.folder / str(step)}: {why}" for step, why in damaged.items())
    raise UserError(
        f"all checkpoints in {checkpoints.folder} are damaged; they are left where they are:\n{reasons}\nRestore one from a "
        "backup, or use another workdir."
    )


def _set_aside(checkpoints: Checkpoints, steps: list[int]) -> None:
    """Moves checkpoints to `damaged/STEP-N` beside the folder: on the same disk even if `checkpoints` is a link."""
    folder, group = checkpoints.folder, checkpoints.group
    linked = folder.parent != checkpoints.workdir
    target = folder.parent / (f"{folder.name}.damaged" if linked else "damaged")
    for step in steps if group.is_lead else ():
        existing = set(list_names(target))
        number = next(n for n in range(len(existing) + 1) if f"{step}-{n}" not in existing)
        move_folder(folder / str(step), target / f"{step}-{number}")
    group.barrier("damaged checkpoints are set aside", group.MINUTES)
    if group.count > 1:  # Orbax looks for the folder on every host
        for step in steps:
            appears(folder / str(step), exists=False)
    checkpoints.refresh()
