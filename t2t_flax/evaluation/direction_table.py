"""Table of evaluation records by direction.

Directions without training text (zero-shot) stand apart.
"""

from collections.abc import Sequence
from statistics import fmean

from t2t_flax.evaluation.evaluate import Record

_METRICS = {"sacrebleu": "sacreBLEU", "chrf": "chrF", "ter": "TER"}


def direction_table(records: Sequence[Record]) -> str:
    """Return a Markdown table with a row per record and mean rows.

    The means are over directions with and without training text. Returns "" unless each record has
    a direction. TER is left out if a target language has none.
    """
    directions = [record["data"].get("direction") for record in records]
    if None in directions:
        return ""
    metrics = [
        metric for metric in _METRICS if all(metric in record["scores"] for record in records)
    ]
    lines = [
        ["direction", "set", *(_METRICS[metric] for metric in metrics), "tokenizer of sacreBLEU"]
    ]
    lines.append(["---", "---", *["---:"] * len(metrics), "---"])
    for zero_shot in (False, True):
        group = [record for record in records if record["data"]["zero_shot"] == zero_shot]
        scores = [[record["scores"][metric]["score"] for metric in metrics] for record in group]
        mark = " (zero-shot)" if zero_shot else ""
        for record, values in zip(group, scores, strict=True):
            direction, signature = (
                record["data"]["direction"] + mark,
                record["scores"]["sacrebleu"]["signature"],
            )
            tokenizer = next(
                (part[4:] for part in signature.split("|") if part.startswith("tok:")), ""
            )
            lines.append([direction, record["split"], *map(_number, values), tokenizer])
        if len(group) > 1:
            what = "zero-shot directions" if zero_shot else "directions with training text"
            means = (_number(fmean(values)) for values in zip(*scores, strict=True))
            lines.append([f"mean of {len(group)} {what}", "", *means, ""])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:.2f}"
