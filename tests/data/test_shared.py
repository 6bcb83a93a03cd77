"""Many hosts prepare one store: the same bytes as from one, each reading its share; failures are told."""

import gzip
import json
import shutil
import threading

import pytest
from etils import epath
from helpers.thread_hosts import Hosts

from t2t_flax.data import preprocess as prepare
from t2t_flax.data import shared_preprocessing as shared
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import prepare_split, train_tokenizers
from t2t_flax.data.shared_preprocessing import prepare_together, survey_once
from t2t_flax.data.sources import open_source
from t2t_flax.data.sources.lines import scan
from t2t_flax.data.store.integrity import VERIFIED
from t2t_flax.errors import UserError
from t2t_flax.tasks import task_of

POLICIES = dict(max_length=100, on_too_long="drop", empty_lines="drop", processes=1)
PAIRS = [(f"sentence {i} of {i % 7} houses" * (1 + i % 3), f"Satz {i} von {i % 7} Häusern") for i in range(130)]
PAIRS[17] = ("", "leer")
FORMS = ["text", "text.gz", "tsv", "tsv.gz", "toy", "one file packed"]


@pytest.fixture(autouse=True)
def short_strides(monkeypatch):
    monkeypatch.setattr("t2t_flax.data.sources.base.STRIDE", 8)
    monkeypatch.setattr(prepare, "CHUNK_PAIRS", 16)


def write(path, text):
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def open_form(folder, form):
    if form == "toy":
        spec = "toy:train:130"
    elif form.startswith("tsv"):
        write(folder / f"t.{form}", "".join(f"{s}\t{t}\n" for s, t in PAIRS))
        spec = f"t.{form}"
    else:
        names = [f"{side}{'.gz' if 'gz' in form or 'packed' in form and n else ''}" for n, side in enumerate("st")]
        for n, name in enumerate(names):
            write(folder / name, "\n".join(pair[n] for pair in PAIRS))  # no end of line after the last
        spec = ",".join(names)
    return open_source(spec, root=str(folder), source_language="en", target_language="de")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    source = open_form(tmp_path_factory.mktemp("training"), "tsv")
    return train_tokenizers(source, kind="bpe", vocab_size=300, joint=True, normalization="identity")


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


def together(folder, form, tokenizers, hosts, name="store", **changes):
    open_form(folder, form)

    def work(pod):
        source = open_source_there(folder, form)
        survey = survey_once(source, "train", epath.Path(folder), pod)
        return prepare_together(source, survey, tokenizers, folder / name, pod, **POLICIES | changes)

    return Hosts(hosts).run(work)


def open_source_there(folder, form):
    spec = {"toy": "toy:train:130", "text": "s,t", "text.gz": "s.gz,t.gz", "one file packed": "s,t.gz"}
    spec = spec.get(form, f"t.{form}")
    return open_source(spec, root=str(folder), source_language="en", target_language="de")


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_do_not_depend_on_the_hosts(tmp_path, tokenizers, form):
    one = prepare_split(open_form(tmp_path, form), tokenizers, tmp_path / "one", **POLICIES)
    assert one.meta["pairs_read"] == 130 and one.num_pairs == 129, "one pair is left out"
    before = {path.name for path in tmp_path.iterdir()}
    for hosts in (1, 2, 3):
        stores = together(tmp_path, form, tokenizers, hosts, f"of{hosts}")
        assert [store.num_pairs for store in stores] == [one.num_pairs] * hosts
        assert content(tmp_path / f"of{hosts}") == content(tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == before | {"of1", "of2", "of3"}


@pytest.mark.parametrize("form", ["text", "tsv"])
def test_each_host_tokenises_and_reads_its_own_share(tmp_path, tokenizers, form, monkeypatch):
    seen = {}
    real = prepare._Encoder.__call__

    def note(self, pairs):
        seen.setdefault(threading.current_thread(), []).extend(pairs)
        return real(self, pairs)

    monkeypatch.setattr(prepare._Encoder, "__call__", note)
    together(tmp_path, form, tokenizers, 3)
    assert len(seen) == 3 and sorted(sum(seen.values(), [])) == sorted(PAIRS)
    assert all(30 < len(share) < 60 for share in seen.values())
    source = open_form(tmp_path, form)
    survey = source.survey()
    first, last = survey.share(2, 3)
    assert (first, last) == (88, 130)
    (tmp_path / ("s" if form == "text" else "t.tsv")).write_bytes(b"\xff" * survey.marks[first // 8][1][0])
    assert list(itertools_first(source.read_range(first, last, survey))) == [], "nothing before the share is read"


def itertools_first(pairs):
    try:
        yield from pairs
    except UserError as error:
        yield error
    except ValueError:
        return  # the file ends where the share began


def test_a_finished_store_is_taken_as_it_is(tmp_path, tokenizers, monkeypatch):
    together(tmp_path, "text", tokenizers, 2)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "store").iterdir()}
    monkeypatch.setattr(prepare._Encoder, "__call__", None)
    assert [store.num_pairs for store in together(tmp_path, "text", tokenizers, 2)] == [129, 129]
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "store").iterdir()} == before


