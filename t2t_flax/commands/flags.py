"""What the commands share: `--config=FILE.py[:variant]`, `--config.KEY=VALUE`, `--workdir=DIR`."""

import argparse
import contextlib
from collections.abc import Callable, Iterator

from t2t_flax.errors import UserError

OVERRIDE_HELP = (
    "--config.KEY=VALUE overrides any key, for example --config.model.dropout=0.2; `explain --keys` lists all"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(f"{message}\n{self.format_usage().strip()}")


def parser(command: str, description: str, *, epilog: str = "") -> argparse.ArgumentParser:
    """An argument parser whose mistakes are UserErrors."""
    return _Parser(
        prog=f"python -m t2t_flax {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(arguments: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    """The parsed flags, and the overrides `{"model.dropout": "0.2"}`. Raises UserError."""
    plain, overrides = [], {}
    rest = iter(argv)
    for arg in rest:
        if not arg.startswith("--config."):
            plain.append(arg)
            continue
        name, equals, value = arg.removeprefix("--config.").partition("=")
        if not equals:
            value = next(rest, None)
            if value is None:
                raise UserError(f"{arg} has no value: write {arg}=VALUE.")
        overrides[name] = value
    return arguments.parse_args(plain), overrides


def add_workdir(arguments: argparse.ArgumentParser, what: str) -> None:
    """`--workdir`, required."""
    arguments.add_argument("--workdir", required=True, metavar="DIR", help=what)


def add_config(arguments: argparse.ArgumentParser) -> None:
    """`--config`, required."""
    arguments.add_argument(
        "--config",
        required=True,
        metavar="FILE.py[:variant]",
        help="config file, or the name of a preset; " + OVERRIDE_HELP,
    )


def add_checkpoint(arguments: argparse.ArgumentParser) -> None:
    """`--step` and `--average`: which parameters of a run."""
    arguments.add_argument("--step", type=int, metavar="N", help="checkpoint of this step (default: the newest)")
    arguments.add_argument(
        "--average", type=int, default=0, metavar="N", help="mean of the last N checkpoints up to that step"
    )


@contextlib.contextmanager
def split_progress() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Progress bars for tokenising, one split after the other: `progress(split)` gives the callback of its bar."""
    from t2t_flax.telemetry.progress import Progress

    with contextlib.ExitStack() as stack:

        def bar_of(split: str) -> Callable[[int, int | None], None]:
            bar = None

            def show(done: int, total: int | None) -> None:
                nonlocal bar
                if bar is None:
                    stack.close()
                    bar = stack.enter_context(Progress(f"tokenise {split}", total, unit="pairs"))
                bar.update(done, line_every=3.0)

            return show

        yield bar_of
