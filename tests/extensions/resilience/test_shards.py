"""A preparation that is stopped goes on after its last complete shard, and ends with the bytes of one that was not stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.corpora import open_pairs
from helpers.writer_processes import remove_locks
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax import filesystem
from t2t_flax.config import Data
from t2t_flax.data import preprocess
from t2t_flax.data.preprocess import PairFilter, Policies, prepare_split
from t2t_flax.data.sources import JoinedSource
from t2t_flax.data.token_store import VERIFIED
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.extensions.resilience import shards
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
    parts = [open_pairs(folder, PAIRS[:75], "a"), open_pairs(folder, [*PAIRS[75:], ("", "leer")], "b")]
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
        preprocess.Encoder, "__call__", lambda self, some, number: pairs.extend(some) or real(self, some, number)
    )
    return pairs


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


class Stopped(Exception):
    pass


def prepare(corpus, folder, *, stop_at=None, policies=POLICIES, **options):
    """`prepare_split`; stopped after the chunk with which `stop_at` pairs are done."""

    def report(stage, done, total, unit):
        if stop_at is not None and done >= stop_at:
            raise Stopped

    return prepare_split(corpus[0], corpus[1], folder, policies, num_workers=1, report=report, **options)


@given(st.lists(st.integers(1, 121), max_size=3), st.integers(3, 9), st.integers(3, 9), st.booleans())
@settings(max_examples=12, deadline=None)
def test_stopped_preparation_ends_with_the_bytes_of_one_that_was_not(
    tmp_path_factory, corpus, stops, chunk, chunks, filtered
):
    policies = Policies(100, "drop", "drop", filters=(Repeated(),) if filtered else ())
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filesystem, "fsync_file", lambda path: None)  # it takes most of the time
        patch.setattr(preprocess, "CHUNK_PAIRS", chunk)
        patch.setattr(shards, "SHARD_CHUNKS", chunks)
        for stop in stops:
            try:
                prepare(corpus, folder / "stopped", stop_at=stop, policies=policies)
            except Stopped:
                assert not (folder / "stopped").exists()
        store = prepare(corpus, folder / "stopped", policies=policies)
        patch.setattr(shards, "SHARD_CHUNKS", 1000)
        whole = prepare(corpus, folder / "whole", policies=policies)
    assert content(store.folder) == content(whole.folder)
    assert store.meta["pairs_read"] == 121 and (store.num_pairs == 90) == filtered
    assert {path.name for path in folder.iterdir()} == {"stopped", "whole"}, "no shard is left"


KILLED = """
import os, signal, sys
from t2t_flax.data import preprocess
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.extensions.resilience import shards

if __name__ == "__main__":
    preprocess.CHUNK_PAIRS, shards.SHARD_CHUNKS, preprocess.INLINE_PAIRS = 2, 5, 4
    folder = sys.argv[1]
    source = open_source("t.en,t.de", root=folder, source_language="en", target_language="de")
    tokenizers = TokenizerPair.load(folder + "/tokenizer")
    policies = preprocess.Policies(100, "drop", "drop")
    kill = lambda stage, done, total, unit: os.kill(os.getpid(), signal.SIGKILL) if done >= 57 else None
    preprocess.prepare_split(source, tokenizers, folder + "/s", policies, num_workers=2, report=kill)
