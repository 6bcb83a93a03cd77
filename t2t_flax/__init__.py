"""t2t_flax: the Transformer of "Attention Is All You Need" in JAX/Flax.

The Python API is `train`, `prepare`, `evaluate`, `load` and `explain`; see `t2t_flax.api`.
"""

from t2t_flax.api import evaluate, explain, load, prepare, train
from t2t_flax.version import __version__

__all__ = ["__version__", "evaluate", "explain", "load", "prepare", "train"]
