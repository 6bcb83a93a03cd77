"""Token stores in a bucket are complete or absent, downloaded once per host.

One host writes them, or many.
"""

import dataclasses
from pathlib import Path

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.foreign_files import content as text_content
from helpers.foreign_files import put_beside
from helpers.refusals import refused
from helpers.thread_groups import run_processes

from t2t_flax.config import Data
from t2t_flax.data import preprocess
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import open_source
from t2t_flax.data.token_store import VERIFIED
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.storage import token_stores as remote
from t2t_flax.tasks import task_of

FOLDER = "gs://bucket/cache/train"
POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")
FILES = [
    f"{side}.{part}" for side in ("source", "target") for part in ("ids", "lengths", "offsets")
]


def test_without_a_home_folder_the_variable_of_the_stores_is_named(no_home, monkeypatch):
    monkeypatch.delenv("T2T_STORES", raising=False)
    with refused("T2T_STORES", "HOME"):
        remote.local_path(FOLDER, "0" * 64)


@pytest.fixture
def source(tmp_path):
    text = "".join(
        f"sentence {i} of {i % 7} houses\tSatz {i} von {i % 7} Häusern\n" for i in range(120)
    )
    (tmp_path / "t.tsv").write_text(text)
    return open_source("t.tsv", root=str(tmp_path), source_language="en", target_language="de")


@pytest.fixture
def tokenizers(source):
    return train_tokenizers(source, Data(tokenizer="bpe", vocab_size=300, joint_vocabulary=True))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def in_bucket(gcs) -> dict[str, bytes]:
    return {name.rpartition("/")[2]: gcs.read(name) for name in gcs.names(prefix="cache/train/")}


def downloads(gcs) -> int:
    return sum("source.ids" in path and "alt=media" in path for _, path in gcs.requests)


def test_store_in_bucket_has_the_bytes_of_one_on_disk(gcs, source, tokenizers, tmp_path):
    disk = prepare_split(source, tokenizers, tmp_path / "disk", POLICIES)
    store = prepare_split(source, tokenizers, FOLDER, POLICIES)
    assert in_bucket(gcs) == content(disk.folder) == content(store.folder)
    assert store.folder.is_relative_to(tmp_path / "home") and store.origin == epath.Path(FOLDER)
    uploads = [path for command, path in gcs.requests if command == "POST" and "/upload/" in path]
    assert len(uploads) == 7
    assert (
        max(gcs.objects[key][0] for key in gcs.objects)
        == gcs.objects["bucket", "cache/train/meta.json"][0]
    ), "last"


def test_other_host_downloads_the_store_instead_of_preparing(
    gcs, source, tokenizers, tmp_path, monkeypatch
):
    policies = dataclasses.replace(POLICIES, keep_texts=True)
    prepare_split(source, tokenizers, FOLDER, policies)
    assert downloads(gcs) == 0, "the host that wrote it has a local copy"
    monkeypatch.setattr(preprocess.Encoder, "__call__", None)
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    stores = run_processes(4, lambda group: prepare_split(source, tokenizers, FOLDER, policies))
    assert [store.num_pairs for store in stores] == [120] * 4 and downloads(gcs) == 1
    assert content(stores[0].folder) == in_bucket(gcs)
    assert [path.name for path in stores[0].folder.parent.iterdir()] == [stores[0].folder.name]
    prepare_split(source, tokenizers, FOLDER, policies)
    assert downloads(gcs) == 1


@pytest.mark.parametrize("name", ["source.ids", "target.offsets", "meta.json"])
def test_interrupted_upload_is_not_a_store(gcs, source, tokenizers, monkeypatch, name):
    real = remote.copy_file

    def stop(source, target):
        if str(target).endswith(name):
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remote, "copy_file", stop)
        patch.setattr(remote, "atomic_write", lambda path, data: stop(path, path))
        prepare_split(source, tokenizers, FOLDER, POLICIES)
    assert "meta.json" not in in_bucket(gcs)
    store = prepare_split(source, tokenizers, FOLDER, POLICIES)
    assert in_bucket(gcs) == content(store.folder) and store.num_pairs == 120


