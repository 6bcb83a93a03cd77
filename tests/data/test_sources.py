import bz2
import gzip
import itertools
import lzma
import os
import subprocess
import sys

import pyarrow.parquet
import pytest
from helpers import documented_modules
from helpers.refusals import refused

from t2t_flax import registry
from t2t_flax.cli import prepare
from t2t_flax.config import load_config
from t2t_flax.data.sources import Context, JoinedSource, Source, has_text, open_source
from t2t_flax.data.sources.files import path_of
from t2t_flax.data.splits import check_sources
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.tasks import task_of

PAIRS = [
    ("a house", "ein Haus"),
    ("", "leer"),
    ("next\u2028line \u0085 \x0b \x0c here", "Straße 😀"),
    ("end", "Ende"),
]


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


def open_en_de(spec, root="", **kwargs):
    return open_source(spec, root=str(root), source_language="en", target_language="de", **kwargs)


def write(path, lines, end="\n"):
    data = (end.join(lines) + end).encode()
    path.write_bytes(COMPRESS[path.suffix](data) if path.suffix in COMPRESS else data)


@pytest.fixture
def corpora(tmp_path):
    for suffix in ("", *COMPRESS):
        write(tmp_path / f"t.en{suffix}", [source for source, _ in PAIRS])
        write(tmp_path / f"t.de{suffix}", [target for _, target in PAIRS])
    return tmp_path


@pytest.mark.parametrize("spec", ["t.en,t.de", "t.en.gz, t.de.gz", "t.en.zst,t.de.xz"])
def test_pairs_are_read_in_order_repeatedly(corpora, spec):
    source = open_en_de(spec, corpora)
    assert source.count is None
    assert list(source.pairs()) == PAIRS
    assert list(source.pairs()) == PAIRS
    assert source.count == len(PAIRS)
    assert source.where(2).startswith(str(corpora / spec.split(",")[0]) + " line 3")


@pytest.mark.parametrize("content", ["", *COMPRESS])
@pytest.mark.parametrize("named", ["", *COMPRESS])
def test_the_first_bytes_say_what_a_file_is(corpora, named, content):
    (corpora / f"x.en{named}").write_bytes((corpora / f"t.en{content}").read_bytes())
    source = open_en_de(f"x.en{named},t.de", corpora)
    assert list(source.pairs()) == PAIRS


