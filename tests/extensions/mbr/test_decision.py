"""Utilities and decisions against sacreBLEU and brute force."""

import collections
from importlib.util import find_spec

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.data.sources import toy
from t2t_flax.extensions.mbr.decision import Decision
from t2t_flax.extensions.mbr.decision import decide as decide_each
from t2t_flax.extensions.mbr.utilities import UTILITIES, Bleu, Question

TEXTS = [target for _, target in toy.pairs("test", 30)]
needs_fastchrf = pytest.mark.skipif(find_spec("fastchrf") is None, reason="fastchrf is not installed")
BOTH = [pytest.param("chrf", marks=needs_fastchrf), "bleu"]
METRICS = {"chrf": sacrebleu.CHRF(), "bleu": sacrebleu.BLEU(effective_order=True)}
sentences = st.lists(st.sampled_from("der Hund und die Katze läuft , nicht !  Haus".split(" ")), max_size=8).map(
    " ".join
)


def decide(candidates, references, *how) -> Decision:
    """Of one source."""
    (decision,) = decide_each([Question(candidates, references)], *how)
    return decision


def pairwise(utility, candidates, references) -> np.ndarray:
    (scores,) = utility.pairwise([Question(candidates, references)])
    return scores


def brute_force(name: str, hypotheses, references) -> np.ndarray:
    """[hypotheses, references]: sacreBLEU's own sentence scores."""
    return np.array([[METRICS[name].sentence_score(h, [r]).score for r in references] for h in hypotheses])


@pytest.mark.smoke
@pytest.mark.parametrize("name", BOTH)
def test_pairwise_scores_are_those_of_sacrebleu(name):
    texts = [*TEXTS[:12], "", "Ja", "Ja, der Hund!", "der der der der der der"]
    got = pairwise(UTILITIES[name](), texts, texts)
    np.testing.assert_allclose(got, brute_force(name, texts, texts), atol=1e-9)
    assert str(UTILITIES[name]().signature).startswith("nrefs:1|case:mixed|eff:yes|")


@pytest.mark.parametrize("name", BOTH)
@given(data=st.data())
def test_pairwise_decision_is_that_of_brute_force(name, data):
    """With candidates that repeat, each as often as it was sampled, and with other references."""
    candidates = data.draw(st.lists(sentences, min_size=1, max_size=8))
    references = data.draw(st.one_of(st.just(candidates), st.lists(sentences, min_size=1, max_size=8)))
    expected = brute_force(name, candidates, references).mean(1)
    decision = decide(candidates, references, UTILITIES[name]())
    assert decision.utility == pytest.approx(expected.max(), abs=1e-6)
    assert expected[decision.index] == pytest.approx(expected.max(), abs=1e-6)
    assert candidates.index(candidates[decision.index]) == decision.index


def mean_counts(texts, orders, units) -> list[dict]:
    """For each order the mean count of each n-gram, counted one by one."""
    mean = []
    for n in range(1, orders + 1):
        total = collections.Counter()
        for text in texts:
            parts = units(text)
            total.update(tuple(parts[i : i + n]) for i in range(len(parts) - n + 1))
        mean.append({ngram: count / len(texts) for ngram, count in total.items()})
    return mean


def overlap(a: dict, b: dict) -> float:
    return sum(min(count, b.get(ngram, 0)) for ngram, count in a.items())


def words(text: str) -> list[str]:
    return METRICS["bleu"].tokenizer(text).split()


def smoothed_bleu(ours: list[dict], theirs: list[dict]) -> float:
    """Exponential smoothing over the orders that the hypothesis has."""
    logs, smooth = [], 1.0
    for a, b in zip(ours, theirs, strict=True):
        if not a:
            break
        correct, total = overlap(a, b), sum(a.values())
        smooth *= 1 if correct else 2
        logs.append(np.log((correct or 1 / smooth) / total))
    lengths = sum(theirs[0].values()) / sum(ours[0].values())
    return 100 * min(1.0, np.exp(1 - lengths)) * np.exp(np.mean(logs))


