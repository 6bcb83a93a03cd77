"""`prepare`: text, TFDS or the built-in corpus to tokenised stores; `train` does the same when it needs it."""

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments


def run(argv: list[str]) -> int:
    """Exit code 0 when the stores are there."""
    parser = arguments.parser(
        "prepare",
        "Trains the tokenizer and tokenises the data of a config into WORKDIR/data (or config.data.cache).\n"
        "What is there already, by digest, is reused; a run that has begun to train stays as it is.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run that will train on it")
    args, overrides = arguments.parse(parser, argv)

    from etils import epath

    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.filesystem import check_reachable
    from t2t_flax.training.workdir import adopt_config, check_ours, writing

    config = config_lib.load_config(args.config, overrides)
    workdir = epath.Path(args.workdir)
    check_reachable(workdir)
    check_ours(workdir)
    check_sources(config)
    with writing(workdir, "prepare"):
        adopt_config(workdir, config, train=False)
        with arguments.split_progress() as progress:
            corpus = prepare_corpus(config, workdir, progress)
    for name, store in (("train", corpus.train), ("valid", corpus.valid)):
        if store is not None:
            print(f"{name}: {store.describe()}")
    return 0
