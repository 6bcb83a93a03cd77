"""Exported models of several directions.

The target language's token works in the formats' own tokenizers, and the README says how it is
given.
"""

import json
import re
import subprocess
import sys

import pytest
import yaml
from helpers.refusals import assert_names, refused
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.evaluation.restore import load
from t2t_flax.training import loop

DATA = dict(
    train="en-de=toy:train:150; de-en=toy:train:120",
    valid="",
    vocab_size=400,
)
RULES = {
    "decode.length_penalty": "power",
    "decode.early_stopping": "beam_full",
    "decode.beam_size": "2",
}
TEXT = "It is <2en> late."


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("export-directions") / "run"
    loop.train(
        start(
            tiny_run(
                folder,
                steps=2,
                data=DATA,
                languages=dict(directions="by_name"),
                checkpoint=dict(every_steps=2),
            ),
            folder,
            cache,
        ),
        score=None,
    )
    return folder


def exported(workdir, folder, kind):
    """The README of the exported folder, with its metadata."""
    assert main(["export", f"--workdir={workdir}", f"--output={folder}", f"--format={kind}"]) == 0
    text = (folder / "README.md").read_text()
    return text, yaml.safe_load(text.split("---\n")[1])


def test_ctranslate2_takes_the_token_before_the_pieces(workdir, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")
    readme, metadata = exported(workdir, tmp_path / "m", "ctranslate2")
    assert metadata["language"] == ["en", "de"]
    assert_names(readme, "en-de, de-en.", "`<2de>` `<2en>`")
    code = re.search(r"```python\n(.*?)```", readme, re.S)[1]
    assert '["<2de>"] + source.encode' in code
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "m",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    import sentencepiece

    run = load(workdir, overrides=RULES)
    side = sentencepiece.SentencePieceProcessor(
        str(tmp_path / "m" / "tokenizer" / "tokenizer.model")
    )
    pieces = side.encode(TEXT, out_type=str)
    assert "<2en>" not in pieces
    translator = ctranslate2.Translator(str(tmp_path / "m"))
    for language in ("de", "en"):
        (ours,) = run.translate([f"<2{language}> {TEXT}"])
        (theirs,) = translator.translate_batch(
            [[f"<2{language}>", *pieces]],
            beam_size=2,
            length_penalty=run.config.decode.alpha,
            max_decoding_length=len(ours.hypotheses[0].tokens) + 1,
            suppress_sequences=[["<pad>"]],
        )
        expected = run.tokenizers.target.pieces(ours.hypotheses[0].tokens)
        assert theirs.hypotheses[0][: len(expected)] == expected


def test_marian_takes_the_token_at_the_beginning_of_the_text(workdir, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    readme, _ = exported(workdir, tmp_path / "m", "huggingface")
    assert_names(readme, '[">>de<< It', "`>>de<<` `>>en<<`")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    run = load(workdir)
    for language in ("de", "en"):
        ids = theirs(f">>{language}<< {TEXT}").input_ids
        assert ids == [*run.tokenizers.source.encode(f"<2{language}> {TEXT}"), 1]
    assert sorted(theirs.supported_language_codes) == [">>de<<", ">>en<<"]


@pytest.mark.parametrize("kind", ["ctranslate2", "huggingface", "safetensors"])
def test_directions_come_back(workdir, tmp_path, kind, capsys):
    """Out to the format and back in.

    The same directions, tokenizers and translations, and out again.
    """
    pytest.importorskip(
        {"ctranslate2": "ctranslate2"}.get(kind, "numpy"), reason="needs the extra ctranslate2"
    )
    exported(workdir, tmp_path / "m", kind)
    assert main(["import", f"--from={tmp_path / 'm'}", f"--workdir={tmp_path / 'run'}"]) == 0
    directions = "en-de, de-en" if kind == "safetensors" else "mul-de, mul-en"
    assert directions in capsys.readouterr().out
    ours, run = load(workdir), load(tmp_path / "run")
    assert run.tokenizers.digest == ours.tokenizers.digest
    for language in ("de", "en"):
        (a,), (b,) = (r.score([(f"<2{language}> {TEXT}", "Es ist.")]) for r in (run, ours))
        # Marian's norms have another epsilon.
        assert a.log_prob == pytest.approx(b.log_prob, abs=0.1)
    with refused("de, en"):
        run.translate([TEXT])
    test_set = ["--config.data.test=de-en=toy:test:2", "--config.languages.directions=by_name"]
    assert main(["evaluate", f"--workdir={tmp_path / 'run'}", *test_set]) == 0
    (record,) = [
        json.loads(path.read_text()) for path in (tmp_path / "run" / "eval").glob("de-en-*.json")
    ]
    assert (record["data"]["direction"], record["data"]["zero_shot"]) == ("de-en", False)
    readme, _ = exported(tmp_path / "run", tmp_path / "again", kind)
    assert_names(readme, directions)
