"""Branches of a run, with other batch sizes over the same tokens.

A branch starts at one of the run's checkpoints (Merrill et al. 2025, arXiv 2505.23971). It is a
workdir whose first checkpoint is the run's, so that `train` resumes it as any other.
"""

import dataclasses
import math
import shutil
from collections.abc import Sequence
from fractions import Fraction

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError
from t2t_flax.files import (
    atomic_directory,
    atomic_write,
    is_remote,
    list_names,
    read_if_exists,
    refuse_existing,
)
from t2t_flax.registry import GROUPS
from t2t_flax.training.checkpoints import finished_steps, read_meta, write_meta
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.parts import TrainProgress
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.workdir import MARKER

_READ_TEST = ("filters.held_out", "languages.directions")
_FILE = "branches.txt"
"""File in the folder of the branches that describes them."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch of a run.

    Args:
        factor: its batch size as a multiple of data.batch_tokens.
        start, end: numbers of the update that it begins after, and of its last one.
    """

    factor: Fraction
    seed: int
    start: int
    end: int
    config: Config

    @property
    def name(self) -> str:
        return f"x{float(self.factor):g},seed={self.seed}"


def plan(
    stored: Config,
    step: int,
    factors: Sequence[Fraction],
    tokens: int,
    seeds: int,
    overrides: dict[str, str],
    cache: str,
) -> list[Branch]:
    """Return the branches of a run with this config after update `step`.

    Each is over `tokens` of its batches' size. The learning rate is the rate of update `step` times
    the root of the factor, as Adam's should grow. The updates are numbered as if the run had had
    the batch size from its start, so that a branch reads on where the run stood in its corpus. Seed
    0 has the run's own order of pairs and dropout, seed s adds s to them. Raises UserError for a
    batch that is too small, for fewer tokens than two of the largest batches, and after an update
    at rate 0.
    """
    rate, batch = float(learning_rate_schedule(stored)(step)), stored.data.batch_tokens
    if tokens < 2 * batch * max(factors):
        raise UserError(
            f"--tokens={tokens}: the largest batch has {int(batch * max(factors)):,} tokens: a"
            " branch needs two updates or more."
        )
    if not rate:
        raise UserError(
            f"--step={step}: the learning rate of that update is 0: name an earlier checkpoint."
        )
    # Keys that name the test sets, or take what is in them out of the training data, which must
    # stay the same.
    reads_test = any(stored.value(key) for key in _READ_TEST if key in fields())
    branches = []
    for factor in factors:
        start = max(1, round(step / factor))
        end = start + round(tokens / (batch * factor))
        for seed in range(seeds):
            values = {
                "data.batch_tokens": round(batch * factor),
                "data.cache": cache,
                "data.test": stored.data.test if reads_test else "",
                "optimizer.schedule": "constant",
                "optimizer.peak_lr": rate * math.sqrt(factor),
                "optimizer.warmup_steps": 1,
                "optimizer.warmup_init": 0.0,
                "optimizer.ema_decay": (
                    stored.optimizer.ema_decay ** float(factor)
                ),  # same decay per token
                "train.steps": end,
                "eval.every_steps": end,
                "eval.every_epochs": 0,
                "eval.decode_every_steps": 0,
                "eval.metric": "nll",
                "eval.patience": 0,
                "checkpoint.every_epochs": 0,
                "checkpoint.keep_last": 1,
                "checkpoint.keep_best": 0,
                "checkpoint.average_last": 0,
                "seed.data": stored.seed.data + seed,
                "seed.dropout": stored.seed.dropout + seed,
            }
            text = {key: str(value) for key, value in values.items()} | overrides
            config = config_lib.resolve(
                config_lib.override(config_lib.to_config_dict(stored), text)
            )
            branches.append(Branch(factor, seed, start, end, config))
    return branches


