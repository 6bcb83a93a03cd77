"""The score of the validation set while a run trains."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from t2t_flax.data.dataset import split_source
from t2t_flax.data.task import task_of
from t2t_flax.decoding.translator import Translator
from t2t_flax.training.setup import TrainingSetup


def validation_score(run: TrainingSetup) -> Callable[..., float]:
    """A function of (parameters, after_batch, compiling): the task's main score (sacreBLEU, F1) of the first
    `eval.decode_sentences` of the validation set (0 = all); see `Translator.translate`.
    """
    config, task = run.config, task_of(run.config)
    eos = config.data.source_eos
    translator = Translator(run.model, run.corpus.tokenizers, run.mesh, config.decode, source_eos=eos)

    def score(params: Any, after_batch: Callable[[], None] = lambda: None, compiling=contextlib.nullcontext) -> float:
        valid, first = split_source(config, "valid"), config.eval.decode_sentences or None
        sources = [source for source, _ in itertools.islice(valid.pairs(), first)]
        references = list(zip(*itertools.islice(valid.references(), first), strict=True))
        found = translator.translate(params, sources, progress=lambda *_: after_batch(), compiling=compiling)
        scores = task.scores(sources, [t.text for t in found], references, samples=0, brief=True)
        return scores[next(iter(task.spoken))]["score"]

    return score
