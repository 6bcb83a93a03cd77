"""The coverage penalty against exhaustive enumeration, with the attention of a forward pass over whole outputs."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, rows_alone, small_config
from helpers.table_model import sentences

from t2t_flax.data.sources import toy
from t2t_flax.decoding.beam_search import BeamSearch, length_penalty
from t2t_flax.decoding.search_loop import Sentences, run_search
from t2t_flax.decoding.translator import DecodeStep, start_search
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.constraints.constrained import ConstrainedBeam
from t2t_flax.extensions.constraints.coverage import LEAST, CoveringModel, Penalty
from t2t_flax.extensions.constraints.diverse import DiverseBeam
from t2t_flax.extensions.shared.token_rules import RuledStep

described = pytest.importorskip("t2t_flax.extensions.serving.programs").described

VOCAB, EOS, CAP, WORD = 6, 1, 3, 4
SOURCES = [4, 3, 5, EOS], [2, 5, EOS]
BEAMS = 3 * (VOCAB - 2) ** 2


@pytest.fixture(scope="module")
def made():
    """A model of two layers with logits that are far from uniform, and its parameters."""
    config = small_config(model=dict(dropout=0.0, num_decoder_layers=2), seed=dict(init=1))
    model, _, state, _ = model_and_state(config, vocab=VOCAB)
    return model, jax.tree.map(lambda x: 2.0 * x, state.params)


def every_output():
    bodies = (body for n in range(CAP) for body in itertools.product(range(2, VOCAB), repeat=n))
    return [(*body, EOS) for body in bodies]


def of_every_output(made, penalty: Penalty, source: list[int], search=BeamSearch()):  # noqa: B008
    """(log P / lp + beta * sum_i log(min(sum_j p_ij, 1)), log P) by output."""
    (model, params), outputs = made, every_output()
    batch = rows_alone([(source, list(output)) for output in outputs], 8)
    hidden, state = model.apply({"params": params}, batch, method="hidden", mutable=["intermediates"])
    logits = np.asarray(model.apply({"params": params}, hidden, method="logits"), np.float64)[..., :VOCAB]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    layers = [state["intermediates"][f"decoder_{i}"]["cross_attention"]["weights"][0] for i in range(2)]
    chosen = layers[penalty.layer - 1 :][:1] if penalty.layer else layers
    attention = np.mean([np.asarray(x, np.float64).mean(1) for x in chosen], axis=0)
    scores, totals = {}, {}
    for row, output in enumerate(outputs):
        length, words = len(output), len(source) - 1
        totals[output] = sum(log_probs[row, j, token] for j, token in enumerate(output))
        covered = np.clip(attention[row, :length, :words].sum(0), LEAST, 1.0)
        scores[output] = totals[output] / length_penalty(length, search.alpha, search.length_penalty)
        scores[output] += penalty.beta * np.log(covered).sum()
    return scores, totals


def search(made, penalty: Penalty, search=BeamSearch(BEAMS, 0.6, 8), rule=None, more=None):  # noqa: B008
    model, params, caps_B = CoveringModel(made[0], penalty), made[1], jnp.full(len(SOURCES), CAP)
    source_BxS = jnp.asarray(rows_alone([(s, s) for s in SOURCES], 8)["source"])
    step = RuledStep(DecodeStep(model), rule) if rule else DecodeStep(model)
    with mesh_lib.use(devices_mesh()):
        inputs = Sentences(caps_B, more=more or {})
        cache = step.start(params, source_BxS, inputs, search.width, 8)
        result = run_search(step, params, cache, search, inputs, lengths=(8,))
    return jax.tree.map(np.asarray, result)


def found_in(result, b):
    return [tuple(ids[:n].tolist()) for ids, n in zip(result.tokens[b], result.lengths[b], strict=True)]


@pytest.mark.parametrize(
    "penalty, alpha, kind",
    [
        (Penalty(2.0), 0.6, "gnmt"),
        pytest.param(Penalty(0.5, layer=1), 0.6, "gnmt", marks=pytest.mark.slow),
        pytest.param(Penalty(1.0, layer=2), 1.0, "power", marks=pytest.mark.slow),
        pytest.param(Penalty(3.0), 0.6, "none", marks=pytest.mark.slow),
    ],
)
def test_the_n_best_list_is_that_of_all_outputs(made, penalty, alpha, kind):
    """A beam as wide as the tree: the order, and the scores, are those of the sum that Wu et al. write; log P is without it."""
    wide = BeamSearch(BEAMS, alpha, 8, kind)
    result, differ = search(made, penalty, wide), 0
    for b, source in enumerate(SOURCES):
        scores, totals = of_every_output(made, penalty, source, wide)
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:8]
        assert found_in(result, b) == best
        np.testing.assert_allclose(result.scores[b], [scores[output] for output in best], rtol=1e-4)
        np.testing.assert_allclose(result.log_probs[b], [totals[output] for output in best], rtol=1e-4)
        plain, _ = of_every_output(made, dataclasses.replace(penalty, beta=0.0), source, wide)
        differ += best != sorted(plain, key=plain.__getitem__, reverse=True)[:8]
    assert differ  # the penalty decides something


NARROW = {
    "beam": BeamSearch(3, 0.6, 3),
    "groups": DiverseBeam(BeamSearch(2, 0.6, 2), 2, 0.5, 4),
    "rules": BeamSearch(3, 0.6, 3),
    "phrases": ConstrainedBeam(BeamSearch(4, 0.6, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NARROW)
def test_hypotheses_that_change_places_keep_their_coverage(made, kind):
    """In a narrow beam, the score of each finished one is still its own, also of one in a later group."""
    penalty, options, finished = Penalty(1.5), NARROW[kind], 0
    must = {"must": jnp.full((len(SOURCES), 1, 1, 1), WORD)} if kind == "phrases" else None
    result = search(made, penalty, options, rule=_Nothing() if kind == "rules" else None, more=must)
    for b, source in enumerate(SOURCES):
        scores, totals = of_every_output(made, penalty, source)
        found = zip(found_in(result, b), result.scores[b], result.log_probs[b], result.finished[b], strict=True)
        for output, score, log_prob, ends in found:
            finished += bool(ends)
            assert not (must and ends) or WORD in output
            assert not ends or score == pytest.approx(scores[output], rel=1e-4)
            assert not ends or log_prob == pytest.approx(totals[output], rel=1e-4)
    assert finished > 2


@dataclasses.dataclass(frozen=True)
class _Nothing:
    """A rule that changes nothing."""

    def start(self, sentences, width, length):
        return {}

    def apply(self, sentences, state, tokens_BxK, position, logits_BxKxV):
        return logits_BxKxV, state


@pytest.mark.slow
def test_no_penalty_is_plain_beam_search(made):
    with_zero, options = search(made, Penalty(0.0), BeamSearch(4, 0.6, 4)), BeamSearch(4, 0.6, 4)
    model, params = made
    source_BxS = jnp.asarray(rows_alone([(s, s) for s in SOURCES], 8)["source"])
    with mesh_lib.use(devices_mesh()):
        cache = start_search(model, params, source_BxS, 4, 8)
        plain = run_search(DecodeStep(model), params, cache, options, sentences([CAP] * len(SOURCES)), lengths=(8,))
    assert np.array_equal(with_zero.tokens, plain.tokens)
    np.testing.assert_allclose(with_zero.scores, plain.scores, rtol=1e-6)


@pytest.mark.slow
def test_models_that_decode_together_have_one_penalty(made):
    """Two equal ones give what one gives."""
    ensemble = pytest.importorskip("t2t_flax.extensions.ensembles.ensemble")
    model, params = made
    both = ensemble.Ensemble((model, model), (0.5, 0.5), "probabilities"), {"members_0": params, "members_1": params}
    alone, together = search(made, Penalty(1.0, layer=2)), search(both, Penalty(1.0, layer=2))
    assert found_in(alone, 0) == found_in(together, 0)
    np.testing.assert_allclose(together.scores, alone.scores, rtol=1e-4)


def test_kept_programs_are_told_apart_by_the_penalty(made):
    model, params = made
    source_BxS = jnp.asarray(rows_alone([(s, s) for s in SOURCES], 8)["source"])

    def description(penalty):
        return described(start_search, (CoveringModel(model, penalty), params, source_BxS, 2, 8))

    assert description(Penalty(1.0)) == description(Penalty(1.0))
    assert description(Penalty(1.0)) != description(Penalty(1.0, layer=1))


def translations(lines, **keys):
    overrides = {"decode.batch_size": "8"} | {name.replace("__", "."): str(value) for name, value in keys.items()}
    return load("pretrained:toy", overrides=overrides).translate(lines)


@pytest.mark.slow
def test_translations_of_a_trained_model():
    """Do not depend on their batch mates, and a penalty that is large makes none shorter on average."""
    lines = [source for source, _ in toy.pairs("test", 12)]
    keys = dict(constraints__coverage=0.4, decode__beam_size=4)
    found = translations(lines, **keys)
    assert [t.text for t in found[:3]] == [t.text for t in translations(lines[:3], **keys)]
    lengths = [
        sum(len(t.hypotheses[0].tokens) for t in translations(lines, **{**keys, "constraints__coverage": beta}))
        for beta in (0.0, 20.0)
    ]
    assert lengths[1] >= lengths[0]


def test_what_has_no_beam_is_an_error():
    for keys in (dict(decode__strategy="greedy"), dict(decode__strategy="sample"), dict(decode__engine="ctranslate2")):
        with pytest.raises(UserError, match="constraints.coverage"):
            translations([], constraints__coverage=0.2, **keys)
    with pytest.raises(UserError, match="layers"):
        translations([], constraints__coverage=0.2, constraints__coverage_layer=99)
    with pytest.raises(UserError, match="coverage_layer = 1 needs config.constraints.coverage"):
        translations([], constraints__coverage_layer=1)
