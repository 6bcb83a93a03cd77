"""The steps before each BLEU, and that the three are told apart."""

import logging

import pytest
import sacrebleu

from t2t_flax.evaluation.bleu import BLEUS, NAMES, corpus_metric, replace_punctuation, split_compounds, variant

TEXT = ["Das \"E-Mail-Konto\" gehört ihr, nicht ihm.", "Er sagt: 'Nein & nie.'", "Der CDU-Abgeordnete kam um 5.30 Uhr [sic]."]  # fmt: skip
TOKENS = [
    "Das &quot; E-Mail-Konto &quot; gehört ihr , nicht ihm .",
    "Er sagt : &apos; Nein &amp; nie . &apos;",
    "Der CDU-Abgeordnete kam um 5.30 Uhr &#91; sic &#93; .",
]


def made(name, **changes):
    return variant(name, **({"tokenized": False, "language": "de"} | changes))


def test_a_hyphen_between_two_non_spaces_becomes_a_token():
    lines = ["rich-text format", "a - b", "-x y-", "(E-Mail)-Adresse", "a-b-c", ""]
    assert split_compounds(lines) == [
        "rich ##AT##-##AT## text format",
        "a - b",
        "-x y-",
        "(E ##AT##-##AT## Mail) ##AT##-##AT## Adresse",
        "a ##AT##-##AT## b-c",  # the match ends after b, as perl's s///g does
        "",
    ]


def test_unicode_punctuation_becomes_ascii():
    assert replace_punctuation(["“so” ’s … ５％！", "„bleibt“ – «bleibt»"]) == [
        '"so" \'s ... 5%!',
        '„bleibt" – «bleibt»',
    ]


def test_text_of_each_variant():
    assert made("sacrebleu").prepare(TEXT) == TEXT
    assert made("tokenized_bleu").prepare(TEXT) == TOKENS
    assert made("paper_bleu").prepare(TEXT) == split_compounds(TOKENS) != TOKENS


def test_text_that_is_tokenized_already_is_not_tokenized_again():
    assert made("tokenized_bleu", tokenized=True).prepare(TOKENS) == TOKENS
    assert made("paper_bleu", tokenized=True).prepare(TOKENS) == split_compounds(TOKENS)
    plain = made("sacrebleu", tokenized=True).prepare(TOKENS)
    assert plain == TEXT and not any("&" in line and ";" in line for line in plain)


def test_rules_of_the_language():
    assert made("tokenized_bleu", language="fr").prepare(["l'homme"]) == ["l&apos; homme"]
    assert made("tokenized_bleu", language="en").prepare(["it's"]) == ["it &apos;s"]
    assert made("tokenized_bleu", language="xx").prepare(["Ja, nein."]) == ["Ja , nein ."]


def test_how_names_the_steps_and_the_versions():
    for tokenized in (False, True):
        said = {name: made(name, tokenized=tokenized).how for name in NAMES}
        assert len(set(said.values())) == 6
        assert all(sacrebleu.__version__ in how and how.endswith(".") for how in said.values())
        assert ("detokenised" in said["sacrebleu"]) is tokenized
        assert ("own Moses tokens" in said["tokenized_bleu"]) is tokenized
        assert "get_ende_bleu.sh" in said["paper_bleu"] and "hyphen" in said["paper_bleu"]
    with pytest.raises(ValueError, match="'blue' is none of sacrebleu, tokenized_bleu, paper_bleu, chrf"):
        made("blue")


def test_arithmetic_of_multi_bleu_has_no_smoothing():
    hypotheses, references = ["a b c x", "d e f"], ["a b c d", "d e f"]
    smoothed = corpus_metric(made("sacrebleu"), hypotheses, [references])
    assert smoothed["score"] > 0 and "smooth:exp" in smoothed["signature"]
    for name in ("tokenized_bleu", "paper_bleu"):
        score = corpus_metric(made(name), hypotheses, [references])
        assert score["score"] == 0 and score["precisions"] == [
            pytest.approx(600 / 7, abs=1e-4),
            80,
            pytest.approx(200 / 3, abs=1e-4),
            0,
        ]
        assert score["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none")


def test_no_warning_about_tokenized_text(caplog):
    lines = ["Das ist ein Haus ."] * 150
    with caplog.at_level(logging.WARNING, "sacrebleu"):
        logging.getLogger("sacrebleu").propagate = True
        for name in BLEUS:
            assert corpus_metric(made(name, tokenized=True), lines, [lines])["score"] == pytest.approx(100.0)
        assert not caplog.records
        sacrebleu.corpus_bleu(lines, [lines])
    assert "tokenized period" in caplog.text  # the same text as it is would have been warned about
