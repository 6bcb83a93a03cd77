"""`list_dropped`: list the place and the reason of every dropped training pair."""

import contextlib
from collections.abc import Iterator

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import open_output
from t2t_flax.config import Config, load_config
from t2t_flax.data.hooks import training_policies
from t2t_flax.data.preprocess import Encoder, Policies, encode_all
from t2t_flax.data.sources import Source
from t2t_flax.data.splits import split_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import OK


def run(argv: list[str]) -> int:
    """Return exit code 0 when the list is written."""
    parser = arguments.parser(
        "list_dropped",
        "Lists the training pairs that a config drops: where each is, TAB, why. Prepares the data"
        " as `prepare` does.",
        epilog=arguments.OVERRIDE_HELP,
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run that will train on the data")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--output", args.output)

    from etils import epath

    from t2t_flax import api

    config = load_config(args.config, overrides)
    api.prepare(config, args.workdir)
    tokenizers = TokenizerPair.load(epath.Path(args.workdir) / "tokenizer")
    with open_output(args.output) as write:
        for where, reason in dropped_by(config, tokenizers):
            write(f"{where}\t{reason}\n")
    return OK


def dropped_by(config: Config, tokenizers: TokenizerPair) -> Iterator[tuple[str, str]]:
    """Yield (place, reason) of each dropped pair of data.train."""
    from t2t_flax.tasks import task_of

    source, policies = split_source(task_of(config), "train"), training_policies(config)
    return list_dropped(source, tokenizers, policies, num_workers=config.data.num_workers)


def list_dropped(
    source: Source,
    tokenizers: TokenizerPair,
    policies: Policies,
    *,
    num_workers: int = 0,
) -> Iterator[tuple[str, str]]:
    """Yield (place, reason) of the pairs that `preprocess.prepare_split` drops, in order.

    It tokenizes the source again.
    """
    part, first = 0, 0
    with contextlib.closing(
        encode_all(Encoder(tokenizers, policies), source, num_workers)
    ) as chunks:
        for chunk in chunks:
            part, first = chunk.part, first if chunk.part == part else 0
            yield from (
                (source.parts[part].where(first + i), reason) for i, reason in chunk.dropped
            )
            first += chunk.counts["pairs_read"]
