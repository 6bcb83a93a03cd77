"""Metrics of the validation set during training."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from t2t_flax.data.dataset import split_source
from t2t_flax.decoding.translator import Translator
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.tasks import task_of
from t2t_flax.training.setup import TrainingSetup


def validation_score(run: TrainingSetup) -> Callable[..., dict[str, float]]:
    """A function of (parameters, after_batch, compiling) that decodes the first eval.decode_sentences of
    the validation set (0 = all); see `Translator.translate`.

    It returns the task's primary metric and that of eval.metric, as `valid_NAME`.
    """
    config, task = run.config, task_of(run.config)
    eos = config.data.source_eos
    translator = Translator(run.model, run.corpus.tokenizers, run.mesh, config.decode, source_eos=eos)

    def score(
        params: Any, after_batch: Callable[[], None] = lambda: None, compiling=contextlib.nullcontext
    ) -> dict[str, float]:
        valid, first = split_source(task, "valid"), config.eval.decode_sentences or None
        sources = [source for source, _ in itertools.islice(valid.pairs(), first)]
        targets = list(zip(*itertools.islice(valid.references(), first), strict=True))
        translations = translator.translate(params, sources, progress=lambda *_: after_batch(), compiling=compiling)
        predictions = task.predictions(sources, [t.text for t in translations], targets)
        metrics = task.validation_metrics()
        scores = compute_scores(config, metrics, predictions)
        return {f"valid_{metric.training_name}": scores[metric.name]["score"] for metric in metrics}

    return score
