"""Validation BLEU during training."""

import pytest
from helpers.runs import start, tiny_run
from helpers.scores import score_translations

from t2t_flax.data.sources import toy
from t2t_flax.decoding.translator import Hypothesis, Translation, Translator
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.evaluation.evaluate import compute_scores, validation_score


@pytest.mark.parametrize("sentences", [0, 7])
def test_validation_bleu_uses_the_first_decode_sentences(tmp_path, cache, monkeypatch, sentences):
    """eval.decode_sentences: this many from the start of the validation set, 0 = all."""
    pairs = list(toy.pairs("valid", 30))[: sentences or 30]
    decoded = []

    def translate(self, params, lines, progress, compiling):
        decoded.extend(lines)
        return [
            Translation((Hypothesis(r.replace("a", "e"), (), 0.0, 0.0, False),)) for _, r in pairs
        ]

    monkeypatch.setattr(Translator, "translate", translate)
    run = start(tiny_run(tmp_path, eval=dict(decode_sentences=sentences)), tmp_path, cache)
    expected_progress = []

    def scores(*arguments, **options):
        expected_progress.append(supervisor.progress_expected)
        return compute_scores(*arguments, **options)

    monkeypatch.setattr("t2t_flax.evaluation.evaluate.compute_scores", scores)
    with RunSupervisor(ProcessGroup(), run.config) as supervisor, supervisor.expect_progress():
        score = validation_score(run, supervisor)(None)
    assert expected_progress == [False], "the model of a metric may take long"
    assert decoded == [source for source, _ in pairs]
    expected = score_translations([r.replace("a", "e") for _, r in pairs], [[r for _, r in pairs]])
    bleu = expected["sacrebleu"]
    assert score == {"valid_bleu": bleu["score"], "valid_length_ratio": bleu["length_ratio"]}
    assert 0 < score["valid_bleu"] < 100
