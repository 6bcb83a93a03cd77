"""Text and token stores in S3, against moto's server.

Orbax cannot write checkpoints to S3, so workdirs are refused.
"""

import pytest
from etils import epath
from helpers.refusals import refused, refused_command

from t2t_flax import files
from t2t_flax.config import Data
from t2t_flax.data import preprocess
from t2t_flax.data.preprocess import Policies, prepare_split
from t2t_flax.data.sources import open_source
from t2t_flax.data.tokenizers import TokenizerPair, train_tokenizers

CACHE = "s3://bucket/cache"


def test_bucket_holds_text_and_token_stores(s3, tmp_path, monkeypatch):
    text = "".join(
        f"sentence {i} of {i % 7} houses\tSatz {i} von {i % 7} Häusern\n" for i in range(120)
    )
    files.atomic_write("s3://bucket/text/t.tsv", text)
    source = open_source(
        "t.tsv", root="s3://bucket/text", source_language="en", target_language="de"
    )
    trained = train_tokenizers(source, Data(tokenizer="bpe", vocab_size=300, joint_vocabulary=True))
    trained.save(epath.Path(CACHE) / "tokenizer")
    tokenizers = TokenizerPair.load(epath.Path(CACHE) / "tokenizer")
    assert tokenizers.digest == trained.digest
    policies = Policies(max_length=100, on_too_long="drop", empty_lines="drop")
    store = prepare_split(source, tokenizers, f"{CACHE}/train", policies)
    monkeypatch.setattr(preprocess.Encoder, "__call__", None)
    monkeypatch.setenv("HOME", str(tmp_path / "another host"))
    copy = prepare_split(source, tokenizers, f"{CACHE}/train", policies)
    assert copy.folder != store.folder and copy.num_pairs == 120
    assert [copy.source(i).tolist() for i in range(120)] == [
        store.source(i).tolist() for i in range(120)
    ]
    (epath.Path(CACHE) / "train" / "source.ids").write_bytes(
        (copy.folder / "source.ids").read_bytes()[::-1]
    )
    monkeypatch.setenv("HOME", str(tmp_path / "a third host"))
    with refused(f"{CACHE}/train", "source.ids"):
        prepare_split(source, tokenizers, f"{CACHE}/train", policies)


@pytest.mark.parametrize("command", ["train --config=configs/toy.py", "evaluate"])
def test_workdir_on_s3_is_refused_before_any_work(s3, command):
    refused_command(
        [*command.split(), "--workdir=s3://bucket/run"], "--workdir", "s3://bucket/run", "gs://"
    )
    assert list(epath.Path("s3://bucket").iterdir()) == []


@pytest.mark.parametrize("path, hint", [
    ("s3://bucket/run", "[s3]"), ("abc://box/run", "abc://"),
])  # fmt: skip
def test_missing_package_is_reported_for_each_scheme(monkeypatch, path, hint):
    def missing(self):
        raise ImportError("no such package")

    monkeypatch.setattr(type(epath.Path("gs://bucket")), "exists", missing)
    with refused(path, hint):
        files.check_reachable(path)


def test_files_that_match_a_pattern_are_paired(s3):
    spec = "s3://bucket/*/t.?.en,s3://bucket/*/t.?.de"
    for part in "ba":
        for side in ("en", "de"):
            files.atomic_write(f"s3://bucket/text/t.{part}.{side}", f"{side} {part}\n")
    source = open_source(spec, root="s3://bucket", source_language="en", target_language="de")
    assert list(source.pairs()) == [("en a", "de a"), ("en b", "de b")]
    epath.Path("s3://bucket/text/t.a.de").unlink()
    with refused("s3://bucket/text/t.a.en"):
        open_source(spec, root="s3://bucket", source_language="en", target_language="de")


def test_columns_of_a_file_in_a_bucket(s3):
    files.atomic_write("s3://bucket/p.tsv", "u\ta\tein\t0.9\nu\tb\tzwei\t0.1\n")
    source = open_source(
        "s3://bucket/p*.tsv:2,3:4>=0.5", source_language="en", target_language="de"
    )
    assert list(source.rows()) == [("a", "ein"), "score"]