def test_a_host_that_fails_ends_the_others_and_what_was_made_is_used_again(tmp_path, tokenizers, monkeypatch):
    real = prepare._Encoder.__call__

    def fail(self, pairs):
        if PAIRS[100] in pairs:
            raise OSError("No space left on device")
        return real(self, pairs)

    with monkeypatch.context() as patch:
        patch.setattr(prepare._Encoder, "__call__", fail)
        failed = together(tmp_path, "text", tokenizers, 3)
    assert "No space left" in str(failed[2])
    assert all("a host is gone; waited until the parts of store are made" in str(error) for error in failed[:2])
    assert not (tmp_path / "store").exists()
    assert sorted(path.name for path in (tmp_path / "store.parts-3").iterdir()) == ["0", "1"]
    again = []
    monkeypatch.setattr(prepare._Encoder, "__call__", lambda self, pairs: again.extend(pairs) or real(self, pairs))
    together(tmp_path, "text", tokenizers, 3)
    assert sorted(again) == sorted(PAIRS[88:]), "the parts of the other hosts were whole"
    one = prepare_split(open_form(tmp_path, "text"), tokenizers, tmp_path / "one", **POLICIES)
    assert content(tmp_path / "store") == content(tmp_path / "one") and one.num_pairs == 129
    assert not (tmp_path / "store.parts-3").exists()


def test_parts_of_another_text_are_not_taken(tmp_path, tokenizers, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shared, "_join", lambda *args: (_ for _ in ()).throw(OSError("killed")))
        together(tmp_path, "text", tokenizers, 2)
    assert (tmp_path / "store.parts-2" / "1").exists() and not (tmp_path / "store").exists()
    monkeypatch.setitem(globals(), "PAIRS", [(s + "!", t) for s, t in PAIRS])
    together(tmp_path, "text", tokenizers, 2)
    prepare_split(open_form(tmp_path, "text"), tokenizers, tmp_path / "one", **POLICIES)
    assert content(tmp_path / "store") == content(tmp_path / "one")


def test_mistakes_are_told_with_their_line_whoever_reads_it(tmp_path, tokenizers):
    failed = together(tmp_path, "tsv", tokenizers, 3, empty_lines="error")
    assert "t.tsv line 18: one side of the pair is empty" in str(failed[0])
    open_form(tmp_path, "tsv")
    lines = (tmp_path / "t.tsv").read_bytes().split(b"\n")
    lines[120] = b"\xe4\tno UTF-8"

    def work(pod):
        source = open_source_there(tmp_path, "tsv")
        survey = survey_once(source, "train", epath.Path(tmp_path), pod)
        return prepare_together(source, survey, tokenizers, tmp_path / "x", pod, **POLICIES)

    (tmp_path / "t.tsv").write_bytes(b"\n".join(lines))
    assert "t.tsv line 121: byte 0xe4" in str(Hosts(3).run(work)[2])
    (tmp_path / "s").write_text("a\nb\nc\n")
    (tmp_path / "t").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"s has 3 lines and .*t has 2"):
        open_source_there(tmp_path, "text").survey()
    (tmp_path / "s").write_text(""), (tmp_path / "t").write_text("")
    with pytest.raises(UserError, match="the corpus is empty"):
        open_source_there(tmp_path, "text").counted(open_source_there(tmp_path, "text").survey().count)


def test_nothing_left_is_told_by_the_host_that_joins(tmp_path, tokenizers):
    failed = together(tmp_path, "text", tokenizers, 2, max_length=2)
    assert "nothing is left of 130 pairs: 1 have an empty side, 130 have a side longer" in str(failed[0])
    assert "a host is gone" in str(failed[1])
    assert not (tmp_path / "store").exists()


def test_a_cache_that_is_not_shared_is_told(tmp_path, tokenizers):
    open_form(tmp_path, "text")

    def work(pod):
        source = open_source_there(tmp_path, "text")
        survey = survey_once(source, "train", epath.Path(tmp_path), pod)
        return prepare_together(source, survey, tokenizers, tmp_path / str(pod.index) / "s", pod, **POLICIES)

    failed = Hosts(2).run(work)
    assert any("there is no token store at" in str(error) and "parts-2/1" in str(error) for error in failed)


def test_the_whole_corpus_by_two_hosts(tmp_path, monkeypatch):
    """Host 0 trains the tokenizer; both see the same tokenizer, training store and validation store."""
    from helpers.configs import small_config

    data = dict(
        train="toy:train:200", valid="toy:valid:20", vocab_size=200, byte_fallback=False, max_length=60, pack_length=64
    )
    config = small_config(data=data | dict(num_workers=1, batch_tokens=512))
    alone = prepare_corpus(task_of(config), tmp_path / "alone")
    trained = []
    real = train_tokenizers
    note = lambda *args, **keys: trained.append(threading.current_thread()) or real(*args, **keys)  # noqa: E731
    monkeypatch.setattr("t2t_flax.tasks.translation.task.train_tokenizers", note)
    for found in Hosts(2).run(lambda pod: prepare_corpus(task_of(config), tmp_path / "two", pod=pod)):
        assert found.tokenizers.digest == alone.tokenizers.digest
        for mine, other in ((found.train, alone.train), (found.valid, alone.valid)):
            assert mine.digest == other.digest and content(mine.folder) == content(other.folder)
    assert len(trained) == 1
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["data", "tokenizer"]
    shutil.rmtree(tmp_path / "two" / "data")


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "\n\n\n", "x\n" * 24, "x\n" * 23 + "x", "\r\n" * 9])
@pytest.mark.parametrize("suffix", ["txt", "gz"])
def test_a_scan_finds_lines_and_where_they_begin(tmp_path, text, suffix, monkeypatch):
    monkeypatch.setattr("t2t_flax.data.sources.lines._BLOCK", 5)
    path = epath.Path(tmp_path / f"a.{suffix}")
    write(tmp_path / path.name, text)
    found = scan(path, 8)
    ends = text.splitlines(keepends=True)
    assert found.lines == len(ends)
    expected = [sum(map(len, ends[:i])) for i in range(0, len(ends), 8)]
    assert list(found.offsets) == expected
    assert json.dumps(found.offsets)
