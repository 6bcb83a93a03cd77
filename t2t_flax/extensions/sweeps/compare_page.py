"""A page that compares two evaluated systems sentence by sentence.

It is one file that any browser opens, with no network.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.cli.lines import iterate_lines
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.html_page import filled_page
from t2t_flax.extensions.sweeps.compare import (
    comparable_names,
    compare,
    read_record,
    systems,
    texts,
)
from t2t_flax.extensions.sweeps.curves import short_names

LENGTHS = ((1, 10), (11, 20), (21, 30), (31, 50), (51, None))
"""Length groups of sentences: lowest, and highest or None.

Lengths are words of the first reference.
"""


def comparison_page(
    path_a: str | os.PathLike,
    path_b: str | os.PathLike,
    names: Sequence[str],
    *,
    score: str = "",
    tags: str = "",
) -> str:
    """Return HTML of the difference b - a by sentences, by lengths and by tags.

    Raises UserError as `compare.systems`, and for tags of another number of lines.

    Args:
        score: metric of the difference. Sentences are scored by chrF, unless `score` is a sentence
            metric itself, such as a learned metric.
        tags: file with the tag of each line of the test set, such as its domain; "" = none.
    """
    task, score, _ = systems([path_a, path_b], score)
    of_sentences = score if task.metric(score).of_entry else _sentence_score(task, score)
    overall = [compare(path_b, path_a, score=name) for name in dict.fromkeys((score, of_sentences))]
    _, _, statistics = systems([path_a, path_b], of_sentences)
    a, b = (np.array([each.score(row) for row in each.values], np.float64) for each in statistics)
    records = [read_record(path) for path in (path_a, path_b)]
    (lines_a, references), (lines_b, _) = map(texts, records, (path_a, path_b))
    not_scored = records[0]["data"].get("not_scored", {})
    scored = [n for n in range(1, len(a) + len(not_scored) + 1) if str(n) not in not_scored]
    labels = _tags(tags, scored, len(a) + len(not_scored)) if tags else None
    metric = task.metric(of_sentences)
    sign = 1 if metric.higher_is_better else -1
    words = [len(line.split()) for line in references[0]]
    groups = [("words", _span(*span), _within(words, *span)) for span in LENGTHS]
    groups += [
        ("tag", tag, [i for i, label in enumerate(labels or ()) if label == tag])
        for tag in sorted(set(labels or ()))
    ]
    content = {
        "names": short_names(names),
        "metric": metric.display_name,
        "lower": not metric.higher_is_better,
        "sentences": [
            {
                "n": scored[i],
                "ref": [lines[i] for lines in references],
                "a": lines_a[i],
                "b": lines_b[i],
            }
            | {"scores": [round(float(a[i]), 2), round(float(b[i]), 2)], "words": words[i]}
            | ({"tag": labels[i]} if labels else {})
            for i in range(len(a))
        ],
        "groups": [
            {"by": by, "name": name} | _summary(sign, a[members], b[members])
            for by, name, members in groups
            if members
        ],
    }
    notes = [_note(task.metric(found["score"]).display_name, found) for found in overall]
    return filled_page(
        Path(__file__).with_name("compare_page.html"), " and ".join(names), notes, content
    )


def _note(name: str, found: dict[str, Any]) -> str:
    interval = "[{low:+.2f}, {high:+.2f}]".format(**found["interval"])
    scores = (
        f"{found['b']['score']:.2f} and {found['a']['score']:.2f}, difference"
        f" {found['difference']:+.2f} {interval}"
    )
    return f"{name}: {scores}, p {found['p_value']:.3g} (paired bootstrap; {found['signature']})"


def _sentence_score(task: Any, score: str) -> str:
    """Return the metric that makes sense for one sentence.

    BLEU without smoothing is 0 for most.
    """
    return "chrf" if "chrf" in comparable_names(task) and "bleu" in score else score


def _tags(path: str, scored: Sequence[int], count: int) -> list[str]:
    lines = [*iterate_lines(path)]
    if len(lines) != count:
        raise UserError(
            f"--tags={path} has {len(lines)} lines, the test set has {count}: give each its tag."
        )
    return [lines[n - 1].strip() or "(none)" for n in scored]


def _within(words: Sequence[int], low: int, high: int | None) -> list[int]:
    return [i for i, n in enumerate(words) if max(n, 1) >= low and (high is None or n <= high)]


def _span(low: int, high: int | None) -> str:
    return f"{low} or more" if high is None else f"{low} to {high}"


def _summary(sign: int, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    better = sign * (b - a)
    return {
        "count": len(a),
        "means": [round(float(a.mean()), 2), round(float(b.mean()), 2)],
        "better": int((better > 0).sum()),
        "equal": int((better == 0).sum()),
        "worse": int((better < 0).sum()),
    }
