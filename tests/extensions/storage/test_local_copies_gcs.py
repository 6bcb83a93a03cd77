"""This host's copies of token stores in a bucket: in a folder of choice, the least recently used removed over a limit."""

import gc
import os
import time
from pathlib import Path

import pytest
from helpers.corpora import open_pairs

from t2t_flax.config import Data
from t2t_flax.data import preprocess
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage import token_stores
from t2t_flax.locks import exclusive_writer


@pytest.fixture
def copies(gcs, monkeypatch, tmp_path):
    monkeypatch.setenv("T2T_STORES", str(tmp_path / "fast disk"))
    return tmp_path / "fast disk"


@pytest.fixture
def prepared(copies, tmp_path):
    """`prepared(n)`: the store number n in the bucket, through this host's copy; used n seconds after the first."""
    source = open_pairs(tmp_path, [(f"sentence {i} of houses", f"Satz {i} von Häusern") for i in range(120)])
    tokenizers = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=300, joint_vocabulary=True))

    def prepare(n):
        policies = Policies(max_length=100 + n, on_too_long="drop", empty_lines="drop")
        store = prepare_split(source, tokenizers, f"gs://bucket/cache/train-{n}", policies)
        os.utime(store.folder, (time.time() - 1000 + n,) * 2)
        return store

    return prepare


def limit(monkeypatch, store, stores):
    """Room for so many stores of this size."""
    size = sum(path.stat().st_size for path in store.folder.iterdir())
    monkeypatch.setenv("T2T_STORES_GB", str((stores + 0.5) * size / 1e9))


def there(copies):
    return {path.name for path in copies.iterdir()}


def test_least_recently_used_copy_that_nobody_has_open_is_removed(prepared, copies, monkeypatch):
    names = []
    for n in range(3):
        store = prepared(n)
        names.append(store.folder.name)
    limit(monkeypatch, store, 3)
    del store
    gc.collect()
    opened = prepared(0)
    os.utime(opened.folder, (0, 0))
    new = prepared(3)
    assert there(copies) == {names[0], names[2], new.folder.name}, "0 is open, 1 the least recently used of the others"
    monkeypatch.setattr(preprocess.Encoder, "__call__", None)
    again = prepared(1)
    assert again.num_pairs == 120 and there(copies) == {names[0], names[1], new.folder.name}, "2 made room for the copy"
    assert opened.source(119).tolist() == again.source(119).tolist()


def test_copies_in_use_stay_over_the_limit(prepared, copies, monkeypatch, caplog):
    monkeypatch.setenv("T2T_STORES_GB", "0.000001")
    stores = [prepared(n) for n in range(2)]
    assert there(copies) == {store.folder.name for store in stores} and "in use, more than T2T_STORES_GB" in caplog.text
    with exclusive_writer(stores[0].folder, "prepare"):
        path = stores[0].folder
        del stores[0]
        gc.collect()
        prepared(2)
        assert path.name in there(copies), "another process is about to open it"
    prepared(3)
    assert path.name not in there(copies)


def test_shards_of_killed_preparations_are_removed_too(prepared, copies, monkeypatch):
    left = copies / f"{'0' * 24}.shards-{'1' * 12}"
    (left / "0").mkdir(parents=True)
    (left / "0" / "source.ids").write_bytes(bytes(10**6))
    monkeypatch.setenv("T2T_STORES_GB", "0.0005")
    store = prepared(0)
    assert there(copies) == {store.folder.name}


def test_what_another_process_renames_meanwhile_is_skipped(prepared, copies, monkeypatch):
    partial, real = copies / f"{'0' * 24}.partial-{'1' * 32}", Path.is_dir

    def is_dir(path):
        there = real(path)
        if there and path == partial:
            partial.rename(copies / ("0" * 24))
        return there

    partial.mkdir(parents=True)
    (copies / "left").mkdir()
    (copies / "left" / "source.ids").symlink_to("gone")
    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert prepared(0).num_pairs == 120 and not partial.exists()


def test_limit_that_is_no_number_is_an_error(prepared, monkeypatch):
    monkeypatch.setenv("T2T_STORES_GB", "much")
    with pytest.raises(UserError, match="T2T_STORES_GB=much is not a number of gigabytes"):
        prepared(0)
    assert token_stores.DEFAULTS["T2T_STORES"].startswith("~/.cache")
