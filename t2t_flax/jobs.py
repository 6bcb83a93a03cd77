"""Train, prepare and evaluate a run from start to end: what the command line and the Python API both call.

Each function runs in every process of a run, and the processes agree through the `supervisor` that they are given.
"""

import contextlib
import dataclasses
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from t2t_flax.config import Config, as_resumed, parse_test_sets, parse_valid_sets
from t2t_flax.distributed.coordination import ProcessGroup, check_shared
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.filesystem import atomic_write, check_workdir
from t2t_flax.json_file import parse_json
from t2t_flax.model_forms import check_writable
from t2t_flax.registry import SUMMARIES
from t2t_flax.training.workdir import (
    adopt_config,
    check_config,
    check_run_folder,
    checkpoint_steps,
    completed,
    read_config,
    writing,
)

if TYPE_CHECKING:
    from t2t_flax.training.run import TrainingEnd
    from t2t_flax.training.setup import TrainingSetup


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """How a training ended.

    reason: "steps" (all updates done), "patience" (stopped early), or the name of the signal that stopped it. records: the
    evaluation record of each test set; empty if the run was stopped or has no test set.
    """

    workdir: epath.Path
    step: int
    reason: str
    records: dict[str, epath.Path]

    @property
    def finished(self) -> bool:
        return self.reason in ("steps", "patience")


def train(config: Config, workdir: epath.Path, supervisor: RunSupervisor, notes: Sequence[str] = ()) -> TrainResult:
    """Trains to the end, or from where the workdir stands, and writes the evaluation records.

    notes: lines about this process, printed with the device. A complete run is returned as it is. Raises NonFiniteUpdate
    if the run diverged (the workdir is marked), UserError for a folder or a config that does not fit.
    """
    from t2t_flax.data.dataset import check_sources
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.tasks import task_of

    group = supervisor.group
    if group.is_lead:
        check_run_folder(workdir)
    check_shared(group, workdir, "--workdir")
    if result := _completed(workdir, config, group):
        return result
    with contextlib.ExitStack() as stack:
        with supervisor.exit_on_signal("waiting for the lock of the workdir"):
            stack.enter_context(writing(workdir, "train", group))
        if result := _completed(workdir, config, group):  # by the process that held the lock until now
            return result
        check_metrics_available(config)
        config = with_precision(config, workdir, group)
        mesh_lib.check_divisibility(config, mesh_lib.make_mesh(config.mesh))
        if group.is_lead:
            check_config(workdir, config)
            with supervisor.exit_on_signal("looking for the data"):
                check_sources(task_of(config))
            adopt_config(workdir, config)
        group.barrier("config", group.MINUTES)
        return _train(config, workdir, supervisor, notes)


def with_precision(config: Config, workdir: epath.Path, group: ProcessGroup) -> Config:
    """`config` with train.precision = auto decided: as at the run's first start, or for a new run by the devices."""
    from t2t_flax.training.train_state import compute_dtype

    if config.train.precision != "auto":
        return config
    here = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=compute_dtype("auto").name))
    if not group.is_lead:
        precision = group.broadcast("train.precision")
    else:
        stored = read_config(workdir) if checkpoint_steps(workdir) else None
        given = here if stored is None or stored.train.precision == "auto" else as_resumed(stored, config)
        precision = group.broadcast("train.precision", given.train.precision)
    if precision != here.train.precision:
        group.say(
            f"config.train.precision = auto is {precision}, as at the start of this run; a new one here would be in "
            f"{here.train.precision}"
        )
    return dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))


def prepare(config: Config, workdir: epath.Path) -> Any:
    """Trains the tokenizer and writes the token stores; returns the `data.dataset.Corpus`. Existing stores are reused."""
    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.tasks import task_of

    check_workdir(workdir)
    check_run_folder(workdir)
    task = task_of(config)
    check_sources(task)
    with writing(workdir, "prepare"):
        adopt_config(workdir, config, train=False)
        with split_progress() as progress:
            return prepare_corpus(task, workdir, progress)


