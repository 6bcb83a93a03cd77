"""`train`: trains, or resumes what the workdir holds; evaluates on the way; ends with a record."""

import contextlib
import dataclasses
import json
import platform
import sys

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup, check_shared
from t2t_flax.distributed.job import run_job
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import DIVERGED, OK, STOPPED
from t2t_flax.evaluation.scores import check_metrics
from t2t_flax.filesystem import check_workdir, write_whole
from t2t_flax.process_setup import prepare_process
from t2t_flax.training.workdir import adopt_config, check_ours, completed, writing


def run(argv: list[str]) -> int:
    """Exit code 0 when the run is complete, 75 when it was asked to stop and saved, 3 when it has diverged."""
    parser = arguments.parser(
        "train",
        "Trains a Transformer. Give the same command again to resume; nothing is lost by a kill.",
        epilog=f"{arguments.OVERRIDE_HELP}\n\nThe workdir gets config.json, tokenizer/, data/, checkpoints/, metrics.jsonl,\n"
        "tensorboard/ and eval/. Exit codes: 0 complete, 75 stopped by a signal with everything saved,\n"
        "2 a mistake in the input, 3 diverged (an update was not finite), 1 anything else.",
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run; made if it is not there")
    args, overrides = arguments.parse(parser, argv)
    config = config_lib.load_config(args.config, overrides)
    workdir = epath.Path(args.workdir)
    check_workdir(workdir)
    process = prepare_process(config)
    return run_job(
        config.distributed, lambda supervisor: _job(config, workdir, process, supervisor), stacks=workdir / "stacks"
    )


def _job(config: Config, workdir: epath.Path, process: list[str], supervisor: RunSupervisor) -> int:
    group = supervisor.group
    if group.is_lead:
        check_ours(workdir)
    check_shared(group, workdir, "--workdir")
    if done := _completed(workdir, config, group):
        group.say(done)
        return OK
    with contextlib.ExitStack() as until_the_end:
        with supervisor.exit_on_signal("waiting for the lock of the workdir"):
            until_the_end.enter_context(writing(workdir, "train", group))
        if done := _completed(workdir, config, group):  # by the process that held the lock until now
            group.say(done)
            return OK
        check_scores(config)
        if group.is_lead:
            adopt_config(workdir, config)
        group.barrier("config", group.MINUTES)
        return _train(config, workdir, process, supervisor)


def check_scores(config: Config) -> None:
    """Raises UserError for what is missing to score a run, now instead of after its last update."""
    if config.data.test or config.data.valid and config.eval.decode_every_steps:
        check_metrics(config)


def _completed(workdir: epath.Path, config: Config, group: ProcessGroup) -> str:
    """Decided by process 0 for all."""
    return group.broadcast("completed", (completed(workdir, config) or "") if group.is_lead else "")


def _train(config: Config, workdir: epath.Path, process: list[str], supervisor: RunSupervisor) -> int:
    import jax

    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.evaluation.validation import validation_score
    from t2t_flax.training.divergence import NonFiniteUpdate, advice, mark, unmark
    from t2t_flax.training.loop import train
    from t2t_flax.training.setup import describe_shapes, set_up_training
    from t2t_flax.training.train_state import count_params

    group, say = supervisor.group, supervisor.group.say
    with supervisor.exit_on_signal("preparing the data"), arguments.split_progress() as progress:
        if group.is_lead:
            check_sources(config)
        corpus = prepare_corpus(config, workdir, progress if group.is_lead else None, group)
    whole = set_up_training(config, workdir, corpus)
    sizes = corpus.tokenizers.source.vocab_size, corpus.tokenizers.target.vocab_size
    device = jax.devices()[0]
    counted = {"real_tokens": "real", "padded_tokens": "padded"}[config.data.batch_size_counts]
    say(
        f"{config.data.train}: {corpus.train.describe()}\n"
        f"model: {count_params(whole.abstract.params, config, *sizes):,} parameters, vocabulary "
        f"{sizes[0]:,}{'' if config.data.joint_vocabulary else f' and {sizes[1]:,}'}, {whole.model.dtype.name} products\n"
        f"batches: at most {config.data.batch_tokens:,} {counted} tokens a side, {whole.batches.updates_per_epoch} updates an "
        f"epoch, shapes {describe_shapes(whole.batches.shapes)}\n"
        f"devices: {jax.device_count()} x {device.device_kind}{_processes(group)}, mesh {dict(whole.mesh.shape)}, Python "
        f"{platform.python_version()}, jax {jax.__version__}" + "".join(f"\n{line}" for line in process)
    )
    if group.is_lead:
        unmark(workdir)
    try:
        outcome = train(whole, validation_score(whole), say, supervisor)
    except NonFiniteUpdate as error:  # on all processes: they read the same numbers
        if group.is_lead:
            mark(workdir, error)
            print(f"t2t_flax train: {error} {advice(config, workdir)}", file=sys.stderr, flush=True)
        return DIVERGED
    say("time: " + "  ".join(f"{name} {value:.1f} s" for name, value in outcome.seconds.items()))
    outcome = dataclasses.replace(outcome, state=None)  # the final evaluation has the memory to itself
    if not outcome.finished:
        say(f"stopped by {outcome.reason} after update {outcome.step}, saved; give the same command again to go on")
        return STOPPED
    with supervisor.exit_on_signal("evaluating at the end"):
        finish(config, workdir, outcome, supervisor)
        group.barrier("finished")
    return 0


def _processes(group: ProcessGroup) -> str:
    return f" of {group.count} processes" if group.count > 1 else ""


def finish(config: Config, workdir: epath.Path, outcome, supervisor: RunSupervisor) -> None:
    """The final evaluation, a record for each test set, and the marker that says that the run is complete.

    It is of the newest checkpoint, or of the mean that checkpoint.average_last asks for; without one, a run that its
    patience ended is judged by its best checkpoint.
    """
    from t2t_flax.data.dataset import sets_of
    from t2t_flax.evaluation.evaluate import evaluate, path_of, summary
    from t2t_flax.evaluation.restore import load

    records, texts, group = {}, [], supervisor.group
    if config.data.test:
        average = config.checkpoint.average_last
        best = outcome.reason == "patience" and not average
        data = config.data  # what a stored config may not say, this command line does
        places = {"data.cache": data.cache, "data.root": data.root, "train.compile_cache": config.train.compile_cache}
        loaded = load(workdir, average=average, best=best, at_most=True, overrides=places, group=group)
        why = f"config.checkpoint.average_last = {average}" if average else "the newest checkpoint"
        if best and loaded.metric is not None:
            why = f"the best checkpoint by config.eval.metric, as config.eval.patience = {config.eval.patience} ended the run"
        for name in sets_of(config, "test"):
            with arguments.decode_progress(supervisor) as progress:
                record, triples = evaluate(loaded, name, progress=progress, group=group, why=why)
            path = path_of(loaded, record)
            records[name] = path.name
            texts.append(summary(record))
            print_samples(triples, config.eval.samples, group.say)
            group.say(texts[-1])
            group.say(f"record: {path}")
    marker = {
        "step": outcome.step,
        "reason": outcome.reason,
        "record": next(iter(records.values()), None),
        "records": records,
        "summary": "\n".join(texts),
        "seconds": outcome.seconds,
    }
    if group.is_lead:
        write_whole(workdir / "complete.json", json.dumps(marker, indent=2) + "\n")


def print_samples(triples: list, count: int, say=print) -> None:
    """Source, reference and output of `count` sentences, spread over the set."""
    for i in range(0, len(triples), max(1, len(triples) // max(1, count)))[:count] if count else ():
        source, reference, output = triples[i]
        say(f"\n  source       {source}\n  reference    {reference}\n  output       {output}")
    say("")
