"""Checkpoints: the only file that knows Orbax.

A checkpoint has separate items: `params`, `opt_state`, `ema` (where there is one) and `meta` (JSON: step, config,
tokenizer and data digests, checksum of every leaf, progress of the run). Evaluation restores parameters alone.
"""

import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.errors import UserError
from t2t_flax.files import is_passing, move_folder, write_whole
from t2t_flax.parallel.pod import Pod, broken_connection
from t2t_flax.training.checksum import checksums
from t2t_flax.training.state import TrainState

_ITEMS = ("params", "opt_state", "ema")
log = logging.getLogger("t2t_flax")


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be read, or whose contents are not what was saved."""


class Checkpoints:
    """The checkpoints in `folder`: the newest, the last `keep_last` that `scheduled(step)` is true of, and the best
    `keep_best` (highest metric) are kept.
    """

    def __init__(
        self,
        folder: str | epath.Path,
        *,
        keep_last: int = 1,
        keep_best: int = 0,
        scheduled: Callable[[int], bool] = lambda step: True,
        pod: Pod | None = None,
    ):
        self._pod = pod or Pod()
        self._failure: BaseException | None = None
        # Orbax writes to absolute paths only.
        self._folder = epath.Path(folder if "://" in str(folder) else os.path.abspath(folder))
        keep = [policies.LatestN(1), _LastScheduled(keep_last, scheduled)]
        if keep_best:
            metric = lambda metrics: metrics["metric"]  # noqa: E731
            keep.append(policies.BestN(get_metric_fn=metric, n=keep_best, keep_checkpoints_without_metrics=False))
        handlers = {name: ocp.StandardCheckpointHandler() for name in _ITEMS} | {"meta": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(keep),
                save_decision_policy=policies.AnySavePolicy([_Always()]),
                best_fn=lambda metrics: metrics["metric"],  # without it metrics are not written
                async_options=ocp.AsyncOptions(timeout_secs=3600, barrier_sync_fn=self._meet),
                create=True,
            ),
            item_handlers=handlers,
        )

    def steps(self) -> list[int]:
        """Steps with a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def steps_after_failure(self) -> list[int]:
        """Steps that lie whole in the folder; `steps` may still count the one that could not be written."""
        self._manager.reload()
        return self.steps()

    def save(self, state: TrainState, meta: dict[str, Any], metric: float | None = None) -> None:
        """Starts writing `state`; returns as soon as its arrays are copied. `meta` gets the leaf checksums added. A
        checkpoint of this step that is there already stays, and gets the metric of an evaluation that was made up.

        Raises what went wrong in an earlier save.
        """
        self._drain()
        if int(meta["step"]) in self.steps():
            if metric is not None:
                self._add_metric(int(meta["step"]), metric)
            return
        items = {name: getattr(state, name) for name in _ITEMS if getattr(state, name) is not None}
        meta = meta | {"checksums": {name: checksums(tree) for name, tree in items.items()}}
        args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        self._manager.save(
            int(meta["step"]),
            args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **args),
            metrics=None if metric is None else {"metric": metric},
        )

    def _add_metric(self, step: int, metric: float) -> None:
        """Where Orbax keeps it; Orbax itself cannot add to a checkpoint."""
        if self._pod.lead:
            write_whole(self._folder / str(step) / "metrics" / "metrics", json.dumps({"metric": metric}))
        self._pod.barrier("the metric of a checkpoint is written")
        self._manager.reload()

    def save_params(self, params: Any, meta: dict[str, Any], item: str = "params") -> None:
        """Writes parameters alone; they can be evaluated and trained from, not resumed."""
        meta = meta | {"checksums": {item: checksums(params)}, "params_only": True}
        args = {item: ocp.args.StandardSave(params), "meta": ocp.args.JsonSave(meta)}
        self._manager.save(int(meta["step"]), args=ocp.args.Composite(**args))

    def wait(self) -> None:
        """Returns when everything is on disk. Raises what went wrong in the background."""
        self._drain()
        self._manager.wait_until_finished()

    def _drain(self) -> None:
        while self._manager.is_saving_in_progress():
            self.check_for_errors()
            time.sleep(0.01)
        self.check_for_errors()

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's barrier for its threads, which it also enters on the way out of a failed write: one host with a full
        disk would then wait for the others and say nothing.
        """
        error = sys.exc_info()[1]
        if error is not None and self._pod.count > 1:
            self._failure = error
            raise error
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)

    def check_for_errors(self) -> None:
        """Raises what went wrong in the background so far, without waiting."""
        if self._failure:
            raise self._failure
        # `manager.check_for_errors()` would take the error away from the thread that ends the save, which would then
        # delete the older checkpoints although the new one was not written.
        if not self._manager.is_saving_in_progress():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and gives back the manager's threads."""
        self._manager.close()

    def restore_latest(self, abstract: TrainState, config: Config) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest checkpoint that is whole, with its meta; None where there is none at all.

        A damaged one is reported, moved to `damaged/`, and the one before is used. Raises UserError where the
        checkpoint was made by another model, or where all of them are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                meta = self.meta(step)
                if meta.get("params_only"):
                    raise UserError(
                        f"{self._folder.parent} holds averaged parameters, not a run that could go on: start a new run "
                        f"with --config.train.init_from={self._folder.parent} and another --workdir."
                    )
                check_same_model(config_lib.from_json(json.dumps(meta["config"])), config, f"checkpoint {step}")
                state = self._together(step, lambda step=step, meta=meta: self._restore(step, abstract, meta))
                return state, meta
            except DamagedCheckpoint as damage:
                if self._pod.lead:
                    log.warning("checkpoint %d in %s is damaged (%s); using the one before", step, self._folder, damage)
                self._set_aside(step)
        if steps:
            raise UserError(
                f"all checkpoints in {self._folder} are damaged (they are now in {self._folder.parent / 'damaged'}): "
                "restore one from a backup, or use another workdir."
            )
        return None

    def meta(self, step: int) -> dict[str, Any]:
        """The meta item of a step. Raises DamagedCheckpoint, on all processes where one cannot read it."""
        return self._together(step, lambda: self._read(step, {"meta": ocp.args.JsonRestore()}))["meta"]

    def restore_params(self, step: int, abstract_params: Any, item: str = "params") -> Any:
        """Parameters alone (or their moving average, item `ema`), onto the shardings of `abstract_params`. Raises
        DamagedCheckpoint, on all processes where one cannot read it.
        """
        meta = self.meta(step)
        return self._together(step, lambda: self._restore_items(step, {item: abstract_params}, meta))[item]

    def _together(self, step: int, read: Callable[[], Any]) -> Any:
        """What `read()` gives, if it could be read by all processes. Raises DamagedCheckpoint on all otherwise."""
        found, damage = None, ""
        try:
            found = read()
        except DamagedCheckpoint as error:
            damage = str(error)
        for answer in self._pod.agree(f"checkpoint {step}", damage):
            if answer:
                raise DamagedCheckpoint(answer)
        return found

    def _restore(self, step: int, abstract: TrainState, meta: dict[str, Any]) -> TrainState:
        items = {name: getattr(abstract, name) for name in _ITEMS if getattr(abstract, name) is not None}
        trees = self._restore_items(step, items, meta)
        counter = jax.device_put(jax.numpy.int32(meta["step"]), abstract.step.sharding)
        return TrainState(counter, trees["params"], trees["opt_state"], trees.get("ema"))

    def _restore_items(self, step: int, items: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        trees = self._read(step, {name: ocp.args.StandardRestore(tree) for name, tree in items.items()})
        for name, tree in trees.items():
            found, saved = checksums(tree), meta["checksums"][name]
            wrong = [path for path in saved if found.get(path) != saved[path]]
            if wrong:
                raise DamagedCheckpoint(f"{name}{wrong[0]} is not what was saved ({len(wrong)} arrays differ)")
        return trees

    def _read(self, step: int, args: dict[str, Any]) -> dict[str, Any]:
        """Items of a step. Raises DamagedCheckpoint unless the error lies elsewhere than in the checkpoint."""
        try:
            return dict(self._manager.restore(step, args=ocp.args.Composite(**args)).items())
        except Exception as error:
            if broken_connection(error) or is_passing(error):
                raise
            raise DamagedCheckpoint(_first_line(error)) from error

    def _set_aside(self, step: int) -> None:
        if self._pod.lead:
            target = self._folder.parent / "damaged"
            number = sum(1 for _ in target.iterdir()) if target.exists() else 0
            move_folder(self._folder / str(step), target / f"{step}-{number}")
        self._pod.barrier("a damaged checkpoint is set aside")
        self._manager.reload()


@dataclasses.dataclass
class _LastScheduled(policies.PreservationPolicy):
    """What a signal made be written between two regular checkpoints takes no place of a regular one."""

    count: int
    scheduled: Callable[[int], bool]

    def should_preserve(self, checkpoints, *, context):
        last = [c.step for c in checkpoints if self.scheduled(c.step)][-self.count :]
        return [c.step in last for c in checkpoints]


class _Always(policies.SaveDecisionPolicy):
    """The loop decides when to save; Orbax' own rule would add step 0 and leave out steps."""

    def should_save(self, step, previous_steps, *, context) -> bool:
        return True


def check_same_model(stored: Config, given: Config, what: str) -> None:
    """Raises UserError naming the keys of the model in which a stored run differs from the given config."""
    differ = {k: v for k, v in config_lib.differences(stored, given).items() if _shapes(k)}
    if differ:
        lines = "; ".join(f"{name}: {old!r} there, {new!r} here" for name, (old, new) in differ.items())
        raise UserError(f"{what} is of another model: {lines}.")


def _shapes(name: str) -> bool:
    return name.startswith("model.") and "dropout" not in name or name == "data.joint_vocabulary"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
