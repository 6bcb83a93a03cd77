"""Train, prepare and evaluate a run from start to end: what `t2t_flax.api` calls for the commands and for Python.

Each function runs in every process of a run, and the processes agree through the `supervisor` that they are given.
"""

import contextlib
import dataclasses
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import check_average, check_patience, values_of_user
from t2t_flax.distributed.coordination import ProcessGroup, check_shared
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.filesystem import atomic_write, check_workdir
from t2t_flax.json_file import parse_json
from t2t_flax.training.workdir import (
    adopt_config,
    advice,
    check_config,
    check_run_folder,
    checkpoint_steps,
    completed,
    mark,
    read_config,
    writing,
)

if TYPE_CHECKING:
    from t2t_flax.evaluation.restore import TrainedModel
    from t2t_flax.training.parts import TrainingEnd, TrainingSetup


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a training ended.

    reason: "steps" (all updates done), "patience" or a config key (stopped early), or the name of the signal that stopped it.
    records: the evaluation record of each test set; empty if the run was stopped or has no test set.
    """

    workdir: epath.Path
    step: int
    reason: str
    records: dict[str, epath.Path]

    @property
    def finished(self) -> bool:
        return not self.reason.startswith("SIG")


def prepare(config: Config, workdir: epath.Path) -> Any:
    """Trains the tokenizer and writes the token stores; prints what is in them and returns the `data.dataset.Corpus`. Existing
    stores are reused.
    """
    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.tasks import task_of
    from t2t_flax.training.progress import bars

    check_workdir(workdir)
    check_run_folder(workdir)
    task = task_of(config)
    check_sources(task)
    with writing(workdir, "prepare"), bars() as bar:
        adopt_config(workdir, config, train=False)
        corpus = prepare_corpus(task, workdir, bar)
    print(f"train: {corpus.describe_train(config)}")
    for name, store in corpus.valid.items():
        print(f"{name}: {store.describe()}")
    return corpus


def train(config: Config, workdir: epath.Path, supervisor: RunSupervisor, notes: Sequence[str] = ()) -> TrainResult:
    """Trains to the end, or from where the workdir stands, and writes the evaluation records.

    notes: lines about this process, printed with the device. A complete run is returned as it is. Raises NonFiniteUpdate
    if the run diverged (the workdir is marked), UserError for a folder or a config that does not fit.
    """
    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.tasks import task_of
    from t2t_flax.training.progress import bars

    group = supervisor.group
    if group.is_lead:
        check_run_folder(workdir)
    check_shared(group, workdir, "--workdir")
    if result := _completed(workdir, config, group):  # needs no lock: the folder may be read-only by now
        return result
    with contextlib.ExitStack() as stack:
        with supervisor.exit_on_signal("waiting for the lock of the workdir"):
            stack.enter_context(writing(workdir, "train", group))
        if result := _completed(workdir, config, group):  # by the process that held the lock until now
            return result
        check_available(config, group)
        config = with_precision(config, workdir, group)
        mesh_lib.check_divisibility(config, mesh_lib.make_mesh(config.mesh))
        if group.is_lead:
            check_config(workdir, config)
            with supervisor.exit_on_signal("looking for the data"):
                check_sources(task_of(config))
            adopt_config(workdir, config)
        group.barrier("config", group.MINUTES)
        with supervisor.exit_on_signal("preparing the data"), bars(quiet=not group.is_lead) as bar:
            corpus = prepare_corpus(task_of(config), workdir, bar, group)
        end = _updates(config, workdir, corpus, supervisor, notes)
        records = {}
        if end.finished:
            with supervisor.exit_on_signal("evaluating at the end"):
                records = finish(config, workdir, end, supervisor)
                group.barrier("finished")
        return TrainResult(workdir, end.step, end.reason, records)


def check_available(config: Config, group: ProcessGroup) -> None:
    """Raises UserError for a package or model that metrics, hooks or decoding need, before training instead of after it."""
    from t2t_flax.training.hooks import check_hooks

    check_hooks(config)
    sets = [*(config.data.valid_sets if config.eval.decode_every_steps else ()), *config.data.test_sets]
    check_scores(config, sets, group)


def check_scores(config: Config, sets: Sequence[str], group: ProcessGroup) -> None:
    """Raises UserError for a package or model that decoding these sets needs, or, on process 0, scoring them."""
    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.tasks import task_of

    for name in sets:
        if group.is_lead:
            task_of(config).of_set(name).check_requirements()
        check_decoder(config)


def _completed(workdir: epath.Path, config: Config, group: ProcessGroup) -> TrainResult | None:
    """How the run ended if it is complete, as process 0 sees it; prints its summary."""
    message = group.broadcast("completed", (completed(workdir, config) or "") if group.is_lead else "")
    if not message:
        return None
    group.say(message)
    marker = parse_json((workdir / "complete.json").read_text())
    records = {name: workdir / "eval" / file for name, file in marker["records"].items()}
    return TrainResult(workdir, marker["step"], marker["reason"], records)


def with_precision(config: Config, workdir: epath.Path, group: ProcessGroup) -> Config:
    """`config` with train.precision = auto decided: as at the run's first start, or for a new run by the devices."""
    from t2t_flax.training.precision import compute_dtype

    if config.train.precision != "auto":
        return config
    precision = here = compute_dtype("auto").name
    stored = read_config(workdir) if group.is_lead and checkpoint_steps(workdir) else None
    if stored and stored.train.precision != "auto":
        precision = stored.train.precision
    precision = group.broadcast("train.precision", precision)
    if precision != here:
        group.say(
            f"config.train.precision = auto is {precision}, as at the start of this run; a new one here would be in {here}"
        )
    return config.with_values({"train.precision": precision})


