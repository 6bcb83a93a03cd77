"""Whether the numbers of a model are finite."""

import math

from t2t_flax.decoding.translator import Translation


class NotFinite(Exception):
    """The model gave a number that is not finite."""

    def __init__(self) -> None:
        super().__init__("the model produces numbers that are not finite")


def check_finite(translation: Translation) -> None:
    """Raises NotFinite. A slot without a hypothesis has the score -inf; the first always has one."""
    scores = [hypothesis.score for hypothesis in translation.hypotheses]
    if not math.isfinite(scores[0]) or not all(math.isfinite(score) or score == -math.inf for score in scores):
        raise NotFinite
