"""Evaluation of several sets with progress, also at the end of training."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence

from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.overrides import values_of_user
from t2t_flax.data.splits import sets_of
from t2t_flax.decoding.translator import check_decoder
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.evaluation.direction_table import direction_table
from t2t_flax.evaluation.evaluate import Record, evaluate, path_of, summary
from t2t_flax.evaluation.restore import TrainedModel, load
from t2t_flax.files import atomic_write
from t2t_flax.tasks import task_of
from t2t_flax.training.hooks import call_hooks
from t2t_flax.training.parts import TrainingEnd
from t2t_flax.training.progress import bars


def check_scores(config: Config, sets: Sequence[str], group: ProcessGroup) -> None:
    """Raise UserError for a missing package or model.

    Checks decoding and, in process 0, scoring.
    """
    for name in sets:
        if group.is_lead:
            task_of(config).of_set(name).check_requirements()
        check_decoder(config)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Records and paths by the set's name, and printed scores."""

    records: dict[str, Record]
    paths: dict[str, epath.Path]
    texts: list[str]


def evaluate_sets(
    loaded: TrainedModel, sets: Sequence[str], supervisor: RunSupervisor, *, why: str = ""
) -> Evaluation:
    """Decode and score sets, write a record of each, and print samples and scores.

    Args:
        why: reason for the choice of checkpoints, for the records.
    """
    say, result = supervisor.group.say, Evaluation({}, {}, [])
    for name in sets:
        with decode_progress(supervisor) as progress:
            record, triples = evaluate(
                loaded, name, progress=progress, group=supervisor.group, why=why
            )
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
    """Show a progress bar of decoded sentences.

    Progress is expected from the first batch to the last.
    """
    # No ETA: short sentences are decoded first.
    with (
        bars(quiet=not supervisor.group.is_lead, eta=False) as bar,
        contextlib.ExitStack() as stack,
    ):

        def update(done: int, total: int) -> None:
            supervisor.should_stop()
            if not supervisor.progress_expected:
                stack.enter_context(supervisor.expect_progress())
            bar("decode", done, total, "sentences")
            if done >= total:
                stack.close()

        yield update


def finish(
    config: Config, workdir: epath.Path, end: TrainingEnd, supervisor: RunSupervisor
) -> dict[str, epath.Path]:
    """Evaluate a run that has ended, write complete.json, return the record paths.

    Evaluates the newest checkpoint, or the mean of checkpoint.average_last. Without an average, a
    run that stopped early is evaluated at its best checkpoint.
    """
    evaluation, average = Evaluation({}, {}, []), config.checkpoint.average_last
    if config.data.test:
        best = end.reason == "patience" and not average
        overrides = values_of_user(config)  # loading would drop them
        loaded = load(
            workdir,
            average=average,
            best=best,
            at_most=True,
            overrides=overrides,
            group=supervisor.group,
        )
        why = f"config.checkpoint.average_last = {average}" if average else "the newest checkpoint"
        if best and loaded.checkpoint.metric is not None:
            why = (
                "the best checkpoint by config.eval.metric, as config.eval.patience ="
                f" {config.eval.patience} ended the run"
            )
        evaluation = evaluate_sets(loaded, sets_of(config, "test"), supervisor, why=why)
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
