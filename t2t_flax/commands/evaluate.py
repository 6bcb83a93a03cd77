"""`evaluate`: restores a run, decodes a split, writes the record."""

from t2t_flax.commands import flags
from t2t_flax.commands.train import print_samples
from t2t_flax.process import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when the record is written."""
    arguments = flags.parser(
        "evaluate",
        "Decodes and scores a split with a trained run, and writes WORKDIR/eval/<split>-<step>.json.\n"
        "Needs the workdir and the split's text; runs on any hardware.",
        epilog="--config.decode.KEY=VALUE changes the search, --config.data.test=SRC,TGT the text.",
    )
    flags.add_workdir(arguments, "folder of a run")
    arguments.add_argument("--split", default="test", choices=("valid", "test"), help="default: test")
    flags.add_checkpoint(arguments)
    args, overrides = flags.parse(arguments, argv)

    from t2t_flax.evaluation.load import stored_config

    prepare_process(stored_config(args.workdir))
    from t2t_flax.evaluation.evaluate import evaluate, summary
    from t2t_flax.evaluation.load import load

    loaded = load(args.workdir, step=args.step, average=args.average, overrides=overrides)
    record, triples = evaluate(loaded, args.split)
    print_samples(triples, loaded.config.eval.samples)
    print(summary(record))
    print(f"record: {loaded.workdir / 'eval' / record['hypotheses'].replace('.hyp.txt', '.json')}")
    return 0