@pytest.mark.parametrize("name", BOTH)
def test_aggregated_scores_are_those_of_the_mean_reference(name):
    """Its counts of n-grams are the means of all references, a repeated one as often as it occurs."""
    hypotheses, references, counts = TEXTS[:6], [*TEXTS[2:9], "Ja."], np.array([1, 3, 2, 1, 1, 5, 1, 2])
    repeated = [text for text, count in zip(references, counts, strict=True) for _ in range(count)]
    expected = []
    for hypothesis in hypotheses:
        if name == "bleu":
            ours, theirs = (mean_counts(t, 4, words) for t in ([hypothesis], repeated))
            expected.append(smoothed_bleu(ours, theirs))
            continue
        ours, theirs = (mean_counts(t, 6, lambda x: x.replace(" ", "")) for t in ([hypothesis], repeated))
        precision = recall = 0.0
        for a, b in zip(ours, theirs, strict=True):
            precision, recall = (
                precision + overlap(a, b) / sum(a.values()) / 6,
                recall + overlap(a, b) / sum(b.values()) / 6,
            )
        expected.append(100 * 5 * precision * recall / (4 * precision + recall) if precision + recall else 0.0)
    np.testing.assert_allclose(UTILITIES[name]().aggregated(hypotheses, references, counts), expected, atol=1e-4)


def test_equal_references_give_the_pairwise_score():
    """Then the mean reference is each of them."""
    utility = Bleu()
    got = utility.aggregated(TEXTS[:5], TEXTS[3:4], np.array([7]))
    np.testing.assert_allclose(got, pairwise(utility, TEXTS[:5], TEXTS[3:4])[:, 0])


@pytest.mark.parametrize("name", BOTH)
def test_aggregate_to_fine_scores_the_best_pairwise(name):
    utility, candidates = UTILITIES[name](), [f"{a} {b}" for a, b in zip(TEXTS, TEXTS[1:], strict=False)] + TEXTS[:9]
    exact = decide(candidates, candidates, utility)
    assert decide(candidates, candidates, utility, "aggregate_to_fine", len(candidates)) == exact
    coarse = decide(candidates, candidates, utility, "aggregate")
    assert decide(candidates, candidates, utility, "aggregate_to_fine", 1).index == coarse.index
    kept = decide(candidates, candidates, utility, "aggregate_to_fine", 5)
    assert kept.utility <= exact.utility and kept.utility == pytest.approx(
        float(brute_force(name, [candidates[kept.index]], candidates).mean()), abs=1e-6
    )


class Pinned:
    """The score is 1 where both texts end alike, -1 elsewhere; the coarse one prefers long texts."""

    FAMILY, reads_sources, signature = ("pinned",), True, ""

    def __init__(self):
        self.asked = []

    def pairwise(self, questions):
        self.asked.append(questions)
        return [
            np.array([[1.0 if h[-1:] == r[-1:] == q.source else -1.0 for r in q.references] for h in q.candidates])
            for q in questions
        ]

    def aggregated(self, hypotheses, references, counts):
        return np.array(list(map(len, hypotheses)), float)


def test_all_sources_are_asked_at_once_each_with_its_own():
    """Equal texts once; a coarse score chooses which of them are scored pairwise."""
    questions = [
        Question(["ab", "bb", "ab", "c"], ["xb", "xc", "xb"], "b"),
        Question(["a"], ["a"], "b"),
        Question(["aaac", "bc", "cccd"], ["c"], "c"),
    ]
    utility = Pinned()
    found = decide_each(questions, utility)
    assert [decision.index for decision in found] == [0, 0, 0]
    assert [decision.utility for decision in found] == pytest.approx([1 / 3, -1, 1])
    assert [[list(q.candidates) for q in asked] for asked in utility.asked] == [
        [["ab", "bb", "c"], ["a"], ["aaac", "bc", "cccd"]]
    ]
    fine = decide_each(questions, utility, "aggregate_to_fine", 2)
    assert [decision.index for decision in fine] == [0, 0, 0]
    assert list(utility.asked[1][2].candidates) == ["aaac", "cccd"]


def test_one_candidate_and_ties():
    assert decide(["a"], ["b"], Bleu()).index == 0
    assert decide(["x y", "a b", "a b"], ["c"], Bleu()).index == 0
    for method in ("pairwise", "aggregate", "aggregate_to_fine"):
        assert decide(["x", "a", "a"], ["x", "a", "a"], Bleu(), method).index == 1


def test_without_the_package_chrf_says_what_to_install(monkeypatch):
    monkeypatch.setattr("t2t_flax.errors.importlib.util.find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"the utility chrf needs the package fastchrf: pip install -e '.\[mbr\]'"):
        UTILITIES["chrf"]()