@pytest.mark.parametrize(
    ("suffix", "padding"), [(".gz", 3), (".bz2", 3), (".xz", 4), (".xz", 1 << 18), (".zst", 0)]
)
def test_compressed_files_joined_to_one_are_read_to_the_end(tmp_path, suffix, padding):
    """Each is a stream of its own, perhaps with zeros behind it."""
    parts = [COMPRESS[suffix](f"{i}\n".encode() * 1000) + bytes(padding) for i in range(3)]
    (tmp_path / "t.en").write_bytes(b"".join(parts))
    write(tmp_path / "t.de", [str(i // 1000) for i in range(3000)])
    pairs = list(open_en_de("t.en,t.de", tmp_path).pairs())
    assert len(pairs) == 3000 and all(source == target for source, target in pairs)


def test_absolute_paths_ignore_root(corpora):
    spec = f"{corpora / 't.en'},{corpora / 't.de'}"
    assert list(open_en_de(spec, "/elsewhere").pairs()) == PAIRS


def test_crlf_and_missing_final_newline(tmp_path):
    (tmp_path / "t.en").write_bytes(b"one\r\ntwo\r\r\nthree")
    (tmp_path / "t.de").write_bytes(b"eins\nzwei\ndrei\n")
    assert list(open_en_de("t.en,t.de", tmp_path).pairs()) == [
        ("one", "eins"),
        ("two ", "zwei"),
        ("three", "drei"),
    ]


def test_reading_streams(tmp_path):
    """The first pair is yielded even if a later line is malformed."""
    (tmp_path / "t.en").write_bytes(b"a\n" * 3 + b"\xff\n")
    (tmp_path / "t.de").write_bytes(b"b\n" * 4)
    assert list(itertools.islice(open_en_de("t.en,t.de", tmp_path).pairs(), 3)) == [("a", "b")] * 3


def test_fingerprint_depends_only_on_the_content(corpora, tmp_path_factory):
    before = open_en_de("t.en,t.de", corpora).fingerprint()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "x").write_bytes((corpora / "t.en").read_bytes())
    (elsewhere / "y").write_bytes((corpora / "t.de").read_bytes())
    assert open_en_de("x,y", elsewhere).fingerprint() == before
    assert len(before) == 64
    assert open_en_de("y,x", elsewhere).fingerprint() != before
    (elsewhere / "y").write_bytes((corpora / "t.de").read_bytes() + b"\n")
    assert open_en_de("x,y", elsewhere).fingerprint() != before


@pytest.mark.parametrize(
    ("files", "spec", "names"),
    [
        ({}, "no.en,no.de", ("no.en",)),
        ({"a=x.en": b"1\n"}, "x.en,y", ("x.en", "./a=x.en")),
        ({}, ".,.", ("folder",)),
        ({"a": b"1\n2\n3\n", "b": b"1\n"}, "a,b", ("3 lines", "has 1")),
        ({"a": b"1\n", "b": b"1\n2\n3\n4"}, "a,b", ("1 lines", "has 4")),
        ({"a": b"1\n2\n", "b": b"1\n2\n", "c": b"1\n"}, "a,b,c", ("2 lines", "has 1")),
        ({"a": b"fine\nab\xc3(\n", "b": b"1\n2\n"}, "a,b", ("line 2:", "0xc3", "offset 2")),
        ({"a": b"", "b": b""}, "a,b", ("a,b",)),
        *(
            ({f"a{suffix}": b"", "b": b""}, f"a{suffix},b", (f"a{suffix}:", "line 0"))
            for suffix in COMPRESS
        ),
        *(
            (
                {f"a{suffix}": b"\xffx", "b": b""},
                f"a{suffix},b",
                (f"a{suffix}", "line 1:", f"{suffix} data"),
            )
            for suffix in COMPRESS
        ),
        ({"a.gz": gzip.compress(b"x\n" * 9)[:-12], "b": b"1\n" * 9}, "a.gz,b", ("a.gz:",)),
        ({"a.bz2": bz2.compress(b"x\n" * 9)[:-12], "b": b"1\n" * 9}, "a.bz2,b", ("a.bz2:",)),
        ({"a": gzip.compress(b"x\n" * 9)[:-12], "b": b"1\n" * 9}, "a,b", ("a:", ".gz data")),
        ({"a.xz": lzma.compress(b"x\n" * 9)[:-12], "b": b"1\n" * 9}, "a.xz,b", ("a.xz:",)),
        ({"a.zst": COMPRESS[".zst"](b"x\n" * 9)[:-3], "b": b"1\n" * 9}, "a.zst,b", ("a.zst:",)),
        *(
            (
                {"a.tsv": COMPRESS[suffix](b"1\t2\n" * 9) + b"3\t4\n"},
                "a.tsv",
                ("a.tsv:", f"{suffix} data"),
            )
            for suffix in COMPRESS
        ),
        ({"a": b"x"}, "a", ("'a'",)),
        ({"a": b"x"}, "a,a,", ("'a,a,'",)),
        ({}, "toy:dev", ("'dev'", "train, valid")),
        ({}, "toy", ("train, valid",)),
        ({}, "toy:train:0", ("COUNT", "'0'")),
        ({}, "toy:train:", ("COUNT", "''")),
        ({}, "toy:train:5:6", ("COUNT", "'5:6'")),
        ({}, "toy:valid:501", ("501", "500")),
    ],
)
def test_errors_name_file_and_line(tmp_path, files, spec, names):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with refused(*names):
        list(open_en_de(spec, tmp_path).pairs())


def test_several_references(tmp_path):
    for name, lines in (
        ("s.en", "one two"),
        ("a.de", "eins zwei"),
        ("b.de", "ein zwo"),
        ("c.de.gz", "1 2"),
    ):
        write(tmp_path / name, lines.split())
    source = open_en_de("s.en,a.de,b.de,c.de.gz", tmp_path)
    assert source.reference_count == 3 and open_en_de("s.en,a.de", tmp_path).reference_count == 1
    assert list(source.pairs()) == [("one", "eins"), ("two", "zwei")], (
        "training and losses see the first"
    )
    assert list(source.references()) == [("eins", "ein", "1"), ("zwei", "zwo", "2")]
    assert list(open_en_de("toy:test:2").references()) == [
        (t,) for _, t in open_en_de("toy:test:2").pairs()
    ]
    before = source.fingerprint()
    write(tmp_path / "b.de", ["ein", "ZWO"])
    assert source.fingerprint() != before, "the digest covers every reference"
    for side in ("a.de", "c.de.gz"):
        write(tmp_path / side, ["eins"])
        with refused("s.en", "2 lines", "b.de"):
            list(source.references())


def test_unknown_source_form_error_lists_every_form(tmp_path):
    with pytest.raises(UserError) as error:
        open_en_de("opus:wmt14", tmp_path)
    assert all(form.shown in str(error.value) for form in registry.SOURCES.values())


def test_documented_source_works(monkeypatch):
    documented_modules.use(documented_modules.EXAMPLES / "squares.py", monkeypatch)
    source = open_en_de("squares:3", key="config.data.train")
    assert (
        list(source.pairs()) == [("1", "1"), ("2", "4"), ("3", "9")]
        and source.where(2) == "squares:3 pair 3"
    )
    with refused("config.data.train", "'squares:x'"):
        open_en_de("squares:x", key="config.data.train")


@pytest.mark.parametrize("text", ["", " \u3000\xa0", "\u200b\ufeff", "\x00\x85\u2028"])
def test_spaces_and_control_characters_are_no_text(text):
    assert not has_text(text)


@pytest.mark.parametrize("text", [" .", "\u0301", "\ufffd", "\ue001", "\U0010fffd", "\U0001c8ff"])
def test_characters_without_a_name_are_text(text):
    """Fonts give private ones a form, and the next version of Unicode unassigned ones."""
    assert has_text(text)


def test_every_source_yields_texts_of_one_line():
    """Whatever it reads: the rule is not each source's own."""

    class Letters(Source):
        def read(self):
            yield "Dear Sir,\r\nyes\u2028", "Ja\n", "Doch\r"

        def fingerprint(self):
            return ""

    for source, tag in (
        (Letters("letters"), ""),
        (TaggedSource(Letters("letters"), "<2de>"), "<2de> "),
    ):
        assert list(source.pairs()) == [(f"{tag}Dear Sir,  yes\u2028", "Ja ")]
        assert list(source.references()) == [("Ja ", "Doch ")]
    assert list(JoinedSource("letters", [Letters("letters")]).pairs()) == [
        ("Dear Sir,  yes\u2028", "Ja ")
    ]


@pytest.mark.parametrize(
    ("root", "name", "path"),
    [
        ("", "s3://bucket/a.en", "s3://bucket/a.en"),
        ("/data", "gs://bucket/a*.en", "gs://bucket/a*.en"),
        ("s3://other", "s3://bucket/a.en", "s3://bucket/a.en"),
        ("s3://bucket", "text/a.en", "s3://bucket/text/a.en"),
        ("/data", "/text/a.en", "/text/a.en"),
        ("", "a.en", "a.en"),
    ],
)
def test_a_file_of_a_spec_is_relative_to_the_root_or_absolute(root, name, path):
    assert os.fspath(path_of(name, Context(root, ("en", "de"), "data.train"))) == path


def test_errors_name_the_config_key(tmp_path):
    with refused("data.valid", "'no,no'"):
        open_en_de("no,no", tmp_path, key="data.valid")


def test_data_modules_import_no_heavy_library():
    modules = "dataset, preprocess, sources, token_store, tokenizers"
    heavy = "{'jax', 'tensorflow', 'tensorflow_datasets', 'sentencepiece', 'array_record', 'babel'}"
    code = f"import sys; from t2t_flax.data import {modules}; print(sorted({heavy} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "[]\n"
    )


@pytest.mark.parametrize(
    ("contents", "names"),
    [
        ({}, ("config.data.test", "'t.en,t.de'")),
        ({"t.en": b"a\n", "t.de": b""}, ("t.en", "1 lines", "t.de")),
        ({"t.en": b"", "t.de": b""}, ("t.en,t.de",)),
        ({"t.en": b"\xff\n", "t.de": b"b\n"}, ("t.en", "line 1:")),
        ({"t.en": b"a\n", "t.de": None}, ("t.de", "folder")),
    ],
)
def test_bad_test_set_is_reported_before_preparation(tmp_path, contents, names):
    for name, content in contents.items():
        (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_bytes(content)
    words = [
        "--config=configs/toy.py",
        "--config.data.test=t.en,t.de",
        f"--config.data.root={tmp_path}",
    ]
    with refused(*names):
        prepare.run([*words, f"--workdir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
    config = load_config("configs/toy.py", {"data.valid": "t.en,t.de", "data.root": str(tmp_path)})
    with refused(*(name.replace("data.test", "data.valid") for name in names)):
        check_sources(task_of(config))
