"""Corpora of mtdata's index, from its cache: they are what mtdata parses, whole or not at all."""

import bz2
import gzip
import hashlib
import importlib.metadata
import io
import logging
import lzma
import re
import tarfile
from pathlib import Path
from urllib.parse import urlparse

import pytest

from t2t_flax.data.sources import open_source
from t2t_flax.errors import UserError
from t2t_flax.extensions.corpora import mtdata_corpus

mtdata_index = pytest.importorskip("mtdata.index", reason="pip install mtdata")
from mtdata.entry import Entry  # noqa: E402

NEWSTEST = "Statmt-newstest_deen-2014-deu-eng"
PARACRAWL = "ParaCrawl-paracrawl-9-eng-deu"
PLAIN = "Test-plain-1-eng-deu"
URLS = ("https://host.invalid/text.en", "https://host.invalid/text.de")
PAIRS = [("Guten Tag & <mehr>", "Good day & <more>"), ("Ein Haus", "A house"), ("Zwei", "Two")]


@pytest.fixture(scope="module")
def index():
    from mtdata.index import paracrawl, statmt

    index = mtdata_index.Index()
    for module in (statmt, paracrawl):
        module.load_all(index)
    index.add_entry(Entry(PLAIN, url=URLS, ext="txt"))
    for suffix in ("gz", "xz", "bz2"):
        index.add_entry(
            Entry(
                f"Test-table_{suffix}-1-eng-deu",
                url=f"https://host.invalid/table.tsv.{suffix}",
                filename=f"table.tsv.{suffix}",
            )
        )
    index.add_entry(Entry("Test-mono-1-deu", url=URLS[1], ext="txt"))
    index.add_entry(
        Entry("Test-hub-1-eng-deu", "https://huggingface.co/datasets/x", in_paths=["x"], in_ext="hfds", ext="hfds")
    )
    return index


@pytest.fixture
def cached(tmp_path, monkeypatch, index):
    """cached(url, filename, data): mtdata has downloaded this."""
    monkeypatch.setattr(mtdata_index.Index, "obj", index)
    monkeypatch.setattr("mtdata.cache_dir", tmp_path / "cache")

    def no_network(*args, **named):
        raise ConnectionError("no network")

    monkeypatch.setattr("requests.get", no_network)

    def write(url, filename, data):
        digest = hashlib.md5(url.encode()).hexdigest()
        path = tmp_path / "cache" / urlparse(url).hostname / digest[:4] / digest[4:] / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.with_name(path.name + "._valid").touch()
        return path

    return write


def sgm(lines):
    escaped = [line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in lines]
    segments = "\n".join(f'<seg id="{i}">{line}</seg>' for i, line in enumerate(escaped, 1))
    return f'<srcset setid="x"><doc docid="d">\n{segments}\n</doc></srcset>\n'.encode()


def newstest(index, cached, pairs):
    entry = index[mtdata_index.DatasetId.parse(NEWSTEST)]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, side in zip(entry.in_paths, zip(*pairs, strict=True), strict=True):
            member = tarfile.TarInfo(path)
            member.size = len(content := sgm(side))
            archive.addfile(member, io.BytesIO(content))
    return cached(entry.url, entry.filename, data.getvalue())


def open_it(identifier, source="en", target="de"):
    return open_source(f"mtdata:{identifier}", source_language=source, target_language=target, key="config.data.train")


def test_archive_is_read_in_order_and_in_both_directions(index, cached):
    path = newstest(index, cached, PAIRS)
    forward, backward = open_it(NEWSTEST, "de", "en"), open_it(NEWSTEST, "eng", "deu")
    assert list(forward.pairs()) == list(forward.pairs()) == PAIRS and forward.count == 3
    assert list(backward.pairs()) == [pair[::-1] for pair in PAIRS]
    assert forward.where(1) == f"mtdata:{NEWSTEST} segment 2" and forward.fingerprint() != backward.fingerprint()
    before = forward.fingerprint()
    assert open_it(NEWSTEST, "de", "en").fingerprint() == before
    newstest(index, cached, PAIRS[:2])
    assert open_it(NEWSTEST, "de", "en").fingerprint() != before and path.exists()


def test_another_version_of_mtdata_is_another_text(index, cached, monkeypatch):
    newstest(index, cached, PAIRS)
    source = open_it(NEWSTEST, "de", "en")
    before = source.fingerprint()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"mtdata": "99.0"}[name])
    assert source.fingerprint() != before


def test_newstest2014_is_that_of_its_text_files(index, cached, real_data):
    names = [f"newstest2014-ende.{language}.gz" for language in ("de", "en")]
    sides = [gzip.decompress((real_data / "newstest" / name).read_bytes()).decode().split("\n")[:-1] for name in names]
    pairs = [tuple(" ".join(text.split()) for text in pair) for pair in zip(*sides, strict=True)]
    newstest(index, cached, pairs)
    assert list(open_it(NEWSTEST, "de", "en").pairs()) == pairs and len(pairs) > 2700


