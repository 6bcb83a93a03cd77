"""Checkpoints on disk: whole or absent, restored bit for bit or found damaged.

The folder checkpoints/STEP holds the items `params`, `opt_state` and `ema` (if enabled), which
Orbax writes, and the file `meta/metadata`. This is JSON with the step, the config, digests of
tokenizer and data, shape and checksum of every array, the training progress, and a digest of
itself.

We use Orbax's `AsyncCheckpointer`; docs/pods.md shows what its `CheckpointManager` cannot do. Orbax
is imported inside functions, because the import takes 0.2 s.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import check_same_model, stored_config
from t2t_flax.distributed.coordination import ProcessGroup, appears, broken_connection
from t2t_flax.distributed.mesh import PyTree
from t2t_flax.distributed.signals import report_progress
from t2t_flax.errors import WRITE_HINT, UserError, first_line
from t2t_flax.files import (
    atomic_write,
    delete,
    dispatch_by_storage,
    fsync_tree,
    is_transient,
    is_write_refused,
    list_names,
    list_numbers,
    move_folder,
    real_path,
)
from t2t_flax.json_file import parse_json
from t2t_flax.training.checksums import array_shapes, checksums, shape_differences
from t2t_flax.training.parts import TrainState
from t2t_flax.version import __version__

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

Meta: TypeAlias = dict[str, Any]
"""Metadata of a checkpoint, as JSON."""
_T = TypeVar("_T")
log = logging.getLogger("t2t_flax")
TRAINED = "trained.json"
"""File that marks a workdir in which a checkpoint was once finished."""
_SAVE_TIMEOUT = 3600
"""Seconds in which a save must be written."""
_ITEMS = ("params", "opt_state", "ema")
_UNFINISHED = ".orbax-checkpoint-tmp"
_DAMAGE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, None)
"""Error numbers of an OSError that means damage; None = no number."""
_NEVER_DAMAGE = (jax.errors.JaxRuntimeError, MemoryError, ImportError, NotImplementedError)
"""Errors that never mean damage."""
_PARSE_ERRORS = (ValueError, LookupError, EOFError, TypeError, AttributeError, zlib.error)
"""Errors that parsers raise for damaged files."""


# Schedule and retention


def is_scheduled(config: Config, updates_per_epoch: int, step: int) -> bool:
    """Return whether config.checkpoint asks for a checkpoint after update `step`."""
    c = config.checkpoint
    intervals = (c.every_steps, c.every_epochs * updates_per_epoch)
    return step > 0 and any(every and step % every == 0 for every in intervals)


class StoredStep(NamedTuple):
    """Facts about a stored checkpoint that decide whether it is kept.

    Attributes:
        scheduled: by the config in the checkpoint itself. A run that resumes with another interval
            therefore does not delete all older checkpoints at once. None if the metadata is
            unreadable.
        metric: eval.metric, higher is better; None if it was measured on other data than the
            newest metric.
    """

    scheduled: bool | None
    metric: float | None


def kept_steps(stored: Mapping[int, StoredStep], last: int, best: int) -> set[int]:
    """Return the steps to keep.

    They are the newest checkpoint, the `last` newest scheduled ones, and the `best` ones by metric.
    Of two equal metrics the earlier one is better. Checkpoints with unreadable metadata are kept
    and not counted. The result does not depend on earlier deletions, so it may be applied at any
    time.
    """
    steps = sorted(stored)
    scheduled = [step for step in steps if stored[step].scheduled]
    unknown = [step for step in steps if stored[step].scheduled is None]
    metrics = {step: x.metric for step, x in stored.items() if x.metric is not None}
    by_metric = sorted(metrics, key=lambda step: (-metrics[step], step))
    return {*scheduled[-last:], *unknown, *by_metric[:best], *steps[-1:]}


def stored_steps(folder: epath.Path) -> dict[int, StoredStep]:
    """Return the finished checkpoints in a folder by step."""
    stored: dict[int, StoredStep] = {}
    measured_on: str | None = None
    for step in reversed(finished_steps(folder)):
        try:
            meta = read_meta(folder / str(step))
            scheduled = not meta.get("params_only") and is_scheduled(
                stored_config(meta), meta["updates_per_epoch"], meta["step"]
            )
            metric, data = meta.get("metric"), meta.get("progress", {}).get("metric_digest")
            if metric is not None and measured_on is None:
                measured_on = data
            stored[step] = StoredStep(scheduled, metric if data == measured_on else None)
        except Exception:  # noqa: BLE001 - whatever the damage, this checkpoint is not deleted
            stored[step] = StoredStep(None, None)
    return stored


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing, unreadable, or changed since the save."""

    def __init__(self, checkpoint: epath.Path, reason: str):
        super().__init__(
            f"checkpoint {checkpoint.name} in {checkpoint.parent} is damaged: {reason}. Restore"
            f" {checkpoint} from a backup, or move it to another folder and use the checkpoint"
            " before it."
        )
        self.reason = reason


