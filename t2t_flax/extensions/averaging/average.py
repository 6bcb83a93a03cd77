"""Averaged checkpoints (6.1) as a new workdir.

`evaluate`, `translate` and `finetuning.init_from` accept it.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence

from etils import epath

from t2t_flax.config.overrides import check_same_model
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import open_run, stored_config
from t2t_flax.extensions.shared.parameters_run import write_params_run
from t2t_flax.files import is_remote, refuse_existing
from t2t_flax.model_forms import check_writable, run_folder
from t2t_flax.training.checkpoint_selection import CheckpointChoice, RestoredParams, mean
from t2t_flax.training.parametrization import parametrization_of


def average(
    workdirs: Sequence[str | epath.Path],
    output: str | epath.Path,
    *,
    last: int = 0,
    steps: Sequence[int] = (),
    best: bool = False,
    overrides: dict[str, str] | None = None,
) -> list[tuple[str, int]]:
    """Write the float32 mean of checkpoints of each workdir to `output`.

    Config and tokenizer come from the first workdir. Returns the averaged (workdir, step) pairs.
    Raises UserError if the output exists, a step is unknown, or a workdir has another model (naming
    the keys) or tokenizer.

    Args:
        last: number of last regular checkpoints per workdir (up to each of `steps`, if given).
            Without it, the checkpoints `steps`, or the `best`, are averaged.
    """
    output = epath.Path(output)
    check_writable(output, "give a new folder as --output")
    refuse_existing(output, "--output")
    folders = [
        name if is_remote(name) else os.path.realpath(name)
        for name in map(os.fspath, map(run_folder, workdirs))
    ]
    for flag, values in (("--workdir", folders), ("--step", list(map(str, steps)))):
        duplicate = next((value for value in values if values.count(value) > 1), None)
        if duplicate is not None:
            raise UserError(
                f"{flag} names {duplicate} twice: it would have double weight in the average. Name"
                " it once."
            )
    first = open_run(workdirs[0], overrides)
    for workdir in workdirs[1:]:
        check_same_model(stored_config(workdir), first.stored, f"the run in {workdir}")
        if TokenizerPair.load(run_folder(workdir) / "tokenizer").digest != first.tokenizers.digest:
            raise UserError(
                f"{workdir} and {workdirs[0]} have different tokenizers: their parameters cannot be"
                " averaged."
            )
    choices = [CheckpointChoice(step=step, average=last) for step in steps] or [
        CheckpointChoice(average=last, best=best)
    ]
    averaged: list[tuple[str, int]] = []

    def parts() -> Iterator[RestoredParams]:
        for workdir in map(run_folder, workdirs):
            for choice in choices:
                run = dataclasses.replace(first, workdir=workdir, stored=stored_config(workdir))
                for part in run.restore(choice):
                    averaged.extend((str(workdir), step) for step in part.steps)
                    yield part
                    del part  # free it before the next one is restored

    combined = mean(parts())
    averaged.sort(key=lambda x: -x[1])
    origin = {
        "step": max(step for _, step in averaged),
        "averaged": averaged,
        "config_changes": list(combined.config_changes),
    }
    stored = parametrization_of(first.stored).merged_config(first.stored)
    write_params_run(
        output,
        stored,
        first.tokenizers,
        combined.params,
        origin,
        flag="--output",
        command="average",
    )
    return averaged
