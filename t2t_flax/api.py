"""Python API: the commands as functions.

`config` is a preset's name, a config file (`FILE.py[:variant]`, or a run's config.json), an edited
`t2t_flax.config.default_config()`, or a resolved `Config`. `overrides` is a dict such as
`{"model.dropout": 0.2}`. Mistakes raise `t2t_flax.errors.UserError`. Process settings
(`mesh.cpu_devices`, the allocator) take effect only before JAX touches a device, so call these
functions before other JAX code. `load` and `explain` use the existing devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from t2t_flax.errors import NonFiniteUpdate, UserError

if TYPE_CHECKING:  # nothing heavy is imported before it is needed
    import ml_collections
    from etils import epath

    from t2t_flax.config import Config
    from t2t_flax.distributed.coordination import ProcessGroup
    from t2t_flax.evaluation.restore import TrainedModel

    ConfigLike: TypeAlias = str | os.PathLike[str] | Config | ml_collections.ConfigDict


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Result of `train`.

    Attributes:
        reason: "steps" (all updates done), "patience" or a config key (stopped early), or the name
            of the signal that stopped the run.
        records: evaluation record of each test set; empty if the run was stopped or has no test
            set.
    """

    workdir: epath.Path
    step: int
    reason: str
    records: dict[str, epath.Path]

    @property
    def finished(self) -> bool:
        return not self.reason.startswith("SIG")


def train(
    config: ConfigLike, workdir: epath.PathLike, overrides: Mapping[str, object] | None = None
) -> TrainResult:
    """Train a new run, or resume the one in the workdir, and evaluate it.

    Checkpoints, metrics and records are written to the workdir, exactly as by the command `train`.
    SIGTERM, SIGHUP and Ctrl-C stop the run after a checkpoint (`result.finished` is then False).
    The same call continues it. For a complete run the stored result is returned. Raises UserError,
    and `t2t_flax.errors.NonFiniteUpdate` where an update was not finite.
    """
    from etils import epath

    from t2t_flax.files import check_workdir

    config, workdir = resolve(config, overrides), epath.Path(workdir)
    check_workdir(workdir)
    notes = _prepare_process(config)

    from t2t_flax.config.overrides import check_average, check_patience
    from t2t_flax.data.dataset import prepare_corpus
    from t2t_flax.data.splits import check_sources
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.distributed.coordination import check_shared
    from t2t_flax.distributed.supervisor import run_job
    from t2t_flax.evaluation.evaluate import validation_score
    from t2t_flax.evaluation.sets import check_scores, finish
    from t2t_flax.tasks import task_of
    from t2t_flax.training import loop, precision
    from t2t_flax.training import workdir as workdir_lib
    from t2t_flax.training.model_summary import describe_run
    from t2t_flax.training.progress import bars
    from t2t_flax.training.setup import set_up_training

    with run_job(config) as supervisor, contextlib.ExitStack() as stack:
        group, say = supervisor.group, supervisor.group.say

        # The workdir: a complete run needs no lock, because its folder may be read-only by now.
        if group.is_lead:
            workdir_lib.check_run_folder(workdir)
        check_shared(group, workdir, "--workdir")
        if result := _completed(config, workdir, group):
            return result
        with supervisor.exit_on_signal("waiting for the lock of the workdir"):
            stack.enter_context(workdir_lib.writing(workdir, "train", group))
        if result := _completed(config, workdir, group):  # completed by the last holder of the lock
            return result

        # Refusals, before anything is written.
        for keys in config.extension_groups.values():
            keys.check_installed()
        decoded = config.data.valid_sets if config.eval.decode_every_steps else ()
        check_scores(config, [*decoded, *config.data.test_sets], group)
        config = precision.with_precision(config, workdir, group)
        mesh_lib.check_divisibility(config, mesh_lib.make_mesh(config.mesh))
        if group.is_lead:
            workdir_lib.check_config(workdir, config)
            with supervisor.exit_on_signal("looking for the data"):
                check_sources(task_of(config))
            workdir_lib.adopt_config(workdir, config)
        group.barrier("config", group.TIMEOUT)

        # The data and the parts of the run.
        with supervisor.exit_on_signal("preparing the data"), bars(quiet=not group.is_lead) as bar:
            corpus = prepare_corpus(task_of(config), workdir, bar, group)
        setup = set_up_training(config, workdir, corpus)
        check_average(config, setup.batches.updates_per_epoch)
        if config.eval.every_epochs:
            check_patience(config, setup.batches.updates_per_epoch)
        say("\n".join([*describe_run(setup, group), *notes]))
        if advice := precision.advice(config, decoding=False):
            say(advice)

        # Updates.
        try:
            end = loop.train(setup, validation_score(setup, supervisor), say, supervisor)
        except NonFiniteUpdate as error:  # raised in all processes: they read the same numbers
            if group.is_lead:
                workdir_lib.mark(workdir, error)
                error.add_note(workdir_lib.advice(config, workdir))
            raise
        say("time: " + "  ".join(f"{name} {value:.1f} s" for name, value in end.seconds.items()))
        end = dataclasses.replace(end, state=None)  # frees its memory
        if not end.finished:
            say(
                f"stopped by {end.reason} after update {end.step}, saved; give the same command"
                " again to go on"
            )
            return TrainResult(workdir, end.step, end.reason, {})

        # The final evaluation.
        with supervisor.exit_on_signal("evaluating at the end"):
            records = finish(config, workdir, end, supervisor)
            group.barrier("finished")
        return TrainResult(workdir, end.step, end.reason, records)


