"""`train`: trains, or resumes what the workdir holds; evaluates on the way; ends with a record."""

import json
import math
import platform

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.commands import flags
from t2t_flax.config import Config
from t2t_flax.errors import STOPPED, UserError
from t2t_flax.files import check_reachable, numbered, write_whole
from t2t_flax.parallel.job import run_job
from t2t_flax.parallel.pod import Pod, check_shared
from t2t_flax.parallel.watch import Watch
from t2t_flax.process import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when the run is complete, 75 when it was asked to stop and saved."""
    arguments = flags.parser(
        "train",
        "Trains a Transformer. Give the same command again to resume; nothing is lost by a kill.",
        epilog=f"{flags.OVERRIDE_HELP}\n\nThe workdir gets config.json, tokenizer/, data/, checkpoints/, metrics.jsonl,\n"
        "tensorboard/ and eval/. Exit codes: 0 complete, 75 stopped by a signal with everything saved,\n"
        "2 a mistake in the input, 1 anything else.",
    )
    flags.add_config(arguments)
    flags.add_workdir(arguments, "folder of the run; made if it is not there")
    args, overrides = flags.parse(arguments, argv)
    config = config_lib.load_config(args.config, overrides)
    workdir = epath.Path(args.workdir)
    check_reachable(workdir)
    process = prepare_process(config)
    return run_job(config.distributed, lambda watch: _job(config, workdir, process, watch), stacks=workdir / "stacks")


def _job(config: Config, workdir: epath.Path, process: list[str], watch: Watch) -> int:
    pod = watch.pod
    check_shared(pod, workdir, "--workdir")
    done = completed(workdir, config)
    pod.barrier("completed")
    if done:
        pod.say(done)
        return 0
    if pod.lead:
        adopt_config(workdir, config)
    pod.barrier("config")
    return _train(config, workdir, process, watch)


def adopt_config(workdir: epath.Path, config: Config) -> None:
    """Stores the resolved config in the workdir. Raises UserError where a run of another config lives there.

    Before its first checkpoint a run has nothing to lose: a corrected command then simply takes its place.
    """
    path = workdir / "config.json"
    if not numbered(workdir / "checkpoints"):
        (workdir / "tokenizer").rmtree(missing_ok=True)
    elif path.exists():
        stored = config_lib.from_json(path.read_text())
        differ = config_lib.frozen_differences(stored, config)
        if differ:
            lines = "\n".join(f"  {name}: {old!r} in the workdir, {new!r} now" for name, (old, new) in differ.items())
            raise UserError(
                f"{workdir} holds a run with another config:\n{lines}\nUse another --workdir, or the values of the run."
            )
    # A run that goes on is not complete, wherever it is stopped next.
    (workdir / "complete.json").unlink(missing_ok=True)
    write_whole(path, config_lib.to_json(config))


def completed(workdir: epath.Path, config: Config) -> str | None:
    """What to say where the workdir holds this run, complete; None where there is something to do."""
    marker = workdir / "complete.json"
    if not marker.exists():
        return None
    done = json.loads(marker.read_text())
    stored = config_lib.from_json((workdir / "config.json").read_text())
    if config_lib.frozen_differences(stored, config):
        return None  # adopt_config says what differs
    if done["reason"] == "steps" and config.train.steps > done["step"]:
        return None
    patient = config.eval.patience or math.inf
    if done["reason"] == "patience" and patient > stored.eval.patience:
        return None
    record = workdir / "eval" / done["record"] if done["record"] else None
    scores = f"; {done['summary']}\nrecord: {record}" if record else ""
    why = "" if done["reason"] == "steps" else f" (stopped early: {done['reason']})"
    return f"{workdir} is complete: {done['step']} updates{why}{scores}\n" + (
        f"To go on, give a larger --config.train.steps (now {config.train.steps})."
        if done["reason"] == "steps"
        else f"To go on, give a larger --config.eval.patience (now {config.eval.patience}; 0 = without end)."
    )


def _train(config: Config, workdir: epath.Path, process: list[str], watch: Watch) -> int:
    import jax

    from t2t_flax.data.corpus import prepare_corpus
    from t2t_flax.evaluation.validation import validation_score
    from t2t_flax.training.loop import train
    from t2t_flax.training.run import assemble, describe_shapes
    from t2t_flax.training.state import count_params
    from t2t_flax.training.update_log import NonFiniteLoss

    pod, say = watch.pod, watch.pod.say
    with watch.giving_up("preparing the data"), flags.split_progress() as progress:
        corpus = prepare_corpus(config, workdir, progress if pod.lead else None, pod)
    whole = assemble(config, workdir, corpus)
    sizes = corpus.tokenizers.source.vocab_size, corpus.tokenizers.target.vocab_size
    device = jax.devices()[0]
    counted = {"real": "real", "padded_max": "padded"}[config.data.batch_count]
    say(
        f"{config.data.train}: {corpus.train.describe()}\n"
        f"model: {count_params(whole.abstract.params, config, *sizes):,} parameters, vocabulary "
        f"{sizes[0]:,}{'' if config.data.joint_vocabulary else f' and {sizes[1]:,}'}, {whole.model.dtype.name} products\n"
        f"batches: at most {config.data.batch_tokens:,} {counted} tokens a side, {whole.batches.updates_per_epoch} updates an "
        f"epoch, shapes {describe_shapes(whole.batches.shapes)}\n"
        f"devices: {jax.device_count()} x {device.device_kind}{_processes(pod)}, mesh {dict(whole.mesh.shape)}, Python "
        f"{platform.python_version()}, jax {jax.__version__}" + "".join(f"\n{line}" for line in process)
    )
    try:
        outcome = train(whole, validation_score(whole), say, watch)
    except NonFiniteLoss as error:
        say(f"t2t_flax train: {error}")
        return 1
    say("time: " + "  ".join(f"{name} {value:.1f} s" for name, value in outcome.seconds.items()))
    if not outcome.finished:
        say(f"stopped by {outcome.reason} after update {outcome.step}, saved; give the same command again to go on")
        return STOPPED
    with watch.giving_up("evaluating at the end"):
        finish(config, workdir, outcome, watch)
        pod.barrier("finished")
    return 0


def _processes(pod: Pod) -> str:
    return f" of {pod.count} processes" if pod.count > 1 else ""


def finish(config: Config, workdir: epath.Path, outcome, watch: Watch) -> None:
    """The final evaluation, and the marker that says that the run is complete."""
    from t2t_flax.evaluation.evaluate import evaluate, summary
    from t2t_flax.evaluation.load import load

    record, text, pod = None, "", watch.pod
    if config.data.test:
        loaded = load(workdir, average=config.checkpoint.average_last, at_most=True, pod=pod)
        with flags.decode_progress(watch) as progress:
            record, triples = evaluate(loaded, "test", progress=progress, pod=pod)
        text = summary(record)
        print_samples(triples, config.eval.samples, pod.say)
        pod.say(text)
        pod.say(f"record: {workdir / 'eval' / record['hypotheses'].replace('.hyp.txt', '.json')}")
    marker = {
        "step": outcome.step,
        "reason": outcome.reason,
        "record": record and record["hypotheses"].replace(".hyp.txt", ".json"),
        "summary": text,
        "seconds": outcome.seconds,
    }
    if pod.lead:
        write_whole(workdir / "complete.json", json.dumps(marker, indent=2) + "\n")


def print_samples(triples: list, count: int, say=print) -> None:
    """Source, reference and output of `count` sentences, spread over the set."""
    for i in range(0, len(triples), max(1, len(triples) // max(1, count)))[:count] if count else ():
        source, reference, output = triples[i]
        say(f"\n  source       {source}\n  reference    {reference}\n  output       {output}")
    say("")