def test_columns_of_a_compressed_table(index, cached):
    entry = index[mtdata_index.DatasetId.parse(PARACRAWL)]
    rows = "".join(f"{target}\t{source}\n" for source, target in PAIRS)
    cached(entry.url, entry.filename, gzip.compress(rows.encode()))
    assert list(open_it(PARACRAWL).pairs()) == [pair[::-1] for pair in PAIRS]
    cached(entry.url, entry.filename, gzip.compress(b"one\tEins\nonly one column\n"))
    with pytest.raises(UserError, match=rf"mtdata:{PARACRAWL} segment 2: mtdata cannot read it .*IndexError"):
        list(open_it(PARACRAWL).pairs())
    cached(entry.url, entry.filename, gzip.compress(rows.encode() * 100)[:-12])
    with pytest.raises(UserError, match="segment"):
        list(open_it(PARACRAWL).pairs())


def test_two_files_of_unlike_lengths_are_an_error_and_empty_lines_stay(index, cached):
    cached(URLS[0], "plain.txt", b"x")  # the name that an entry of one file would have
    for url, text in zip(URLS, ("one\n\nthree\n", "eins\nzwei\n\n"), strict=True):
        cached(url, url.split("/")[-1], text.encode())
    assert list(open_it(PLAIN).pairs()) == [("one", "eins"), ("", "zwei"), ("three", "")]
    cached(URLS[1], "text.de", b"eins\n")
    with pytest.raises(UserError, match=r"segment 2: mtdata cannot read it from .*text\.en: Exception"):
        list(open_it(PLAIN).pairs())


@pytest.mark.parametrize(
    "identifier, languages, message",
    [
        (PARACRAWL, ("en", "fr"), r"the corpus has the languages eng-deu; expected en-fr"),
        (PARACRAWL, ("en", "en"), r"the corpus has the languages eng-deu"),
        (PARACRAWL, ("en", "klingonisch"), r"the corpus has the languages eng-deu"),
        ("Test-mono-1-deu", ("en", "de"), r"the corpus has the languages deu; expected en-de"),
        ("Test-hub-1-eng-deu", ("en", "de"), r"dataset of Hugging Face.*hf:FOLDER:SPLIT"),
        ("ParaCrawl-paracrawl-99-eng-deu", ("en", "de"), r"no corpus .*Similar: ParaCrawl-paracrawl-"),
        ("nonsense", ("en", "de"), r"no corpus 'nonsense'; expected mtdata:GROUP-NAME"),
        ("", ("en", "de"), r"no corpus ''"),
        (PARACRAWL, ("en", "de"), r"could not download https.*ConnectionError: no network\. Run `mtdata cache -di"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_when_opened(cached, identifier, languages, message):
    with pytest.raises(UserError, match=message):
        open_it(identifier, *languages)


@pytest.mark.parametrize("suffix, compress", [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_table_that_is_cut_off_is_an_error(cached, suffix, compress):
    """mtdata reads .xz and .bz2 with programs whose failure it ignores, where they are installed."""
    url = f"https://host.invalid/table.tsv.{suffix}"
    rows = [f"one\rline {i}\tZeile {i}" for i in range(20_000)]
    data = compress("".join(f"{row}\n" for row in rows).encode())
    cached(url, f"table.tsv.{suffix}", data)
    name = f"Test-table_{suffix}-1-eng-deu"
    assert list(open_it(name).pairs()) == [(f"one line {i}", f"Zeile {i}") for i in range(20_000)]
    for length in (len(data) // 2, len(data) - 1):
        cached(url, f"table.tsv.{suffix}", data[:length])
        with pytest.raises(UserError, match="mtdata cannot read it from"):
            list(open_it(name).pairs())


def test_files_that_have_gone_and_damaged_indices_are_named(index, cached, tmp_path, monkeypatch):
    path = newstest(index, cached, PAIRS)
    source = open_it(NEWSTEST, "de", "en")
    for file in path.parent.rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(UserError, match="mtdata cannot read it from"):
        list(source.pairs())
    monkeypatch.setattr(mtdata_index.Index, "obj", None)
    monkeypatch.setattr("mtdata.cached_index_file", damaged := tmp_path / "index.pkl")
    monkeypatch.setattr("mtdata.index.cached_index_file", damaged)
    damaged.write_bytes(b"\x80")
    with pytest.raises(UserError, match=r"cannot use its index .*index\.pkl: .*Remove the file"):
        open_it(NEWSTEST, "de", "en")


def test_identifiers_of_the_page_are_in_the_index(index):
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    identifiers = set(re.findall(r"mtdata:(\w+-\w+-\w+-\w+-\w+)", page))
    assert len(identifiers) == 3 and all(mtdata_index.DatasetId.parse(name) in index for name in identifiers)


def test_logging_stays_as_it_was(index, cached):
    newstest(index, cached, PAIRS)
    root = logging.getLogger()
    before = (root.handlers[:], root.level, root.filters[:])
    list(open_it(NEWSTEST, "de", "en").pairs())
    assert (root.handlers[:], root.level, root.filters[:]) == before


def test_missing_package_is_named(monkeypatch):
    def missing():
        raise ImportError

    monkeypatch.setattr(mtdata_corpus, "_import", missing)
    with pytest.raises(UserError, match=r"config\.data\.train = 'mtdata:x' needs mtdata: pip install"):
        open_it("x")
