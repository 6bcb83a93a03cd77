"""Translation metrics: the preprocessing of each BLEU, and sacreBLEU's scores."""

import logging

import pytest
import sacrebleu
from helpers.scores import score_translations, translation_config

from t2t_flax.tasks import task_of
from t2t_flax.tasks.translation import METRICS, recipe, replace_punctuation, split_compounds

BLEUS = ("sacrebleu", "tokenized_bleu", "paper_bleu")

TEXT = ["Das \"E-Mail-Konto\" gehört ihr, nicht ihm.", "Er sagt: 'Nein & nie.'", "Der CDU-Abgeordnete kam um 5.30 Uhr [sic]."]  # fmt: skip
TOKENS = [
    "Das &quot; E-Mail-Konto &quot; gehört ihr , nicht ihm .",
    "Er sagt : &apos; Nein &amp; nie . &apos;",
    "Der CDU-Abgeordnete kam um 5.30 Uhr &#91; sic &#93; .",
]


def recipe_of(name, **settings):
    return recipe(name, translation_config(**settings))


def test_hyphen_between_non_spaces_becomes_a_token():
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


def test_prepared_text_of_each_bleu():
    assert recipe_of("sacrebleu").prepare(TEXT) == TEXT
    assert recipe_of("tokenized_bleu").prepare(TEXT) == TOKENS
    assert recipe_of("paper_bleu").prepare(TEXT) == split_compounds(TOKENS) != TOKENS


def test_pretokenized_text_is_not_tokenized_again():
    assert recipe_of("tokenized_bleu", pretokenized=True).prepare(TOKENS) == TOKENS
    assert recipe_of("paper_bleu", pretokenized=True).prepare(TOKENS) == split_compounds(TOKENS)
    plain = recipe_of("sacrebleu", pretokenized=True).prepare(TOKENS)
    assert plain == TEXT and not any("&" in line and ";" in line for line in plain)


def test_moses_rules_follow_the_language():
    assert recipe_of("tokenized_bleu", language="fr").prepare(["l'homme"]) == ["l&apos; homme"]
    assert recipe_of("tokenized_bleu", language="en").prepare(["it's"]) == ["it &apos;s"]
    assert recipe_of("tokenized_bleu", language="und").prepare(["Ja, nein."]) == ["Ja , nein ."]


def test_method_names_steps_and_versions():
    for tokenized in (False, True):
        names = [metric.name for metric in METRICS if metric.statistics]
        methods = {name: recipe_of(name, pretokenized=tokenized).method for name in names}
        assert len(set(methods.values())) == 6
        assert all(sacrebleu.__version__ in how and how.endswith(".") for how in methods.values())
        assert ("detokenized" in methods["sacrebleu"]) is tokenized
        assert "get_ende_bleu.sh" in methods["paper_bleu"]


def test_multi_bleu_is_not_smoothed():
    hypotheses, references = ["a b c x", "d e f"], ["a b c d", "d e f"]
    scores = score_translations(hypotheses, [references], names=BLEUS)
    smoothed = scores["sacrebleu"]
    assert smoothed["score"] > 0 and "smooth:exp" in smoothed["signature"]
    for name in ("tokenized_bleu", "paper_bleu"):
        score = scores[name]
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
            score = score_translations(lines, [lines], names=[name], pretokenized=True)[name]
            assert score["score"] == pytest.approx(100.0)
        assert not caplog.records
        sacrebleu.corpus_bleu(lines, [lines])
    assert "tokenized period" in caplog.text  # the raw text does cause the warning


REFERENCES = [
    "Das ist ein Haus.",
    "Zwei Katzen schlafen.",
    "Am 5. März regnet es.",
    "Er kommt nicht.",
] * 10
HYPOTHESES = ["Das ist ein Haus.", "Zwei Katzen schlafen", "Am 5. März schneit es.", ""] * 10


def test_scores_and_signatures_equal_sacrebleu():
    scores = score_translations(HYPOTHESES, [REFERENCES], samples=200)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    assert scores["sacrebleu"]["score"] == pytest.approx(expected.score, abs=1e-4)
    assert scores["sacrebleu"]["signature"].startswith(
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2"
    )
    assert scores["sacrebleu"]["reference_length"] == expected.ref_len
    assert scores["chrf"]["score"] == pytest.approx(
        sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score, abs=1e-4
    )
    assert scores["exact_match"] == {"score": 25.0, "sentences": 10}
    interval = scores["sacrebleu"]["confidence"]
    assert interval["samples"] == 200 and 0 < interval["half_width"] < 20
    assert abs(interval["mean"] - expected.score) < interval["half_width"]


def test_perfect_and_empty_hypotheses():
    assert score_translations(REFERENCES, [REFERENCES])["sacrebleu"]["score"] == pytest.approx(
        100.0
    )
    assert score_translations([""] * 40, [REFERENCES])["sacrebleu"]["score"] == 0.0
    assert "confidence" not in score_translations(REFERENCES, [REFERENCES])["sacrebleu"]


def test_an_output_is_one_line_whose_characters_stay():
    assert (
        task_of(translation_config()).postprocess("", "a\u2028b\x0cc\x85\nd")
        == "a\u2028b\x0cc\x85 d"
    )


def test_different_numbers_of_lines_raise():
    with pytest.raises(ValueError):
        score_translations(HYPOTHESES[:-1], [REFERENCES])


def test_pretokenized_text_scores_as_its_detokenized_text():
    def tokens(lines):
        return [line.replace(".", " .").replace("5 .", "5.") for line in lines]

    plain = score_translations(HYPOTHESES, [REFERENCES], samples=100)
    scores = score_translations(
        tokens(HYPOTHESES), [tokens(REFERENCES)], samples=100, pretokenized=True
    )
    for name in ("sacrebleu", "chrf", "chrf++", "ter"):
        assert scores[name].pop("how") != plain[name].pop("how")
        assert scores[name] == plain[name]
