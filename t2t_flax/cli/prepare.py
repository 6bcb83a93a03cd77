"""`prepare`: trains the tokenizer and writes the token stores; `train` does the same when they are missing."""

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments


def run(argv: list[str]) -> int:
    """Exit code 0 when the stores are complete."""
    parser = arguments.parser(
        "prepare",
        "Trains the tokenizer and tokenises the data of a config into WORKDIR/data (or config.data.cache).\n"
        "Stores with the same digest are reused; a run that has begun to train is not changed.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run that will train on it")
    args, overrides = arguments.parse(parser, argv)

    from etils import epath

    from t2t_flax import jobs

    arguments.check_output("--workdir", args.workdir, folder=True)
    config = config_lib.load_config(args.config, overrides)
    corpus = jobs.prepare(config, epath.Path(args.workdir))
    print(f"train: {corpus.describe_train(config)}")
    for name, store in corpus.valid.items():
        print(f"{name}: {store.describe()}")
    return 0
