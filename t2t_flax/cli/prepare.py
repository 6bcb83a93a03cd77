"""`prepare`: trains the tokenizer and writes the token stores; `train` does the same when they are missing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.cli.lines import open_output

if TYPE_CHECKING:
    from t2t_flax.data.tokenizers import TokenizerPair


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
    parser.add_argument(
        "--list-dropped",
        metavar="FILE",
        help="write the place and the reason of every training pair that is dropped; - = standard output",
    )
    args, overrides = arguments.parse(parser, argv)
    if args.list_dropped:
        arguments.check_output("--list-dropped", args.list_dropped)

    from etils import epath

    from t2t_flax import jobs

    arguments.check_output("--workdir", args.workdir, folder=True)
    config = config_lib.load_config(args.config, overrides)
    corpus = jobs.prepare(config, epath.Path(args.workdir))
    print(f"train: {corpus.describe_train(config)}")
    for name, store in corpus.valid.items():
        print(f"{name}: {store.describe()}")
    if args.list_dropped:
        lines = (f"{where}\t{reason}\n" for where, reason in list_dropped(config, corpus.tokenizers))
        with open_output(args.list_dropped) as write:
            write("".join(lines))
    return 0


def list_dropped(config: config_lib.Config, tokenizers: "TokenizerPair") -> Iterator[tuple[str, str]]:
    """(where it is, reason) of each pair of data.train that is dropped, in each of its segmentations."""
    from t2t_flax.data.dataset import segmentations, split_source, training_policies
    from t2t_flax.data.preprocess import list_dropped
    from t2t_flax.tasks import task_of

    source = split_source(task_of(config), "train")
    for segmentation in segmentations(config):
        note = f" ({segmentation})" if segmentation else ""
        dropped = list_dropped(
            source,
            tokenizers,
            training_policies(config),
            num_workers=config.data.num_workers,
            segmentation=segmentation,
        )
        for where, reason in dropped:
            yield where, reason + note