def _updates(
    config: Config, workdir: epath.Path, corpus: Any, supervisor: RunSupervisor, notes: Sequence[str]
) -> "TrainingEnd":
    """Trains a run that is adopted, locked and prepared, and frees its state."""
    from t2t_flax.errors import NonFiniteUpdate
    from t2t_flax.evaluation.evaluate import validation_score
    from t2t_flax.training import precision
    from t2t_flax.training.loop import train as train_loop
    from t2t_flax.training.setup import set_up_training

    group, say = supervisor.group, supervisor.group.say
    setup = set_up_training(config, workdir, corpus)
    epoch = setup.batches.updates_per_epoch
    check_average(config, epoch)
    if config.eval.every_epochs:
        check_patience(config, epoch)
    say("\n".join(filter(None, [*_describe(setup, group), *notes, precision.advice(config, decoding=False)])))
    try:
        end = train_loop(setup, validation_score(setup, supervisor), say, supervisor)
    except NonFiniteUpdate as error:  # raised in all processes: they read the same numbers
        if group.is_lead:
            mark(workdir, error)
            error.add_note(advice(config, workdir))
        raise
    say("time: " + "  ".join(f"{name} {value:.1f} s" for name, value in end.seconds.items()))
    if not end.finished:
        say(f"stopped by {end.reason} after update {end.step}, saved; give the same command again to go on")
    return dataclasses.replace(end, state=None)  # the final evaluation needs the devices' memory


def _describe(setup: "TrainingSetup", group: ProcessGroup) -> list[str]:
    """Lines on the data, the model, the batches and the devices of a run."""
    import jax

    from t2t_flax.training.train_state import count_params

    config, corpus, batches = setup.config, setup.corpus, setup.batches
    data, sizes = config.data, corpus.tokenizers.vocab_sizes
    trained, frozen = (count_params(part, config, *sizes) for part in setup.parameters.split(setup.abstract.params))
    processes = f" of {group.count} processes" if group.count > 1 else ""
    return [
        f"{data.train}: {corpus.describe_train(config)}",
        *(f"{name}: {store.describe()}" for name, store in corpus.valid.items() if store.meta["dropped"]),
        f"model: {trained + frozen:,} parameters{f', {trained:,} of them trained' if frozen else ''}, vocabulary "
        f"{sizes[0]:,}{'' if data.joint_vocabulary else f' and {sizes[1]:,}'}, {setup.model.dtype.name} products",
        f"batches: at most {data.batch_tokens:,} tokens a side, {batches.updates_per_epoch} updates an epoch, "
        f"shapes {', '.join(map(str, batches.shapes))}",
        f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}{processes}, mesh {dict(setup.mesh.shape)}, Python "
        f"{platform.python_version()}, jax {jax.__version__}",
    ]


