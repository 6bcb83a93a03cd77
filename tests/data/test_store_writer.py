"""Several processes write one store.

It is complete at any time, and no process deletes another's files.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.corpora import open_pairs
from helpers.processes import is_alive, wait_for
from helpers.refusals import refused
from helpers.writer_processes import (
    PROCESSES,
    prepare_and_report,
    start,
    take_turn,
    write,
    write_and_wait,
)

from t2t_flax import files
from t2t_flax.config import Data
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.token_store import VERIFIED, StoreWriter, TokenStore
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.locks import exclusive_writer

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_second_writer_waits_for_the_first(tmp_path):
    written, go_on = PROCESSES.Event(), PROCESSES.Event()
    first = start(write_and_wait, tmp_path / "s", written, go_on)
    assert written.wait(250)
    second = start(write, tmp_path / "s", 6, "second")
    time.sleep(0.5)
    assert second.is_alive() and sum(".partial-" in name for name in names(tmp_path)) == 1
    go_on.set()
    first.join(250), second.join(250)
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert TokenStore.open(tmp_path / "s").digest == "second" and names(tmp_path) == ["s"]


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    written, never = PROCESSES.Event(), PROCESSES.Event()
    first = start(write_and_wait, tmp_path / "s", written, never)
    assert written.wait(250)
    os.kill(first.pid, signal.SIGKILL)
    first.join(250)
    (partial,) = (path for path in tmp_path.iterdir() if ".partial-" in path.name)
    assert not (partial / "meta.json").exists()
    write(tmp_path / "other" / "s")
    assert partial.exists(), "a writer of another folder must not delete it"
    write(tmp_path / "s", digest="again")
    assert names(tmp_path) == ["other", "s"] and TokenStore.open(tmp_path / "s").digest == "again"


def test_many_processes_replace_a_store_at_once(tmp_path):
    """Without locks, each with its own digest: the final store is one of theirs, and complete."""
    writers = [
        start(write, tmp_path / "s", value, f"digest {value}", False, 20) for value in range(5)
    ]
    for process in writers:
        process.join(250)
    assert [process.exitcode for process in writers] == [0] * 5
    store = TokenStore.open(tmp_path / "s")
    value = int(store.digest.split()[1])
    assert all(
        store.source(i).tolist() == store.target(i).tolist() == [value] * 2 for i in range(3)
    )
    assert names(tmp_path) == ["s"]


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_concurrent_preparations_of_one_split_share_a_store(tmp_path, locks):
    pairs = [
        (f"sentence {i} of {i % 7} houses", f"Satz {i} von {i % 7} Häusern") for i in range(300)
    ]
    source = open_pairs(tmp_path, pairs)
    tokenizers = train_tokenizers(
        source, Data(tokenizer="bpe", vocab_size=300, joint_vocabulary=True)
    )
    prepared, folder = PROCESSES.Value("i", 0), tmp_path / "cache" / "store"
    answers = [tmp_path / f"{i}.json" for i in range(4)]
    processes = [
        start(prepare_and_report, source, tokenizers, folder, POLICIES, prepared, a, locks)
        for a in answers
    ]
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len({answer.read_text() for answer in answers}) == 1
    assert names(tmp_path / "cache") == ["store"]
    if locks:
        assert prepared.value == 300, "one process prepares, the others reuse its store"


KILLED = """
import multiprocessing, os, signal, sys
from t2t_flax.data import preprocess
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair

if __name__ == "__main__":
    preprocess.CHUNK_PAIRS, preprocess.INLINE_PAIRS = 2, 4
    folder = sys.argv[1]
    source = open_source("t.en,t.de", root=folder, source_language="en", target_language="de")
    tokenizers = TokenizerPair.load(folder + "/tokenizer")
    policies = preprocess.Policies(100, "drop", "drop")

    def kill(stage, done, total, unit):
        if done >= 57:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    preprocess.prepare_split(source, tokenizers, folder + "/s", policies, num_workers=2, report=kill)
"""


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def test_killed_preparation_leaves_no_store_and_the_next_one_is_whole(tmp_path):
    source = open_pairs(tmp_path, [(f"sentence {i}", f"Satz {i}") for i in range(120)])
    tokenizers = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=300))
    tokenizers.save(tmp_path / "tokenizer")
    (tmp_path / "run.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    killed = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "s").exists()
    workers = list(map(int, killed.stdout.split()))
    assert 1 <= len(workers) <= 2
    wait_for(lambda: not any(map(is_alive, workers)), "the workers end with their parent")
    stores = [prepare_split(source, tokenizers, tmp_path / name, POLICIES) for name in ("s", "t")]
    assert content(stores[0].folder) == content(stores[1].folder)
    assert not [name for name in names(tmp_path) if ".partial-" in name]


def test_a_source_that_changes_while_it_is_read_gives_no_store(tmp_path):
    source = open_pairs(tmp_path, [("sentence", "Satz")] * 20)
    tokenizers = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=270))
    path = tmp_path / "t.de"

    def change(stage, done, total, unit):
        if done:
            path.write_bytes(path.read_bytes().replace(b"Satz", b"SATZ"))

    with refused("t.de", "changed"):
        prepare_split(source, tokenizers, tmp_path / "s", POLICIES, report=change)
    assert names(tmp_path) == ["t.de", "t.en"]
    assert prepare_split(source, tokenizers, tmp_path / "s", POLICIES).num_pairs == 20


def test_store_of_an_older_format_is_rewritten_with_its_digest(tmp_path):
    """Checkpoints refer to the digest, so runs started with the older format can resume."""
    source = open_pairs(tmp_path, [("a house", "ein Haus")] * 40)
    tokenizers = train_tokenizers(
        source, Data(tokenizer="bpe", vocab_size=270, joint_vocabulary=True)
    )
    store = prepare_split(source, tokenizers, tmp_path / "s", POLICIES)
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    del meta["crc32"]
    (tmp_path / "s" / "meta.json").write_text(json.dumps(meta | {"format_version": 1}))
    (tmp_path / "s" / VERIFIED).unlink()
    with refused(f"{tmp_path}/s", "format 1,"):
        TokenStore.open(tmp_path / "s")
    rewritten = prepare_split(source, tokenizers, tmp_path / "s", POLICIES)
    assert (
        rewritten.digest == store.digest
        and "crc32" in rewritten.meta
        and names(tmp_path) == ["s", "t.de", "t.en"]
    )


def test_files_are_synced_before_the_store_is_renamed(tmp_path, monkeypatch):
    synced, folder = [], tmp_path / "s"
    for name in ("fsync_file", "fsync_folder"):
        monkeypatch.setattr(
            files, name, lambda path: synced.append((Path(path).name, folder.exists()))
        )
    write(folder, digest="a")
    *before, (last, existed) = synced
    assert {name for name, _ in before} >= {
        "source.ids",
        "target.offsets",
        "meta.json",
    } and not any(existed for _, existed in before)
    assert last == tmp_path.name and existed, "the folder entry is synced after the rename"


def test_failed_writer_releases_its_lock(tmp_path):
    with (
        pytest.raises(KeyError),
        exclusive_writer(tmp_path / "s", "prepare"),
        StoreWriter(tmp_path / "s", vocab_sizes=(9, 9)),
    ):
        raise KeyError
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("years of work")
    with refused(f"{tmp_path}/s"):
        write(tmp_path / "s")
    process = start(take_turn, tmp_path / "s")
    process.join(250)
    assert process.exitcode == 0
