"""What the commands share: `--config=FILE.py[:variant]`, `--config.KEY=VALUE`, `--workdir=DIR`."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from t2t_flax.errors import UserError
from t2t_flax.files import write_whole
from t2t_flax.parallel.watch import Watch

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


def read_lines(name: str) -> list[str]:
    """Lines of a file, or of standard input for "-"; split at newlines only. Raises UserError for invalid UTF-8."""
    if name != "-" and not Path(name).is_file():
        raise UserError(f"no file {name}.")
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    raw = data.split(b"\n")
    if raw and raw[-1] == b"":
        raw.pop()
    lines = []
    for number, line in enumerate(raw, 1):
        try:
            lines.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            where = "standard input" if name == "-" else name
            raise UserError(
                f"{where} line {number}, byte {error.start + 1}: 0x{line[error.start]:02x} is not UTF-8. Convert the text."
            ) from None
    return lines


def write_text(name: str, text: str) -> None:
    """To a file, under a temporary name first, or to standard output for "-"."""
    if name == "-":
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
        return
    write_whole(name, text)


def add_checkpoint(arguments: argparse.ArgumentParser, *, several: bool = False) -> None:
    """`--step` (a list, with `several`) and `--average`: which parameters of a run."""
    more = {"action": "append"} if several else {}
    told = "checkpoint of this step (default: the newest)" + ("; may be given several times" if several else "")
    arguments.add_argument("--step", type=int, metavar="N", help=told, **more)
    arguments.add_argument(
        "--average", type=int, default=0, metavar="N", help="mean of the last N checkpoints up to that step"
    )


def load_run(args: argparse.Namespace, overrides: dict[str, str]):
    """The run that --workdir, --step and --average name, its process settings made before JAX starts."""
    from t2t_flax.evaluation.load import load, stored_config
    from t2t_flax.parallel.start import alone
    from t2t_flax.process import prepare_process

    alone("this command")
    prepare_process(stored_config(args.workdir, overrides))
    return load(args.workdir, step=args.step, average=args.average, overrides=overrides)


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


@contextlib.contextmanager
def decode_progress(watch: Watch) -> Iterator[Callable[[int, int], None]]:
    """For `evaluate`: a bar of the sentences that are decoded. From the first batch to the last each one is a sign that this
    process is alive.
    """
    from t2t_flax.telemetry.progress import Progress

    with contextlib.ExitStack() as stack:
        bars: list[Progress] = []

        def decoded(done: int, total: int) -> None:
            watch.reached()
            if not bars:  # short sentences go first, so that no time is foretold
                bar = Progress("decode", total, unit="sentences", quiet=not watch.pod.lead, eta=False)
                bars.append(stack.enter_context(bar))
                stack.enter_context(watch.progress())
            bars[0].update(done)
            if done >= total:
                stack.close()

        yield decoded
