"""A stopped preparation goes on after its last complete shard, and gives the same bytes."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from helpers.corpora import open_pairs
from helpers.processes import is_alive, wait_for
from helpers.refusals import refused
from helpers.writer_processes import remove_locks
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax import files
from t2t_flax.config import Data
from t2t_flax.data import preprocess, shards
from t2t_flax.data.preprocess import PairFilter, Policies, prepare_split
from t2t_flax.data.sources import JoinedSource
from t2t_flax.data.token_store import VERIFIED
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.locks import exclusive_writer

POLICIES = Policies(max_length=100, on_too_long="drop", empty_lines="drop")
PAIRS = [(f"sentence {i % 90} of houses", f"Satz {i % 90} von Häusern") for i in range(120)]


class Repeated(PairFilter):
    """Drops sources that occurred before: what happens to a pair depends on all earlier ones."""

    reason, shown = "repeated", "repeated"

    def rows(self, parts, rows, report):
        seen: set[str] = set()

        def repeated(row):
            return not isinstance(row, str) and (row[0] in seen or bool(seen.add(row[0])))

        return [(self.reason if repeated(row) else row for row in of_part) for of_part in rows]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """(a source of two parts, tokenizers)."""
    folder = tmp_path_factory.mktemp("corpus")
    parts = [
        open_pairs(folder, PAIRS[:75], "a"),
        open_pairs(folder, [*PAIRS[75:], ("", "leer")], "b"),
    ]
    source = JoinedSource("two", parts)
    return source, train_tokenizers(source, Data(tokenizer="bpe", vocab_size=300))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of 10 pairs."""
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 2)
    monkeypatch.setattr(shards, "SHARD_CHUNKS", 5)


@pytest.fixture
def encoded(monkeypatch):
    """The pairs that were tokenized in this process."""
    pairs, real = [], preprocess.Encoder.__call__
    monkeypatch.setattr(
        preprocess.Encoder, "__call__", lambda self, some: pairs.extend(some) or real(self, some)
    )
    return pairs


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


class Stopped(Exception):
    pass


def prepare(corpus, folder, *, stop_at=None, policies=POLICIES):
    """`prepare_split`; stopped after the chunk with which `stop_at` pairs are done."""

    def report(stage, done, total, unit):
        if stop_at is not None and done >= stop_at:
            raise Stopped

    return prepare_split(corpus[0], corpus[1], folder, policies, num_workers=1, report=report)


def stop(*arguments, **options):
    with pytest.raises(Stopped):
        prepare(*arguments, **options)


@given(
    st.lists(st.integers(1, 120), max_size=3), st.integers(3, 9), st.integers(3, 9), st.booleans()
)
@settings(max_examples=12, deadline=None)
def test_stopped_preparation_ends_with_the_bytes_of_one_that_was_not(
    tmp_path_factory, corpus, stops, chunk, chunks, filtered
):
    policies = Policies(100, "drop", "drop", filters=(Repeated(),) if filtered else ())
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "fsync_file", lambda path: None)  # it takes most of the time
        patch.setattr(preprocess, "CHUNK_PAIRS", chunk)
        patch.setattr(shards, "SHARD_CHUNKS", chunks)
        for stop_at in stops:
            stop(corpus, folder / "stopped", stop_at=stop_at, policies=policies)
            assert not (folder / "stopped").exists()
        store = prepare(corpus, folder / "stopped", policies=policies)
        patch.setattr(shards, "SHARD_CHUNKS", 1000)
        whole = prepare(corpus, folder / "whole", policies=policies)
    assert content(store.folder) == content(whole.folder)
    assert store.meta["pairs_read"] == 121 and (store.num_pairs == 90) == filtered
    assert {path.name for path in folder.iterdir()} == {"stopped", "whole"}, "no shard is left"


