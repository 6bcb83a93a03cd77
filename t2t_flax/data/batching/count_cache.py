"""What is counted of a corpus before the first update, kept beside the token store.

Counting reads all lengths and lays out one epoch. Found again, a run of any corpus starts in the time that one window
takes.
"""

import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t2t_flax.config import Data
from t2t_flax.config.renamed import original_value
from t2t_flax.data.batching.shape_list import Size
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.filesystem import atomic_write

VERSION = 2
"""Of the algorithms in `plan`, `padded_plan`, `layouts`, `sizes`, `first_fit` and `hashing`: another number counts anew."""
WORTH_KEEPING = 50_000
"""Pairs below which counting takes less than a second and nothing is written."""


class Counted(NamedTuple):
    """`updates` and `cuts`, int64 [windows]: the updates of each window, and which of the plan's cuts epoch 0 takes;
    `sizes`: the closed list, ascending, which holds every update of epoch 0.
    """

    updates: np.ndarray
    cuts: np.ndarray
    sizes: list[Size]


def counted(store: TokenStore, config: Data, seed: int, windows: int, count: Callable[[], Counted]) -> Counted:
    """What an earlier run with the same keys counted, or what `count()` gives."""
    if store.num_pairs < WORTH_KEEPING:
        return count()
    keys = [
        VERSION,
        store.digest,
        seed,
        config.batching,
        config.batch_tokens,
        original_value("data.batch_size_counts", config.batch_size_counts),
        config.batch_groups,
    ]
    keys += [config.pack_length] if config.batching == "packed" else []
    name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
    path = store.origin.with_name(f"{store.origin.name}.plan-{name}.json")
    try:
        known = _from_json(path.read_text())
        if known.updates.shape == known.cuts.shape == (windows,) and (known.updates > 0).all() and known.sizes:
            return known
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    made = count()
    try:
        atomic_write(
            path, json.dumps({"updates": made.updates.tolist(), "cuts": made.cuts.tolist(), "sizes": made.sizes})
        )
    except OSError:
        pass  # a folder that others prepared and that this account cannot write to
    return made


def _from_json(text: str) -> Counted:
    found = json.loads(text)
    sizes = [(int(length), int(rows)) for length, rows in found["sizes"]]
    return Counted(np.array(found["updates"], np.int64), np.array(found["cuts"], np.int64), sizes)
