"""Integer hashing for reproducible orders.

The orders are the same on every machine and with every NumPy version.
"""

import numpy as np

_MASK = (1 << 64) - 1


def key_of(*parts: int) -> int:
    """Return one 64-bit key from several integers; their order matters."""
    key = 0x243F6A8885A308D3
    for part in parts:
        key = int(mix(np.array([(key ^ (part & _MASK)) & _MASK], np.uint64))[0])
    return key


def mix(x: np.ndarray) -> np.ndarray:
    """Apply splitmix64 (Steele, Lea, Flood 2014): uint64 -> uint64, a bijection."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def hashes(count: int, key: int) -> np.ndarray:
    """Return one value for each index under `key`, uint64 [count]."""
    return mix(np.arange(count, dtype=np.uint64) ^ np.uint64(key))


def permutation(count: int, key: int) -> np.ndarray:
    """Return a permutation of 0 .. count - 1 fixed by `key`, int64 [count]."""
    return np.argsort(hashes(count, key))  # no two are equal


def bijection(index: np.ndarray, size: int, key: int) -> np.ndarray:
    """Evaluate a permutation of 0 .. size - 1 at `index` alone, without storing it.

    It is a four-round Feistel network over the smallest even number of bits that holds `size`.
    Values that fall outside are sent through it again until they fall inside (cycle walking), so it
    stays a bijection.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    keys = [np.uint64(key_of(key, turn)) for turn in range(4)]
    out = index.astype(np.uint64)
    todo = np.ones(out.shape, bool)
    while todo.any():
        left, right = out[todo] >> np.uint64(half), out[todo] & low
        for k in keys:
            left, right = right, left ^ (mix(right ^ k) & low)
        out[todo] = (left << np.uint64(half)) | right
        todo[todo] = out[todo] >= size
    return out.astype(np.int64)