def check_run(workdir: epath.Path, stored: Config, step: int) -> None:
    """Raise UserError for a run that cannot have branches.

    That is a run without a local checkpoint of this update or without a validation set, or one
    whose batches grow or whose mixture changes.
    """
    if is_remote(workdir):
        raise UserError(
            f"{workdir} is in an object store: copy it to a disk, from where its branches can"
            " begin."
        )
    steps = finished_steps(workdir / "checkpoints")
    if step not in steps:
        raise UserError(
            f"{workdir} has no checkpoint of update {step}; it has"
            f" {', '.join(map(str, steps)) or 'none'}."
        )
    if not stored.data.valid:
        raise UserError(
            f"{workdir} has no validation set, by which branches are compared: config.data.valid is"
            " empty."
        )
    if grown := "mixtures" in GROUPS and stored.value("mixtures.batch_tokens"):
        raise UserError(
            f"{workdir} has batches that grow, config.mixtures.batch_tokens = {grown!r}, and those"
            " of a branch have one size: branch off a run without them."
        )
    # The shares count updates, and a branch numbers its updates differently.
    if "mixtures" in GROUPS and ";" in (shares := stored.value("mixtures.shares")):
        raise UserError(
            f"{workdir} has shares that change, config.mixtures.shares = {shares!r}: branch off a"
            " run with the same ones throughout."
        )


def claim(output: epath.Path, workdir: epath.Path, step: int, tokens: int) -> None:
    """Make the folder of the branches and write their description into it.

    Raises UserError if it holds other branches, whose losses would be taken for these.
    """
    wanted = f"branches of {workdir.resolve()} after update {step}, {tokens} tokens each"
    found = read_if_exists(output / _FILE)
    if found not in (None, wanted):
        raise UserError(
            f"--output={output} holds {found}; these are {wanted}: give another folder."
        )
    if found is None and list_names(output):
        raise UserError(f"--output={output} is not empty, and has no {_FILE}: give a new folder.")
    output.mkdir(parents=True, exist_ok=True)
    atomic_write(output / _FILE, wanted)


def fork(workdir: epath.Path, step: int, branch: Branch, output: epath.Path) -> None:
    """Write the workdir of a branch, whole or not at all.

    It gets the run's tokenizer and its checkpoint of update `step`, which counts as the checkpoint
    of `branch.start`. Raises UserError if the folder exists.
    """
    refuse_existing(output, "--output")
    with atomic_directory(output, replace=False) as partial:
        shutil.copytree(workdir / "tokenizer", partial / "tokenizer")
        checkpoint = partial / "checkpoints" / str(branch.start)
        shutil.copytree(workdir / "checkpoints" / str(step), checkpoint)
        meta = read_meta(checkpoint)
        meta.pop("metric", None)
        tokens = {name: meta["progress"][name] for name in ("source_tokens", "target_tokens")}
        meta |= {
            "step": branch.start,
            "config": config_lib.as_json(branch.config),
            "progress": dataclasses.asdict(TrainProgress(step=branch.start, **tokens)),
            "updates_per_epoch": max(1, round(meta["updates_per_epoch"] / branch.factor)),
            "branch_of": {"workdir": str(workdir), "step": step},
        }
        write_meta(checkpoint, meta)
        atomic_write(partial / "config.json", config_lib.to_json(branch.config))


def final_loss(workdir: epath.Path) -> float:
    """Return the validation loss at the end of a branch; NaN for one that diverged."""
    if (workdir / MARKER).exists():
        return math.nan
    values = [line["valid_nll"] for line in read_metrics(workdir) if "valid_nll" in line]
    return values[-1] if values else math.nan


def critical_factor(
    losses: Sequence[tuple[Fraction, float]], tolerance: float
) -> tuple[Fraction, bool]:
    """Return (critical factor, whether a larger factor follows).

    Without a larger one it is a lower bound. It is the largest factor up to which no loss is more
    than `tolerance` above the loss of the smallest factor.
    """
    ordered = sorted(losses)
    critical, smallest = ordered[0]
    for factor, loss in ordered[1:]:
        if not loss <= smallest + tolerance:
            return critical, True
        critical = factor
    return critical, False
