"""Checkpoints: the only file that knows Orbax.

A checkpoint has separate items: `params`, `opt_state`, `ema` (where there is one) and `meta` (JSON: step, config,
tokenizer and data digests, shape and checksum of every leaf, progress of the run, a digest of itself). Evaluation
restores parameters alone.
"""

import contextlib
import datetime
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup, appears
from t2t_flax.errors import UserError
from t2t_flax.filesystem import fsync_tree, is_remote, move_folder, names_in, write_whole
from t2t_flax.training.checksums import checksums
from t2t_flax.training.config_changes import check_same_model, stored_config_of
from t2t_flax.training.damage import (
    DamagedCheckpoint,
    array_shapes,
    check_seal,
    first_line,
    is_damage,
    sealed,
    shape_differences,
)
from t2t_flax.training.retention import Retention
from t2t_flax.training.train_state import TrainState
from t2t_flax.training.workdir import TRAINED
from t2t_flax.version import __version__

_ITEMS = ("params", "opt_state", "ema")
log = logging.getLogger("t2t_flax")


class Checkpoints:
    """The checkpoints in `folder`: the newest, the last `keep_last` whose meta says `scheduled`, and the best `keep_best`
    (highest finite metric, the earliest of equals) are kept.

    Opening and reading change nothing. Of several processes (`group`) all must make the same calls; process 0 lists the
    folder for all. Raises UserError where another process does not see what process 0 lists.
    """

    def __init__(
        self, folder: str | epath.Path, *, keep_last: int = 1, keep_best: int = 0, group: ProcessGroup | None = None
    ):
        self.group = group or ProcessGroup()
        self._failure: BaseException | None = None
        # Orbax writes to absolute paths only.
        self._folder = epath.Path(folder if is_remote(folder) else os.path.realpath(folder))
        self._workdir = epath.Path(folder if is_remote(folder) else os.path.abspath(folder)).parent
        self._retention = Retention(keep_last, keep_best)
        self._manager: ocp.CheckpointManager | None = None
        self._unconfirmed = False
        self._steps = self._list()

    def _list(self) -> list[int]:
        """What process 0 finds, on all processes."""
        found = _whole(self._folder) if self.group.is_lead else []
        steps = json.loads(self.group.broadcast("the checkpoints that there are", json.dumps(found)))
        blind = [step for step in steps if self.group.count > 1 and not appears(self._folder / str(step))]
        for index, answer in enumerate(
            self.group.all_gather("all see the checkpoints", str(blind[-1]) if blind else "")
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
        """Steps that lie whole in the folder; `steps` may still count the one that could not be written."""
        return _whole(self._folder)

    def metric(self, step: int) -> float | None:
        """The metric of an evaluation after this step; None where there is none, it is not finite or cannot be read."""
        for name, key in (("metrics/metrics", "metric"), ("meta/metadata", "metric")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                value = float(json.loads((self._folder / str(step) / name).read_text())[key])
                if math.isfinite(value):
                    return value
        return None

    def clean_up(self) -> None:
        """Removes what a killed save has left. For the one process that may write here."""
        if self.group.is_lead:
            for name in names_in(self._folder):
                path = self._folder / name
                if ocp.utils.TMP_DIR_SUFFIX in name or (name.isdigit() and not _finalized(path)):
                    log.info("%s was never finished and is removed", path)
                    path.rmtree(missing_ok=True)
        self.group.barrier("unfinished checkpoints are removed", self.group.MINUTES)

    def save(self, state: TrainState, meta: dict[str, Any], metric: float | None = None) -> None:
        """Starts writing `state`; returns as soon as its arrays are copied. `meta` gets shapes and checksums added. A
        checkpoint of this step that is there already keeps its arrays, and gets the progress and the metric of an
        evaluation that was made up. A metric that is not finite is none.

        Raises what went wrong in an earlier save.
        """
        self._drain()
        metric = metric if metric is not None and math.isfinite(metric) else None
        if int(meta["step"]) in self._steps:
            self._amend(int(meta["step"]), meta, metric)
            return
        items = {name: getattr(state, name) for name in _ITEMS if getattr(state, name) is not None}
        self._start(items, meta, metric)

    def metrics(self) -> dict[int, float]:
        """eval.metric (higher is better) by step, of the checkpoints that have one; the same on all processes."""
        found = {step: self.metric(step) for step in self.steps()} if self.group.is_lead else {}
        known = {step: metric for step, metric in found.items() if metric is not None}
        answer = self.group.broadcast("the metrics of the checkpoints", json.dumps(known))
        return {int(step): metric for step, metric in json.loads(answer).items()}

    def save_params(self, params: Any, meta: dict[str, Any], item: str = "params") -> None:
        """Writes parameters alone; they can be evaluated and trained from, not resumed."""
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
        self._retention.facts[step] = meta.get("scheduled", True), metric
        manager.save(
            step,
            args=ocp.args.Composite(meta=ocp.args.JsonSave(sealed(meta)), **args),
            metrics=None if metric is None else {"metric": metric},
        )
        self._steps = [*self._steps, step]
        self._unconfirmed = True

    def _amend(self, step: int, meta: dict[str, Any], metric: float | None) -> None:
        """Writes what an evaluation that was made up has changed; Orbax itself cannot add to a checkpoint."""
        if self.group.is_lead:
            folder, names = self._folder / str(step), ("scheduled", "regular_before", "progress")
            news = {name: meta[name] for name in names if name in meta} | ({} if metric is None else {"metric": metric})
            write_whole(folder / "meta" / "metadata", json.dumps(sealed(check_seal(self._parse_meta(step)) | news)))
            if metric is not None:
                write_whole(folder / "metrics" / "metrics", json.dumps({"metric": metric}))
        self.group.barrier("a checkpoint is amended", self.group.MINUTES)
        if step in self._retention.facts:
            scheduled, known = self._retention.facts[step]
            self._retention.facts[step] = meta.get("scheduled", scheduled), known if metric is None else metric

    def prepare_to_save(self) -> None:
        """Does ahead of the first save what all processes must do together. To be called after restoring."""
        self._writer()

    def _writer(self) -> ocp.CheckpointManager:
        """Made when all processes know the same checkpoints; it makes the folder."""
        if self._manager is None:
            self._retention.facts |= {step: (self._scheduled(step), self.metric(step)) for step in self._steps}
            handlers = {name: ocp.StandardCheckpointHandler() for name in _ITEMS}
            self._manager = ocp.CheckpointManager(
                self._folder,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self._retention,
                    save_decision_policy=policies.AnySavePolicy([_Always()]),
                    best_fn=lambda metrics: metrics["metric"],  # without it metrics are not written
                    lightweight_initialize=True,  # else one unreadable file of metrics stops everything
                    async_options=ocp.AsyncOptions(
                        timeout_secs=3600, barrier_sync_fn=self._meet, post_finalization_callback=self._sync
                    ),
                    create=True,
                ),
                item_handlers=handlers | {"meta": ocp.JsonCheckpointHandler()},
            )
        return self._manager

    def _scheduled(self, step: int) -> bool | None:
        """What a checkpoint's meta says; None where it cannot be read."""
        try:
            return bool(check_seal(self._parse_meta(step)).get("scheduled", True))
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not deleted
            return None

    def _sync(self) -> None:
        """Called by Orbax before the folder of a checkpoint gets its final name, and before an older one is deleted."""
        for name in names_in(self._folder):
            if ocp.utils.TMP_DIR_SUFFIX in name:
                fsync_tree(self._folder / name)

    def wait(self) -> None:
        """Returns when everything is on disk. Raises what went wrong in the background."""
        self._drain()
        if self._manager:
            self._manager.wait_until_finished()

    def _drain(self) -> None:
        while self._manager and self._manager.is_saving_in_progress():
            self.check_for_errors()
            time.sleep(0.01)
        self.check_for_errors()

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's barrier for its threads, which it also enters on the way out of a failed write: one host with a full
        disk would then wait for the others and say nothing.
        """
        error = sys.exc_info()[1]
        if error is not None and self.group.count > 1:
            self._failure = error
            raise error
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    def check_for_errors(self) -> None:
        """Raises what went wrong in the background so far, without waiting."""
        if self._failure:
            raise self._failure
        # `manager.check_for_errors()` would take the error away from the thread that ends the save, which would then
        # delete the older checkpoints although the new one was not written.
        if self._manager and not self._manager.is_saving_in_progress():
            self._manager.wait_until_finished()
            self._confirm()

    def _confirm(self) -> None:
        """After the first save that is whole: a workdir whose checkpoints are gone must not start anew."""
        if self._unconfirmed and self.group.is_lead and not (self._workdir / TRAINED).exists():
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            about = {"first_checkpoint": min(self._steps), "written": now}
            write_whole(self._workdir / TRAINED, json.dumps(about) + "\n")
        self._unconfirmed = False

    def close(self) -> None:
        """Waits, and gives back the manager's threads."""
        if self._manager:
            self._manager.close()
            self._confirm()

    def restore_latest(
        self, abstract: TrainState, config: Config, digests: Mapping[str, str] | None = None
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest checkpoint that is whole, with its meta; None where there is none at all.

        One that is damaged is reported and skipped; where an older one could be restored, it is moved to `damaged/`.
        digests: of the tokenizer and the data here; compared before arrays are read. Raises UserError, and leaves all of
        them where they are, where the checkpoint was made by another model or version, with other data, or where all
        are damaged. Raises what a device, a disk or a network raised, as it is.
        """
        damaged = dict[int, str]()
        for step in reversed(self.steps()):
            try:
                meta = self.meta(step)
                self._check_resumable(step, meta, config, digests or {})
                state = self._together(step, lambda step=step, meta=meta: self._restore(step, abstract, meta))
            except DamagedCheckpoint as damage:
                damaged[step] = str(damage)
                if self.group.is_lead:
                    log.warning("checkpoint %d in %s is damaged (%s); using the one before", step, self._folder, damage)
                continue
            if damaged:
                self._set_aside(damaged)
            return state, meta
        if damaged:
            told = "\n".join(f"  {self._folder / str(step)}: {why}" for step, why in damaged.items())
            raise UserError(
                f"all checkpoints in {self._folder} are damaged; they are left where they are:\n{told}\nRestore one from "
                "a backup, or use another workdir."
            )
        return None

    def _check_resumable(self, step: int, meta: dict[str, Any], config: Config, digests: Mapping[str, str]) -> None:
        if meta.get("params_only"):
            raise UserError(
                f"{self._workdir} holds averaged parameters, not a run that could go on: start a new run with "
                f"--config.train.init_from={self._workdir} and another --workdir."
            )
        check_same_model(stored_config_of(meta), config, f"checkpoint {step}")
        for what, mine in digests.items():
            saved = str(meta["digests"].get(what))
            if saved != mine:
                raise UserError(
                    f"checkpoint {step} in {self._workdir} was made with other {what} (digest {saved[:12]}, now "
                    f"{mine[:12]}): use another --workdir, or bring the data back."
                )

    def meta(self, step: int) -> dict[str, Any]:
        """The meta item of a step. Raises DamagedCheckpoint, on all processes where one cannot read it."""
        meta = self._together(step, lambda: check_seal(self._parse_meta(step)))
        if meta.get("step", step) != step:
            raise UserError(
                f"{self._folder / str(step)} holds the checkpoint of update {meta['step']}: rename it back."
            )
        return meta

    def _parse_meta(self, step: int) -> Any:
        return json.loads((self._folder / str(step) / "meta" / "metadata").read_text())

    def restore_params(self, step: int, abstract_params: Any, item: str = "params") -> Any:
        """Parameters alone (or their moving average, item `ema`), onto the shardings of `abstract_params`. Raises
        DamagedCheckpoint, on all processes where one cannot read it.
        """
        meta = self.meta(step)
        return self._together(step, lambda: self._restore_items(step, {item: abstract_params}, meta))[item]

    def _together(self, step: int, read: Callable[[], Any]) -> Any:
        """What `read()` gives, if it could be read by all processes. Raises DamagedCheckpoint on all otherwise; any other
        error on the process that has it.
        """
        found, damage = None, ""
        try:
            found = read()
        except DamagedCheckpoint as error:
            damage = str(error)
        except Exception as error:
            if not is_damage(error):
                raise
            damage = first_line(error)
        for answer in self.group.all_gather(f"checkpoint {step}", damage):
            if answer:
                raise DamagedCheckpoint(answer)
        return found

    def _restore(self, step: int, abstract: TrainState, meta: dict[str, Any]) -> TrainState:
        items = {name: getattr(abstract, name) for name in _ITEMS if getattr(abstract, name) is not None}
        clip_first = not any(path.startswith("[0]") for path in meta["checksums"]["opt_state"])
        if clip_first:  # clipping once was a part of the chain, with an empty state before Adam's
            items["opt_state"] = (optax.EmptyState(), *items["opt_state"])
        trees = self._restore_items(step, items, meta)
        if clip_first:
            trees["opt_state"] = trees["opt_state"][1:]
        counter = jax.device_put(jax.numpy.int32(meta["step"]), abstract.step.sharding)
        return TrainState(counter, trees["params"], trees["opt_state"], trees.get("ema"))

    def _restore_items(self, step: int, items: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        """Raises UserError for a tree that does not fit, before any array is read."""
        # Checksums of arrays that lie on several processes are computed by all of them: all must have read theirs.
        trees = self._together(step, lambda: {name: self._read(step, name, tree, meta) for name, tree in items.items()})
        for name, tree in trees.items():
            found, saved = checksums(tree), meta["checksums"][name]
            wrong = [path for path in saved if found.get(path) != saved[path]]
            if wrong:
                raise DamagedCheckpoint(f"{name}{wrong[0]} is not what was saved ({len(wrong)} arrays differ)")
        return trees

    def _read(self, step: int, name: str, tree: Any, meta: dict[str, Any]) -> Any:
        # Not through Orbax' Checkpointer: its barrier would wait for a process that could not read its part.
        handler, path = ocp.StandardCheckpointHandler(), self._folder / str(step) / name
        stored = meta["arrays"].get(name, {}) if "arrays" in meta else array_shapes(handler.metadata(path))
        differ = shape_differences(stored, array_shapes(tree))
        if differ:
            raise UserError(
                f"checkpoint {step} in {self._folder} does not fit this program: {name}: {differ}. It was made by "
                f"another version (t2t_flax {meta.get('version', 'unknown')}, this is {__version__}) or with another "
                "optimizer. Nothing was changed. Use the version that made it, or start a new run from its "
                f"parameters with --config.train.init_from={self._workdir}."
            )
        return handler.restore(path, args=ocp.args.StandardRestore(tree))

    def _set_aside(self, damaged: Mapping[int, str]) -> None:
        """Moves damaged checkpoints out of the way: on the same disk, also where `checkpoints` is a link."""
        if self.group.is_lead:
            linked = self._folder.parent != self._workdir and not is_remote(self._folder)
            target = self._folder.parent / (f"{self._folder.name}.damaged" if linked else "damaged")
            for step in damaged:
                taken = set(names_in(target))
                number = next(n for n in range(len(taken) + 1) if f"{step}-{n}" not in taken)
                move_folder(self._folder / str(step), target / f"{step}-{number}")
        self.group.barrier("damaged checkpoints are set aside", self.group.MINUTES)
        self._steps = [step for step in self._steps if step not in damaged]
        if self.group.count > 1:  # Orbax lists the folder on every host
            for step in damaged:
                appears(self._folder / str(step), there=False)


class _Always(policies.SaveDecisionPolicy):
    """The loop decides when to save; Orbax' own rule would add step 0 and leave out steps."""

    def should_save(self, step, previous_steps, *, context) -> bool:
        return True


def _whole(folder: epath.Path) -> list[int]:
    """Steps whose checkpoint was finished, ascending."""
    return sorted(int(name) for name in names_in(folder) if name.isdigit() and _finalized(folder / name))


def _finalized(path: epath.Path) -> bool:
    """On local disk a folder gets its number when it is finished; in an object store a last file says so."""
    return not is_remote(path) or ocp.path.step.is_path_finalized(path)