def check_metrics_available(config: Config) -> None:
    """Raises UserError for a package or model that metrics, hooks or decoding need, before training instead of after it."""
    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.tasks import task_of
    from t2t_flax.training.hooks import check_hooks

    check_hooks(config)
    task = task_of(config)
    valid = parse_valid_sets(config.data.valid) if config.eval.decode_every_steps else ()
    for name in (*valid, *parse_test_sets(config.data.test)):
        task.of_set(name).check_requirements()
        check_decoder(config)


def _completed(workdir: epath.Path, config: Config, group: ProcessGroup) -> TrainResult | None:
    """How the run ended if it is complete, as process 0 sees it; prints its summary."""
    message = group.broadcast("completed", (completed(workdir, config) or "") if group.is_lead else "")
    if not message:
        return None
    group.say(message)
    marker = parse_json((workdir / "complete.json").read_text())
    paths = {name: workdir / "eval" / file for name, file in marker["records"].items()}
    return TrainResult(workdir, marker["step"], marker["reason"], paths)


def _train(config: Config, workdir: epath.Path, supervisor: RunSupervisor, notes: Sequence[str]) -> TrainResult:
    """Prepares the data, trains and evaluates a run that is adopted and locked."""
    from t2t_flax.data.dataset import prepare_corpus
    from t2t_flax.errors import NonFiniteUpdate
    from t2t_flax.evaluation.evaluate import validation_score
    from t2t_flax.tasks import task_of
    from t2t_flax.training.loop import train as train_loop
    from t2t_flax.training.setup import set_up_training
    from t2t_flax.training.workdir import mark

    group, say = supervisor.group, supervisor.group.say
    with supervisor.exit_on_signal("preparing the data"), split_progress() as progress:
        corpus = prepare_corpus(task_of(config), workdir, progress if group.is_lead else None, group)
    setup = set_up_training(config, workdir, corpus)
    say("\n".join([*_describe(setup, group), *notes]))
    try:
        end = train_loop(setup, validation_score(setup), say, supervisor)
    except NonFiniteUpdate as error:  # raised in all processes: they read the same numbers
        if group.is_lead:
            mark(workdir, error)
        raise
    say("time: " + "  ".join(f"{name} {value:.1f} s" for name, value in end.seconds.items()))
    end = dataclasses.replace(end, state=None)  # frees the devices' memory for the final evaluation
    if not end.finished:
        say(f"stopped by {end.reason} after update {end.step}, saved; give the same command again to go on")
        return TrainResult(workdir, end.step, end.reason, {})
    with supervisor.exit_on_signal("evaluating at the end"):
        records = finish(config, workdir, end, supervisor)
        group.barrier("finished")
    return TrainResult(workdir, end.step, end.reason, records)


