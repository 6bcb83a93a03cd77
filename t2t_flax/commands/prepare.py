"""`prepare`: text, TFDS or the built-in corpus to tokenised stores; `train` does the same when it needs it."""

from t2t_flax import config as config_lib
from t2t_flax.commands import flags
from t2t_flax.commands.train import adopt_config


def run(argv: list[str]) -> int:
    """Exit code 0 when the stores are there."""
    arguments = flags.parser(
        "prepare",
        "Trains the tokenizer and tokenises the data of a config into WORKDIR/data (or config.data.cache).\n"
        "What is there already, by digest, is reused.",
        epilog=flags.OVERRIDE_HELP,
    )
    flags.add_config(arguments)
    flags.add_workdir(arguments, "folder of the run that will train on it")
    args, overrides = flags.parse(arguments, argv)

    from etils import epath

    from t2t_flax.data.corpus import prepare_corpus

    config = config_lib.load_config(args.config, overrides)
    workdir = epath.Path(args.workdir)
    adopt_config(workdir, config)
    with flags.split_progress() as progress:
        corpus = prepare_corpus(config, workdir, progress)
    for name, store in (("train", corpus.train), ("valid", corpus.valid)):
        if store is not None:
            print(f"{name}: {store.describe()}")
    return 0
