"""The data of a run: prepared once, by process 0, and reused by later versions."""

import shutil
import threading

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.refusals import assert_names, refused
from helpers.thread_groups import run_processes
from helpers.writer_processes import PROCESSES, prepare_and_count_tokenizers, start

from t2t_flax.data import dataset, preprocess
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import prepare_corpus, split_store
from t2t_flax.data.sources import toy
from t2t_flax.data.splits import split_source
from t2t_flax.data.token_store import VERIFIED
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.tasks import task_of

DATA = dict(
    train="toy:train:200", valid="toy:valid:20", vocab_size=200, byte_fallback=False, max_length=60, pack_length=64,
    num_workers=1, batch_tokens=512,
)  # fmt: skip


def config_of(**changes):
    return small_config(data=DATA | changes)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


@pytest.fixture(scope="module")
def single_process(tmp_path_factory):
    return prepare_corpus(task_of(config_of()), tmp_path_factory.mktemp("alone"))


@pytest.fixture
def encoded(monkeypatch):
    """Records the pairs that are tokenized from now on, by thread."""
    pairs, real = {}, preprocess.Encoder.__call__

    def note(self, chunk):
        pairs.setdefault(threading.current_thread(), []).extend(chunk)
        return real(self, chunk)

    monkeypatch.setattr(preprocess.Encoder, "__call__", note)
    return pairs


@pytest.mark.parametrize(
    ("target", "keys", "names"),
    [
        ("Ja，gut。", {}, ["1.57%", "191 targets", "line 6", "Ja,gut", "data.normalization"]),
        ("Ja，gut。", dict(normalization="identity", vocab_size=240), None),
        (
            "Ja 犬",
            dict(character_coverage=0.995),
            ["191 targets", "line 6", "Ja 犬", "data.byte_fallback"],
        ),
        ("Ja 犬", dict(byte_fallback=True, vocab_size=460), None),
    ],
)
def test_targets_that_the_tokenizer_cannot_write_are_named(target, keys, names, tmp_path, caplog):
    pairs = [f"{source}\t{text}\n" for source, text in toy.pairs("train", 188)]
    (tmp_path / "a.tsv").write_text("".join([*pairs[:5], *[f"Yes.\t{target}\n"] * 3, *pairs[5:]]))
    config = config_of(train=str(tmp_path / "a.tsv"), **keys)
    for _ in range(2):
        caplog.clear()
        prepare_corpus(task_of(config), tmp_path / "run")
        if names:
            assert_names(caplog.text, "a.tsv", *names)
        assert bool(names) == bool(caplog.records), "said at each start, and only where it is so"


@pytest.mark.parametrize("hosts", [2, 3])
def test_process_0_prepares_and_all_open_the_same_stores(
    tmp_path, single_process, encoded, monkeypatch, hosts
):
    trained = []
    monkeypatch.setattr(
        "t2t_flax.tasks.translation.train_tokenizers",
        lambda *args: trained.append(1) or train_tokenizers(*args),
    )
    for corpus in run_processes(
        hosts, lambda group: prepare_corpus(task_of(config_of()), tmp_path, group=group)
    ):
        assert corpus.tokenizers.digest == single_process.tokenizers.digest
        for actual, other in (
            (corpus.train, single_process.train),
            (corpus.valid["valid"], single_process.valid["valid"]),
        ):
            assert actual.digest == other.digest and content(actual.folder) == content(other.folder)
    assert len(trained) == len(encoded) == 1
    assert [len(pairs) for pairs in encoded.values()] == [200 + 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "tokenizer"]


def test_prepared_data_is_reused(tmp_path, encoded):
    run_processes(2, lambda group: prepare_corpus(task_of(config_of()), tmp_path, group=group))
    encoded.clear()
    stores = [
        corpus.train
        for corpus in run_processes(
            2, lambda group: prepare_corpus(task_of(config_of()), tmp_path, group=group)
        )
    ]
    assert [store.num_pairs for store in stores] == [198, 198] and not encoded


