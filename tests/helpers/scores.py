"""Scores of hypotheses by the metrics of the translation task."""

import dataclasses

from t2t_flax.config import Config
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.tasks import Predictions, task_of


def translation_config(language="de", *, tokenizer="auto", **data) -> Config:
    """tokenizer: eval.sacrebleu_tokenizer. data: further keys of `data`."""
    config = Config()
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, target_language=language, **data),
        eval=dataclasses.replace(config.eval, sacrebleu_tokenizer=tokenizer),
    )


def score_translations(hypotheses, references, *, names=(), samples=0, **settings) -> dict:
    """The entries of a record, of all metrics or only `names`.

    settings: of `translation_config`.
    """
    config = translation_config(**settings)
    task = task_of(config)
    metrics = [task.metric(name) for name in names] or task.metrics
    return compute_scores(config, metrics, Predictions(hypotheses, references), samples=samples)
