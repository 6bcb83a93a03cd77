"""`dropped`: the place and the reason of every training pair that is dropped."""

import contextlib
from collections.abc import Iterator

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.cli.lines import open_output
from t2t_flax.data.preprocess import Encoder, Policies, Segmentation, encode_parts
from t2t_flax.data.sources import Source
from t2t_flax.data.tokenizers import TokenizerPair


def run(argv: list[str]) -> int:
    """Exit code 0 when all are listed."""
    parser = arguments.parser(
        "dropped",
        "Lists the training pairs of a config that are dropped: place, TAB, reason. Prepares the data first, as\n"
        "`prepare`, and tokenises the training text again.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run that will train on it")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)
    arguments.check_output("--workdir", args.workdir, folder=True)

    from etils import epath

    from t2t_flax import jobs

    config = config_lib.load_config(args.config, overrides)
    tokenizers = jobs.prepare(config, epath.Path(args.workdir)).tokenizers
    with open_output(args.output) as write:
        for where, reason in dropped_pairs(config, tokenizers):
            write(f"{where}\t{reason}\n")
    return 0


def dropped_pairs(config: config_lib.Config, tokenizers: TokenizerPair) -> Iterator[tuple[str, str]]:
    """(where it is, reason) of each pair of data.train that is dropped, in each of its segmentations."""
    from t2t_flax.data.dataset import segmentations, split_source, training_policies
    from t2t_flax.tasks import task_of

    source, policies = split_source(task_of(config), "train"), training_policies(config)
    for segmentation in segmentations(config):
        note = f" ({segmentation})" if segmentation else ""
        for where, reason in list_dropped(
            source, tokenizers, policies, num_workers=config.data.num_workers, segmentation=segmentation
        ):
            yield where, reason + note


def list_dropped(
    source: Source,
    tokenizers: TokenizerPair,
    policies: Policies,
    *,
    num_workers: int = 0,
    segmentation: Segmentation | None = None,
) -> Iterator[tuple[str, str]]:
    """(where it is, reason) of each pair that `prepare_split` drops, in order; tokenizes the source again."""
    for part, chunks in encode_parts(Encoder(tokenizers, policies, segmentation), source, num_workers):
        first = 0
        with contextlib.closing(chunks):
            for chunk in chunks:
                yield from ((part.where(first + i), reason) for i, reason in chunk.dropped)
                first += chunk.counts["pairs_read"]
