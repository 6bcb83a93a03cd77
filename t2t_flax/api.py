"""The Python API: what the commands do, as functions.

`config` is a preset's name, a config file (`FILE.py[:variant]`, or a run's config.json), an edited
`t2t_flax.config.default_config()`, or a resolved `Config`; `overrides` is `{"model.dropout": 0.2}`. Mistakes raise
`t2t_flax.errors.UserError`. Settings of the process (`mesh.cpu_devices`, the allocator) take effect only before JAX touches a
device: call these functions before other JAX code. `load` and `explain` take the devices that there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from t2t_flax.errors import UserError

if TYPE_CHECKING:  # nothing heavy is imported before it is needed
    import ml_collections
    from etils import epath

    from t2t_flax.config import Config
    from t2t_flax.distributed.supervisor import RunSupervisor
    from t2t_flax.evaluation.restore import TrainedModel
    from t2t_flax.jobs import TrainResult

    ConfigLike: TypeAlias = str | os.PathLike[str] | Config | ml_collections.ConfigDict


def train(config: ConfigLike, workdir: epath.PathLike, overrides: Mapping[str, Any] | None = None) -> TrainResult:
    """Trains, or resumes what the workdir holds, evaluates at the end, and returns how it ended.

    Checkpoints, metrics and records are written to the workdir exactly as by the command `train`. SIGTERM, SIGHUP and Ctrl-C
    stop the run after a checkpoint (`result.finished` is then False); the same call goes on. Raises UserError, and
    `t2t_flax.errors.NonFiniteUpdate` where an update was not finite.
    """
    from etils import epath

    from t2t_flax import jobs
    from t2t_flax.distributed.supervisor import run_job
    from t2t_flax.errors import NonFiniteUpdate
    from t2t_flax.filesystem import check_workdir

    resolved, path = resolve(config, overrides), epath.Path(workdir)
    check_workdir(path)
    notes = _prepare_process(resolved)

    def body(supervisor: RunSupervisor) -> TrainResult | NonFiniteUpdate:
        try:
            return jobs.train(resolved, path, supervisor, notes)
        except NonFiniteUpdate as error:  # in all processes, none of which has failed
            return error

    result = run_job(resolved, body)
    if isinstance(result, NonFiniteUpdate):
        raise result
    return result


def prepare(config: ConfigLike, workdir: epath.PathLike, overrides: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Trains the tokenizer and writes the token stores of a run, as `train` does when they are missing.

    Returns the number of sentence pairs by split, `{"train": 90000, "valid": 1000}`; of several validation sets each has one.
    """
    from etils import epath

    from t2t_flax import jobs

    corpus = jobs.prepare(resolve(config, overrides), epath.Path(workdir))
    stores = {"train": corpus.train} | corpus.valid
    return {split: store.num_pairs for split, store in stores.items()}


def evaluate(
    workdir: epath.PathLike,
    split: str = "test",
    *,
    step: int | None = None,
    average: int = 0,
    best: bool = False,
    overrides: Mapping[str, Any] | None = None,
    output: epath.PathLike | None = None,
) -> dict[str, dict[str, Any]]:
    """Decodes and scores test sets with a trained run, and writes a record of each to WORKDIR/eval, or to OUTPUT/eval.

    split: "valid" or "test" (every set of config.data.valid, of config.data.test), or the name of a set ("valid.NAME" of one of
    several validation sets). step, average, best: as in `load`.
    Returns the records by name of the set: `evaluate("runs/toy")["test"]["scores"]["sacrebleu"]["score"]`.
    """
    import dataclasses

    from etils import epath

    from t2t_flax import jobs
    from t2t_flax.data.dataset import sets_of
    from t2t_flax.distributed.coordination import check_shared
    from t2t_flax.distributed.supervisor import run_job
    from t2t_flax.evaluation.restore import load as load_run
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.filesystem import check_can_write
    from t2t_flax.model_forms import check_writable

    remedy = f"name {'another' if output else 'a'} folder for the records, --output=DIR"
    if not output:
        check_writable(workdir, remedy)
    texts, folder = _as_text(overrides), epath.Path(output or workdir)
    config = stored_config(workdir, texts)
    sets = sets_of(config, split)
    check_can_write(folder / "eval", remedy)
    _prepare_process(config)

    def body(supervisor: RunSupervisor) -> dict[str, dict[str, Any]]:
        group = supervisor.group
        check_shared(group, folder, "--output" if output else "--workdir")
        jobs.check_scores(config, sets, group)
        with supervisor.exit_on_signal("evaluating"):
            loaded = load_run(workdir, step=step, average=average, best=best, overrides=texts, group=group)
            loaded = dataclasses.replace(loaded, workdir=folder, elsewhere=bool(output))
            records = jobs.evaluate(loaded, sets, supervisor).records
            group.barrier("evaluated")
        return records

    return run_job(config, body)


def load(
    workdir: epath.PathLike,
    *,
    step: int | None = None,
    average: int = 0,
    best: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> TrainedModel:
    """A trained run, restored on whatever devices there are: `load("runs/toy").translate(["It is late."])`.

    `workdir` may also name a model of another form (`model_forms`). The parameters are those of the newest checkpoint,
    of checkpoint `step`, the mean of the last `average` up to it, or the `best` by eval.metric. The result has
    `translate(lines)` and `score(pairs)`. overrides change how it decodes: `{"decode.beam_size": 8}`.
    """
    from t2t_flax.evaluation.restore import load as load_run
    from t2t_flax.evaluation.restore import stored_config

    texts = _as_text(overrides)
    _prepare_process(stored_config(workdir, texts), devices="mesh.cpu_devices" in texts)
    return load_run(workdir, step=step, average=average, best=best, overrides=texts)


def explain(config: ConfigLike, overrides: Mapping[str, Any] | None = None) -> str:
    """Parameters by group, batches, learning rates and memory of a run of this config, as text."""
    resolved = resolve(config, overrides)
    _prepare_process(resolved, devices=False)
    from t2t_flax.training.model_summary import describe

    return describe(resolved)


def resolve(config: ConfigLike, overrides: Mapping[str, Any] | None = None) -> Config:
    """The checked, frozen config. Raises UserError that names an unknown key, a wrong value or an impossible combination."""
    from t2t_flax import config as config_lib
    from t2t_flax.config.overrides import check_evaluation

    texts = _as_text(overrides)
    if isinstance(config, str | os.PathLike):
        return config_lib.load_config(os.fspath(config), texts)
    if isinstance(config, config_lib.Config):
        config = config_lib.to_config_dict(config)
    resolved = config_lib.resolve(config_lib.override(config, texts))
    check_evaluation(resolved)
    return resolved


def _as_text(overrides: Mapping[str, Any] | None) -> dict[str, str]:
    """Overrides as the command line has them; their types are checked by the keys."""
    return {key: value if isinstance(value, str) else str(value) for key, value in (overrides or {}).items()}


def _prepare_process(config: Config, *, devices: bool = True) -> list[str]:
    """Applies the settings of the process. devices: whether config.mesh.cpu_devices must be what it says; without it, a process
    that has begun to use its devices keeps them.
    """
    from t2t_flax.process_setup import prepare_process

    try:
        return prepare_process(config)
    except RuntimeError:  # JAX has begun to use its devices
        if not devices:
            return []
        raise UserError(
            f"config.mesh.cpu_devices = {config.mesh.cpu_devices} must be set before JAX touches a device: make this the first "
            "JAX call of the process, or set mesh.cpu_devices = 1."
        ) from None


__all__: Sequence[str] = ("evaluate", "explain", "load", "prepare", "resolve", "train")
