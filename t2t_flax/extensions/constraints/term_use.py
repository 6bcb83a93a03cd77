"""Share of a glossary's terms that translations use.

It is reported beside BLEU, since a worse translation may meet a constraint.
"""

import numpy as np

from t2t_flax.config import Config
from t2t_flax.extensions.constraints.lines import contains, read_glossary
from t2t_flax.tasks import Metric, Predictions, SentenceStatistics


def _file(config: Config) -> str:
    group = config.group("constraints")
    return group.counted_terms or group.glossary


def _statistics(predictions: Predictions, config: Config) -> SentenceStatistics:
    terms = [read_glossary(_file(config)).find(source) for source in predictions.sources]

    def used(texts) -> list[int]:
        return [
            sum(any(contains(text, form) for form in forms) for forms in found)
            for text, found in zip(texts, terms, strict=True)
        ]

    values = np.array([used(predictions.hypotheses), list(map(len, terms))], np.int64).T
    of_references = [sum(used(reference)) for reference in predictions.references]
    details = {
        "used": int(values[:, 0].sum()),
        "terms": int(values[:, 1].sum()),
        "used_by_references": of_references,
    }
    how = (
        "terms of the glossary in the sources, of which the translation contains one of the"
        " translations as whole words"
    )
    return SentenceStatistics(values, _rate, how, details=details)


def _rate(sums: np.ndarray) -> float:
    used, terms = map(float, sums)
    return 100.0 * used / terms if terms else 100.0


TERM_USE = Metric(
    "term_use",
    "terms used",
    statistics=_statistics,
    confidence_interval=True,
    applies=lambda config: bool(_file(config)),
    unit="%",
    reads_sources=True,
    note="of the glossary's terms in the sources",
    check=lambda config: read_glossary(_file(config)),
)
