"""The words and tables of docs/studies.md; see `studies`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from t2t_flax.config.presets import TABLE3_ROWS

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
"""Differences of the paper's table that its rounding and its seeds do not carry."""


def page() -> str:
    """The page, as far as there are records."""
    parts = [_INTRODUCTION]
    if TABLE3.exists():
        record = json.loads(TABLE3.read_text())
        parts += ["## Table 3", _TABLE3, table3(record), _facts(record), _READ]
    if PARSING.exists():
        record = json.loads(PARSING.read_text())
        parts += ["## English constituency parsing", _PARSING, parsing(record), _facts(record)]
    return "\n\n".join(parts) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def table3(record: dict[str, Any]) -> str:
    """Our rows beside the paper's: each effect is a difference to base."""
    base, *others = sorted(record["rows"], key=lambda row: row["row"] != "base")
    _, paper_ppl, paper_bleu = TABLE3_ROWS["base"]
    own = [f"{np.mean(base['bleu']):.2f} ({_listed(base['bleu'])})", ""]
    lines = [["base", f"{paper_bleu:.1f}", *own, "", f"{paper_ppl:.2f}", _listed(base["perplexity"]), ""]]
    for row in others:
        _, ppl, bleu = TABLE3_ROWS[row["row"]]
        told = row["against_base"]
        interval = told["interval"]
        shifts = np.log(row["perplexity"]) - np.log(base["perplexity"])
        lines.append([
            f"{row['row']}: {_CHANGES[row['row']]}",
            f"{bleu:.1f} ({bleu - paper_bleu:+.1f})",
            f"{np.mean(row['bleu']):.2f} ({_listed(row['bleu'])})",
            f"{told['difference']:+.2f} [{interval['low']:+.2f}, {interval['high']:+.2f}] p {told['p_corrected']:.2g}",
            effect("BLEU", bleu - paper_bleu, told["difference"], told["p_corrected"] < 0.05),
            f"{ppl:.2f} ({np.log(ppl / paper_ppl):+.3f})",
            f"{_listed(row['perplexity'])} ({', '.join(f'{x:+.3f}' for x in shifts)})",
            effect("ln PPL", np.log(ppl / paper_ppl), float(shifts.mean()), _sure(shifts)),
        ])  # fmt: skip
    head = ["row", "BLEU, paper", "BLEU here", "to base", "the effect on BLEU", "PPL, paper", "PPL here", "on PPL"]
    return _markdown(head, lines)


def effect(of: str, paper: float, ours: float, sure: bool) -> str:
    """Whether a difference to base points the way that it does in the paper."""
    if abs(paper) < _NO_EFFECT[of]:
        return "none in the paper, one here" if sure else "none in the paper, none sure here"
    if not sure:
        return "inconclusive"
    return "**the same way**" if paper * ours > 0 else "**the other way**"


def _sure(shifts: np.ndarray) -> bool:
    """With a seed or two: all on one side of zero, and by more than they differ among themselves."""
    return len(shifts) > 1 and bool(abs(np.sign(shifts).sum()) == len(shifts)) and abs(shifts.mean()) > np.ptp(shifts)


def parsing(record: dict[str, Any]) -> str:
    """The parser's scores in a table."""
    scores = record["scores"]
    interval = scores["f1"]["confidence"]
    cells = [f"**{scores['f1']['score']:.2f}**", f"{interval['low']:.2f} to {interval['high']:.2f}"]
    cells += [f"{scores[key]['score']:.2f}" for key in ("precision", "recall")]
    cells += [f"{scores[key]['score']:.1f} %" for key in ("exact_match", "tagging_accuracy", "well_formed")]
    head = ["labelled F1", "95 % interval", "precision", "recall", "exactly right", "tags right", "well-formed"]
    return _markdown(head, [cells])


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
trained with two seeds, all for the same number of updates. *To base* is the difference of the means with its 95 % interval
(paired bootstrap over sentences, Student's t over seeds) and p, corrected for the number of rows; from 0.05 on a difference
is inconclusive. Perplexity is by piece, on the test set; in brackets the change of its logarithm, by seed here, which is
inconclusive unless both seeds agree on the sign by more than they differ."""

_READ = ""

_PARSING = """\
The paper's parser has 4 layers of d_model 1024 and is trained on 40,000 sentences of the Wall Street Journal: F1 91.3 on its
section 23 (Table 4). The Penn Treebank is not free, so this is the CRAFT treebank, whose text is biomedical; the model is small
(`configs/parsing.py`). The two figures cannot be compared: this one says that the task works from end to end."""
