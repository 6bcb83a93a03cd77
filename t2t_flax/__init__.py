"""t2t_flax: the Transformer of "Attention Is All You Need" in JAX/Flax."""

from typing import Any

from t2t_flax.version import __version__

__all__ = ["__version__", "load"]


def load(workdir: str, **how: Any):
    """A trained run, ready to translate: `t2t_flax.load("runs/toy").translate(["It is late."])`.

    See `t2t_flax.evaluation.restore.load` for `step`, `average`, `best` and `overrides`.
    """
    from t2t_flax.evaluation.restore import load as load_run

    return load_run(workdir, **how)
