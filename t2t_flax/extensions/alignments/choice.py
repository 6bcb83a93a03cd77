"""Choice of the head that aligns words best.

Heads are ranked by their errors against gold alignments or, without these, by how well their links
predict words.
"""

import collections
import itertools
import math
import string
import sys
from collections.abc import Sequence

from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.alignments.attention import (
    Head,
    Pair,
    head_in,
    require_translation,
    weights_of_heads,
)
from t2t_flax.extensions.alignments.links import Errors, Gold, Links, errors, hard_links
from t2t_flax.tasks import task_of

VALIDATION_PAIRS = 500
"""Pairs of data.valid used to choose a head."""
_PRIOR = 1.0


def links_by_head(run: TrainedModel, pairs: Sequence[Pair]) -> dict[Head, list[Links]]:
    """Return the hard links of each pair by every head, including means of heads."""
    found: dict[Head, list[Links]] = {}
    for i, by_head in weights_of_heads(run, pairs):
        for head, weights in by_head.items():
            found.setdefault(head, [frozenset()] * len(pairs))[i] = hard_links(weights)
    return found


def predictability(pairs: Sequence[Pair], links: Sequence[Links]) -> float:
    """Return the mean log-probability in nats of a target word given its linked word.

    The probability is counted in all other links. Correct links repeat themselves, so the head
    whose links predict each other best aligns best.
    """
    joint, left, right = (collections.Counter[tuple[str, ...]]() for _ in range(3))
    for pair, own in zip(pairs, links, strict=True):
        sources, targets = _bare(pair.line or pair.source), _bare(pair.target)
        for source, target in own:
            both: tuple[str, ...] = (sources[source], targets[target])
            joint[both] += 1
            left[both[:1]] += 1
            right[both[1:]] += 1
    total = joint.total()
    if not total:
        return -math.inf
    value = 0.0
    for both, count in joint.items():
        word = right[both[1:]] / (total + len(right))
        value += count * math.log((count - 1 + _PRIOR * word) / (left[both[:1]] - 1 + _PRIOR))
    return value / total


def _bare(text: str) -> list[str]:
    return [word.strip(string.punctuation).lower() or word for word in text.split()]


def ranked(
    run: TrainedModel, pairs: Sequence[Pair], gold: Sequence[Gold] | None = None
) -> list[tuple[Head, float, Errors | None]]:
    """Return (head, `predictability`, errors against gold alignments), best first.

    The order follows the error rate if there are gold alignments. Raises UserError if no pair has
    words on both sides.
    """
    found = links_by_head(run, pairs)
    if not found:
        raise UserError("no pair has words on both sides: there is nothing to choose a head by.")
    rows = [
        (head, predictability(pairs, links), errors(links, gold) if gold else None)
        for head, links in found.items()
    ]
    return sorted(rows, key=lambda row: row[2].error_rate if row[2] else -row[1])


def head_of(run: TrainedModel) -> Head:
    """Return the head that aligns words for a run.

    The config's keys name it; otherwise it is the best head on the first pairs of data.valid.
    Raises UserError if these cannot be read.
    """
    require_translation(run)
    if head := head_in(run.config):
        return head
    key = str(run.workdir), run.steps, run.config.data.valid
    if key not in _chosen:
        _chosen[key] = _choose(run)
    return _chosen[key]


_chosen: dict[tuple[str, tuple[int, ...], str], Head] = {}


def _choose(run: TrainedModel) -> Head:
    name, spec = next(iter(run.config.data.valid_sets.items()), ("", ""))
    advice = "Choose a head: `align --choose --workdir=... SRC,TGT` prints the keys that name it."
    if not spec:
        raise UserError(
            "config.alignments.layer = 0, and the run has no config.data.valid to choose a head"
            f" by. {advice}"
        )
    try:
        of_set = run.for_set(name)
        source = task_of(run.config).of_set(name).open_source(spec, key=name)
        language = of_set.config.data.target_language
        first = itertools.islice(source.pairs(), VALIDATION_PAIRS)
        pairs = [Pair(of_set.in_language(line, language), target, line) for line, target in first]
    except (UserError, OSError) as error:
        raise UserError(
            f"config.alignments.layer = 0, and config.data.valid cannot be read: {error} {advice}"
        ) from None
    head = next(head for head, *_ in ranked(of_set, pairs) if head.layer)
    print(
        f"words are aligned by {head} (best on {spec}); fix it with {head.flags}",
        file=sys.stderr,
        flush=True,
    )
    return head