def prepare(
    config: ConfigLike, workdir: epath.PathLike, overrides: Mapping[str, object] | None = None
) -> dict[str, int]:
    """Train the tokenizer and write the token stores of a run.

    `train` does the same when they are missing. Returns the number of sentence pairs by split, such
    as `{"train": 90000, "valid": 1000}`, with one entry for each validation set.
    """
    from etils import epath

    from t2t_flax.data.dataset import describe_train, prepare_corpus
    from t2t_flax.data.splits import check_sources
    from t2t_flax.files import check_workdir
    from t2t_flax.tasks import task_of
    from t2t_flax.training.progress import bars
    from t2t_flax.training.workdir import adopt_config, check_run_folder, writing

    config, workdir = resolve(config, overrides), epath.Path(workdir)
    check_workdir(workdir)
    check_run_folder(workdir)
    task = task_of(config)
    check_sources(task)
    with writing(workdir, "prepare"), bars() as bar:
        adopt_config(workdir, config, train=False)
        corpus = prepare_corpus(task, workdir, bar)
    print(f"train: {describe_train(config, corpus)}")
    for name, store in corpus.valid.items():
        print(f"{name}: {store.describe()}")
    return {
        split: store.num_pairs for split, store in ({"train": corpus.train} | corpus.valid).items()
    }


def evaluate(
    workdir: epath.PathLike,
    split: str = "test",
    *,
    step: int | None = None,
    average: int = 0,
    best: bool = False,
    overrides: Mapping[str, object] | None = None,
    output: epath.PathLike | None = None,
) -> dict[str, dict[str, Any]]:
    """Decode and score test sets with a trained run.

    Writes one record for each set to WORKDIR/eval, or to OUTPUT/eval. Returns the records by name
    of the set: `evaluate("runs/toy")["test"]["scores"]["sacrebleu"]["score"]`.

    Args:
        split: "valid" or "test" for all sets of config.data.valid or config.data.test, or the name
            of one set, such as "valid.NAME" among several validation sets.
        step, average, best: choice of checkpoints, see `load`.
        output: folder for the records; default: the workdir.
    """
    from etils import epath

    from t2t_flax.data.splits import sets_of
    from t2t_flax.distributed.coordination import check_shared
    from t2t_flax.distributed.supervisor import run_job
    from t2t_flax.evaluation.restore import load as load_run
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.evaluation.sets import check_scores, evaluate_sets
    from t2t_flax.files import check_can_write
    from t2t_flax.model_forms import check_writable

    remedy = f"name {'another' if output else 'a'} folder for the records, --output=DIR"
    if not output:
        check_writable(workdir, remedy)
    texts, folder = _as_text(overrides), epath.Path(output or workdir)
    config = stored_config(workdir, texts)
    sets = sets_of(config, split)
    check_can_write(folder / "eval", remedy)
    _prepare_process(config)
    with run_job(config) as supervisor:
        group = supervisor.group
        check_shared(group, folder, "--output" if output else "--workdir")
        check_scores(config, sets, group)
        with supervisor.exit_on_signal("evaluating"):
            loaded = load_run(
                workdir, step=step, average=average, best=best, overrides=texts, group=group
            )
            loaded = dataclasses.replace(loaded, workdir=folder, elsewhere=bool(output))
            records = evaluate_sets(loaded, sets, supervisor).records
            group.barrier("evaluated")
        return records