class Checkpoints:
    """Checkpoints in a folder.

    Each save deletes the checkpoints that `kept_steps` does not list. `restore_latest` renames
    damaged ones; opening, listing, `meta` and `read` change nothing. All processes of `group` make
    the same calls, and process 0 lists the folder for all. Raises UserError where another process
    does not see a listed checkpoint.
    """

    def __init__(
        self,
        folder: str | epath.Path,
        *,
        keep_last: int = 1,
        keep_best: int = 0,
        group: ProcessGroup | None = None,
    ):
        self.group = group or ProcessGroup()
        self.folder = real_path(folder)  # Orbax writes to absolute paths only
        self.workdir = real_path(epath.Path(folder).parent)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._writer: ocp.AsyncCheckpointer | None = None
        self._saving = threading.Thread()
        self._failure: BaseException | None = None
        self._steps: list[int] = []
        self._refresh_steps()

    def _refresh_steps(self) -> None:
        """Send the steps in the folder, as process 0 lists them, to all processes."""
        listed = json.dumps(finished_steps(self.folder) if self.group.is_lead else [])
        self._steps = json.loads(self.group.broadcast("the list of checkpoints", listed))
        if self.group.count == 1:
            return
        for step in self._steps:
            if not appears(self.folder / str(step)):
                raise UserError(
                    f"{self.group.name_of(self.group.index)} does not see checkpoint {step} in"
                    f" {self.folder}, which process 0 sees: is the folder shared by all hosts, and"
                    " mounted?"
                )

    def steps(self) -> list[int]:
        """Return the steps with a checkpoint, ascending.

        The newest one may not be written yet. Processes other than process 0 also list checkpoints
        that were deleted since the start.
        """
        return sorted(self._steps)

    def metrics(self) -> dict[int, float]:
        """Return {step: metric} of the checkpoints with an eval.metric, on all processes.

        Higher is better.
        """
        stored = stored_steps(self.folder) if self.group.is_lead else {}
        known = {step: x.metric for step, x in stored.items() if x.metric is not None}
        message = self.group.broadcast("the metrics of the checkpoints", json.dumps(known))
        return {int(step): metric for step, metric in json.loads(message).items()}

    # Saving

    def save(self, state: TrainState, meta: Meta, metric: float | None = None) -> None:
        """Copy the trees of `state` that are not None, and write them in the background.

        Waits for the previous save. Raises UserError if either save fails for lack of space.

        Args:
            meta: metadata with the key "step". The method adds version, shapes and checksums.
            metric: eval.metric at this step, higher is better.
        """
        import orbax.checkpoint as ocp

        step = int(meta["step"])
        trees = {name: tree for name in _ITEMS if (tree := getattr(state, name)) is not None}
        meta = meta | {
            "version": __version__,
            "arrays": {name: array_shapes(tree) for name, tree in trees.items()},
            "checksums": {name: checksums(tree) for name, tree in trees.items()},
        }
        if metric is not None:
            meta["metric"] = metric
        items = {name: ocp.args.PyTreeSave(tree) for name, tree in trees.items()}
        self.wait()
        # Orbax's own barriers wait five minutes; process 0 may still be deleting old checkpoints.
        self.group.barrier("the save before has ended", _SAVE_TIMEOUT)
        with reporting_full_disk(self.folder):
            self._writer = self._writer or self._open_writer()
            args = ocp.args.Composite(meta=ocp.args.JsonSave(with_digest(meta)), **items)
            self._writer.save(self.folder / str(step), args=args)
        self._steps = [*self._steps, step]
        self._saving = threading.Thread(target=self._write_and_delete_old, daemon=True, name="save")
        self._saving.start()

    def _open_writer(self) -> "ocp.AsyncCheckpointer":
        import orbax.checkpoint as ocp

        # With active_processes Orbax synchronizes through the coordinator. Otherwise it would
        # compile a collective.
        all_processes = set(range(self.group.count))
        of_all = dict(
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                active_processes=all_processes
            )
        )
        # Compression would take time and memory, and save little space.
        arrays = {
            name: ocp.PyTreeCheckpointHandler(use_compression=False, **of_all) for name in _ITEMS
        }
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(**of_all),
            meta=ocp.JsonCheckpointHandler(**of_all),
            **arrays,
        )
        options = ocp.AsyncOptions(
            timeout_secs=_SAVE_TIMEOUT, post_finalization_callback=self._flush
        )
        return ocp.AsyncCheckpointer(handler, async_options=options, **of_all)

    def _flush(self) -> None:
        """Sync the unfinished checkpoint to disk, before Orbax renames it to its step."""
        for name in list_names(self.folder):
            if _UNFINISHED in name:
                fsync_tree(self.folder / name)

    def _write_and_delete_old(self) -> None:
        """Wait in a thread until Orbax has written the checkpoint; then delete old ones."""
        try:
            assert self._writer
            self._writer.wait_until_finished()
            report_progress()
            self.delete_old()
        except BaseException as error:  # noqa: BLE001 - raised by `check_for_errors`
            self._failure = error

    def check_for_errors(self) -> None:
        """Raise the error of a background save that has failed.

        A full disk raises UserError.
        """
        if self._failure:
            with reporting_full_disk(self.folder):
                raise self._failure

    def wait(self) -> None:
        """Wait until everything is on disk, then call `check_for_errors`."""
        self.join_save()
        self.check_for_errors()

    def join_save(self, timeout: float | None = None) -> None:
        """Wait for a background save to end, at most `timeout` seconds; ignore its errors."""
        if self._saving.ident is not None:
            self._saving.join(timeout)

    def close(self) -> None:
        """Wait for a background save, and end Orbax's threads."""
        self.join_save()
        if self._writer:
            self._writer.close()

    def add_evaluation(self, step: int, progress: Meta, metric: float | None) -> None:
        """Add an evaluation to a checkpoint that was saved before it.

        The checkpoint then equals one that was saved after the evaluation.

        Args:
            progress: entries of the training progress that the evaluation changed.
            metric: as in `save`.
        """
        self.wait()
        if self.group.is_lead:
            meta = read_meta(self.folder / str(step))
            meta["progress"] |= progress
            if metric is not None:
                meta["metric"] = metric
            # Not through Orbax: it cannot change a checkpoint once it is written.
            with reporting_full_disk(self.folder):
                write_meta(self.folder / str(step), meta)
        self.delete_old()
        self.group.barrier("an evaluation is added", self.group.TIMEOUT)

    def delete_old(self) -> None:
        """Delete the checkpoints that `kept_steps` does not list, in process 0.

        Called after each save, and by a resumed run after restoring.
        """
        steps = finished_steps(self.folder) if self.group.is_lead else []
        if steps:
            self._mark_trained()
        if len(steps) > 1:
            stored = stored_steps(self.folder)
            old = stored.keys() - kept_steps(stored, self._keep_last, self._keep_best)
            for step in old:
                mark_unfinished(self.folder / str(step))
            self._steps = [step for step in self._steps if step not in old]
            with contextlib.suppress(OSError):  # another host reads it: `clean_up` tries again
                delete_unfinished(self.folder)

    def _mark_trained(self) -> None:
        """Write trained.json: a run whose checkpoints vanish must not start over."""
        if not (self.workdir / TRAINED).exists():
            atomic_write(self.workdir / TRAINED, json.dumps({"trained": True}) + "\n")

    def clean_up(self) -> None:
        """Remove the leftovers of killed saves and deletions.

        The caller holds the lock of the workdir.
        """
        if self.group.is_lead:
            delete_unfinished(self.folder, patience=60.0)
        self.group.barrier("unfinished checkpoints are removed", self.group.TIMEOUT)

    # Restoring

    def restore_latest(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str] | None = None
    ) -> tuple[TrainState, Meta] | None:
        """Restore the newest intact checkpoint.

        Newer damaged checkpoints are renamed to STEP.damaged-TIME. Errors of a device, disk or
        network do not count as damage and pass through.

        Args:
            abstract: shapes, dtypes and shardings of the state.
            digests: digests of this run's tokenizer and data.

        Returns:
            (state, meta), or None if there is no checkpoint.

        Raises:
            UserError: the checkpoint has another model, version or data, or all checkpoints are
                damaged. Nothing is changed.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self._steps):
            try:
                restored = self._restore(abstract, config, digests or {}, step)
            except DamagedCheckpoint as damage:
                damaged[step] = damage.reason
                if self.group.is_lead:
                    text = "checkpoint %d in %s is damaged (%s); using the previous one"
                    log.warning(text, step, self.folder, damage.reason)
                continue
            if damaged:
                self._set_aside(damaged)
            return restored
        if damaged:
            reasons = "\n".join(f"  {self.folder / str(n)}: {why}" for n, why in damaged.items())
            raise UserError(
                f"all checkpoints in {self.folder} are damaged; they are left where they"
                f" are:\n{reasons}\nRestore one from a backup, or use another workdir."
            )
        return None

    def _set_aside(self, steps: Iterable[int]) -> None:
        if self.group.is_lead:
            for step in steps:
                aside = f"{step}.damaged-{time.time_ns()}"
                move_folder(self.folder / str(step), self.folder / aside)
        self.group.barrier("damaged checkpoints are set aside", self.group.TIMEOUT)
        if self.group.count > 1:  # Orbax looks for the folder on every host
            for step in steps:
                appears(self.folder / str(step), exists=False)
        self._refresh_steps()

    def _restore(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str], step: int
    ) -> tuple[TrainState, Meta]:
        meta = self.meta(step)
        if meta.get("params_only"):
            raise UserError(
                f"{self.workdir} holds parameters alone, which cannot be resumed: start a new run"
                " from them in another --workdir."
            )
        check_same_model(stored_config(meta), config, f"checkpoint {step}")
        for name, digest in digests.items():
            saved = str(meta["digests"].get(name))
            if saved != digest:
                raise UserError(
                    f"checkpoint {step} in {self.workdir} was made with other {name} (digest"
                    f" {saved[:12]}, now {digest[:12]}): use another --workdir, or restore the"
                    " data."
                )
        trees = {name: tree for name in _ITEMS if (tree := getattr(abstract, name)) is not None}
        counter = jax.device_put(jnp.int32(step), abstract.step.sharding)
        return dataclasses.replace(abstract, step=counter, **self.read(step, meta, trees)), meta

    def meta(self, step: int) -> Meta:
        """Return the metadata of a step.

        Raises DamagedCheckpoint on all processes if one of them cannot read it.
        """
        meta = self._together(step, lambda: read_meta(self.folder / str(step)))
        if meta.get("step", step) != step:
            raise UserError(
                f"{self.folder / str(step)} holds the checkpoint of update {meta['step']}: rename"
                " the folder."
            )
        return meta

    def read(self, step: int, meta: Meta, abstract: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Read items of a checkpoint and compare their checksums.

        Args:
            meta: metadata of the step.
            abstract: shapes and shardings to read onto, by item: {"params": tree}.

        Raises:
            DamagedCheckpoint: on all processes, if one of them cannot read its part.
            UserError: the shapes differ; raised before any array is read.
        """
        import orbax.checkpoint as ocp

        for name, tree in abstract.items():
            if differ := shape_differences(meta["arrays"].get(name, {}), array_shapes(tree)):
                raise UserError(
                    f"checkpoint {step} in {self.folder} does not fit this program: {name}:"
                    f" {differ}. It was made by another version (t2t_flax"
                    f" {meta.get('version', 'unknown')}, this is {__version__}) or with another"
                    " optimizer. Nothing was changed. Use the version that made it, or start a new"
                    " run from its parameters."
                )
        # Not through Orbax's Checkpointer: its barrier would wait for a process whose read failed.
        handler, path = ocp.StandardCheckpointHandler(), self.folder / str(step)

        def restore(name: str) -> PyTree:
            return handler.restore(path / name, args=ocp.args.StandardRestore(abstract[name]))

        # All processes take part in the checksum of a distributed array, so all must have read
        # their part. After a failed read Orbax prints tracebacks of its other reads, also later:
        # they stay silenced, so that our message is the last one.
        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        trees = self._together(step, lambda: {name: restore(name) for name in abstract})
        sys.unraisablehook = before
        for name, tree in trees.items():
            actual, saved = checksums(tree), meta["checksums"][name]
            wrong = [leaf for leaf in saved if actual.get(leaf) != saved[leaf]]
            if wrong:
                reason = f"{name}{wrong[0]} is not what was saved ({len(wrong)} arrays differ)"
                raise DamagedCheckpoint(path, reason)
        return trees

    def _together(self, step: int, read: Callable[[], _T]) -> _T:
        """Return `read()`. If one process finds damage, all raise DamagedCheckpoint.

        Other errors are raised only where they occur.
        """
        result: _T | None = None
        damage = ""
        try:
            result = read()
        except Exception as error:
            if not is_damage(error):
                raise
            damage = f"{type(error).__name__}: {first_line(error, limit=280)}"
        for reported in self.group.all_gather(f"checkpoint {step}", damage):
            if reported:
                raise DamagedCheckpoint(self.folder / str(step), reported)
        assert result is not None
        return result


