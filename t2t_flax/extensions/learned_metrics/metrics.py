"""Rows of learned metrics: record entries from the scores of their process.

COMET's scores (Rei et al. 2020, 2022) are given times 100, as papers print them; MetricX's (Juraska
et al. 2024) are errors from 0 to 25, and lower is better. The score of a set is the mean over its
sentences. With several references, scores are first averaged over the references.
"""

from typing import Any

import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.sources import has_text
from t2t_flax.errors import UserError
from t2t_flax.extensions.learned_metrics.process import score_sentences
from t2t_flax.tasks import Metric, Predictions, SentenceStatistics
from t2t_flax.tasks.translation import detokenizer

_SCALE = {"comet": 100.0, "kiwi": 100.0, "metricx": 1.0}
_READS_REFERENCES = {"comet": True, "kiwi": False, "metricx": True}


def _statistics(name: str, predictions: Predictions, config: Config) -> SentenceStatistics:
    group, data = config.group("learned_metrics"), config.data
    # These metrics were trained on plain text.
    plain = [
        detokenizer(x) if data.pretokenized else list
        for x in (data.source_language, data.target_language)
    ]
    sources, hypotheses = plain[0](predictions.sources), plain[1](predictions.hypotheses)
    references = (
        [plain[1](lines) for lines in predictions.references] if _READS_REFERENCES[name] else [None]
    )
    samples, lines_of = [], []
    for lines in references:
        for i, (source, hypothesis) in enumerate(zip(sources, hypotheses, strict=True)):
            if lines is None or has_text(lines[i]):
                samples.append(
                    {"src": source, "mt": hypothesis} | ({} if lines is None else {"ref": lines[i]})
                )
                lines_of.append(i)
    different = list(dict.fromkeys(tuple(sample.items()) for sample in samples))
    answer = score_sentences(name, list(map(dict, different)), group)
    scores = dict(zip(different, answer.pop("scores"), strict=True))
    sums = np.bincount(lines_of, [scores[tuple(sample.items())] for sample in samples])
    sentences = [round(float(x), 4) for x in _SCALE[name] * sums / np.bincount(lines_of)]
    text = {"text": "detokenized and unescaped by sacremoses"} if data.pretokenized else {}
    return of_entry(answer | text | {"sentences": sentences})


def of_entry(entry: dict[str, Any]) -> SentenceStatistics:
    """Return the statistics of a metric from its entry in a record.

    Raises UserError for an entry without scores of sentences.
    """
    try:
        values = np.array([(score, 1.0) for score in entry["sentences"]], np.float64).reshape(-1, 2)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            "the record has no scores of sentences by this metric: evaluate again."
        ) from None
    details = {
        name: value
        for name, value in entry.items()
        if name not in ("score", "signature", "how", "confidence")
    }

    def signature(**bootstrap: int) -> str:
        parts = {
            key: entry.get(key, "")
            for key in ("model", "revision", "package", "precision", "device")
        }
        return "|".join(
            f"{key}:{value}" for key, value in (parts | bootstrap).items() if value != ""
        )

    return SentenceStatistics(
        values, lambda sums: sums[0] / max(sums[1], 1.0), "mean over sentences", signature, details
    )


def _metric(name: str, display_name: str, *, higher_is_better: bool = True) -> Metric:
    return Metric(
        name,
        display_name,
        statistics=lambda predictions, config: _statistics(name, predictions, config),
        higher_is_better=higher_is_better,
        confidence_interval=True,
        applies=lambda config: name in config.group("learned_metrics").chosen,
        of_entry=of_entry,
        reads_sources=True,
        check=lambda config: score_sentences(
            name, [], config.group("learned_metrics")
        ),  # scoring nothing loads the model
    )


COMET = _metric("comet", "COMET")
KIWI = _metric("kiwi", "COMET-KIWI")
METRICX = _metric("metricx", "MetricX", higher_is_better=False)
