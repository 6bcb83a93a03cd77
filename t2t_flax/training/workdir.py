"""Workdir of a run: checks, lock, completion, protection against starting over.

config.json       the resolved config
tokenizer/        tokenizer.model, or source.model and target.model
data/             token stores, unless config.data.cache names another folder
checkpoints/N/    the state after update N
metrics.jsonl     a line for every log.every_steps updates and every evaluation
eval/             records of evaluations
trained.json      written with the first checkpoint, never removed: no run may silently start over
complete.json     written at the end, with the final scores
diverged.json     the update that was not finite, until the run trains again
.lock             held by the writing process
"""

import contextlib
import fnmatch
import json
import logging
import math
import os
import re
import shlex
from collections.abc import Iterator

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.overrides import check_combinations
from t2t_flax.config.schema import Optimizer
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import NonFiniteUpdate, UserError
from t2t_flax.files import PARTIAL, atomic_write, delete, list_names, read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.locks import NAME as LOCK
from t2t_flax.locks import lock_folder
from t2t_flax.model_forms import check_writable, open_model
from t2t_flax.training.checkpoints import TRAINED, finished_steps

log = logging.getLogger("t2t_flax")
_TOKENIZER = ("tokenizer.model", "source.model", "target.model")
_UNOWNED = (
    LOCK,
    f"{LOCK}-*",
    ".shared-*",
    "*.partial-*",
    "*.log",
    "*.out",
    "*.err",
    "lost+found",
    ".nfs*",
)
"""Files that a new workdir may hold: locks, markers and logs of the run's output."""


def check_run_folder(workdir: epath.Path) -> Config | None:
    """Return the config in a workdir; None for a new or empty folder.

    Raises UserError for a folder that is not a run.
    """
    check_writable(workdir, "give a new folder")
    if os.path.exists(workdir) and not os.path.isdir(workdir):
        raise UserError(f"--workdir={workdir} is a file: give a folder.")
    names = [
        name
        for name in list_names(workdir)
        if not any(fnmatch.fnmatch(name, other) for other in _UNOWNED)
    ]
    if not names:
        return None
    config = read_config(workdir)
    if config is None:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise UserError(
            f"--workdir={workdir} is not empty and not a run of t2t_flax: it has no config.json,"
            f" but {shown}. Nothing was changed. Give a new folder; if this is a run, restore its"
            ' config.json (each checkpoint holds a copy: checkpoints/N/meta/metadata, "config").'
        )
    return config