def test_pairs_that_cannot_be_scored_are_counted_and_left_out(tmp_path, single_process):
    """Pairs, references and the store of a validation set are of the same lines."""
    sides = {
        "v.en": ["a", "", "b", "c"],
        "v.de": ["", "x", "\u200b", "z"],
        "v2.de": ["y", "x", " ", ""],
    }
    for name, lines in sides.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    task = task_of(config_of(valid="v.en,v.de,v2.de", root=str(tmp_path)))
    source = split_source(task, "valid")
    assert list(source.pairs()) == [("a", "y"), ("c", "z")], (
        "with the first reference that there is"
    )
    assert list(source.references()) == [("", "y"), ("z", "")]
    store = split_store(task, tmp_path, "valid", single_process.tokenizers)
    assert store.num_pairs == 2
    assert_names(store.describe(), "of 4:", "without a", "1 without")


def test_processes_prepare_a_test_set_once(tmp_path, single_process, encoded):
    config = config_of(test="toy:test:15")

    def work(group):
        return split_store(task_of(config), tmp_path, "test", single_process.tokenizers, group)

    assert [store.num_pairs for store in run_processes(3, work)] == [15] * 3 and len(encoded) == 1


def test_failure_of_process_0_ends_the_others(tmp_path, monkeypatch):
    config = config_of(valid="v.en,v.de", root=str(tmp_path))
    (tmp_path / "v.en").write_bytes(b"a\n\xe4\n")
    (tmp_path / "v.de").write_bytes(b"b\nb\n")
    failed = run_processes(
        3, lambda group: prepare_corpus(task_of(config), tmp_path / "run", group=group)
    )
    assert isinstance(failed[0], UserError) and all(
        isinstance(error, Exception) for error in failed[1:]
    )
    assert_names(str(failed[0]), "v.en", "line 2:", "0xe4")


def test_every_process_opens_stores_whose_updates_are_planned(tmp_path):
    config = config_of()

    def updates(group):
        corpus = prepare_corpus(task_of(config), tmp_path / "run", group=group)
        return Batches(corpus.train, config.data, seed=1).updates_per_epoch

    counts = run_processes(3, updates)
    assert counts[0] > 0 and counts == [counts[0]] * 3


def test_unshared_cache_is_an_error(tmp_path, single_process, monkeypatch):
    real = dataset.find_store

    def hidden(folder, digest):
        return (
            None
            if threading.current_thread() is not threading.main_thread() and other(folder)
            else real(folder, digest)
        )

    def other(folder):
        return threading.current_thread().name.startswith("other")

    monkeypatch.setattr(dataset, "find_store", hidden)

    def work(group):
        if group.index:
            threading.current_thread().name = "other"
        return prepare_corpus(task_of(config_of()), tmp_path, group=group)

    assert_names(str(run_processes(2, work)[1]), "config.data.cache", "process 0")


def test_empty_train_key_is_an_error(tmp_path):
    with refused("config.data.train"):
        prepare_corpus(task_of(small_config(data=DATA | dict(train=""))), tmp_path)


def test_seed_does_not_change_the_text(tmp_path, single_process):
    config = small_config(data=DATA, seed=dict(data=5))
    assert prepare_corpus(task_of(config), tmp_path).train.digest == single_process.train.digest
    shutil.rmtree(tmp_path / "data")
    assert (
        prepare_corpus(task_of(config), epath.Path(tmp_path)).train.digest
        == single_process.train.digest
    )


def test_several_preparations_in_one_cache_train_one_tokenizer(tmp_path):
    config = config_of(cache=str(tmp_path / "cache"))
    trained = PROCESSES.Value("i", 0)
    processes = [
        start(prepare_and_count_tokenizers, config, tmp_path / str(i), trained) for i in range(3)
    ]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 3 and trained.value == 1
    digests = {TokenizerPair.load(tmp_path / str(i) / "tokenizer").digest for i in range(3)}
    assert len(digests) == 1
