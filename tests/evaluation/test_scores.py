"""Scores equal sacreBLEU's own, and count every sentence."""

import pytest
import sacrebleu

from t2t_flax.evaluation.scores import corpus_scores

REFERENCES = ["Das ist ein Haus.", "Zwei Katzen schlafen.", "Am 5. März regnet es.", "Er kommt nicht."] * 10
HYPOTHESES = ["Das ist ein Haus.", "Zwei Katzen schlafen", "Am 5. März schneit es.", ""] * 10


def test_scores_are_sacrebleus_with_signatures():
    scores = corpus_scores(HYPOTHESES, [REFERENCES], bootstrap_samples=200)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    assert scores["sacrebleu"]["score"] == pytest.approx(expected.score, abs=1e-4)
    assert scores["sacrebleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2")
    assert scores["sacrebleu"]["reference_length"] == expected.ref_len
    assert scores["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score, abs=1e-4)
    assert scores["exact_match"] == {"score": 25.0, "sentences": 10}
    interval = scores["sacrebleu"]["confidence"]
    assert interval["samples"] == 200 and 0 < interval["half_width"] < 20
    assert abs(interval["mean"] - expected.score) < interval["half_width"]


def test_perfect_and_empty():
    assert corpus_scores(REFERENCES, [REFERENCES])["sacrebleu"]["score"] == pytest.approx(100.0)
    assert corpus_scores([""] * 40, [REFERENCES])["sacrebleu"]["score"] == 0.0
    assert "confidence" not in corpus_scores(REFERENCES, [REFERENCES])["sacrebleu"]


def test_lists_of_different_length_are_an_error():
    with pytest.raises(ValueError):
        corpus_scores(HYPOTHESES[:-1], [REFERENCES])


def test_a_record_has_every_metric_of_the_language_and_a_log_the_main_one():
    scores = corpus_scores(HYPOTHESES, [REFERENCES])
    assert set(scores) == {"sacrebleu", "tokenized_bleu", "paper_bleu", "chrf", "chrf++", "ter", "exact_match"}
    for name in ("sacrebleu", "tokenized_bleu", "paper_bleu"):
        assert {"score", "precisions", "brevity_penalty", "hypothesis_length", "reference_length", "how"} <= set(
            scores[name]
        )
    brief = corpus_scores(HYPOTHESES, [REFERENCES], names=("sacrebleu",))
    assert brief == {name: scores[name] for name in ("sacrebleu", "exact_match")}


def test_pretokenized_text_is_scored_as_the_detokenised_text_would_be():
    def tokens(lines):
        return [line.replace(".", " .").replace("5 .", "5.") for line in lines]

    plain = corpus_scores(HYPOTHESES, [REFERENCES], bootstrap_samples=100)
    found = corpus_scores(tokens(HYPOTHESES), [tokens(REFERENCES)], bootstrap_samples=100, tokenized=True)
    for name in ("sacrebleu", "chrf", "chrf++", "ter"):
        assert found[name].pop("how") != plain[name].pop("how")
        assert found[name] == plain[name]
