"""`prepare`: train the tokenizer and write the token stores.

`train` does so if they are missing.
"""

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.errors import OK


def run(argv: list[str]) -> int:
    """Return 0 when the stores are complete."""
    parser = arguments.parser(
        "prepare",
        "Trains the tokenizer and tokenises the data of a config into WORKDIR/data (or"
        " config.data.cache).\nStores with the same digest are reused; a run that has begun to"
        " train is not changed.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run that will train on it")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--workdir", args.workdir, folder=True)
    api.prepare(args.config, args.workdir, overrides)
    return OK