def load(
    workdir: epath.PathLike,
    *,
    step: int | None = None,
    average: int = 0,
    best: bool = False,
    overrides: Mapping[str, object] | None = None,
) -> TrainedModel:
    """Restore a trained run: `load("runs/toy").translate(["It is late."])`.

    The devices may differ from the devices of the training. By default the parameters come from the
    newest checkpoint. The result has the methods `translate(lines)` and `score(pairs)`.

    Args:
        workdir: workdir of a run, or the name of a model in another form (`model_forms`).
        step: use the checkpoint of this step.
        average: use the mean of this many regular checkpoints, up to `step` or the newest.
        best: use the best checkpoint by eval.metric.
        overrides: decoding keys, such as `{"decode.beam_size": 8}`.
    """
    from t2t_flax.evaluation.restore import load as load_run
    from t2t_flax.evaluation.restore import stored_config

    texts = _as_text(overrides)
    _prepare_process(stored_config(workdir, texts), devices="mesh.cpu_devices" in texts)
    return load_run(workdir, step=step, average=average, best=best, overrides=texts)


def explain(config: ConfigLike, overrides: Mapping[str, object] | None = None) -> str:
    """Describe a run of this config as text.

    Shows parameters by group, batches, learning rates and memory.
    """
    resolved = resolve(config, overrides)
    _prepare_process(resolved, devices=False)
    from t2t_flax.training.model_summary import describe

    return describe(resolved)


def resolve(config: ConfigLike, overrides: Mapping[str, object] | None = None) -> Config:
    """Return the checked, frozen config.

    Raises UserError, which names an unknown key, a wrong value or an impossible combination.
    """
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


def _completed(config: Config, workdir: epath.Path, group: ProcessGroup) -> TrainResult | None:
    """Print the summary of a complete run and return its result, else None.

    Process 0 decides whether the run is complete.
    """
    from t2t_flax.json_file import parse_json
    from t2t_flax.training.workdir import completed

    message = group.broadcast(
        "completed", (completed(workdir, config) or "") if group.is_lead else ""
    )
    if not message:
        return None
    group.say(message)
    marker = parse_json((workdir / "complete.json").read_text())
    records = {name: workdir / "eval" / file for name, file in marker["records"].items()}
    return TrainResult(workdir, marker["step"], marker["reason"], records)


def _as_text(overrides: Mapping[str, object] | None) -> dict[str, str]:
    """Convert overrides to text, as on the command line. The keys check the types."""
    return {
        key: value if isinstance(value, str) else str(value)
        for key, value in (overrides or {}).items()
    }


def _prepare_process(config: Config, *, devices: bool = True) -> list[str]:
    """Apply the process settings of a config.

    Args:
        devices: raise UserError if JAX already has devices and mesh.cpu_devices would change them.
            False: keep them.
    """
    from t2t_flax.process_setup import prepare_process

    try:
        return prepare_process(config)
    except RuntimeError:  # JAX has begun to use its devices
        if not devices:
            return []
        raise UserError(
            f"config.mesh.cpu_devices = {config.mesh.cpu_devices} must be set before JAX touches a"
            " device: make this the first JAX call of the process, or set mesh.cpu_devices = 1."
        ) from None


__all__: Sequence[str] = ("evaluate", "explain", "load", "prepare", "resolve", "train")
