"""Saving and restoring checkpoints: the only file that uses Orbax.

A checkpoint has separate items: `params`, `opt_state`, `ema` (if enabled) and `meta` (JSON: step, config, digests of
tokenizer and data, shape and checksum of every array, training progress, a digest of itself). Evaluation restores
parameters alone.
"""

import contextlib
import inspect
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import check_same_model, stored_config
from t2t_flax.distributed.coordination import ProcessGroup, appears, broken_connection
from t2t_flax.distributed.signals import report_progress
from t2t_flax.errors import WRITE_HINT, UserError, first_line
from t2t_flax.filesystem import (
    atomic_write,
    fsync_tree,
    is_write_refused,
    list_names,
    move_folder,
    real_path,
)
from t2t_flax.training import checkpoint_files as files
from t2t_flax.training.checkpoint_files import (
    DamagedCheckpoint,
    array_shapes,
    checksums,
    is_damage,
    kept_steps,
    shape_differences,
    with_digest,
)
from t2t_flax.training.train_state import TrainState, parameters_of
from t2t_flax.training.workdir import TRAINED
from t2t_flax.version import __version__

_ITEMS = ("params", "opt_state", "ema")
_TEMPORARY = re.compile(rf"\d+{re.escape(ocp.utils.TMP_DIR_SUFFIX)}(-\d+|-deleted)?")
log = logging.getLogger("t2t_flax")


