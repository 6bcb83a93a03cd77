"""A run that holds parameters alone, as an average or an import writes it."""

import contextlib
import dataclasses
from typing import Any

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.files import atomic_directory, atomic_write, refuse_existing
from t2t_flax.locks import exclusive_writer
from t2t_flax.training.checkpoints import Checkpoints
from t2t_flax.training.parts import TrainState


def write_params_run(
    folder: str | epath.Path,
    config: Config,
    tokenizers: TokenizerPair,
    params: Any,
    origin: dict[str, Any],
    *,
    flag: str,
    command: str,
) -> None:
    """Write a workdir whose one checkpoint holds parameters alone.

    It is written whole or not at all. Raises UserError if the folder exists, or the disk is full.

    Args:
        params: a tree of float32 JAX arrays.
        origin: the checkpoint's `step`, and further metadata on the origin of the parameters.
        flag, command: for messages and the lock.
    """
    folder = epath.Path(folder)
    meta = {
        **origin,
        "params_only": True,
        "config": config_lib.as_json(config),
        "digests": {"tokenizer": tokenizers.digest},
    }
    item = "ema" if config.optimizer.averages else "params"
    with contextlib.ExitStack() as stack:
        stack.enter_context(exclusive_writer(folder, command))
        refuse_existing(folder, flag)
        partial = stack.enter_context(atomic_directory(folder, replace=False))
        tokenizers.save(partial / "tokenizer")
        atomic_write(partial / "config.json", config_lib.to_json(config))
        checkpoints = Checkpoints(partial / "checkpoints")
        state = dataclasses.replace(TrainState(jax.numpy.int32(0), None, None), **{item: params})
        checkpoints.save(state, meta)
        checkpoints.wait()
        checkpoints.close()
