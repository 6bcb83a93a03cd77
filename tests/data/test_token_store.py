import json
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.refusals import refused

from t2t_flax.data import stored_ids
from t2t_flax.data.stored_ids import positions
from t2t_flax.data.token_store import VERIFIED, StoreWriter, TokenStore

PAIRS = [([5, 6, 7, 1], [9, 1]), ([1], [300, 301, 1]), ([65_535, 1], [70_000, 1])]


def flat(sentences):
    return np.concatenate([np.asarray(s, np.int32) for s in sentences]), np.asarray(
        [len(s) for s in sentences]
    )


def write(folder, pairs=PAIRS, chunk=2, **meta):
    with StoreWriter(folder, vocab_sizes=(65_536, 70_001)) as writer:
        for start in range(0, len(pairs), chunk):
            source, target = zip(*pairs[start : start + chunk], strict=True)
            writer.write(flat(source), flat(target))
        writer.meta.update(meta)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def test_sentences_round_trip_with_lengths_and_counts(tmp_path):
    write(tmp_path / "s", digest="abc", dropped=4)
    store = TokenStore.open(tmp_path / "s")
    assert store.num_pairs == 3 and store.digest == "abc"
    for i, (source, target) in enumerate(PAIRS):
        assert store.source(i).tolist() == source and store.target(i).tolist() == target
    assert store.lengths[0].tolist() == [4, 1, 2] and store.lengths[1].tolist() == [2, 3, 2]
    assert store.lengths[0].dtype == np.int32
    assert store.source(0).dtype == np.uint16, "65,536 ids fit two bytes"
    assert store.target(0).dtype == np.int32
    assert store.meta["source"] == {
        "tokens": 7,
        "longest": 4,
        "dtype": "uint16",
        "vocab_size": 65_536,
    }
    assert store.meta["target"] == {
        "tokens": 7,
        "longest": 3,
        "dtype": "int32",
        "vocab_size": 70_001,
    }
    assert store.meta["dropped"] == 4
    ids, offsets, lengths = store.sentences(np.arange(3))[1]
    assert [ids[o : o + n].tolist() for o, n in zip(offsets, lengths, strict=True)] == [
        t for _, t in PAIRS
    ]
    with pytest.raises(IndexError):
        store.source(3)


def test_arrays_are_memory_mapped(tmp_path):
    write(tmp_path / "s")
    for array in TokenStore.open(tmp_path / "s").lengths:
        assert isinstance(array.base, np.memmap) and not array.flags.writeable


@pytest.mark.parametrize("damage", ["shorter", "longer", "missing"])
def test_damage_is_detected(tmp_path, damage):
    write(tmp_path / "s")
    for name in [
        f"{side}.{part}" for side in ("source", "target") for part in ("ids", "lengths", "offsets")
    ]:
        path = tmp_path / "s" / name
        data = path.read_bytes()
        path.unlink() if damage == "missing" else path.write_bytes(
            data[:-1] if damage == "shorter" else data + b"\0"
        )
        with refused(f"{tmp_path}/s", name):
            TokenStore.open(tmp_path / "s")
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("part", "opened"), [("ids", False), ("ids", True), ("lengths", False), ("offsets", False)]
)
def test_changed_byte_is_detected_on_open(tmp_path, part, opened):
    write(tmp_path / "s")
    if opened:
        TokenStore.open(tmp_path / "s")
        time.sleep(0.02)  # the time of the file's last change differs
    path = tmp_path / "s" / f"source.{part}"
    about, data = path.stat(), bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)
    # As after a copy that preserves times.
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    for _ in range(2):
        with refused(f"{tmp_path}/s", f"source.{part}", "meta.json"):
            TokenStore.open(tmp_path / "s")


def test_verified_store_is_not_read_again(tmp_path, monkeypatch):
    write(tmp_path / "s", digest="abc")
    TokenStore.open(tmp_path / "s")
    monkeypatch.setattr("t2t_flax.data.token_store._checksum", None)
    assert TokenStore.open(tmp_path / "s").num_pairs == 3
    (tmp_path / "s" / VERIFIED).write_text("{")
    with pytest.raises(TypeError):
        TokenStore.open(tmp_path / "s")


def test_read_only_store_opens(tmp_path, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "s")
    monkeypatch.setattr(Path, "write_text", refuse)
    assert (
        TokenStore.open(tmp_path / "s").num_pairs == 3 and not (tmp_path / "s" / VERIFIED).exists()
    )


def test_ids_outside_the_vocabulary_are_rejected(tmp_path):
    for ids in ([65_536, 1], [-1, 1]):
        with refused("source", "65536", error=ValueError):
            write(tmp_path / "s", [(ids, [1])])
    assert list(tmp_path.iterdir()) == []


def test_missing_or_unreadable_store_is_reported(tmp_path):
    with refused(f"{tmp_path}/s"):
        TokenStore.open(tmp_path / "s")
    write(tmp_path / "s")
    meta = tmp_path / "s" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format_version": 0}))
    with refused(f"{tmp_path}/s", "format 0,"):
        TokenStore.open(tmp_path / "s")
    meta.write_text(meta.read_text()[:10])
    with refused(f"{tmp_path}/s", "meta.json"):
        TokenStore.open(tmp_path / "s")


