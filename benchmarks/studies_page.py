"""Text and tables of docs/studies.md; see `studies`."""

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.evaluation.row_differences import compare_rows
from t2t_flax.evaluation.significance import LEVEL, format_difference
from t2t_flax.extensions.recipes.presets import TABLE3_ROWS

RESULTS = Path(__file__).parent / "results"
TABLE3, PARSING = RESULTS / "table3_multi30k.json", RESULTS / "parsing_craft.json"
PAGE = Path("docs/studies.md")
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
"""Differences in the paper's table that are within its rounding and seed noise."""


def page() -> str:
    """The page, with a section for each existing record."""
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
    """Our rows beside the paper's; each effect is a difference to base."""
    base, *others = sorted(record["rows"], key=lambda row: row["row"] != "base")
    _, paper_ppl, paper_bleu = TABLE3_ROWS["base"]
    errors = [0.0, *(row["against_base"]["sentence_spread"] for row in others)]
    on_bleu = to_base(
        np.array([row["bleu"] for row in (base, *others)]), _sentences(errors, record["data"]["sentences"])
    )
    on_ppl = to_base(np.log([row["perplexity"] for row in (base, *others)]))
    cells = [f"{np.mean(base['bleu']):.2f} ({_listed(base['bleu'])})", ""]
    lines = [["base", f"{paper_bleu:.1f}", *cells, "", f"{paper_ppl:.2f}", _listed(base["perplexity"]), "", ""]]
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


def to_base(scores: np.ndarray, influence: np.ndarray | None = None) -> list[Effect]:
    """The effect of each row but the first (base) from scores [rows, seeds] and their influence [rows, seeds, sentences]."""
    rows = compare_rows(scores, influence, reference=0, chosen_before=True).rows
    return [Effect(r.difference, r.low_corrected, r.high_corrected, r.p_corrected) for r in rows if r]


def _sentences(errors: list[float], count: int) -> np.ndarray:
    """Stands in for the influence [rows, 2, sentences] of the sentences on two seeds: the records store only the standard
    error of each row's difference to base, so the rows are taken as independent.
    """
    drawn = np.linalg.qr(np.random.default_rng(0).normal(size=(count, len(errors) + 1)))[0][:, 1:]
    drawn -= drawn.mean(0)
    drawn *= np.array(errors) / (drawn.std(0, ddof=1) / count**0.5)
    return np.repeat(drawn.T[:, None], 2, axis=1)


def effect(score: str, paper: float, here: Effect) -> str:
    """Whether a difference to base has the same sign as in the paper."""
    significant = here.p_value < LEVEL
    if abs(paper) < _NO_EFFECT[score]:
        return "none in the paper, significant here" if significant else "none in the paper, not significant here"
    if not significant:
        return "inconclusive"
    return "**same direction**" if paper * here.difference > 0 else "**opposite direction**"


def parsing(record: dict[str, Any]) -> str:
    """A table of the parser's scores."""
    scores = record["scores"]
    interval = scores["f1"]["confidence"]
    cells = [f"**{scores['f1']['score']:.2f}**", f"{interval['low']:.2f} to {interval['high']:.2f}"]
    cells += [f"{scores[key]['score']:.2f}" for key in ("precision", "recall")]
    cells += [f"{scores[key]['score']:.1f} %" for key in ("exact_match", "tagging_accuracy", "well_formed")]
    head = ["labelled F1", "95 % interval", "precision", "recall", "exact match", "tagging accuracy", "well-formed"]
    return _markdown(head, [cells])


