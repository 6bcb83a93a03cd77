"""Checksums of token stores: detects files damaged by a copy, a power failure or a failing disk.

meta.json has a CRC-32 of each file. The store is read once as a whole when it is first opened, at about 1 GB/s per core;
after that, files of the same size, times and inode are trusted.
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.json_file import parse_json

SIDES = ("source", "target")
PARTS = ("ids", "lengths", "offsets")
LENGTH, OFFSET = np.dtype("<i4"), np.dtype("<i8")
FILES = tuple(f"{side}.{part}" for side in SIDES for part in PARTS)
VERIFIED = ".verified"
"""File in a store's folder with the verified checksums, and the files' size, times and inode at that time."""
_BLOCK = 1 << 20


def blocks(path: Path | epath.Path, size: int = 4 * _BLOCK) -> Iterator[bytes]:
    """The content of a file, `size` bytes at a time."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def crc32(path: Path) -> int:
    """CRC-32 of a file."""
    checksum = 0
    for block in blocks(path):
        checksum = zlib.crc32(block, checksum)
    return checksum


def verify(folder: Path, meta: dict[str, Any]) -> None:
    """Compares every file with its checksum in `meta`, offsets with lengths, and ids with the vocabulary size.

    Reads in constant memory, and nothing if the files are unchanged since they were last verified. Raises UserError
    that names the first damaged file.
    """
    state = {name: [meta["crc32"][name], *_identity(folder / name)] for name in FILES}
    try:
        if parse_json((folder / VERIFIED).read_text()) == state:
            return
    except (OSError, ValueError):
        pass
    for side in SIDES:
        _verify_side(folder, side, meta)
    try:
        atomic_write(folder / VERIFIED, json.dumps(state), parents=False)
    except OSError:
        pass  # this account may only read the store, or another process has moved it away meanwhile


def _identity(path: Path) -> list[int]:
    """Size, times and inode. The change time exposes a file restored with its old modification time."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _verify_side(folder: Path, side: str, meta: dict[str, Any]) -> None:
    side_meta = meta[side]
    checksums = dict.fromkeys(PARTS, 0)

    def read(part: str, dtype: np.dtype, count: int) -> Iterator[np.ndarray]:
        for block in blocks(folder / f"{side}.{part}", count * dtype.itemsize):
            checksums[part] = zlib.crc32(block, checksums[part])
            yield np.frombuffer(block, dtype)

    largest, end, longest, consistent = -1, 0, 0, True
    for ids in read("ids", np.dtype(side_meta["dtype"]).newbyteorder("<"), _BLOCK):
        largest = max(largest, int(ids.max()))
        consistent &= int(ids.min()) >= 0
    for lengths, offsets in zip(read("lengths", LENGTH, _BLOCK), read("offsets", OFFSET, _BLOCK), strict=True):
        ends = end + np.cumsum(lengths, dtype=np.int64)
        consistent &= bool((lengths >= 0).all() and (offsets == ends - lengths).all())
        end, longest = int(ends[-1]), max(longest, int(lengths.max()))
    for part, checksum in checksums.items():
        if checksum != meta["crc32"][f"{side}.{part}"]:
            raise damaged(folder, f"the checksum of {side}.{part} is not that in meta.json")
    if largest >= side_meta["vocab_size"]:
        raise damaged(folder, f"{side}.ids has id {largest}, the vocabulary {side_meta['vocab_size']} ids")
    if not consistent or (end, longest) != (side_meta["tokens"], side_meta["longest"]):
        raise damaged(folder, f"{side}.offsets and {side}.lengths contradict each other")


def damaged(folder: os.PathLike | str, problem: str) -> UserError:
    """The error of a store whose files have changed."""
    return UserError(f"the token store {folder} is damaged: {problem}; delete the folder and run prepare again")