class Checkpoints:
    """The checkpoints in `folder`, of which each save keeps those that `kept_steps` names.

    Opening and reading change nothing. All processes of `group` must make the same calls; process 0 lists the folder for
    all. Raises UserError where another process does not see a checkpoint that process 0 lists.
    """

    def __init__(
        self, folder: str | epath.Path, *, keep_last: int = 1, keep_best: int = 0, group: ProcessGroup | None = None
    ):
        self.group = group or ProcessGroup()
        # Orbax writes to absolute paths only.
        self.folder = real_path(folder)
        self.workdir = real_path(epath.Path(folder).parent)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._writer: ocp.AsyncCheckpointer | None = None
        self._saving = threading.Thread()
        self._failure: BaseException | None = None
        self._steps: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """Lists the folder again: all processes use the steps that process 0 sees."""
        listed = files.finished_steps(self.folder) if self.group.is_lead else []
        self._steps = json.loads(self.group.broadcast("the list of checkpoints", json.dumps(listed)))
        unseen = [step for step in self._steps if self.group.count > 1 and not appears(self.folder / str(step))]
        answers = self.group.all_gather("all see the checkpoints", str(unseen[-1]) if unseen else "")
        for index, answer in enumerate(answers):
            if answer:
                raise UserError(
                    f"{self.group.name_of(index)} does not see checkpoint {answer} in {self.folder}, which process 0 "
                    "sees: is the folder shared by all hosts, and mounted?"
                )

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending; the newest may still be in the making. Of several processes only the first one
        leaves out those that were deleted since the start.
        """
        return sorted(self._steps)

    def metrics(self) -> dict[int, float]:
        """{step: eval.metric (higher is better)} of the checkpoints that have one; the same on all processes."""
        facts = files.scheduled_and_metric(self.folder) if self.group.is_lead else {}
        known = json.dumps({step: metric for step, (_, metric) in facts.items() if metric is not None})
        message = self.group.broadcast("the metrics of the checkpoints", known)
        return {int(step): metric for step, metric in json.loads(message).items()}

    def save(self, state: TrainState, meta: Mapping[str, Any], metric: float | None = None) -> None:
        """Waits for the previous save, copies the trees of `state` that are not None, and writes them in the background. Adds
        shapes and checksums to `meta`. Raises UserError if this or the previous write fails for lack of space.
        """
        step, trees = int(meta["step"]), {name: tree for name in _ITEMS if (tree := getattr(state, name)) is not None}
        meta = dict(meta) | {
            "version": __version__,
            "arrays": {name: array_shapes(tree) for name, tree in trees.items()},
            "checksums": {name: checksums(tree) for name, tree in trees.items()},
        }
        meta |= {} if metric is None else {"metric": metric}
        items: dict[str, Any] = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        self.wait()
        # Orbax's own barriers wait five minutes; process 0 may still be deleting old checkpoints.
        self.group.barrier("the save before has ended", 3600.0)
        with reporting_full_disk(self.folder):
            self._writer = self._writer or self._open_writer()
            args = ocp.args.Composite(meta=ocp.args.JsonSave(with_digest(meta)), **items)
            self._writer.save(self.folder / str(step), args=args)
        self._steps = [*self._steps, step]
        self._saving = threading.Thread(target=self._finish_save, daemon=True, name="save")
        self._saving.start()

    def _open_writer(self) -> ocp.AsyncCheckpointer:
        # With active_processes Orbax synchronizes through the coordinator; otherwise it compiles a collective.
        processes = ocp.options.MultiprocessingOptions(active_processes=set(range(self.group.count)))
        handlers = {name: ocp.StandardCheckpointHandler(multiprocessing_options=processes) for name in _ITEMS}
        composite = ocp.CompositeOptions(multiprocessing_options=processes)
        handler = ocp.CompositeCheckpointHandler(
            composite_options=composite, meta=ocp.JsonCheckpointHandler(multiprocessing_options=processes), **handlers
        )
        options = ocp.AsyncOptions(timeout_secs=3600, post_finalization_callback=self._flush)
        return ocp.AsyncCheckpointer(handler, async_options=options, multiprocessing_options=processes)

    def _flush(self) -> None:
        """Flushes the unfinished checkpoint to disk. Orbax calls it before renaming it to its step."""
        for name in list_names(self.folder):
            if ocp.utils.TMP_DIR_SUFFIX in name:
                fsync_tree(self.folder / name)

    def _finish_save(self) -> None:
        try:
            assert self._writer
            self._writer.wait_until_finished()
            report_progress()
            self.delete_old()
        except BaseException as error:  # noqa: BLE001 - raised by `check_for_errors`
            self._failure = error

    def delete_old(self) -> None:
        """Deletes what is not kept, and marks the workdir as trained, so that it never silently starts over if its checkpoints
        vanish. Of several processes the first one does so. `save` calls it; call it after restoring, because a kill may have
        come before it.
        """
        steps = files.finished_steps(self.folder) if self.group.is_lead else []
        if steps and not (self.workdir / TRAINED).exists():
            atomic_write(self.workdir / TRAINED, json.dumps({"trained": True}) + "\n")
        if len(steps) > 1:
            facts = files.scheduled_and_metric(self.folder)
            for step in set(facts) - kept_steps(facts, self._keep_last, self._keep_best):
                files.delete_checkpoint(self.folder / str(step))
                self._steps = [other for other in self._steps if other != step]

    def add_evaluation(self, step: int, progress: dict[str, Any], metric: float | None) -> None:
        """Adds to an existing checkpoint what its evaluation changed: the entries `progress`, and the metric.
        From then on it is what it would be if it had been saved after the evaluation.
        """
        self.wait()
        if self.group.is_lead:
            meta = files.read_meta(self.folder / str(step))
            meta |= {"progress": meta["progress"] | progress} | ({} if metric is None else {"metric": metric})
            with reporting_full_disk(self.folder):  # Orbax cannot change a checkpoint once it is written
                atomic_write(self.folder / str(step) / "meta" / "metadata", json.dumps(with_digest(meta)))
        self.delete_old()
        self.group.barrier("an evaluation is added", self.group.MINUTES)

    def check_for_errors(self) -> None:
        """Raises the error of a save in the background, if one has failed so far, a full disk as UserError."""
        if self._failure:
            with reporting_full_disk(self.folder):
                raise self._failure

    def wait(self) -> None:
        """Returns when everything is on disk. Raises as `check_for_errors`."""
        self.finish_save()
        self.check_for_errors()

    def finish_save(self, timeout: float | None = None) -> None:
        """Waits for a save in the background, for at most `timeout` seconds, whether or not it fails."""
        if self._saving.ident is not None:
            self._saving.join(timeout)

    def clean_up(self) -> None:
        """Removes what killed saves and deletions left behind. Call it only while holding the lock of the workdir."""
        if self.group.is_lead:
            for name in list_names(self.folder):
                path = self.folder / name
                if _TEMPORARY.fullmatch(name) or (name.isdigit() and not files.is_finished(path)):
                    log.info("removing %s, which was never finished", path)
                    files.remove_unfinished(path)
        self.group.barrier("unfinished checkpoints are removed", self.group.MINUTES)

    def close(self) -> None:
        """Waits for a save, and ends Orbax's threads."""
        self.finish_save()
        if self._writer:
            self._writer.close()

    def restore_latest(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str] | None = None
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Restore the newest intact checkpoint, and then move newer damaged ones to `damaged/`.

        Args:
          digests: of this run's tokenizer and data.

        Returns:
          (state, meta), or None if there is no checkpoint.

        Raises:
          UserError: the checkpoint has another model, version or data, or all are damaged; nothing changes. Errors of a
            device, disk or network pass through.
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
            reasons = "\n".join(f"  {self.folder / str(step)}: {why}" for step, why in damaged.items())
            raise UserError(
                f"all checkpoints in {self.folder} are damaged; they are left where they are:\n{reasons}\n"
                "Restore one from a backup, or use another workdir."
            )
        return None

    def _set_aside(self, steps: Iterable[int]) -> None:
        """Move checkpoints to `damaged/STEP-N` beside the folder: on the same disk even if `folder` is a link."""
        linked = self.folder.parent != self.workdir
        target = self.folder.parent / (f"{self.folder.name}.damaged" if linked else "damaged")
        for step in steps if self.group.is_lead else ():
            existing = set(list_names(target))
            number = next(n for n in range(len(existing) + 1) if f"{step}-{n}" not in existing)
            move_folder(self.folder / str(step), target / f"{step}-{number}")
        self.group.barrier("damaged checkpoints are set aside", self.group.MINUTES)
        if self.group.count > 1:  # Orbax looks for the folder on every host
            for step in steps:
                appears(self.folder / str(step), exists=False)
        self.refresh()

    def _restore(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str], step: int
    ) -> tuple[TrainState, dict[str, Any]]:
        meta = self.meta(step)
        if meta.get("params_only"):
            raise UserError(
                f"{self.workdir} holds parameters alone, which cannot be resumed: start a new run from "
                "them in another --workdir."
            )
        check_same_model(stored_config(meta), config, f"checkpoint {step}")
        for name, digest in digests.items():
            saved = str(meta["digests"].get(name))
            if saved != digest:
                raise UserError(
                    f"checkpoint {step} in {self.workdir} was made with other {name} (digest {saved[:12]}, now "
                    f"{digest[:12]}): use another --workdir, or restore the data."
                )
        trees = self._read(step, meta, {name: tree for name in _ITEMS if (tree := getattr(abstract, name)) is not None})
        counter = jax.device_put(jax.numpy.int32(step), abstract.step.sharding)
        return TrainState(counter, trees["params"], trees["opt_state"], trees.get("ema")), meta

    def meta(self, step: int) -> dict[str, Any]:
        """The metadata of a step. Raises DamagedCheckpoint on all processes if one cannot read it."""
        meta = self._together(step, lambda: files.read_meta(self.folder / str(step)))
        if meta.get("step", step) != step:
            raise UserError(
                f"{self.folder / str(step)} holds the checkpoint of update {meta['step']}: rename the folder."
            )
        return meta

    def restore_params(self, step: int, abstract_params: Any, item: str = "params") -> Any:
        """Parameters alone (or their moving average, item `ema`), onto the shardings of `abstract_params`: those of the
        model. Raises DamagedCheckpoint on all processes if one cannot read them.
        """
        meta = self.meta(step)
        parameters = parameters_of(stored_config(meta))
        return parameters.merge_on_devices(self._read(step, meta, {item: parameters.extend(abstract_params)})[item])

    def _read(self, step: int, meta: dict[str, Any], items: dict[str, Any]) -> dict[str, Any]:
        """Raises UserError for a tree of other shapes before any array is read."""
        for name, tree in items.items():
            if differ := shape_differences(meta["arrays"].get(name, {}), array_shapes(tree)):
                raise UserError(
                    f"checkpoint {step} in {self.folder} does not fit this program: {name}: {differ}. It was made by "
                    f"another version (t2t_flax {meta.get('version', 'unknown')}, this is {__version__}) or with another "
                    "optimizer. Nothing was changed. Use the version that made it, or start a new run from its "
                    "parameters."
                )
        # Not through Orbax's Checkpointer: its barrier would wait for a process that failed to read its part.
        handler, path = ocp.StandardCheckpointHandler(), self.folder / str(step)
        restored = lambda name: handler.restore(path / name, args=ocp.args.StandardRestore(items[name]))  # noqa: E731
        # All processes compute the checksum of a distributed array, so all must have read their part.
        with _first_failure_only():
            trees = self._together(step, lambda: {name: restored(name) for name in items})
        for name, tree in trees.items():
            actual, saved = checksums(tree, once=True), meta["checksums"][name]
            wrong = [path for path in saved if actual.get(path) != saved[path]]
            if wrong:
                raise DamagedCheckpoint(path, f"{name}{wrong[0]} is not what was saved ({len(wrong)} arrays differ)")
        return trees

    def _together(self, step: int, read: Callable[[], Any]) -> Any:
        """`read()` on every process. Raises DamagedCheckpoint on all of them if one finds damage; other errors only where they
        occur.
        """
        result, damage = None, ""
        try:
            result = read()
        except Exception as error:
            if not is_damage(error):
                raise
            damage = f"{type(error).__name__}: {first_line(error, limit=280)}"
        for reported in self.group.all_gather(f"checkpoint {step}", damage):
            if reported:
                raise DamagedCheckpoint(self.folder / str(step), reported)
        return result


@contextlib.contextmanager
def _first_failure_only() -> Iterator[None]:
    """Drop what Orbax's other reads raise, also later, after one has failed: Python would print tracebacks."""
    before = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if not (inspect.iscoroutine(unraisable.object) or "loop is closed" in str(unraisable.exc_value)):
            before(unraisable)

    sys.unraisablehook = report
    yield
    sys.unraisablehook = before  # not after a failure: some reads are still in progress


@contextlib.contextmanager
def reporting_full_disk(folder: epath.Path) -> Iterator[None]:
    """Raises UserError where the block cannot write, naming the intact checkpoints in the folder."""
    try:
        yield
    except Exception as error:
        if broken_connection(error) or not is_write_refused(error):  # to be retried: no user error
            raise
        kept = ", ".join(map(str, files.finished_steps(folder))) or "none"
        raise UserError(
            f"could not write a checkpoint: {first_line(error)}. Intact checkpoints: {kept}. {WRITE_HINT}"
        ) from error
