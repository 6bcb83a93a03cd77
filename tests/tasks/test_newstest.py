"""The three BLEUs on real test sets, against sacreBLEU and a reimplementation of multi-bleu."""

import collections
import gzip
import math
import re

import pytest
import sacrebleu
from helpers.scores import score_translations, translation_config

from t2t_flax.tasks.translation import recipe, split_compounds

pytestmark = pytest.mark.real_data
SOME = 400
BLEUS = ("sacrebleu", "tokenized_bleu", "paper_bleu")


def lines_of(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


@pytest.fixture(scope="module")
def newstest(real_data):
    return lines_of(real_data / "newstest" / "newstest2014-ende.de.gz")


@pytest.fixture(scope="module")
def captions(real_data):
    return lines_of(real_data / "multi30k" / "tok" / "test2016.lc.norm.tok.de.gz")


def multi_bleu(hypotheses, references):
    """Return (BLEU, precisions, brevity penalty, lengths), for one reference.

    Clipped n-gram matches, geometric mean.
    """
    matched, counted, lengths = [0] * 4, [0] * 4, [0, 0]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words, truth = hypothesis.split(), reference.split()
        lengths = [lengths[0] + len(words), lengths[1] + len(truth)]
        for n in range(4):
            grams, allowed = (
                collections.Counter(tuple(side[i : i + n + 1]) for i in range(len(side) - n))
                for side in (words, truth)
            )
            matched[n] += sum(min(count, allowed[gram]) for gram, count in grams.items())
            counted[n] += sum(grams.values())
    precisions = [m / c for m, c in zip(matched, counted, strict=True)]
    penalty = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return (
        100 * penalty * math.prod(precisions) ** 0.25,
        [100 * p for p in precisions],
        penalty,
        lengths,
    )


def drop_words(line):
    return " ".join(w for i, w in enumerate(line.split(" ")) if i % 7 != 3)


def swap_words(line):
    words = line.split(" ")
    words[1:3] = words[1:3][::-1]
    return " ".join(words)


PERTURBED = {
    "dropped words": drop_words,
    "swapped words": swap_words,
    "lower-cased": str.lower,
    "without hyphens": lambda line: line.replace("-", " "),
}


def test_reference_scored_against_itself_is_perfect(newstest):
    assert len(newstest) == 3003
    some = newstest[:SOME]
    scores = score_translations(some, [some], names=[*BLEUS, "exact_match"])
    for name in BLEUS:
        assert scores[name]["score"] == pytest.approx(100.0), name
        assert scores[name]["brevity_penalty"] == 1
    assert scores["exact_match"]["sentences"] == SOME
    assert scores["tokenized_bleu"]["reference_length"] > len(" ".join(some).split())
    assert scores["paper_bleu"]["reference_length"] > scores["tokenized_bleu"]["reference_length"]


@pytest.mark.parametrize("kind", PERTURBED)
def test_scores_of_perturbed_references_equal_direct_computation(newstest, kind):
    references = newstest[:SOME]
    hypotheses = [PERTURBED[kind](line) for line in references]
    assert hypotheses != references
    scores = score_translations(hypotheses, [references], names=BLEUS)
    assert all(0 < scores[name]["score"] < 99.9 for name in BLEUS)
    direct = sacrebleu.corpus_bleu(hypotheses, [references])
    assert scores["sacrebleu"]["score"] == pytest.approx(direct.score, abs=1e-4)
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer("de")
    tokens = [
        [moses.tokenize(line, return_str=True) for line in side]
        for side in (hypotheses, references)
    ]
    direct = sacrebleu.corpus_bleu(tokens[0], [tokens[1]], tokenize="none", force=True)
    assert scores["tokenized_bleu"]["score"] == pytest.approx(direct.score, abs=1e-4)
    # The part of Moses' replacements that occurs in these lines.
    plain = str.maketrans({"“": '"', "”": '"', "’": "'", "…": "..."})
    words = [moses.tokenize(line.translate(plain), return_str=True) for line in references]
    paper = [re.sub(r"(?<=\S)-(?=\S)", " ##AT##-##AT## ", line) for line in words]
    assert recipe("paper_bleu", translation_config()).prepare(references) == paper
    for name in ("tokenized_bleu", "paper_bleu"):
        chosen = recipe(name, translation_config())
        expected, precisions, penalty, lengths = multi_bleu(
            chosen.prepare(hypotheses), chosen.prepare(references)
        )
        assert scores[name]["score"] == pytest.approx(expected, abs=1e-4)
        assert scores[name]["precisions"] == pytest.approx(precisions, abs=1e-4)
        assert scores[name]["brevity_penalty"] == pytest.approx(penalty, abs=1e-6)
        assert [scores[name]["hypothesis_length"], scores[name]["reference_length"]] == lengths


def test_pretokenized_captions_are_detokenized_for_sacrebleu(captions, caplog):
    assert len(captions) == 1000
    scores = score_translations(captions, [captions], pretokenized=True, names=BLEUS)
    assert all(scores[name]["score"] == pytest.approx(100.0) for name in BLEUS)
    assert (
        scores["tokenized_bleu"]["reference_length"]
        == scores["tokenized_bleu"]["hypothesis_length"]
        == 12103
    )
    plain = recipe("sacrebleu", translation_config(pretokenized=True)).prepare(captions)
    assert not any(line.endswith(" .") or "&apos;" in line or "&quot;" in line for line in plain)
    assert any("&quot;" in line for line in captions) and any('"' in line for line in plain)


def test_tokenized_raw_captions_equal_the_published_ones(real_data, captions):
    """Language rules and escapes: identical to the published text after its normalization."""
    from sacremoses import MosesPunctNormalizer

    raw = lines_of(real_data / "multi30k" / "raw" / "test2016.de.gz")
    normal = MosesPunctNormalizer("de")
    chosen = recipe("tokenized_bleu", translation_config())
    assert chosen.prepare([normal.normalize(line.lower()) for line in raw]) == captions


def test_scores_of_perturbed_captions_equal_multi_bleu(captions):
    hypotheses = [swap_words(line) for line in captions]
    expected, precisions, _, lengths = multi_bleu(hypotheses, captions)
    scores = score_translations(hypotheses, [captions], pretokenized=True, names=BLEUS)
    assert scores["tokenized_bleu"]["score"] == pytest.approx(expected, abs=1e-4)
    assert scores["tokenized_bleu"]["precisions"] == pytest.approx(precisions, abs=1e-4)
    assert lengths == [12103, 12103]
    split = split_compounds(hypotheses), [split_compounds(captions)]
    compounds = score_translations(*split, names=["tokenized_bleu"], pretokenized=True)[
        "tokenized_bleu"
    ]
    assert scores["paper_bleu"]["score"] == compounds["score"]
