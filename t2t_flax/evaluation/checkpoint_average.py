"""The mean of checkpoints (6.1) as a workdir of its own, which `evaluate`, `translate` and `train.init_from` take."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.evaluation.checkpoint_selection import Choice, Part, mean
from t2t_flax.evaluation.restore import frame, stored_config
from t2t_flax.filesystem import atomic_write, list_names, move_folder
from t2t_flax.locks import NAME as LOCK
from t2t_flax.locks import lock_folder
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.config_changes import check_same_model
from t2t_flax.training.resume import report_full_disk
from t2t_flax.training.workdir import TRAINED


def average(
    workdirs: Sequence[str | epath.Path],
    output: str | epath.Path,
    *,
    last: int = 0,
    steps: Sequence[int] = (),
    best: bool = False,
    overrides: dict[str, str] | None = None,
) -> list[tuple[str, int]]:
    """Writes the float32 mean of each workdir's `last` regular checkpoints (up to the one of `steps`, if there is one), of its
    checkpoints `steps`, or of its `best`, to `output`.

    Returns the (workdir, step) pairs that went in. Config and tokenizer are those of the first workdir. Raises UserError
    for an output that exists, unknown steps, and workdirs of another model or tokenizer (the keys are named).
    """
    output = epath.Path(output)
    _refuse_existing(output)
    for what, values in (("--workdir", [os.fspath(w) for w in workdirs]), ("--step", list(steps))):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UserError(f"{what} names {twice} twice: it would count twice.")
    first = frame(workdirs[0], overrides)
    for workdir in workdirs[1:]:
        check_same_model(stored_config(workdir), first.stored, f"the run in {workdir}")
        if TokenizerPair.load(epath.Path(workdir) / "tokenizer").digest != first.tokenizers.digest:
            raise UserError(f"{workdir} has another tokenizer than {workdirs[0]}: their parameters mean other tokens.")
    choices = [Choice(step=step, average=last) for step in steps] or [Choice(average=last, best=best)]
    taken: list[tuple[str, int]] = []

    def parts() -> Iterator[Part]:
        for workdir in map(epath.Path, workdirs):
            for choice in choices:
                run = dataclasses.replace(first, workdir=workdir, stored=stored_config(workdir))
                for part in run.parts(choice):
                    taken.extend((str(workdir), step) for step in part.steps)
                    yield part
                    del part  # before the next one is restored

    combined = mean(parts())
    taken.sort(key=lambda x: -x[1])
    _write(output, first.stored, first.tokenizers, combined.params, taken, list(combined.config_changes))
    return taken


def _write(
    output: epath.Path, config: Config, tokenizers: TokenizerPair, params: Any, taken: list, changes: list
) -> None:
    partial = output.with_name(f"{output.name}.partial")
    _check_leftovers(partial)
    lock = lock_folder(partial, "average", "--output")
    try:
        for name in list_names(partial):
            if name != LOCK:
                path = partial / name
                path.rmtree() if path.is_dir() else path.unlink()
        tokenizers.save(partial / "tokenizer")
        atomic_write(partial / "config.json", config_lib.to_json(config))
        checkpoints = Checkpoints(partial / "checkpoints")
        meta = {
            "step": max(step for _, step in taken),
            "scheduled": True,
            "averaged": taken,
            "config_changes": changes,
            "config": config_lib.as_json(config),
            "digests": {"tokenizer": tokenizers.digest},
        }
        item = "ema" if config.optimizer.ema_decay else "params"
        report_full_disk(checkpoints, lambda: checkpoints.save_params(params, meta, item))
        report_full_disk(checkpoints, checkpoints.wait)
        checkpoints.close()
        _refuse_existing(output)
        lock.release()
        (partial / LOCK).unlink(missing_ok=True)
        move_folder(partial, output)
    except BaseException:
        partial.rmtree(missing_ok=True)
        raise
    finally:
        lock.release()


def _refuse_existing(output: epath.Path) -> None:
    if output.exists():
        raise UserError(f"--output={output} is there already: name a new folder.")


def _check_leftovers(partial: epath.Path) -> None:
    """Raises UserError where the folder holds anything but what a killed `average` has left."""
    ours = (LOCK, "config.json", "tokenizer", "checkpoints", TRAINED)
    other = [name for name in list_names(partial) if name.partition(".partial-")[0] not in ours]
    if other:
        raise UserError(
            f"{partial} is in the way, and {other[0]} in it is not from `average`: move it elsewhere first."
        )