def parsing_read(record: dict[str, Any]) -> str:
    """Interpretation of the parser's scores, and a table by sentence length."""
    scores, rows, sentences = record["scores"], record["by_words"], record["data"]["sentences"]
    evalb = scores["evalb_f1"]
    (before, earlier), (last, nll) = record["valid_nll"][-2:]
    well_formed, share = scores["well_formed"]["score"], 100 * evalb["sentences"] / sentences
    untagged = sum(row["with_words_without_tag"] for row in rows)
    untagged_scored = sum(row["of_these_taken_by_evalb"] for row in rows)
    text = (
        "The model loses count of the words, more so in longer sentences. "
        f"{well_formed:.0f} % of its outputs are trees with exactly one tag per word; the others are repaired (surplus tags are "
        "dropped, surplus words become `XX` at the end of the output) and then scored, so a tag missing in the middle shifts all "
        f"later brackets. {untagged:,} outputs leave words without a tag. EVALB skips sentences in which the output has "
        f"punctuation at other positions, including all but {untagged_scored} of these; without its limit on errors it would "
        f"print {evalb['score']:.2f} for the {share:.0f} % that it scores, which are also the easier ones; the F1 above is over "
        f"all {sentences:,}. The dev split is monitored during training but does not select a checkpoint; its loss was "
        f"{earlier:.3f} nats per symbol after {before:,} updates and {nll:.3f} after {last:,}."
    )
    lines = [
        [
            f"{low} to {high}" if high else f"{low} or more",
            str(row["sentences"]),
            f"{row['f1']:.1f}",
            str(row["taken_by_evalb"]),
        ]
        + [f"{row['evalb_f1']:.1f}" if row["taken_by_evalb"] >= 20 else ""]
        for row in rows
        for low, high in [row["words"]]
    ]
    head = ["words", "sentences", "F1", "scored by EVALB", "F1 of these"]
    return f"{textwrap.fill(text, 125)}\n\n{_markdown(head, lines)}"


def _facts(record: dict[str, Any]) -> str:
    signature = f" Signature: `{record['signature']}`." if record.get("signature") else ""
    return (
        f"`{record['command']}`\n\n{record['data']['sentences']:,} sentences of {record['data']['corpus']}; "
        f"{record['machine']['cpu']}, {record['machine']['cores']} cores.{signature}"
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


_INTRODUCTION = """# Replications of the paper's studies

The ablations of the paper's Table 3 and its parsing experiment (6.3), replicated with this repository's sweeps at sizes that
two CPU cores can train. `python -m benchmarks.studies` generates the tables from the records of the runs; the commands below
the tables repeat the runs."""

_TABLE3 = """\
The paper trains 65 M parameters for 100,000 updates of 25,000 tokens and reports one number per row, on newstest2013. Here all
widths are an eighth and all depths half of the paper's, which preserves the ratios between rows; each row is trained with two
seeds, all for the same number of updates. Perplexity is per piece, on the test set.

*To base* is the difference of the means with its 95 % interval and two-sided p-value, both corrected for the number of rows
as in the table of `sweep --report` ([sweeps.md](sweeps.md#what-a-difference-means)): if p is 0.05 or more, the interval contains
0 and the effect is inconclusive. Two seeds say little about the spread of a row, so that only large effects are found. For BLEU
the interval includes the sampling of sentences; for perplexity it does not, so those results hold for this test set only."""

_READ = """\
- **Two effects are certain**: a quarter of d_k and a third of the layers worsen perplexity, as in the paper.
- **All others are inconclusive, though almost all means move as in the paper**: BLEU is lower in every row, perplexity is worse
  with fewer layers and without dropout and better without label smoothing ("this hurts perplexity"). One head is the exception:
  its perplexity is not worse here; eight heads are 8 dimensions wide each and 64 in the paper.
- **Learned positions** do not change perplexity, as in the paper. BLEU is lower with both seeds, but not significantly.
- Two seeds of one row differ by up to 2.7 BLEU, those of another by 0.1. So few seeds do not show whether rows have the same
  spread; if they were taken to have one, three differences in BLEU and five in perplexity would be called significant.
- To resolve the inconclusive effects, add seeds: the same command with `--seeds=5 --extend`."""

_PARSING = """\
The paper's parser has 4 layers of d_model 1024 and is trained on 40,000 sentences of the Wall Street Journal: F1 91.3 on
section 23 (Table 4). The Penn Treebank is not free, so this run uses the biomedical CRAFT treebank and a small model
(`configs/parsing.py`). The two scores cannot be compared; this one shows that the task works end to end."""