def finish(config: Config, workdir: epath.Path, end: "TrainingEnd", supervisor: RunSupervisor) -> dict[str, epath.Path]:
    """The final evaluation: a record for each test set, then complete.json. Returns the records' paths.

    It is of the newest checkpoint, or of the mean that checkpoint.average_last asks for; without one, a run that stopped
    early is evaluated at its best checkpoint.
    """
    from t2t_flax.data.dataset import sets_of
    from t2t_flax.evaluation.restore import load
    from t2t_flax.training.hooks import call_hooks

    evaluation, average = Evaluation({}, {}, []), config.checkpoint.average_last
    if config.data.test:
        best = end.reason == "patience" and not average
        own = values_of_user(config)  # loading would drop them
        loaded = load(workdir, average=average, best=best, at_most=True, overrides=own, group=supervisor.group)
        why = f"config.checkpoint.average_last = {average}" if average else "the newest checkpoint"
        if best and loaded.checkpoint.metric is not None:
            why = f"the best checkpoint by config.eval.metric, as config.eval.patience = {config.eval.patience} ended the run"
        evaluation = evaluate(loaded, sets_of(config, "test"), supervisor, why=why)
    marker = {
        "step": end.step,
        "reason": end.reason,
        "records": {name: path.name for name, path in evaluation.paths.items()},
        "summary": "\n".join(evaluation.texts),
        "seconds": end.seconds,
    }
    if supervisor.group.is_lead:
        atomic_write(workdir / "complete.json", json.dumps(marker, indent=2) + "\n")
    scores = {
        f"{name}_{key}": entry["score"] if isinstance(entry, dict) else entry
        for name, record in evaluation.records.items()
        for key, entry in record["scores"].items()
    }
    call_hooks(end.hooks, "end", end.step, scores)
    return evaluation.paths


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation of several sets: the record of each and its path, by the set's name, and what was printed of the scores."""

    records: dict[str, dict[str, Any]]
    paths: dict[str, epath.Path]
    texts: list[str]


def evaluate(loaded: "TrainedModel", sets: Sequence[str], supervisor: RunSupervisor, *, why: str = "") -> Evaluation:
    """Decodes and scores sets, writes a record of each, and prints samples and scores. why: reason for the choice of
    checkpoints, for the records.
    """
    from t2t_flax.evaluation.direction_table import direction_table
    from t2t_flax.evaluation.evaluate import evaluate, path_of, summary
    from t2t_flax.tasks import task_of

    say, result = supervisor.group.say, Evaluation({}, {}, [])
    for name in sets:
        with decode_progress(supervisor) as progress:
            record, triples = evaluate(loaded, name, progress=progress, group=supervisor.group, why=why)
        if loaded.config.decode.engine != "jax":
            say(f"decoded with {loaded.decoder}")
        for source, reference, output in triples[:: max(1, len(triples) // 5)][:5]:
            say(f"\n  source       {source}\n  reference    {reference}\n  output       {output}")
        result.records[name], result.paths[name] = record, path_of(loaded, record)
        result.texts.append(summary(record, task_of(loaded.for_set(name).config)))
        say(f"\n{result.texts[-1]}\nrecord: {result.paths[name]}")
    if len(sets) > 1 and (text := direction_table(list(result.records.values()))):
        result.texts.append(text)
        say(text)
    return result


@contextlib.contextmanager
def decode_progress(supervisor: RunSupervisor) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of decoded sentences. From the first batch to the last, progress is expected."""
    from t2t_flax.training.progress import bars

    # No ETA: short sentences are decoded first.
    with bars(quiet=not supervisor.group.is_lead, eta=False) as bar, contextlib.ExitStack() as stack:

        def update(done: int, total: int) -> None:
            supervisor.should_stop()
            if not supervisor.progress_expected:
                stack.enter_context(supervisor.expect_progress())
            bar("decode", done, total, "sentences")
            if done >= total:
                stack.close()

        yield update