def _describe(setup: "TrainingSetup", group: ProcessGroup) -> list[str]:
    """Lines on the data, the model, the batches and the devices of a run."""
    import jax

    from t2t_flax.training.parameters import parameters_of
    from t2t_flax.training.train_state import count_params

    config, corpus, batches = setup.config, setup.corpus, setup.batches
    data, sizes = config.data, corpus.tokenizers.vocab_sizes
    trained, frozen = (
        count_params(part, config, *sizes) for part in parameters_of(config).split(setup.abstract.params)
    )
    processes = f" of {group.count} processes" if group.count > 1 else ""
    return [
        f"{data.train}: {corpus.describe_train(config)}",
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

    records, texts, group = {}, [], supervisor.group
    scores: dict[str, float] = {}
    if config.data.test:
        average = config.checkpoint.average_last
        best = end.reason == "patience" and not average
        data = config.data  # places on this machine are taken from the command line, never from the stored config
        places = {"data.cache": data.cache, "data.root": data.root}
        loaded = load(workdir, average=average, best=best, at_most=True, overrides=places, group=group)
        why = f"config.checkpoint.average_last = {average}" if average else "the newest checkpoint"
        if best and loaded.checkpoint.metric is not None:
            why = f"the best checkpoint by config.eval.metric, as config.eval.patience = {config.eval.patience} ended the run"
        evaluated = []
        for name in sets_of(config, "test"):
            path, record, text = evaluate_set(loaded, name, supervisor, why=why)
            records[name] = path
            evaluated.append(record)
            texts.append(text)
            scores |= {f"{name}_{key}": value for key, value in score_values(record).items()}
            group.say(f"record: {path}")
        for text in summaries(evaluated):
            texts.append(text)
            group.say(text)
    marker = {
        "step": end.step,
        "reason": end.reason,
        "records": {name: path.name for name, path in records.items()},
        "summary": "\n".join(texts),
        "seconds": end.seconds,
    }
    if group.is_lead:
        atomic_write(workdir / "complete.json", json.dumps(marker, indent=2) + "\n")
    for hook in end.hooks:
        hook.on_end(end.step, scores)
    return records


def summaries(records: Sequence[dict[str, Any]]) -> list[str]:
    """What extensions say of the records of an evaluation of several sets."""
    modules = SUMMARIES.load_all() if len(records) > 1 else ()
    return [text for module in modules if (text := module.summary(records))]


def evaluation_folder(workdir: str | epath.Path, output: str | epath.Path | None) -> epath.Path:
    """The folder to which an evaluation of a run writes: records in eval/, token stores in data/. Raises UserError for the
    name of a model without an output.
    """
    if not output:
        check_writable(workdir, "name a folder for the records, --output=DIR")
    return epath.Path(output or workdir)


def score_values(record: dict[str, Any]) -> dict[str, float]:
    """Each score of an evaluation record as one number."""
    return {name: entry["score"] if isinstance(entry, dict) else entry for name, entry in record["scores"].items()}


def evaluate_set(
    loaded: Any, name: str, supervisor: RunSupervisor, *, why: str = ""
) -> tuple[epath.Path, dict[str, Any], str]:
    """Decodes and scores one test set and prints samples and scores.

    Returns (path of the record, the record, its summary).
    """
    from t2t_flax.evaluation.evaluate import evaluate, path_of, summary
    from t2t_flax.tasks import task_of

    with decode_progress(supervisor) as progress:
        record, triples = evaluate(loaded, name, progress=progress, group=supervisor.group, why=why)
    if loaded.config.decode.engine != "jax":
        supervisor.group.say(f"decoded with {loaded.decoder}")
    print_samples(triples, supervisor.group.say)
    text = summary(record, task_of(loaded.for_set(name).config))
    supervisor.group.say(text)
    return path_of(loaded, record), record, text


def print_samples(triples: list, say: Callable[[str], None] = print) -> None:
    """Source, reference and output of five sentences, spread over the set."""
    for source, reference, output in triples[:: max(1, len(triples) // 5)][:5]:
        say(f"\n  source       {source}\n  reference    {reference}\n  output       {output}")
    say("")


@contextlib.contextmanager
def split_progress() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Progress bars for tokenising, one split after the other: `progress(split)` returns the callback of its bar."""
    from t2t_flax.training.progress import Progress

    with contextlib.ExitStack() as stack:

        def bar_of(split: str) -> Callable[[int, int | None], None]:
            bar = None

            def update(done: int, total: int | None) -> None:
                nonlocal bar
                if bar is None:
                    stack.close()
                    bar = stack.enter_context(Progress(f"tokenise {split}", total, unit="pairs"))
                bar.update(done, line_every=3.0)

            return update

        yield bar_of


@contextlib.contextmanager
def decode_progress(supervisor: RunSupervisor) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of decoded sentences. Each batch is also a sign of progress."""
    from t2t_flax.training.progress import Progress

    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def update(done: int, total: int) -> None:
            supervisor.should_stop()
            if not bars:  # no ETA: short sentences are decoded first
                bar = Progress("decode", total, unit="sentences", quiet=not supervisor.group.is_lead, eta=False)
                bars.append(stack.enter_context(bar))
                stack.enter_context(supervisor.expect_progress())
            bars[0].update(done)
            if done >= total:
                stack.close()

        yield update
