"""Flags, files and progress shared by the commands.

Every command takes `--config=FILE.py[:variant]` or `--workdir=DIR`, and `--config.KEY=VALUE`.
"""

import argparse
import dataclasses
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t2t_flax.errors import UserError
from t2t_flax.files import expand_home, is_remote, is_write_refused
from t2t_flax.model_forms import MODEL_FORMS, is_name
from t2t_flax.registry import FLAGS, LINES, REPEATED_WORKDIR, load_extensions

OVERRIDE_HELP = (
    "--config.KEY=VALUE overrides any key, for example --config.model.dropout=0.2; `explain --keys`"
    " lists all"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(f"{message}\n{self.format_usage().strip()}")


def count(low: int = 0, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Return an argparse `type` for whole numbers from `low` to `high`."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"expected a whole number, not {text[:40]!r}"
            ) from None
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise argparse.ArgumentTypeError(f"must be {bound}, not {text[:40]}")
        return value

    return whole_number


class _StoreOnce(argparse._StoreAction):
    """Refuse a flag that is given twice, instead of silently dropping a value."""

    _given = False

    def __call__(self, parser, namespace, values, option_string=None):
        if self._given and option_string:
            parser.error(f"{option_string} is given twice")
        self._given = True
        super().__call__(parser, namespace, values, option_string)


class _StoreSeveral(argparse.Action):
    """Store the first workdir, and a list of the others as the flag REPEATED_WORKDIR.

    The others are refused unless an extension has this flag.
    """

    def __call__(self, parser, namespace, values, option_string=None):
        if getattr(namespace, "workdir", None) is None:
            namespace.workdir = values
        elif REPEATED_WORKDIR in FLAGS:
            name = _attribute(REPEATED_WORKDIR)
            others = getattr(namespace, name, None)
            setattr(namespace, name, f"{others},{values}" if others else values)
        else:
            parser.error("--workdir is given twice.")


def parser(command: str, description: str, *, epilog: str = "") -> argparse.ArgumentParser:
    """Return an argument parser that raises UserError for wrong arguments."""
    made = _Parser(
        prog=f"python -m t2t_flax {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.register("action", None, _StoreOnce)
    made.register("action", "store", _StoreOnce)
    return made


def parse(
    arguments: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Return the parsed flags, and the overrides `{"model.dropout": "0.2"}`.

    Raises UserError for wrong flags.
    """
    plain, overrides = [], {}
    remaining = iter(argv)
    for arg in remaining:
        if not arg.startswith("--config."):
            plain.append(_checked(arg))
            continue
        name, equals, value = arg.removeprefix("--config.").partition("=")
        if not equals:
            following = next(remaining, None)
            if following is None:
                raise UserError(f"{arg} has no value: write {arg}=VALUE.")
            value = following
        overrides[name] = value
    args = arguments.parse_args(plain)
    for flag, row in FLAGS.items():
        given = getattr(args, _attribute(flag), None) if row.key else None
        if given is not None and overrides.setdefault(row.key, given) != given:
            raise UserError(
                f"{flag}={given} and --config.{row.key}={overrides[row.key]} differ: give one of"
                " them."
            )
    if "average" in args and args.best and (args.step is not None or args.average):
        flag = "--average" if args.average else "--step"
        raise UserError(f"--best and {flag} choose different checkpoints: give one of them.")
    return args, overrides


def _checked(arg: str) -> str:
    """Return the argument with - for _ in its flag and the home folder for ~.

    For example --n_best becomes --n-best, and --workdir=~/a gets the home folder. Shells replace ~
    only at the beginning of a word. Raises UserError for an empty value and for text that is not
    Unicode.
    """
    flag, equals, value = arg.partition("=") if arg.startswith("--") else ("", "", arg)
    if (equals or not flag) and value.strip() in ("", "--"):  # argparse makes [] from these
        raise UserError(f"{flag + equals or 'an argument'} is empty: give a value.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{flag}{equals}{value!r}: contains bytes that are not UTF-8.") from None
    if flag and value.startswith("~/"):
        value = expand_home(value, flag)
    return flag.replace("_", "-") + equals + value


def add_workdir(
    arguments: argparse.ArgumentParser, help_text: str = "", *, several: bool = False
) -> None:
    """Add `--workdir`, required.

    Args:
        several: whether it may be repeated, if an extension has the flag REPEATED_WORKDIR.
    """
    text = help_text or workdir_help()
    if several and REPEATED_WORKDIR in FLAGS:
        text += f"; given several times: {FLAGS[REPEATED_WORKDIR].summary}"
    options: dict[str, Any] = {"action": _StoreSeveral} if several else {}
    arguments.add_argument("--workdir", required=True, metavar="DIR", help=text, **options)


def workdir_help() -> str:
    """Return a help text on workdirs that are read."""
    load_extensions()
    return " or ".join(["folder of a trained run", *(form.shown for form in MODEL_FORMS.values())])


def add_flags(arguments: argparse.ArgumentParser, *commands: str) -> None:
    """Add the flags of extensions for these `registry.Flag.commands`.

    `parse` makes overrides of flags with a key; see `Changes` for the others.
    """
    load_extensions()
    for flag, row in FLAGS.items():
        if row.commands in commands:
            value: dict[str, Any] = (
                dict(metavar=row.metavar)
                if row.metavar
                else dict(action="store_const", const="true")
            )
            text = f"{row.summary}: config.{row.key}" if row.key else row.summary
            arguments.add_argument(flag, help=text, **value)


def given_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return given flags of `add_flags` that have no key, with their values."""
    values = {
        flag: getattr(args, _attribute(flag), None) for flag, row in FLAGS.items() if not row.key
    }
    return {flag: value for flag, value in values.items() if value is not None}


def _attribute(flag: str) -> str:
    return flag.strip("-").replace("-", "_")


class Change:
    """Effect of an extension's flag.

    Raises UserError for a value that the model cannot take.

    Args:
        model: translates in place of a trained model.
        answers: makes the printed text in place of translations, (lines, lines as the model read
            them, translations of each line) -> texts of each line; None = translations.
        in_parts: whether `model` translates parts of lines.
    """

    answers: Callable[..., list[list[str]]] | None = None
    in_parts = False

    def __init__(self, model: Any, value: str):
        self.model = model

    def source(self, line: str) -> str:
        """Return the text that the model reads in place of a user's line."""
        return line


class Changes(Change):
    """Effects of all `given_flags`.

    Raises UserError if two flags set the printed text, or if one does while another makes the model
    translate parts of lines or read several lines as one.
    """

    def __init__(self, model: Any, flags: dict[str, str]):
        # Symbols of languages come before a line's text, once that is read.
        kinds = {
            flag: FLAGS.load(flag)
            for flag in sorted(flags, key=lambda flag: FLAGS[flag].commands == LINES)
        }
        printing = [flag for flag in flags if kinds[flag].answers]
        if len(printing) > 1:
            raise UserError(f"{' and '.join(printing)} both say what is printed: give one of them.")
        if printing and (parts := next((flag for flag in flags if kinds[flag].in_parts), "")):
            raise UserError(
                f"{printing[0]} is about whole lines, of which {parts} translates parts: give one"
                " of them."
            )
        self._parts, self.model = [], model
        for flag, kind in kinds.items():
            self._parts.append(kind(self.model, flags[flag]))
            self.model = self._parts[-1].model
            self.answers = self._parts[-1].answers or self.answers

    def source(self, line: str) -> str:
        for part in self._parts:
            line = part.source(line)
        return line


def add_config(arguments: argparse.ArgumentParser) -> None:
    """Add `--config`, required."""
    arguments.add_argument(
        "--config",
        required=True,
        metavar="FILE.py[:variant]",
        help="config file, or the name of a preset; " + OVERRIDE_HELP,
    )


def check_output(flag: str, name: str, *, folder: bool = False) -> None:
    """Raise UserError if no file (with `folder`: no folder) can be created at `name`.

    Called before any work is done. Standard output, pipes, devices, object stores, names of models
    and existing folders are not checked. Raises OSError for a full disk or a missing permission.
    """
    if name == "-" or is_remote(name) or is_name(name):
        return
    path = Path(name).absolute()
    if path.exists() and not path.is_file() and folder == path.is_dir():
        return
    try:
        if path.exists() and folder != path.is_dir():
            number = errno.EISDIR if path.is_dir() else errno.EEXIST
            raise OSError(number, os.strerror(number))
        with tempfile.TemporaryFile(dir=next(parent for parent in path.parents if parent.exists())):
            pass
    except OSError as error:
        if is_write_refused(error):
            raise
        raise UserError(
            f"{flag}={name} cannot be written: {error.strerror}. Give another path."
        ) from None


def add_checkpoint(arguments: argparse.ArgumentParser) -> None:
    """Add `--step`, `--average` and `--best`, which choose the parameters of a run."""
    arguments.add_argument(
        "--step", type=count(), metavar="N", help="checkpoint of update N (default: the newest)"
    )
    arguments.add_argument(
        "--average",
        type=count(),
        default=0,
        metavar="N",
        help="mean of the last N regular checkpoints up to --step (6.1), without those of a stop or"
        " an evaluation",
    )
    arguments.add_argument(
        "--best",
        action="store_true",
        help="the checkpoint with the best eval.metric, instead of --step and --average",
    )


def checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of `add_checkpoint` as arguments for `evaluation.restore.load`."""
    return dict(step=args.step, average=args.average, best=args.best)


def load_run(args: argparse.Namespace, overrides: dict[str, str]):
    """Load the run that --workdir, --step, --average and --best name.

    Applies its process settings, so call it before JAX starts.
    """
    from t2t_flax.evaluation.restore import load

    prepare_to_load(args.workdir, overrides)
    return load(args.workdir, **checkpoint(args), overrides=overrides)


def prepare_to_load(workdir: str, overrides: dict[str, str]) -> None:
    """Apply a run's process settings.

    A CPU is one device, on which several batches are decoded at once, unless mesh.cpu_devices is
    overridden. Raises UserError if this is one of several processes or hosts, the folder holds no
    run, or its decode.engine is not available.
    """
    import jax

    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.distributed.coordination import require_single_process
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.process_setup import prepare_process

    require_single_process("this command")
    config = stored_config(workdir, overrides)
    check_decoder(config)
    if "mesh.cpu_devices" not in overrides:
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, cpu_devices=1))
    prepare_process(config)
    if jax.process_count() > 1:  # a TPU slice of several hosts, which JAX joins automatically
        raise UserError(
            f"this is host {jax.process_index()} of the {jax.process_count()} of a TPU slice, and"
            " the command runs on one: launch/README.md says which variables start several, where"
            " a command can use them."
        )
