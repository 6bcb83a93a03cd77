"""Saving and restoring checkpoints: the only file that uses Orbax.

A checkpoint has separate items: `params`, `opt_state`, `ema` (if enabled) and `meta` (JSON: step, config, digests of
tokenizer and data, shape and checksum of every array, training progress, a digest of itself). Evaluation restores
parameters alone.
"""

import functools
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup, appears
from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write, fsync_tree, list_names, real_path
from t2t_flax.training import checkpoint_files as files
from t2t_flax.training.checkpoint_schedule import was_scheduled
from t2t_flax.training.checksums import checksums
from t2t_flax.training.config_changes import check_same_model, stored_config
from t2t_flax.training.damage import (
    DamagedCheckpoint,
    array_shapes,
    describe_error,
    is_damage,
    shape_differences,
    with_digest,
)
from t2t_flax.training.parameters import parameters_of
from t2t_flax.training.retention import Retention
from t2t_flax.training.train_state import TrainState
from t2t_flax.training.workdir import TRAINED
from t2t_flax.version import __version__

_ITEMS = ("params", "opt_state", "ema")
_DELETED = "deleted"
"""Folder of the checkpoints that are being deleted: a kill in between leaves no half of one under its number."""
log = logging.getLogger("t2t_flax")


class Checkpoints:
    """The checkpoints in `folder`, of which `Retention` keeps the newest, the last `keep_last` and the best `keep_best`.

    Opening and reading change nothing. All processes of `group` must make the same calls; process 0 lists the folder for
    all. Raises UserError where another process does not see a checkpoint that process 0 lists.
    """

    def __init__(
        self, folder: str | epath.Path, *, keep_last: int = 1, keep_best: int = 0, group: ProcessGroup | None = None
    ):
        self.group = group or ProcessGroup()
        self._failure: BaseException | None = None
        # Orbax writes to absolute paths only.
        self._folder = real_path(folder)
        self._workdir = real_path(epath.Path(folder).parent)
        self._retention = Retention(keep_last, keep_best)
        self._manager: ocp.CheckpointManager | None = None
        self._unconfirmed = False
        self._emptying: threading.Thread | None = None
        self._steps = self._list()

    def _list(self) -> list[int]:
        """The steps that process 0 lists, on all processes."""
        listed = files.finished_steps(self._folder) if self.group.is_lead else []
        steps = json.loads(self.group.broadcast("the list of checkpoints", json.dumps(listed)))
        unseen = [step for step in steps if self.group.count > 1 and not appears(self._folder / str(step))]
        for index, answer in enumerate(
            self.group.all_gather("all see the checkpoints", str(unseen[-1]) if unseen else "")
        ):
            if answer:
                raise UserError(
                    f"{self.group.name_of(index)} does not see checkpoint {answer} in {self._folder}, which process 0 "
                    "sees: is the folder shared by all hosts, and mounted?"
                )
        return steps

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending."""
        return sorted(self._steps)

    def steps_after_failure(self) -> list[int]:
        """Steps finished on disk; `steps` may still count one that could not be written."""
        return files.finished_steps(self._folder)

    def metric(self, step: int) -> float | None:
        """The metric of the evaluation after this step; None where it is missing, unreadable or not finite."""
        return files.read_metric(self._folder / str(step))

    def clean_up(self) -> None:
        """Removes what killed saves left behind. Call it only while holding the lock of the workdir."""
        if self.group.is_lead:
            for name in list_names(self._folder):
                path = self._folder / name
                if ocp.utils.TMP_DIR_SUFFIX in name or (name.isdigit() and not files.is_finished(path)):
                    log.info("removing %s, which was never finished", path)
                    files.remove_unfinished(path)
            files.remove_unfinished(self._folder / _DELETED)
        self.group.barrier("unfinished checkpoints are removed", self.group.MINUTES)

    def save(self, state: TrainState, meta: dict[str, Any], metric: float | None = None) -> None:
        """Starts writing `state` and returns once its arrays are copied. Shapes and checksums are added to `meta`.

        A metric that is not finite is dropped. Raises the error of an earlier save.
        """
        self._drain()
        metric = metric if metric is not None and math.isfinite(metric) else None
        items = {name: getattr(state, name) for name in _ITEMS if getattr(state, name) is not None}
        self._start(items, meta, metric)

    def metrics(self) -> dict[int, float]:
        """{step: eval.metric (higher is better)} of the checkpoints that have one; the same on all processes."""
        metrics = {step: self.metric(step) for step in self.steps()} if self.group.is_lead else {}
        known = {step: metric for step, metric in metrics.items() if metric is not None}
        message = self.group.broadcast("the metrics of the checkpoints", json.dumps(known))
        return {int(step): metric for step, metric in json.loads(message).items()}

    def save_params(self, params: Any, meta: dict[str, Any], item: str = "params") -> None:
        """Starts writing parameters alone: for evaluation and fine-tuning, not for resuming."""
        self._start({item: params}, meta | {"params_only": True}, None)

    def _start(self, items: dict[str, Any], meta: dict[str, Any], metric: float | None) -> None:
        step = int(meta["step"])
        meta = meta | {
            "version": __version__,
            "arrays": {name: array_shapes(tree) for name, tree in items.items()},
            "checksums": {name: checksums(tree) for name, tree in items.items()},
        }
        meta |= {} if metric is None else {"metric": metric}
        args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        manager = self._writer()
        self._retention.facts[step] = was_scheduled(meta), metric
        manager.save(step, args=ocp.args.Composite(meta=ocp.args.JsonSave(with_digest(meta)), **args))
        self._steps = [*self._steps, step]
        self._unconfirmed = True

    def add_evaluation(self, step: int, progress: dict[str, Any], metric: float | None) -> None:
        """Adds to an existing checkpoint what its evaluation changed: the entries `progress`, and the metric if it is
        finite. From then on it is what it would be if it had been saved after the evaluation.
        """
        self._drain()
        metric = metric if metric is not None and math.isfinite(metric) else None
        if self.group.is_lead:
            files.write_evaluation(self._folder / str(step), progress, metric)
        self.group.barrier("an evaluation is added", self.group.MINUTES)
        scheduled, known = self._retention.facts[step]
        self._retention.facts[step] = scheduled, known if metric is None else metric
        self._delete_old()

    def prepare_to_save(self) -> None:
        """Opens Orbax's manager, which all processes must do together, before the first save, and finishes what a kill may
        have prevented after the last one. Call it after restoring.
        """
        self._writer()
        self._delete_old()
        self._unconfirmed = bool(self._steps)
        self._confirm()

    def _delete_old(self) -> None:
        """Deletes what the retention policy does not keep, as Orbax does after each save. Process 0 decides for all."""
        steps = self._list()
        old = sorted(set(steps) - self._retention.kept(steps))
        for step in json.loads(self.group.broadcast("old checkpoints", json.dumps(old))):
            self._writer().delete(step)
            steps.remove(step)
        self._empty_deleted()
        self._steps = steps

    def _empty_deleted(self) -> None:
        """Removes the files of deleted checkpoints in a thread, so that training does not wait."""
        if self.group.is_lead:
            self._emptying = threading.Thread(
                target=files.remove_unfinished, args=(self._folder / _DELETED,), daemon=True
            )
            self._emptying.start()

    def _writer(self) -> ocp.CheckpointManager:
        """Orbax's manager, opened on first use, which creates the folder."""
        if self._manager is None:
            self._retention.facts |= {
                step: (files.read_scheduled(self._folder / str(step)), self.metric(step)) for step in self._steps
            }
            handlers = {name: ocp.StandardCheckpointHandler() for name in _ITEMS}
            self._manager = ocp.CheckpointManager(
                self._folder,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self._retention,
                    save_decision_policy=policies.AnySavePolicy([_Always()]),
                    lightweight_initialize=True,  # reads nothing of older checkpoints
                    todelete_subdir=_DELETED,
                    async_options=ocp.AsyncOptions(
                        timeout_secs=3600, barrier_sync_fn=self._meet, post_finalization_callback=self._sync
                    ),
                    create=True,
                ),
                item_handlers=handlers | {"meta": ocp.JsonCheckpointHandler()},
            )
        return self._manager

    def _sync(self) -> None:
        """Flushes unfinished checkpoints to disk. Orbax calls it before renaming a new one and deleting an old one."""
        for name in list_names(self._folder):
            if ocp.utils.TMP_DIR_SUFFIX in name:
                fsync_tree(self._folder / name)

    def wait(self) -> None:
        """Waits until everything is on disk. Raises the error of a background save."""
        self._drain()
        if self._manager:
            self._manager.wait_until_finished()

    def _drain(self) -> None:
        while self._manager and self._manager.is_saving_in_progress():
            self.check_for_errors()
            time.sleep(0.01)
        self.check_for_errors()
        if self._emptying:
            self._emptying.join()

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """The barrier of Orbax's threads. Orbax enters it after a failed write too, where a host with a full disk would
        wait for the others without reporting: here it raises instead.
        """
        error = sys.exc_info()[1]
        if error is not None and self.group.count > 1:
            self._failure = error
            raise error
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    def check_for_errors(self) -> None:
        """Raises the error of a background save, if one has failed so far; does not wait."""
        if self._failure:
            raise self._failure
        # `manager.check_for_errors()` would consume the error before the thread that ends the save sees it; that thread
        # would then delete older checkpoints although the new one was not written.
        if self._manager and not self._manager.is_saving_in_progress():
            self._manager.wait_until_finished()
            self._confirm()

    def _confirm(self) -> None:
        """Marks the workdir after the first finished save: if its checkpoints vanish, it must not restart silently. Empties
        the folder of deleted checkpoints.
        """
        if self._unconfirmed and self.group.is_lead and not (self._workdir / TRAINED).exists():
            atomic_write(self._workdir / TRAINED, json.dumps({"trained": True}) + "\n")
        if self._unconfirmed:
            self._empty_deleted()
        self._unconfirmed = False

    def close(self) -> None:
        """Waits for saves and ends Orbax's threads."""
        if self._manager:
            self._manager.close()
            self._confirm()
        if self._emptying:
            self._emptying.join()

    def restore_latest(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str] | None = None
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """(state, meta) of the newest intact checkpoint; None where there is no checkpoint at all.

        Damaged checkpoints are reported and skipped; once an older one is restored, they are moved to `damaged/`.
        digests: of this run's tokenizer and data, compared before arrays are read. Raises UserError, and changes nothing,
        where the checkpoint has another model, version or data, or all are damaged. Errors of a device, disk or network
        pass through.
        """
        damaged = dict[int, str]()
        for step in reversed(self.steps()):
            try:
                meta = self.meta(step)
                self._check_resumable(step, meta, config, digests or {})
                state = self._together(step, functools.partial(self._restore, step, abstract, meta))
            except DamagedCheckpoint as damage:
                damaged[step] = str(damage)
                if self.group.is_lead:
                    log.warning(
                        "checkpoint %d in %s is damaged (%s); using the previous one", step, self._folder, damage
                    )
                continue
            if damaged:
                self._set_aside(damaged)
            return state, meta
        if damaged:
            reasons = "\n".join(f"  {self._folder / str(step)}: {why}" for step, why in damaged.items())
            raise UserError(
                f"all checkpoints in {self._folder} are damaged; they are left where they are:\n{reasons}\nRestore one from "
                "a backup, or use another workdir."
            )
        return None

    def _check_resumable(self, step: int, meta: dict[str, Any], config: Config, digests: Mapping[str, str]) -> None:
        if meta.get("params_only"):
            raise UserError(
                f"{self._workdir} holds parameters alone (averaged or imported), which cannot be resumed: start a new run from "
                "them in another --workdir."
            )
        check_same_model(stored_config(meta), config, f"checkpoint {step}")
        for name, digest in digests.items():
            saved = str(meta["digests"].get(name))
            if saved != digest:
                raise UserError(
                    f"checkpoint {step} in {self._workdir} was made with other {name} (digest {saved[:12]}, now "
                    f"{digest[:12]}): use another --workdir, or restore the data."
                )

    def meta(self, step: int) -> dict[str, Any]:
        """The metadata of a step. Raises DamagedCheckpoint on all processes if one cannot read it."""
        meta = self._together(step, lambda: files.read_meta(self._folder / str(step)))
        if meta.get("step", step) != step:
            raise UserError(
                f"{self._folder / str(step)} holds the checkpoint of update {meta['step']}: rename the folder."
            )
        return meta

    def restore_params(self, step: int, abstract_params: Any, item: str = "params") -> Any:
        """Parameters alone (or their moving average, item `ema`), onto the shardings of `abstract_params`: those of the
        model. Raises DamagedCheckpoint on all processes if one cannot read them.
        """
        meta = self.meta(step)
        parameters = parameters_of(stored_config(meta))
        abstract_params = parameters.extend(abstract_params)
        params = self._together(step, lambda: self._restore_items(step, {item: abstract_params}, meta))[item]
        return parameters.merge_on_devices(params)

    def _together(self, step: int, read: Callable[[], Any]) -> Any:
        """`read()` on every process. Raises DamagedCheckpoint on all of them if it did so on one; other errors only where
        they occur.
        """
        result, damage = None, ""
        try:
            result = read()
        except DamagedCheckpoint as error:
            damage = str(error)
        except Exception as error:
            if not is_damage(error):
                raise
            damage = describe_error(error)
        for reported in self.group.all_gather(f"checkpoint {step}", damage):
            if reported:
                raise DamagedCheckpoint(reported)
        return result

    def _restore(self, step: int, abstract: TrainState, meta: dict[str, Any]) -> TrainState:
        items = {name: getattr(abstract, name) for name in _ITEMS if getattr(abstract, name) is not None}
        trees = self._restore_items(step, items, meta)
        counter = jax.device_put(jax.numpy.int32(meta["step"]), abstract.step.sharding)
        return TrainState(counter, trees["params"], trees["opt_state"], trees.get("ema"))

    def _restore_items(self, step: int, items: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        """Raises UserError for a tree of other shapes before any array is read."""
        # All processes compute the checksum of a distributed array, so all must have read their part.
        trees = self._together(step, lambda: {name: self._read(step, name, tree, meta) for name, tree in items.items()})
        for name, tree in trees.items():
            actual, saved = checksums(tree, once=True), meta["checksums"][name]
            wrong = [path for path in saved if actual.get(path) != saved[path]]
            if wrong:
                raise DamagedCheckpoint(f"{name}{wrong[0]} is not what was saved ({len(wrong)} arrays differ)")
        return trees

    def _read(self, step: int, name: str, tree: Any, meta: dict[str, Any]) -> Any:
        # Not through Orbax's Checkpointer: its barrier would wait for a process that failed to read its part.
        handler, path = ocp.StandardCheckpointHandler(), self._folder / str(step) / name
        differ = shape_differences(meta["arrays"].get(name, {}), array_shapes(tree))
        if differ:
            raise UserError(
                f"checkpoint {step} in {self._folder} does not fit this program: {name}: {differ}. It was made by "
                f"another version (t2t_flax {meta.get('version', 'unknown')}, this is {__version__}) or with another "
                "optimizer. Nothing was changed. Use the version that made it, or start a new run from its "
                "parameters."
            )
        return handler.restore(path, args=ocp.args.StandardRestore(tree))

    def _set_aside(self, damaged: Mapping[int, str]) -> None:
        if self.group.is_lead:
            files.set_aside(self._folder, self._workdir, damaged)
        self.group.barrier("damaged checkpoints are set aside", self.group.MINUTES)
        self._steps = [step for step in self._steps if step not in damaged]
        if self.group.count > 1:  # Orbax lists the folder on every host
            for step in damaged:
                appears(self._folder / str(step), exists=False)


class _Always(policies.SaveDecisionPolicy):
    """The loop decides when to save; Orbax's own rule would add step 0 and skip others."""

    def should_save(self, step, previous_steps, *, context) -> bool:
        return True
