"""The words and tables of docs/studies.md; see `studies`."""

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from t2t_flax.config.presets import TABLE3_ROWS
from t2t_flax.evaluation.significance import (
    LEVEL,
    add_seed_variance,
    format_difference,
    interval,
    multipliers,
    seed_variance,
    two_sided_p,
)

RESULTS = Path(__file__).parent / "results"
TABLE3, PARSING = RESULTS / "table3_multi30k.json", RESULTS / "parsing_craft.json"
PAGE = Path("docs/studies.md")
_NORMAL = np.random.default_rng(0).permutation(special.ndtri((np.arange(1000) + 0.5) / 1000))
"""Stands for the bootstrap over sentences, of which the records hold the standard deviation alone."""
_CHANGES = {
    "a_h1": "1 head instead of 8",
    "b_dk16": "d_k a quarter",
    "c_n2": "a third of the layers",
    "c_n4": "two thirds of the layers",
    "d_dropout_0": "no dropout",
    "d_smoothing_0": "no label smoothing",
    "e_learned": "learned positions",
}
_NO_EFFECT = {"BLEU": 0.15, "ln PPL": 0.005}
"""Differences of the paper's table that its rounding and its seeds do not carry."""


def page() -> str:
    """The page, as far as there are records."""
    parts = [_INTRODUCTION]
    if TABLE3.exists():
        record = json.loads(TABLE3.read_text())
        parts += ["## Table 3", _TABLE3, table3(record), _facts(record), _READ]
    if PARSING.exists():
        record = json.loads(PARSING.read_text())
        parts += ["## English constituency parsing", _PARSING, parsing(record), _facts(record), parsing_read(record)]
    return "\n\n".join(parts) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def table3(record: dict[str, Any]) -> str:
    """Our rows beside the paper's: each effect is a difference to base."""
    base, *others = sorted(record["rows"], key=lambda row: row["row"] != "base")
    _, paper_ppl, paper_bleu = TABLE3_ROWS["base"]
    on_bleu = bleu_to_base([row["against_base"] for row in others])
    on_ppl = to_base(np.log([row["perplexity"] for row in (base, *others)]))
    own = [f"{np.mean(base['bleu']):.2f} ({_listed(base['bleu'])})", ""]
    lines = [["base", f"{paper_bleu:.1f}", *own, "", f"{paper_ppl:.2f}", _listed(base["perplexity"]), "", ""]]
    for row, bleu_here, ppl_here in zip(others, on_bleu, on_ppl, strict=True):
        _, ppl, bleu = TABLE3_ROWS[row["row"]]
        lines.append([
            f"{row['row']}: {_CHANGES[row['row']]}",
            f"{bleu:.1f} ({bleu - paper_bleu:+.1f})",
            f"{np.mean(row['bleu']):.2f} ({_listed(row['bleu'])})",
            format_difference(*dataclasses.astuple(bleu_here)),
            effect("BLEU", bleu - paper_bleu, bleu_here),
            f"{ppl:.2f} ({np.log(ppl / paper_ppl):+.3f})",
            _listed(row["perplexity"]),
            format_difference(*dataclasses.astuple(ppl_here), digits=3),
            effect("ln PPL", np.log(ppl / paper_ppl), ppl_here),
        ])  # fmt: skip
    head = [
        "row",
        "BLEU, paper",
        "BLEU here",
        "to base",
        "on BLEU",
        "PPL, paper (ln)",
        "PPL here",
        "ln, to base",
        "on PPL",
    ]
    return _markdown(head, lines)


@dataclasses.dataclass(frozen=True)
class Effect:
    """A row's difference to base, its 95 % interval and its two-sided p, both corrected for the number of rows."""

    difference: float
    low: float
    high: float
    p_value: float


def bleu_to_base(against: list[dict[str, Any]]) -> list[Effect]:
    """The effect of each row but the first, from the sweep's record; uncertainty over sentences and seeds."""
    return _effects(
        [
            add_seed_variance(
                row["difference"] + row["sentence_spread"] * _NORMAL,
                2 * row["seed_spread"] ** 2 / len(row["pairs"]),
                row["freedom"],
            )
            for row in against
        ],
        [row["difference"] for row in against],
    )


def to_base(scores: np.ndarray) -> list[Effect]:
    """The effect of each row but the first (base) from scores [rows, seeds]; uncertainty over seeds alone,
    estimated from all rows.
    """
    variance, freedom = seed_variance({index: score for index, score in np.ndenumerate(scores)})
    means = (scores[1:] - scores[0]).mean(axis=1).tolist()
    variance *= 2 / scores.shape[1]
    return _effects([add_seed_variance(np.array([mean]), variance, freedom) for mean in means], means)


def _effects(resampled: list[np.ndarray], means: list[float]) -> list[Effect]:
    p_values = [two_sided_p(differences) for differences in resampled]
    factors = multipliers(p_values, holm=True)
    return [
        Effect(mean, *interval(differences, factor), min(1.0, p * factor))
        for mean, differences, p, factor in zip(means, resampled, p_values, factors, strict=True)
    ]


def effect(of: str, paper: float, here: Effect) -> str:
    """Whether a difference to base points the way that it does in the paper."""
    sure = here.p_value < LEVEL
    if abs(paper) < _NO_EFFECT[of]:
        return "none in the paper, one here" if sure else "none in the paper, none sure here"
    if not sure:
        return "inconclusive"
    return "**the same way**" if paper * here.difference > 0 else "**the other way**"


