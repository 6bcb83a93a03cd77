"""The JAX search as an engine: beam search, greedy search and sampling on the devices of the run's mesh."""

import functools

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.decoding.translator import Translator
from t2t_flax.evaluation.engine import Engine, RestoredRun


def obstacle(config: Config) -> str | None:
    """Why it cannot decode for a run of this config; always None."""
    return None


def installed_version() -> str:
    """Of JAX."""
    return jax.__version__


def make_engine(run: RestoredRun) -> Engine:
    """The search with the run's parameters."""
    config = run.config
    translator = Translator(run.model, run.tokenizers, run.mesh, config.decode, source_eos=config.data.source_eos)
    translate = functools.partial(translator.translate, run.params)
    compile_shape = functools.partial(translator.compile, run.params)
    return Engine("jax", installed_version(), np.dtype(run.model.dtype).name, translate, compile=compile_shape)
