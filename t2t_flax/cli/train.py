"""`train`: train a config or resume a run.

There are evaluations on the way and a record at the end.
"""

import sys

from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.errors import DIVERGED, OK, STOPPED, NonFiniteUpdate


def run(argv: list[str]) -> int:
    """Return 0 for a complete run, 75 after a signal, 3 for a diverged run.

    After a signal everything is saved.
    """
    parser = arguments.parser(
        "train",
        "Trains a Transformer. Rerun the same command to resume; a kill loses nothing that was"
        " saved.",
        epilog=(
            f"{arguments.OVERRIDE_HELP}\n\nWrites config.json, tokenizer/, data/, checkpoints/,"
            " metrics.jsonl and\neval/ to the workdir. Exit codes: 0 complete, 75 stopped by a"
            " signal with everything saved,\n2 wrong input, 3 diverged (an update was not finite),"
            " 1 any other failure."
        ),
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run; created if it does not exist")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--workdir", args.workdir, folder=True)
    try:
        result = api.train(args.config, args.workdir, overrides)
    except NonFiniteUpdate as error:
        if advice := getattr(error, "__notes__", []):  # of the first process, which speaks for all
            print("t2t_flax train:", error, *advice, file=sys.stderr, flush=True)
        return DIVERGED
    return OK if result.finished else STOPPED
