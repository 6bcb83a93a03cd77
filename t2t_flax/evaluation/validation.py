"""Metrics of the validation set during training."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from t2t_flax.config import parse_valid_sets
from t2t_flax.data.dataset import split_source
from t2t_flax.decoding.translator import Translator
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.tasks import task_of
from t2t_flax.training.setup import TrainingSetup
from t2t_flax.training.validation_loss import with_means


def validation_score(run: TrainingSetup) -> Callable[..., dict[str, float]]:
    """A function of (parameters, after_batch, compiling) that decodes the first eval.decode_sentences of
    each validation set (0 = all); see `Translator.translate`.

    It returns the task's primary metric and that of eval.metric, as `valid_NAME`: the mean over the sets, and with several
    that of each, see `with_means`.
    """
    config, task = run.config, task_of(run.config)
    eos = config.data.source_eos
    translator = Translator(run.model, run.corpus.tokenizers, run.mesh, config.decode, source_eos=eos)

    def score_set(name: str, params: Any, after_batch: Callable[[], None], compiling) -> dict[str, float]:
        valid, first, of_set = split_source(task, name), config.eval.decode_sentences or None, task.of_set(name)
        sources = [source for source, _ in itertools.islice(valid.pairs(), first)]
        targets = list(zip(*itertools.islice(valid.references(), first), strict=True))
        starts = [run.corpus.tokenizers.start_ids(valid.start_tokens)] * len(sources)
        translations = translator.translate(
            params, sources, starts=starts, progress=lambda *_: after_batch(), compiling=compiling
        )
        predictions = of_set.predictions(sources, [t.text for t in translations], targets)
        metrics = of_set.validation_metrics()
        scores = compute_scores(of_set.config, metrics, predictions)
        return {f"valid_{metric.training_name}": scores[metric.name]["score"] for metric in metrics}

    def score(
        params: Any, after_batch: Callable[[], None] = lambda: None, compiling=contextlib.nullcontext
    ) -> dict[str, float]:
        sets = parse_valid_sets(config.data.valid)
        return with_means({name: score_set(name, params, after_batch, compiling) for name in sets})

    return score