# Errors


@contextlib.contextmanager
def reporting_full_disk(folder: epath.Path) -> Iterator[None]:
    """Raise UserError where the block cannot write, and name the intact checkpoints."""
    try:
        yield
    except Exception as error:
        if broken_connection(error) or not is_write_refused(error):  # a launcher tries again
            raise
        kept = ", ".join(map(str, finished_steps(folder))) or "none"
        raise UserError(
            f"could not write a checkpoint: {first_line(error)}. Intact checkpoints: {kept}."
            f" {WRITE_HINT}"
        ) from error


def is_damage(error: BaseException | None) -> bool:
    """Return whether a read failed because the files are damaged.

    Errors of a device, a disk, the network or memory are not damage.
    """
    damage = False
    while error is not None:
        if broken_connection(error) or is_transient(error) or isinstance(error, _NEVER_DAMAGE):
            return False
        if isinstance(error, OSError) and error.errno not in _DAMAGE_ERRNOS:
            return False
        # Orbax raises a bare Exception where TensorStore cannot read an array.
        damage |= isinstance(error, (OSError, *_PARSE_ERRORS)) or type(error) is Exception
        error = error.__cause__ or error.__context__
    return damage


# Metadata and folders


def with_digest(meta: Meta) -> Meta:
    """Return `meta` with a digest of itself, so that any later change is detected."""
    plain = json.loads(json.dumps(meta))  # keys as strings, as `read_meta` finds them
    text = json.dumps(plain, sort_keys=True)
    return meta | {"digest": hashlib.sha256(text.encode()).hexdigest()}