def test_store_of_other_text_is_replaced(gcs, source, tokenizers, tmp_path):
    first = prepare_split(source, tokenizers, FOLDER, POLICIES)
    second = prepare_split(source, tokenizers, FOLDER, dataclasses.replace(POLICIES, max_length=60))
    assert in_bucket(gcs) == content(second.folder) != content(first.folder)
    assert first.folder != second.folder and first.num_pairs == 120


def test_damaged_store_in_bucket_is_reported(gcs, source, tokenizers, tmp_path, monkeypatch):
    prepare_split(source, tokenizers, FOLDER, POLICIES)
    gcs.put("bucket", "cache/train/target.ids", gcs.read("cache/train/target.ids")[:-2], {})
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    with refused("gs://bucket/cache/train", "target.ids"):
        prepare_split(source, tokenizers, FOLDER, POLICIES)
    gcs.put("bucket", "cache/train/meta.json", b"{", {})
    with refused("gs://bucket/cache/train"):
        prepare_split(source, tokenizers, FOLDER, POLICIES)
    stores = tmp_path / "other" / ".cache" / "t2t_flax" / "stores"
    assert not list(stores.iterdir()), "no partial copy is left"


@pytest.mark.parametrize("name", ["meta.json", "target.lengths"])
def test_damaged_local_copy_is_downloaded_again(gcs, source, tokenizers, monkeypatch, name):
    store = prepare_split(source, tokenizers, FOLDER, POLICIES)
    (store.folder / name).unlink()
    monkeypatch.setattr(preprocess.Encoder, "__call__", None)
    repaired = prepare_split(source, tokenizers, FOLDER, POLICIES)
    assert content(repaired.folder) == in_bucket(gcs) and downloads(gcs) == 1


def test_many_hosts_share_a_store_in_the_bucket(gcs, source, tokenizers, tmp_path, monkeypatch):
    config = small_config(
        data=dict(
            train="t.tsv",
            valid="",
            root=str(tmp_path),
            cache="gs://bucket/cache",
            vocab_size=300,
            num_workers=1,
        )
    )
    encoded, real = [], preprocess.Encoder.__call__
    monkeypatch.setattr(
        preprocess.Encoder,
        "__call__",
        lambda self, pairs: encoded.extend(pairs) or real(self, pairs),
    )
    corpora = run_processes(
        3, lambda group: prepare_corpus(task_of(config), "gs://bucket/run", group=group)
    )
    assert [corpus.train.num_pairs for corpus in corpora] == [120] * 3 and len(encoded) == 120
    assert len({corpus.train.folder for corpus in corpora}) == 1, "one host has one local copy"
    names = {
        name.partition("/")[0] + "/" + name.rpartition("/")[2]
        for name in gcs.names()
        if "/train-" in name and ".plan-" not in name
    }
    assert names == {f"cache/{name}" for name in [*FILES, "meta.json"]}


def test_plans_are_kept_in_the_bucket(gcs, source, tokenizers, monkeypatch):
    from helpers.configs import DATA

    from t2t_flax.data.batching import windows
    from t2t_flax.data.batching.layouts import Layouter

    monkeypatch.setattr(windows, "WINDOW_PAIRS", 20)
    store = prepare_split(source, tokenizers, FOLDER, POLICIES)
    first = Batches(store, DATA, seed=0).updates_per_epoch
    assert len(gcs.names(prefix="cache/train.plan-")) == 1
    monkeypatch.setattr(Layouter, "lay_out", None)
    assert Batches(store, DATA, seed=0).updates_per_epoch == first


def test_other_folders_beside_the_copies_survive(gcs, source, tokenizers, tmp_path, monkeypatch):
    """A copy is made, replaced when damaged, and removed when the bucket has no such store."""
    monkeypatch.setenv(remote.FOLDER, str(tmp_path / "stores"))
    copy = prepare_split(source, tokenizers, FOLDER, POLICIES).folder
    foreign = put_beside(copy.parent, [copy.name])
    (copy / "source.ids").write_bytes(b"")
    assert prepare_split(source, tokenizers, FOLDER, POLICIES).folder == copy
    (copy / "source.ids").write_bytes(b"")
    assert remote.find_store("gs://bucket/none", copy.name) is None and not copy.exists()
    assert text_content(copy.parent) == foreign