def test_failed_write_keeps_the_old_store(tmp_path):
    with pytest.raises(KeyError), StoreWriter(tmp_path / "s", vocab_sizes=(9, 9)) as writer:
        writer.write(flat([[1]]), flat([[1]]))
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "s", digest="old")
    before = content(tmp_path / "s")
    with pytest.raises(KeyError), StoreWriter(tmp_path / "s", vocab_sizes=(9, 9)) as writer:
        raise KeyError
    assert content(tmp_path / "s") == before and len(list(tmp_path.iterdir())) == 1


def test_replaced_store_stays_readable_while_open(tmp_path):
    write(tmp_path / "s", digest="old")
    old = TokenStore.open(tmp_path / "s")
    write(tmp_path / "s", PAIRS[:1], digest="new")
    assert TokenStore.open(tmp_path / "s").num_pairs == 1
    assert [old.source(i).tolist() for i in range(3)] == [source for source, _ in PAIRS]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_foreign_folder_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused(str(tmp_path)):
        write(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def resident(folder: Path) -> int:
    """KiB of the ids of a store that are in this process's memory."""
    lines = Path("/proc/self/smaps").read_text().split("\n")
    at = [i for i, line in enumerate(lines) if str(folder) in line and line.endswith(".ids")]
    return sum(
        int(line.split()[1]) for i in at for line in lines[i : i + 8] if line.startswith("Rss:")
    )


@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="this system does not tell what is mapped"
)
def test_the_ids_of_a_larger_store_do_not_stay_in_memory(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lengths = [rng.integers(0, 20, 200_000) for _ in range(2)]
    with StoreWriter(tmp_path / "s", vocab_sizes=(65_536, 65_536)) as writer:
        writer.write(*((rng.integers(0, 60_000, x.sum()), x) for x in lengths))
    small = TokenStore.open(tmp_path / "s")
    monkeypatch.setattr(stored_ids, "_SMALL", 1 << 20)
    large = TokenStore.open(tmp_path / "s")
    pairs, order = np.sort(rng.integers(0, 200_000, 5_000)), rng.permutation(5_000)

    def read(store):
        sides = store.sentences(pairs)
        ids = [s.ids.take(positions(s.offsets[order], s.lengths[order])).tolist() for s in sides]
        return (
            ids,
            [(s.offsets.tolist(), s.lengths.tolist(), s.ids.take(order[:0]).dtype) for s in sides],
        )

    of_large = read(large)
    assert resident(tmp_path) == 0
    assert read(small) == of_large
    assert resident(tmp_path) > 1000


@pytest.mark.parametrize("size", [1 << 28, 0])
def test_sentences_of_a_store_are_pickled_by_reference(tmp_path, monkeypatch, size):
    monkeypatch.setattr(stored_ids, "_SMALL", size)
    with StoreWriter(tmp_path / "s", vocab_sizes=(65_536, 65_536)) as writer:
        writer.write(*[(np.arange(10_000), np.full(1_000, 10))] * 2)
    store, pairs = TokenStore.open(tmp_path / "s"), np.array([3, 7, 990])
    pickled = pickle.dumps(store.sentences(pairs))
    assert len(pickled) < 2_000
    for ids, offsets, lengths in pickle.loads(pickled):
        assert ids.take(positions(offsets, lengths)).tolist() == [
            10 * i + n for i in pairs for n in range(10)
        ]


@pytest.mark.parametrize("size", [1 << 28, 0])
@pytest.mark.parametrize("later", ["deleted", "replaced"])
def test_sentences_from_a_process_that_lays_out_are_those_of_the_store_that_is_open(
    tmp_path, monkeypatch, size, later
):
    monkeypatch.setattr(stored_ids, "_SMALL", size)

    def read(sentences):
        ids, offsets, lengths = sentences
        return ids.take(positions(offsets, lengths)).tolist()

    write(tmp_path / "s", digest="old")
    old = TokenStore.open(tmp_path / "s")
    pickled, expected = (
        pickle.dumps(old.sentences(np.arange(3))),
        [*map(read, old.sentences(np.arange(3)))],
    )
    if later == "deleted":
        shutil.rmtree(tmp_path / "s")
    else:
        write(
            tmp_path / "s",
            [pair[::-1] for pair in [([8, 8, 8, 1], [8, 8]), *PAIRS[:1], ([7, 1], [7, 7, 1])]],
        )
        new = TokenStore.open(tmp_path / "s")
        assert [*map(read, pickle.loads(pickle.dumps(new.sentences(np.arange(3)))))] == [
            *map(read, new.sentences(np.arange(3)))
        ]
    files, again = psutil.Process().num_fds(), pickle.loads(pickled)
    assert [*map(read, again)] == expected
    assert psutil.Process().num_fds() == files, "no file is opened twice"


def test_a_file_that_becomes_shorter_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_ids, "_SMALL", 0)
    write(tmp_path / "s")
    store, pairs = TokenStore.open(tmp_path / "s"), np.arange(3)
    source, _ = store.sentences(pairs)
    os.truncate(tmp_path / "s" / "source.ids", 4)
    with refused("source.ids"):
        source.ids.take(np.arange(7))
