"""Hashes of texts in a bucket: kept by the generation of the object."""

import hashlib

from etils import epath

from t2t_flax.data import file_hashes
from t2t_flax.data.file_hashes import hash_files

INDEX, TEXT = (epath.Path(f"gs://bucket/{name}") for name in ("cache/file_hashes.json", "train.en"))


def test_object_is_read_once_and_again_when_it_is_replaced(gcs, monkeypatch):
    data = bytes(range(256)) * 10
    read, real = [], file_hashes._hash_file
    monkeypatch.setattr(file_hashes, "_hash_file", lambda path: read.append(path) or real(path))

    def hash_in_a_new_process():
        monkeypatch.setattr(file_hashes, "_known", {})
        return hash_files([TEXT], INDEX)[0].sha256

    gcs.put("bucket", "train.en", data, {})
    assert hash_in_a_new_process() == hash_in_a_new_process() == hashlib.sha256(data).hexdigest()
    assert len(read) == 1
    gcs.put("bucket", "train.en", data[::-1], {})
    assert hash_in_a_new_process() != hashlib.sha256(data).hexdigest() and len(read) == 2
