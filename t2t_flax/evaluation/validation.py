"""BLEU of the validation set while a run trains."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from t2t_flax.data.corpus import split_source
from t2t_flax.decoding.translator import Translator
from t2t_flax.evaluation.scores import corpus_scores
from t2t_flax.training.run import Run


def validation_bleu(run: Run) -> Callable[..., float]:
    """A function of (parameters, after_batch, compiling): sacreBLEU of the first `eval.bleu_sentences` of the validation set
    (0 = all); see `Translator.translate`.
    """
    config = run.config
    eos = config.data.source_eos
    translator = Translator(run.model, run.corpus.tokenizers, run.mesh, config.decode, source_eos=eos)

    def bleu(params: Any, after_batch: Callable[[], None] = lambda: None, compiling=contextlib.nullcontext) -> float:
        pairs = list(itertools.islice(split_source(config, "valid").pairs(), config.eval.bleu_sentences or None))
        sources = [source for source, _ in pairs]
        found = translator.translate(params, sources, progress=lambda _: after_batch(), compiling=compiling)
        hypotheses = [t.text for t in found]
        text = dict(tokenized=config.data.tokenized, language=config.data.target_language)
        return corpus_scores(hypotheses, [reference for _, reference in pairs], **text)["sacrebleu"]["score"]

    return bleu