def parsing(record: dict[str, Any]) -> str:
    """The parser's scores in a table."""
    scores = record["scores"]
    interval = scores["f1"]["confidence"]
    cells = [f"**{scores['f1']['score']:.2f}**", f"{interval['low']:.2f} to {interval['high']:.2f}"]
    cells += [f"{scores[key]['score']:.2f}" for key in ("precision", "recall")]
    cells += [f"{scores[key]['score']:.1f} %" for key in ("exact_match", "tagging_accuracy", "well_formed")]
    head = ["labelled F1", "95 % interval", "precision", "recall", "exact match", "tagging accuracy", "well-formed"]
    return _markdown(head, [cells])


def parsing_read(record: dict[str, Any]) -> str:
    """What the parser's scores say, in words."""
    scores, rows, sentences = record["scores"], record["by_words"], record["data"]["sentences"]
    taken = scores["evalb_f1"]
    (before, earlier), (last, nll) = record["valid_nll"][-2:]
    well_formed, share = scores["well_formed"]["score"], 100 * taken["sentences"] / sentences
    short_of_tags = sum(row["with_words_without_tag"] for row in rows)
    also_taken = sum(row["of_these_taken_by_evalb"] for row in rows)
    said = (
        "What this says: the model loses count of the words, the more the longer the sentence. "
        f"{well_formed:.0f} % of its outputs are a tree with just one tag for each word; the others are mended (tags too many "
        "go, words too many become `XX` where the output ends) and scored like that: a tag left out in the middle shifts all "
        f"brackets after it. In {short_of_tags:,} answers words are left without a tag. EVALB leaves out the sentences in "
        f"which an answer has punctuation at other places, all but {also_taken} of these among them; with its limit on errors "
        f"lifted it would print {taken['score']:.2f} for the {share:.0f} % that it takes, which are also the easier ones; F1 "
        f"above is over all {sentences:,}. The dev split is watched in training, but chooses no checkpoint; the model "
        f"stood there at {earlier:.3f} nats a symbol after {before:,} updates and at {nll:.3f} after {last:,}."
    )
    lines = [
        [
            f"{low} to {high}" if high else f"from {low}",
            str(row["sentences"]),
            f"{row['f1']:.1f}",
            str(row["taken_by_evalb"]),
        ]
        + [f"{row['evalb_f1']:.1f}" if row["taken_by_evalb"] >= 20 else ""]
        for row in rows
        for low, high in [row["words"]]
    ]
    head = ["words", "sentences", "F1", "of these taken by EVALB", "F1 of these"]
    return f"{textwrap.fill(said, 125)}\n\n{_markdown(head, lines)}"


def _facts(record: dict[str, Any]) -> str:
    signature = f" Signature: `{record['signature']}`." if record.get("signature") else ""
    return (
        f"`{record['command']}`\n\n{record['data']['sentences']:,} sentences of {record['data']['corpus']}; "
        f"{record['machine']['cpu']}, {record['machine']['cores']} cores.{signature}"
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


_INTRODUCTION = """# The paper's studies, redone

What the paper says that each part of the model is worth (Table 3), and that it parses (6.3), asked again with the sweeps of
this repository at sizes that two CPU cores can train. The tables are made from records of the runs by
`python -m benchmarks.studies`; the commands below them make the runs again."""

_TABLE3 = """\
The paper trains 65 M parameters for 100,000 updates of 25,000 tokens and gives one figure for each row, on newstest2013. Here
every width is an eighth of the paper's and every depth half of it, so that all ratios between rows are the paper's; a row is
trained with two seeds, all for the same number of updates. Perplexity is by piece, on the test set.

*To base* is the difference of the means, its 95 % interval and its two-sided p, both corrected for the number of rows (Holm):
where p is 0.05 or more the interval holds 0, and the effect is inconclusive. Two seeds of one row say next to nothing about
their spread, so it is estimated from all rows together, which takes them to vary alike, as in the table of `sweep --report`. For
BLEU the choice of sentences is in the interval too (paired bootstrap); for perplexity it is not: what is said of it holds for
this test set."""

_READ = """\
What this says:

- **Most effects of the paper are here too.** A smaller d_k, fewer layers and no dropout cost perplexity; the largest cuts (d_k a
  quarter, a third of the layers, no dropout) cost BLEU as well. Without label smoothing perplexity is better, as in the
  paper ("this hurts perplexity"); whether BLEU suffers is inconclusive here.
- **One head is inconclusive.** Here eight heads are 8 dimensions wide each, in the paper 64; what a row does at this size
  need not be what it does at the paper's.
- **Learned positions** leave the perplexity where it was, as in the paper. BLEU is lower in both seeds, but not clearly.
- The clear effects on BLEU are larger here than in the paper, and so is chance: two seeds of one row are up to 2.7 BLEU apart.
  A single run a row, as is usual in ablations, would have told nothing about the small effects.
- What is inconclusive becomes clearer with more seeds: the same command with `--seeds=5 --extend`."""

_PARSING = """\
The paper's parser has 4 layers of d_model 1024 and is trained on 40,000 sentences of the Wall Street Journal: F1 91.3 on its
section 23 (Table 4). The Penn Treebank is not free, so this is the CRAFT treebank, whose text is biomedical; the model is small
(`configs/parsing.py`). The two figures cannot be compared: this one says that the task works from end to end."""
