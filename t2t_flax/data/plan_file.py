"""The updates of each window of a corpus, counted once and found again beside the token store.

Counting reads all lengths. Found again, a run of any corpus starts in the time that one window takes.
"""

import hashlib
import json
from collections.abc import Callable

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.store import TokenStore
from t2t_flax.files import write_whole

VERSION = 1
"""Of the algorithms in `plan`, `padded_plan` and `hashing`: another number counts anew."""
WORTH_KEEPING = 4
"""Windows below which counting takes less than a second and nothing is written."""


def counts_of(store: TokenStore, config: Data, seed: int, windows: int, count: Callable[[int], int]) -> np.ndarray:
    """Updates of each window, int64 [windows]: from the file of an earlier run with the same keys, or from `count(w)`."""
    if windows < WORTH_KEEPING:
        return np.array([count(w) for w in range(windows)])
    keys = [VERSION, store.digest, seed, config.batching, config.batch_tokens, config.batch_count, config.batch_groups]
    name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
    path = store.origin.with_name(f"{store.origin.name}.plan-{name}.json")
    try:
        known = np.array(json.loads(path.read_text()), np.int64)
        if known.shape == (windows,) and (known > 0).all():
            return known
    except (OSError, ValueError, TypeError):
        pass
    counts = np.array([count(w) for w in range(windows)])
    try:
        write_whole(path, json.dumps(counts.tolist()))
    except OSError:
        pass  # a folder that others prepared and that this account cannot write to
    return counts