"""


def test_killed_preparation_goes_on_after_its_last_complete_shard(tmp_path, corpus, encoded):
    source, tokenizers = open_pairs(tmp_path, PAIRS), corpus[1]
    tokenizers.save(tmp_path / "tokenizer")
    (tmp_path / "run.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, str(tmp_path / "run.py"), str(tmp_path)], env=environment)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "s").exists()
    store = prepare((source, tokenizers), tmp_path / "s")
    assert len(encoded) == 70, "five shards of ten pairs were complete"
    assert content(store.folder) == content(prepare((source, tokenizers), tmp_path / "whole").folder)
    assert not [path for path in tmp_path.iterdir() if ".shards-" in path.name or ".partial-" in path.name]


def test_shards_of_other_data_and_settings_are_not_used(tmp_path, corpus, encoded):
    for policies in (POLICIES, Policies(50, "drop", "drop")):
        with pytest.raises(Stopped):
            prepare(corpus, tmp_path / "s", stop_at=60, policies=policies)
    assert len([path for path in tmp_path.iterdir() if ".shards-" in path.name]) == 1, "the first ones are removed"
    encoded.clear()
    assert prepare(corpus, tmp_path / "s").meta["recipe"]["max_length"] == 100 and len(encoded) == 121


def test_shard_that_was_being_written_is_written_again_and_a_damaged_one_reported(tmp_path, corpus, encoded):
    with pytest.raises(Stopped):
        prepare(corpus, tmp_path / "s", stop_at=31)
    (shards,) = tmp_path.iterdir()
    (shards / "1").rename(shards / f"1.partial-{'0' * 32}")
    encoded.clear()
    with pytest.raises(Stopped):
        prepare(corpus, tmp_path / "s", stop_at=41)
    assert encoded[:10] == [*corpus[0].rows()][10:20]
    assert sorted(path.name for path in shards.iterdir()) == ["0", "1", "2", "3"]
    ids = shards / "1" / "source.ids"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(
        UserError, match=r"shards-.*1 is damaged: source.ids .* delete the folder and run prepare again"
    ):
        prepare(corpus, tmp_path / "s")


def test_without_locks_two_preparations_share_their_shards_and_the_slower_one_finds_the_store(
    tmp_path, corpus, monkeypatch
):
    remove_locks(monkeypatch.setattr)
    with pytest.raises(Stopped):
        prepare(corpus, tmp_path / "s", stop_at=31, policies=Policies(50, "drop", "drop"))
    (other,) = tmp_path.iterdir()
    whole, faster = prepare(corpus, tmp_path / "whole"), []

    def report(stage, done, total, unit):
        if done == 64 and not faster:
            (shards,) = {*tmp_path.glob("s.shards-*")} - {other}
            partial = shards / f"9.partial-{'0' * 32}"
            partial.mkdir()
            with pytest.raises(Stopped):
                prepare(corpus, tmp_path / "s", stop_at=81)
            assert partial.exists() and (other / "0").exists(), "they may be being written"
            faster.append(prepare(corpus, tmp_path / "s"))

    slower = prepare_split(*corpus, tmp_path / "s", POLICIES, num_workers=1, report=report)
    assert faster and content(slower.folder) == content(faster[0].folder) == content(whole.folder)
    os.utime(other, (0, 0))
    prepare(corpus, tmp_path / "s", policies=Policies(70, "drop", "drop"))
    assert {path.name for path in tmp_path.iterdir()} == {"s", "whole"}, "nobody has changed the others for long"


def test_shards_of_which_nobody_went_on_in_a_week_are_removed_unless_somebody_writes_the_store(tmp_path, corpus):
    for name, days in (("a", 8), ("b", 6), ("c", 8)):
        (tmp_path / f"{name}.shards-0" / "0").mkdir(parents=True)
        os.utime(tmp_path / f"{name}.shards-0", (time.time() - days * 24 * 3600,) * 2)
    with exclusive_writer(tmp_path / "c", "prepare"):
        prepare(corpus, tmp_path / "s")
    assert {path.name for path in tmp_path.glob("*.shards-*")} == {"b.shards-0", "c.shards-0"}


@pytest.mark.parametrize(("changes_at", "shards"), [(34, 3), (116, 11), (120, 11)])
def test_a_source_that_changes_while_it_is_read_gives_neither_store_nor_shards(tmp_path, corpus, changes_at, shards):
    source, path = open_pairs(tmp_path, PAIRS), tmp_path / "t.de"

    def change(stage, done, total, unit):
        if stage.startswith("tokenise"):
            if done == 20:
                path.touch()
            if done == changes_at:
                path.write_bytes(path.read_bytes().replace(b"Satz", b"SATZ"))

    with pytest.raises(UserError, match=r"t\.de changed while its pairs were tokenized: .* run prepare again"):
        prepare_split(source, corpus[1], tmp_path / "s", POLICIES, num_workers=1, report=change)
    assert not (tmp_path / "s").exists() and len([*tmp_path.glob("s.shards-*/*")]) == shards
    assert prepare((source, corpus[1]), tmp_path / "s").num_pairs == 120
