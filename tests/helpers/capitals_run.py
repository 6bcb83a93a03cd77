"""A stand-in for a restored run, whose translations are the lines in capitals."""

import io
import os
import signal
import sys
from types import SimpleNamespace

from t2t_flax.__main__ import main
from t2t_flax.cli import arguments
from t2t_flax.cli import lines as lines_module
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.errors import UserError


class CapitalsRun:
    """A run whose translations are the lines in capitals.

    Attributes:
      windows: the lines of each call.
      refused: lines that it cannot translate.
    """

    def __init__(self, config):
        self.config, self.steps, self.params, self.models = config, (20,), {}, ()
        self.tokenizers, self.decoder = (
            SimpleNamespace(digest="abc"),
            SimpleNamespace(name="jax", dtype="float32"),
        )
        self.mesh = SimpleNamespace(shape={"data": 1, "fsdp": 1})
        self.windows, self.before_window = [], lambda number: None
        self.refused = ()

    def for_decoding(self):
        return self

    def in_language(self, text, language):
        return f"[{language}]{text}"

    def check_line(self, line, number=0):
        if line in self.refused:
            raise UserError(f"{line} is refused")

    def translate(self, lines, *, prefixes=None, first_line=0, progress=lambda *_: None):
        self.before_window(len(self.windows))
        for line in lines:
            self.check_line(line)
        progress(len(lines), len(lines))
        self.windows.append((first_line, list(lines)))
        starts = prefixes or [""] * len(lines)
        texts = [start + line.upper() for start, line in zip(starts, lines, strict=True)]
        n_best = self.config.decode.n_best
        return [
            Translation(
                tuple(Hypothesis(f"{t}{n or ''}", (), -n, -n, False) for n in range(n_best))
            )
            for t in texts
        ]


def use(monkeypatch, tmp_path) -> CapitalsRun:
    """Make the stand-in the run of any --workdir, and `tmp_path` the current folder.

    It has windows of 4 lines.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lines_module, "WINDOW_BATCHES", 4)
    run = CapitalsRun(None)

    def stored_config(workdir, overrides):
        return resolve(override(to_config_dict(Config()), {"decode.batch_size": "1"} | overrides))

    def load_run(args, overrides):
        run.config = stored_config(args.workdir, overrides)
        return run

    monkeypatch.setattr(arguments, "load_run", load_run)
    monkeypatch.setattr("t2t_flax.evaluation.restore.stored_config", stored_config)
    return run


def command(name: str, monkeypatch, capsys):
    """Runs the command in this process; returns (standard output, standard error)."""

    def run(*flags, stdin=b"", code=0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        assert main([name, "--workdir=w", *flags]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def stop_at_window(run, number, stop=signal.SIGTERM):
    """Sends this process a signal before that window."""
    run.windows.clear()
    run.before_window = lambda n: os.kill(os.getpid(), stop) if n == number else None
