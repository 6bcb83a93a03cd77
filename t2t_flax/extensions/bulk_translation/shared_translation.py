"""`translate_file` on several processes, which share the lines of one file.

The lines are dealt out in turns. Process 1 of 4 writes FILE.partial-1-of-4 with a record like the
one of FILE.partial, so --resume can go on. Process 0 joins the outputs into FILE when all parts are
complete.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import Line, answer_windows, arrives_slowly, is_stream, window_size, windows
from t2t_flax.cli.translate import read_input, translating
from t2t_flax.distributed.coordination import ProcessGroup, check_shared
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import UserError
from t2t_flax.extensions.bulk_translation.line_files import output_settings
from t2t_flax.extensions.bulk_translation.resumable_output import ResumableOutput
from t2t_flax.files import atomic_file, is_remote
from t2t_flax.process_setup import prepare_process

TURN = 2**14
"""Consecutive lines for a process before the next one's turn."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Lines of process `index` of `count`: each count-th turn of `turn` lines."""

    index: int
    count: int
    turn: int = TURN

    def of(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Return the share of these lines."""
        return (line for line in lines if line.number // self.turn % self.count == self.index)

    def windows(self, lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
        """Yield windows of consecutive lines of the share."""
        for window in windows(lines, size):
            for _, turn in itertools.groupby(window, lambda line: line.number // self.turn):
                yield list(turn)


def run_shared(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Return exit code 0 when the joined output is written.

    The code is 2 if the output has lines of this process that cannot be translated. Raises
    UserError for an input or output that the processes cannot share.
    """
    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.evaluation.restore import stored_config

    for flag, name in (
        ("--input", args.input),
        ("--output", args.output),
        ("--prefix", args.prefix),
    ):
        if name is not None and (
            name == "-" or is_remote(name) or is_stream(name) or arrives_slowly(name)
        ):
            raise UserError(
                f"{flag}={name} cannot be shared by several processes: translate on several hosts"
                " needs --input=FILE and --output=FILE in folders that all of them see. For"
                " anything else, run it on one host."
            )
    config = stored_config(args.workdir, overrides)
    check_decoder(config)
    prepare_process(config)
    with run_job(config) as supervisor:
        return _job(args, overrides, supervisor)


def _job(args: argparse.Namespace, overrides: dict[str, str], supervisor: RunSupervisor) -> int:
    from t2t_flax.evaluation.restore import load

    group = supervisor.group
    check_shared(group, epath.Path(args.output).absolute().parent, "--output")
    files = {"--input": args.input, "--prefix": args.prefix}
    sizes = {flag: os.path.getsize(name) if name else 0 for flag, name in files.items()}
    same_file = "all must read the same file"
    _check_same(group, sizes, "{} has {} bytes", same_file)
    lines = read_input(args, overrides)
    advice = f"the same command with --resume goes on with {args.output}.partial-*"
    with supervisor.exit_on_signal("translating", advice=f"Then {advice}."):
        loaded = load(
            args.workdir, **arguments.checkpoint(args), overrides=overrides, group=group, local=True
        )
        share, counter = Share(group.index, group.count), _Counter()
        flags = arguments.given_flags(args)
        answer = translating(loaded, scores=args.scores, flags=flags, say=supervisor.say)
        # Compare the content that was read instead of a file written there: a workdir may be
        # read-only.
        settings = output_settings(
            loaded, {"--scores": args.scores, "lines of a turn": share.turn, **flags}
        )
        _check_same(
            group,
            settings,
            "{} = {}",
            f"--workdir={args.workdir} and the settings must be the same for all",
        )
        output = ResumableOutput(
            args.output, settings, resume=args.resume, part=f"{share.index}-of-{share.count}"
        )
        with output:
            try:
                own = share.of(counter.count(lines))
                output.skip(own)
                ready = share.windows(own, window_size(loaded))
                with supervisor.expect_progress():
                    answer_windows(
                        "translated",
                        answer,
                        ready,
                        output.append,
                        check=supervisor.note_progress,
                        say=supervisor.say,
                    )
                # A lost or hanging process ends the others.
                group.barrier("all shares are translated", 365 * 24 * 3600.0)
                _check_same(group, {"--input": counter.lines}, "{} has {} lines", same_file)
                if group.is_lead:
                    parts = [output.path_of(f"{i}-of-{group.count}") for i in range(group.count)]
                    n_best = loaded.config.decode.n_best
                    join(parts, Path(args.output), share.turn * n_best, counter.lines * n_best)
            except UserError as error:
                raise UserError(f"{error} ({advice})" if output.done else str(error)) from None
            group.barrier("the outputs are joined")
            output.remove()
    return output.code(supervisor.say)


class _Counter:
    """Counter of lines as they are read."""

    def __init__(self):
        self.lines = 0

    def count(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines unchanged."""
        for line in lines:
            self.lines += 1
            yield line


def _check_same(group: ProcessGroup, values: dict[str, Any], form: str, expected: str) -> None:
    """Raise UserError, naming the processes, unless all have the same values.

    Waits for all processes.

    Args:
        form: name with its value, as in the message.
    """
    texts = {name: json.dumps(value) for name, value in values.items()}
    for index, answer in enumerate(group.all_gather("the same values", json.dumps(texts))):
        others = json.loads(answer)
        for name in sorted(texts | others):
            here, there = texts.get(name, "nothing"), others.get(name, "nothing")
            if here != there:
                raise UserError(
                    f"{form.format(name, here)} on {group.name_of(group.index)} and {there} on"
                    f" {group.name_of(index)}: {expected}."
                )


def join(parts: Sequence[Path], output: Path, turn: int, total: int) -> None:
    """Join `turn` lines of each part in turn into one file, until all parts end.

    The file gets the name `output` at the end. Raises UserError if it has a number of lines other
    than `total`.
    """
    written = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(part, "rb")) for part in parts]
        joined = stack.enter_context(atomic_file(output))
        for file in itertools.cycle(files):
            lines = list(itertools.islice(file, turn))
            joined.writelines(lines)
            written += len(lines)
            if len(lines) < turn:
                break
        left = [part for part, file in zip(parts, files, strict=True) if file.read(1)]
        if left or written != total:
            what = (
                f"{', '.join(map(str, left))}: longer than its share"
                if left
                else f"the parts hold {written} of {total} lines"
            )
            raise UserError(f"{what}. Is the folder of --output shared by all?")
