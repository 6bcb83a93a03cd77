"""The mean of checkpoints (6.1) as a workdir of its own, which `evaluate`, `translate` and `train.init_from` take."""

import os
import uuid
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.errors import UserError
from t2t_flax.evaluation.load import Loaded, load, stored_config
from t2t_flax.files import move_folder, write_whole
from t2t_flax.training.checkpoint import Checkpoints, check_same_model
from t2t_flax.training.resume import on_disk


def average(
    workdirs: Sequence[str | epath.Path],
    output: str | epath.Path,
    *,
    last: int = 0,
    steps: Sequence[int] = (),
    overrides: dict[str, str] | None = None,
) -> list[tuple[str, int]]:
    """Writes the float32 mean of each workdir's `last` regular checkpoints, or of its checkpoints `steps`, to `output`.

    Returns the (workdir, step) pairs that went in. Config and tokenizer are those of the first workdir. Raises UserError
    for an output that exists, unknown steps, and workdirs of another model or tokenizer (the keys are named).
    """
    output = epath.Path(output)
    if output.exists():
        raise UserError(f"--output={output} is there already: name a new folder.")
    for what, values in (("--workdir", [os.fspath(w) for w in workdirs]), ("--steps", list(steps))):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UserError(f"{what} names {twice} twice: it would weigh double.")
    first = stored_config(workdirs[0])
    tokenizers = TokenizerPair.load(epath.Path(workdirs[0]) / "tokenizer")
    for workdir in workdirs[1:]:
        check_same_model(stored_config(workdir), first, f"the run in {workdir}")
        if TokenizerPair.load(epath.Path(workdir) / "tokenizer").digest != tokenizers.digest:
            raise UserError(f"{workdir} has another tokenizer than {workdirs[0]}: their parameters mean other tokens.")
    parts = [
        loaded for workdir in workdirs for loaded in _parts(workdir, last=last, steps=steps, overrides=overrides or {})
    ]
    counts = [len(part.steps) for part in parts]
    add = lambda *trees: sum(n * jnp.asarray(x, jnp.float32) for n, x in zip(counts, trees, strict=True)) / sum(counts)  # noqa: E731
    params = jax.tree.map(add, *(part.params for part in parts))
    taken = sorted(((str(part.workdir), step) for part in parts for step in part.steps), key=lambda x: -x[1])
    _write(output, first, tokenizers, params, taken)
    return taken


def _parts(workdir: str | epath.Path, *, last: int, steps: Sequence[int], overrides: dict[str, str]) -> list[Loaded]:
    if steps:
        return [load(workdir, step=step, overrides=overrides) for step in steps]
    return [load(workdir, average=last, overrides=overrides)]


def _write(output: epath.Path, config: Config, tokenizers: TokenizerPair, params: Any, taken: list) -> None:
    partial = output.with_name(f"{output.name}.partial-{uuid.uuid4().hex}")
    try:
        tokenizers.save(partial / "tokenizer")
        write_whole(partial / "config.json", config_lib.to_json(config))
        checkpoints = Checkpoints(partial / "checkpoints")
        meta = {
            "step": max(step for _, step in taken),
            "scheduled": True,
            "averaged": taken,
            "config": config_lib.as_json(config),
            "digests": {"tokenizer": tokenizers.digest},
        }
        item = "ema" if config.optimizer.ema_decay else "params"
        on_disk(checkpoints, lambda: checkpoints.save_params(params, meta, item))
        on_disk(checkpoints, checkpoints.wait)
        checkpoints.close()
        move_folder(partial, output)
    except BaseException:
        partial.rmtree(missing_ok=True)
        raise
