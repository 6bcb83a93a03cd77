"""The paper's studies, redone by sweeps: records from finished sweeps, and docs/studies.md from the records.

python -m benchmarks.studies --table3=sweeps/table3_multi30k    # the record of a finished sweep, then the page
python -m benchmarks.studies                                     # the page, from benchmarks/results alone
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import publish
from t2t_flax.config.presets import TABLE3_ROWS
from t2t_flax.evaluation.compare import read_record
from t2t_flax.files import write_whole
from t2t_flax.sweeps.folder import Folder, read_sweep
from t2t_flax.sweeps.results import rows

TABLE3 = Path("benchmarks/results/table3_multi30k.json")
PARSING = Path("benchmarks/results/parsing_craft.json")
PAGE = Path("docs/studies.md")
CHANGES = {
    "base": "", "a_h1": "(A) 1 head", "a_h4": "(A) 4 heads", "a_h16": "(A) 16 heads", "a_h32": "(A) 32 heads",
    "b_dk16": "(B) d_k a quarter", "b_dk32": "(B) d_k half", "c_n2": "(C) 2 layers", "c_n4": "(C) 4 layers",
    "c_n8": "(C) 8 layers", "c_n3": "(C) 3 layers, between the paper's 2 and 4", "c_d256": "(C) d_model half",
    "c_d1024": "(C) d_model twice", "c_ff1024": "(C) d_ff half", "c_ff4096": "(C) d_ff twice", "d_dropout_0": "(D) no dropout",
    "d_dropout_02": "(D) dropout 0.2", "d_smoothing_0": "(D) no label smoothing", "d_smoothing_02": "(D) label smoothing 0.2",
    "e_learned": "(E) learned positions",
}  # fmt: skip


def table3_record(sweep: Path) -> dict[str, Any]:
    """What a sweep of Table 3 found, row by row."""
    folder, described = Folder(sweep), read_sweep(sweep)
    table, _ = rows(folder, described, "sacrebleu", "base")
    found = []
    for row in table:
        records = [read_record(result.record) for result in row.results]
        found.append({
            "row": row.name,
            "overrides": row.overrides,
            "bleu": [round(result.score, 4) for result in row.results],
            "perplexity": [round(record["scores"]["perplexity"], 4) for record in records],
            "seconds": [result.seconds for result in row.results],
            "updates": sorted({result.steps for result in row.results}),
            "against_base": row.against,
        })  # fmt: skip
    first = read_record(next(result.record for row in table for result in row.results))
    return {
        "what": "Table 3 with every width an eighth, Multi30k English-German, sacreBLEU and perplexity on test2016",
        "command": f"python -m t2t_flax sweep --sweep=configs/sweeps/table3.py:two_cores --workdir={sweep.name} "
        "--config.data.root=DATA/multi30k/raw",
        "signature": first["scores"]["sacrebleu"]["signature"],
        "parameters": first["parameters"],
        "versions": first["versions"],
        "rows": found,
    }


def effect(paper: float, ours: float, sure: bool) -> str:
    """Whether an effect points the way that it does in the paper: `paper` and `ours` are differences to base."""
    if abs(paper) < 0.15:
        return "none in the paper; here none is clear" if not sure else "none in the paper; here there is one"
    if not sure:
        return "inconclusive"
    return "the same way" if paper * ours > 0 else "the other way"


def table3_lines(record: dict[str, Any]) -> list[str]:
    """The table beside the paper's."""
    of = {row["row"]: row for row in record["rows"]}
    base_bleu, base_ppl = np.mean(of["base"]["bleu"]), np.log(of["base"]["perplexity"])
    _, paper_ppl, paper_bleu = TABLE3_ROWS["base"]
    lines = [
        "| row | BLEU, paper | BLEU here | difference to base, 95 % interval, p | BLEU's effect | ln PPL to base, paper | "
        "here, by seed | perplexity's effect |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, told in CHANGES.items():
        if name not in of:
            continue
        row, paper = of[name], TABLE3_ROWS.get(name)
        seeds = " ".join(f"{value:.2f}" for value in row["bleu"])
        cells = [
            f"{name} {told}".strip(),
            f"{paper[2]:.1f}" if paper else "",
            f"**{np.mean(row['bleu']):.2f}** ({seeds})",
        ]
        if name == "base":
            lines.append(
                "| "
                + " | ".join([*cells, "", "", f"(PPL {paper_ppl:.2f})", _listed(of["base"]["perplexity"]), ""])
                + " |"
            )
            continue
        against, shift = row["against_base"], np.log(row["perplexity"]) - base_ppl[: len(row["perplexity"])]
        low, high = against["interval"]["low"], against["interval"]["high"]
        sure = against["p_value"] < 0.05
        same_sign = bool((shift > 0).all() or (shift < 0).all()) and len(shift) > 1
        spread = float(np.std(shift, ddof=1)) if len(shift) > 1 else np.inf
        cells.append(f"{against['difference']:+.2f} [{low:+.2f}, {high:+.2f}] {against['p_value']:.2g}")
        cells.append(effect(paper[2] - paper_bleu, np.mean(row["bleu"]) - base_bleu, sure) if paper else "")
        cells.append(f"{np.log(paper[1] / paper_ppl):+.3f}" if paper else "")
        cells.append(" ".join(f"{value:+.3f}" for value in shift))
        sure = same_sign and abs(shift.mean()) > 2 * spread / np.sqrt(len(shift))
        cells.append(effect(10 * np.log(paper[1] / paper_ppl), shift.mean(), sure) if paper else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _listed(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def page() -> str:
    """docs/studies.md from the records that there are; what is said of them lies in `benchmarks/studies_text.md`."""
    text = Path(__file__).with_name("studies_text.md").read_text()
    parts = {"@table3@": "", "@parsing@": ""}
    if TABLE3.exists():
        record = json.loads(TABLE3.read_text())
        parts["@table3@"] = "\n".join(
            [*table3_lines(record), "", f"`{record['command']}`", "", f"`{record['signature']}`"]
        )
    if PARSING.exists():
        record = json.loads(PARSING.read_text())
        scores = record["scores"]
        interval = scores["f1"]["confidence"]
        parts["@parsing@"] = (
            "| F1 | 95 % interval | precision | recall | exactly right | tags right | well-formed |\n"
            "|---|---|---|---|---|---|---|\n"
            f"| **{scores['f1']['score']:.2f}** | {interval['low']:.2f} to {interval['high']:.2f} | "
            f"{scores['precision']['score']:.2f} | {scores['recall']['score']:.2f} | {scores['exact_match']['score']:.2f} % | "
            f"{scores['tagging_accuracy']['score']:.2f} % | {scores['well_formed']['score']:.2f} % |\n\n`{record['command']}`"
        )
    for mark, table in parts.items():
        text = text.replace(mark, table or "Not run yet.")
    return text


def main() -> None:
    """Writes the record of a sweep, if one is given, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table3", metavar="DIR", help="folder of a finished sweep of configs/sweeps/table3.py")
    args = parser.parse_args()
    if args.table3:
        publish(table3_record(Path(args.table3)), str(TABLE3))
    write_whole(PAGE, page())


if __name__ == "__main__":
    main()