def write_meta(checkpoint: epath.Path, meta: Meta) -> None:
    """Replace the metadata of a checkpoint."""
    atomic_write(checkpoint / "meta" / "metadata", json.dumps(with_digest(meta)))


def read_meta(checkpoint: epath.Path) -> Meta:
    """Return the metadata without its digest.

    Raises OSError, or ValueError if the metadata changed since the save.
    """
    stored = parse_json((checkpoint / "meta" / "metadata").read_text())
    meta = dict(stored) if isinstance(stored, dict) else {}
    meta.pop("digest", None)
    if not meta or with_digest(meta) != stored:
        raise ValueError("meta/metadata is not what was saved")
    return meta


def finished_steps(folder: epath.PathLike) -> list[int]:
    """Return the steps of the finished checkpoints in a folder, ascending."""
    return [step for step in list_numbers(folder) if is_finished(epath.Path(folder) / str(step))]


@dispatch_by_storage
def is_finished(checkpoint: epath.Path) -> bool:
    """Return True: a checkpoint gets its step as name only when it is finished.

    Object stores have no atomic rename, so their version of this function looks inside.
    """
    return True


@dispatch_by_storage
def mark_unfinished(checkpoint: epath.Path) -> None:
    """Rename a checkpoint for `delete_unfinished`: a kill leaves no half of it under its step."""
    checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}{_UNFINISHED}-deleted"))


def delete_unfinished(folder: epath.Path, patience: float = 0.0) -> None:
    """Delete the leftovers of killed saves and of interrupted deletions.

    Args:
        patience: seconds to keep trying. Threads of a failed save may still write arrays.
    """
    names = [n for n in list_names(folder) if n.isdigit() and not is_finished(folder / n)]
    pattern = "|".join([rf"\d+{re.escape(_UNFINISHED)}(-\d+|-deleted)?", *names])
    deadline = time.monotonic() + patience
    while True:
        try:
            return delete(folder, pattern)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