def read_config(workdir: epath.PathLike) -> Config | None:
    """Return the config in a workdir; None if there is none.

    Raises UserError if config.json is not a config of this program.
    """
    path = epath.Path(workdir) / "config.json"
    try:
        text = read_if_exists(path)
        return None if text is None else config_lib.from_json(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {config_lib.NOT_A_CONFIG} ({error}).") from None


def read_model_config(folder: epath.PathLike) -> Config | None:
    """Return the config in a workdir or of a model in another form; None if absent."""
    stored = read_config(folder)
    if stored is None and (model := open_model(folder)):
        return model.config
    return stored


@contextlib.contextmanager
def writing(workdir: epath.Path, command: str, group: ProcessGroup | None = None) -> Iterator[None]:
    """Hold the lock of a workdir within the block; process 0 holds it for all.

    The workdir has passed `check_run_folder`. Removes unfinished files of killed writers. Raises
    UserError, with the name of the process, if another process writes there.
    """
    lock = lock_folder(workdir, command) if group is None or group.is_lead else None
    try:
        if lock:
            _remove_unfinished(workdir)
        yield
    finally:
        if lock:
            lock.release()


def _remove_unfinished(workdir: epath.Path) -> None:
    """Remove half-written files whose writers are gone.

    A file of a living writer stays: `evaluate` writes without the lock of the workdir.
    """
    for folder, name in (
        ("", r"\w+\.jsonl?|tokenizer"),
        ("tokenizer", r"\w+\.model"),
        ("eval", ".+"),
    ):
        with contextlib.suppress(OSError):  # without file locks, a living writer is not seen
            delete(workdir / folder, f"(?:{name}){PARTIAL}")


def check_config(workdir: epath.Path, config: Config) -> None:
    """Raise UserError if the run in the workdir cannot continue with this config.

    Reasons are a folder that is not a run, a change of fixed keys, and lost checkpoints. Before the
    first checkpoint any config may replace the stored one.
    """
    stored, path = check_run_folder(workdir), workdir / "config.json"
    if stored and (steps := checkpoint_steps(workdir)):
        if differ := config_lib.immutable_differences(stored, config):
            lines = config_lib.format_differences(differ, "in the workdir", "now")
            raise UserError(
                f"{workdir} holds a run with another config ({path}). These keys are fixed once a"
                f" run has begun:\n{lines}\nUse another --workdir, or the values of the run."
            )
        config_lib.check_changes(stored, config, steps[-1])
    else:
        _check_nothing_lost(workdir, stored)


def adopt_config(workdir: epath.Path, config: Config, *, train: bool = True) -> None:
    """Store the resolved config in a workdir without a checkpoint.

    A run with a checkpoint keeps its config until `begin`, because the change may still be refused.
    Raises the errors of `check_config`.

    Args:
        train: False if only the data will be prepared; metrics.jsonl then stays.
    """
    check_config(workdir, config)
    if checkpoint_steps(workdir):
        return
    _remove_tokenizer(workdir / "tokenizer")
    if train:  # of an earlier attempt without a checkpoint: its updates are repeated
        (workdir / "metrics.jsonl").unlink(missing_ok=True)
    atomic_write(workdir / "config.json", config_lib.to_json(config))


def mark_as_training(workdir: epath.Path, config: Config) -> None:
    """Mark the run as training.

    Writes config.json, and removes complete.json and diverged.json. Call it after restoring and
    compiling, when nothing can refuse the config any more.
    """
    (workdir / "complete.json").unlink(missing_ok=True)
    (workdir / MARKER).unlink(missing_ok=True)
    atomic_write(workdir / "config.json", config_lib.to_json(config))


def checkpoint_steps(workdir: epath.Path) -> list[int]:
    """Return the steps of the finished checkpoints in a workdir, ascending."""
    return finished_steps(workdir / "checkpoints")


def _check_nothing_lost(workdir: epath.Path, stored: Config | None) -> None:
    """Raise UserError for a run that had a checkpoint and has none now.

    A run that was killed before its first checkpoint passes.
    """
    folder = workdir / "checkpoints"
    if os.path.islink(folder) and not os.path.exists(folder):
        raise UserError(
            f"{folder} links to {os.readlink(folder)}, which does not exist: is that disk mounted?"
        )
    if stored and (workdir / TRAINED).exists():
        raise UserError(
            f"{workdir} was trained before (it has {TRAINED}), but {folder} holds no checkpoint."
            " Nothing was changed. Restore the checkpoints (from a backup, or a disk that is not"
            " mounted), or use another --workdir. To train here from scratch, remove"
            f" {workdir / TRAINED} first."
        )


def _remove_tokenizer(folder: epath.Path) -> None:
    """Remove the tokenizer's files, and the folder if no other file is in it."""
    delete(folder, f"(?:{'|'.join(map(re.escape, _TOKENIZER))})(?:{PARTIAL})?")
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def completed(workdir: epath.Path, config: Config) -> str | None:
    """Return a message if the run in a workdir is complete, else None."""
    text, stored = read_if_exists(workdir / "complete.json"), read_config(workdir)
    if text is None or stored is None:
        return None
    try:
        marker = parse_json(text)
        reason, step, summary, records = (
            marker[key] for key in ("reason", "step", "summary", "records")
        )
        paths = "".join(f"\nrecord: {workdir / 'eval' / name}" for name in records.values())
        key = {"steps": "train.steps", "patience": "eval.patience"}.get(reason, reason)
        now = config.value(key)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        log.warning(
            "%s cannot be read (%s): repeating the final evaluation",
            workdir / "complete.json",
            error,
        )
        return None
    if config_lib.immutable_differences(stored, config):
        return None  # adopt_config reports the differences
    if (now > step) if reason == "steps" else ((now or math.inf) > stored.value(key)):
        return None
    how = f"raise --config.{key} (now {now}{'; 0 = no limit' if reason == 'patience' else ''})"
    how = f"give --config.{key}=false" if key == reason else how
    how += _also_needed(config, key, now + 1) if reason == "steps" else ""
    why = "" if reason == "steps" else f" (stopped early: {reason})"
    scores = f"; {summary}{paths}" if records else ""
    if other := [
        key
        for key in ("data.test", "checkpoint.average_last")
        if config.value(key) != stored.value(key)
    ]:
        scores += (
            f"\nIt is not evaluated again with config.{other[0]} = {config.value(other[0])}: use"
            " `evaluate` for that."
        )
    return f"{workdir} is complete: {step} updates{why}{scores}\nTo continue, {how.rstrip('.')}."


def _also_needed(config: Config, key: str, value: float) -> str:
    """Return the error if other keys must change with this key, else ""."""
    try:
        check_combinations(config.with_values({key: value}))
    except UserError as error:
        return f". Not alone: {error}"
    return ""


MARKER = "diverged.json"
"""File with {"step", "reason"} of a diverged run; removed when it trains again."""


def advice(config: Config, workdir: epath.Path) -> str:
    """Return advice after a divergence: flags to try, and where the run resumes."""
    o, steps = config.optimizer, checkpoint_steps(workdir)
    name = "lr_scale" if o.schedule == "noam" else "peak_lr"
    current, norm = getattr(o, name), o.max_grad_norm
    lower = min(current / 2, getattr(Optimizer, name))
    lines = [
        (
            "The update was not applied and the run stopped. The same command would repeat it:"
            " rerun it with a lower learning rate, gradient clipping, or both:"
        ),
        (
            f"  --config.optimizer.{name}={lower:g}  (now"
            f" {current:g}){_also_needed(config, f'optimizer.{name}', lower)}"
        ),
        f"  --config.optimizer.max_grad_norm={min(1.0, norm / 10) or 1.0:g}  (now {norm:g})",
        "or, if single batches cause it, with --config.train.non_finite=skip.",
    ]
    if steps:
        bad = workdir / "checkpoints" / str(steps[-1]) if len(steps) > 1 else workdir
        aside = workdir.with_name(f"{workdir.name}-diverged-{steps[-1]}")
        lines += [
            (
                f"The run resumes from checkpoint {steps[-1]}; the change is recorded in"
                " metrics.jsonl and in later records. If it diverges again, that checkpoint is"
                " bad: move it away, or the run if it is the only one, and start again:"
            ),
            f"  {shlex.join(['mv', str(bad), str(aside)])}",
        ]
    return "\n".join(lines)


def mark(workdir: epath.Path, error: NonFiniteUpdate) -> None:
    """Write diverged.json."""
    atomic_write(
        workdir / MARKER, json.dumps({"step": error.step, "reason": str(error)}, indent=2) + "\n"
    )
