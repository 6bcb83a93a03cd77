"""Update counts of a corpus, which are needed before the first update, cached beside the token store.

Counting reads all lengths and lays out one epoch. With the cache, a run starts in the time that one window takes.
"""

import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.mixture import Mixture
from t2t_flax.data.batching.shape_list import Size
from t2t_flax.data.store.token_store import TokenStore
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

VERSION = 2
"""Of the algorithms in `batch_sampler`, `padded_sampler`, `layouts`, `shape_list`, `packing` and `hashing`: counts of
another version are not used."""
MIN_CACHED_PAIRS = 50_000
"""Pairs below which counting takes less than a second and is not cached."""


class UpdateCounts(NamedTuple):
    """`updates` and `cuts`, int64 [windows]: the updates of each window, and which of the sampler's cuts epoch 0 uses;
    `sizes`: the closed list, ascending; every update of epoch 0 fits into one of them.
    """

    updates: np.ndarray
    cuts: np.ndarray
    sizes: list[Size]


def load_or_count(
    store: TokenStore,
    config: Data,
    seed: int,
    windows: int,
    count: Callable[[], UpdateCounts],
    mixture: Mixture | None = None,
) -> UpdateCounts:
    """The counts of an earlier run with the same keys, or those of `count()`, which are then cached."""
    if (mixture.size if mixture else store.num_pairs) < MIN_CACHED_PAIRS:
        return count()
    keys = [
        VERSION,
        store.digest,
        seed,
        config.batching,
        config.batch_tokens,
        config.batch_size_counts,
        config.batch_groups,
    ]
    keys += [config.pack_length] if config.batching == "packed" else []
    keys += [mixture.slots.tolist()] if mixture else []
    name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
    path = store.origin.with_name(f"{store.origin.name}.plan-{name}.json")
    try:
        cached = _from_json(path.read_text())
        if cached.updates.shape == cached.cuts.shape == (windows,) and (cached.updates > 0).all() and cached.sizes:
            return cached
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    counts = count()
    try:
        atomic_write(
            path, json.dumps({"updates": counts.updates.tolist(), "cuts": counts.cuts.tolist(), "sizes": counts.sizes})
        )
    except OSError:
        pass  # a folder that another account prepared, without write permission
    return counts


def _from_json(text: str) -> UpdateCounts:
    values = parse_json(text)
    sizes = [(int(length), int(rows)) for length, rows in values["sizes"]]
    return UpdateCounts(np.array(values["updates"], np.int64), np.array(values["cuts"], np.int64), sizes)
