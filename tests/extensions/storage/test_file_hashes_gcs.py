"""Hashes of texts in a bucket: kept by the generation of the object."""

import hashlib

from etils import epath

from t2t_flax.data import file_hashes
from t2t_flax.data.file_hashes import hash_files

INDEX, TEXT = (epath.Path(f"gs://bucket/{name}") for name in ("cache/file_hashes.json", "train.en"))


def test_object_is_read_once_and_again_when_it_is_replaced(gcs, monkeypatch):
    monkeypatch.setattr(file_hashes, "BLOCK", 1000)
    data = bytes(range(256)) * 10
    read, real = [], file_hashes._hash_block
    monkeypatch.setattr(file_hashes, "_hash_block", lambda path, start: read.append(start) or real(path, start))

    def hash_in_a_new_process():
        monkeypatch.setattr(file_hashes, "_known", {})
        return hash_files([TEXT], INDEX)[0].sha256

    gcs.put("bucket", "train.en", data, {})
    blocks = b"".join(hashlib.sha256(data[i : i + 1000]).digest() for i in range(0, len(data), 1000))
    assert hash_in_a_new_process() == hash_in_a_new_process() == hashlib.sha256(blocks).hexdigest()
    assert sorted(read) == [0, 1000, 2000]
    gcs.put("bucket", "train.en", data[::-1], {})
    assert hash_in_a_new_process() != hashlib.sha256(blocks).hexdigest() and len(read) == 6