KILLED = """
import multiprocessing, os, signal, sys
from t2t_flax.data import preprocess, shards
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair

if __name__ == "__main__":
    preprocess.CHUNK_PAIRS, shards.SHARD_CHUNKS, preprocess.INLINE_PAIRS = 2, 5, 4
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


def test_killed_preparation_goes_on_after_its_last_complete_shard(tmp_path, corpus, encoded):
    source, tokenizers = open_pairs(tmp_path, PAIRS), corpus[1]
    tokenizers.save(tmp_path / "tokenizer")
    (tmp_path / "run.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path)]
    killed = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "s").exists()
    workers = list(map(int, killed.stdout.split()))
    assert 1 <= len(workers) <= 2
    wait_for(lambda: not any(map(is_alive, workers)), "the workers end with their parent")
    store = prepare((source, tokenizers), tmp_path / "s")
    assert len(encoded) == 70, "five shards of ten pairs were complete"
    assert content(store.folder) == content(
        prepare((source, tokenizers), tmp_path / "whole").folder
    )
    assert not [
        path for path in tmp_path.iterdir() if ".shards-" in path.name or ".partial-" in path.name
    ]


def test_shards_of_other_settings_are_removed(tmp_path, corpus, encoded):
    for policies in (POLICIES, Policies(50, "drop", "drop")):
        stop(corpus, tmp_path / "s", stop_at=60, policies=policies)
    assert len([*tmp_path.glob("*.shards-*")]) == 1
    encoded.clear()
    assert (
        prepare(corpus, tmp_path / "s").meta["recipe"]["max_length"] == 100 and len(encoded) == 121
    )


def test_shards_with_which_nobody_went_on_for_a_week_are_removed(tmp_path, corpus):
    for name in ("old", "locked", "new"):
        stop(corpus, tmp_path / name, stop_at=31)
    old, locked, _ = (next(tmp_path.glob(f"{name}.shards-*")) for name in ("old", "locked", "new"))
    for folder in (old, locked):
        os.utime(folder, (0, 0))
    with exclusive_writer(tmp_path / "locked", "prepare"):
        prepare(corpus, tmp_path / "s")
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"locked", "new", "s"}


def test_shards_after_a_lost_one_are_written_again(tmp_path, corpus, encoded):
    stop(corpus, tmp_path / "s", stop_at=41)
    (folder,) = tmp_path.iterdir()
    shutil.rmtree(folder / "1")
    encoded.clear()
    assert prepare(corpus, tmp_path / "s").meta["pairs_read"] == 121 and len(encoded) == 111


def test_half_written_shard_is_written_again_and_a_damaged_one_is_refused(
    tmp_path, corpus, encoded
):
    stop(corpus, tmp_path / "s", stop_at=31)
    (folder,) = tmp_path.iterdir()
    (folder / "2").rename(folder / f"2.partial-{'0' * 32}")
    encoded.clear()
    stop(corpus, tmp_path / "s", stop_at=41)
    assert encoded[:10] == [*corpus[0].rows()][20:30]
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "2", "3"]
    ids = folder / "1" / "source.ids"
    ids.write_bytes(ids.read_bytes()[:-2])
    with refused(".shards-", "source.ids"):
        prepare(corpus, tmp_path / "s")


def test_without_locks_no_shards_are_kept(tmp_path, corpus, monkeypatch):
    remove_locks(monkeypatch.setattr)
    stop(corpus, tmp_path / "s", stop_at=31)
    assert not [*tmp_path.glob("*.shards-*")]


@pytest.mark.parametrize(("changes_at", "count"), [(34, 3), (116, 11), (120, 11)])
def test_a_source_that_changes_while_it_is_read_gives_neither_store_nor_shards(
    tmp_path, corpus, changes_at, count
):
    source, path = open_pairs(tmp_path, PAIRS), tmp_path / "t.de"

    def change(stage, done, total, unit):
        if stage.startswith("tokenise"):
            if done == 20:
                path.touch()
            if done == changes_at:
                path.write_bytes(path.read_bytes().replace(b"Satz", b"SATZ"))

    with refused("t.de", "changed"):
        prepare_split(source, corpus[1], tmp_path / "s", POLICIES, num_workers=1, report=change)
    assert not (tmp_path / "s").exists() and len([*tmp_path.glob("s.shards-*/*")]) == count
    assert prepare((source, corpus[1]), tmp_path / "s").num_pairs == 120
