"""`evaluate`: restores a run, decodes test sets and writes a record of each."""

import argparse
import dataclasses

from etils import epath

from t2t_flax import jobs
from t2t_flax.cli import arguments
from t2t_flax.distributed.coordination import check_shared
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when the records are written."""
    parser = arguments.parser(
        "evaluate",
        "Decodes and scores test sets with a trained run, and writes a record of each, with hypotheses and references:\n"
        "WORKDIR/eval/<set>-<step>.json (-mean<n> for an average of n, -best for --best). With other text or settings than\n"
        "the run's own, the name also has a digest, so that no record replaces another. Needs only the workdir and the\n"
        "text; runs on any hardware.",
        epilog="A translation record has three BLEUs, each with a note on how it was computed: sacrebleu (detokenised\n"
        "text), tokenized_bleu (Moses tokens) and paper_bleu (as the paper's figures were scored); and chrf, chrf++ and\n"
        "ter (lower is better).\n\n"
        "--config.decode.KEY=VALUE changes the search, --config.data.test=SRC,TGT the text (SRC,REF1,REF2: several\n"
        "references), --config.eval.sacrebleu_tokenizer=NAME how sacreBLEU tokenises. Several test sets are\n"
        "--config.data.test='NAME=SRC,TGT; NAME=SRC,TGT'.",
    )
    arguments.add_workdir(parser)
    parser.add_argument(
        "--split",
        metavar="SET",
        help="valid, test (default; all sets of config.data.test), or the name of a set (valid.NAME of validation sets)",
    )
    arguments.add_checkpoint(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="folder that gets the records, as DIR/eval/..., instead of the workdir"
    )
    args, overrides = arguments.parse(parser, argv)

    from t2t_flax.data.dataset import sets_of
    from t2t_flax.evaluation.decoder import check_decoder
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.tasks import task_of

    folder = jobs.evaluation_folder(args.workdir, args.output)
    if args.output:
        arguments.check_output("--output", args.output, folder=True)
    config = stored_config(args.workdir, overrides)
    sets = sets_of(config, args.split or "test")
    for name in sets:
        task_of(config).of_set(name).check_requirements()
    check_decoder(config)
    prepare_process(config)
    return run_job(config, lambda supervisor: _job(args, folder, sets, overrides, supervisor))


def _job(
    args: argparse.Namespace, folder: epath.Path, sets: list[str], overrides: dict[str, str], supervisor: RunSupervisor
) -> int:
    from t2t_flax.evaluation.restore import load

    say = supervisor.group.say
    check_shared(supervisor.group, folder, "--output" if args.output else "--workdir")
    with supervisor.exit_on_signal("evaluating"):
        choice = dict(step=args.step, average=args.average, best=args.best)
        loaded = load(args.workdir, **choice, overrides=overrides, group=supervisor.group)
        loaded = dataclasses.replace(loaded, workdir=folder)
        records = []
        for name in sets:
            path, record, _ = jobs.evaluate_set(loaded, name, supervisor)
            records.append(record)
            say(f"record: {path}")
        for text in jobs.summaries(records):
            say(text)
        supervisor.group.barrier("evaluated")
    return 0
