"""Generates docs/studies.md, replications of the paper's studies, from the records of our sweeps and runs.

python -m benchmarks.studies --table3=sweeps/table3    writes the record of a finished sweep, then the page
python -m benchmarks.studies --parsing=runs/parsing/eval/test-4000-mean5.json    the same for a parser
python -m benchmarks.studies                           writes the page from the existing records
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import machine, publish
from benchmarks.studies_page import PAGE, PARSING, TABLE3, page
from benchmarks.sweep_record import sweep_record
from t2t_flax.config import load_config
from t2t_flax.evaluation.records import read_record
from t2t_flax.extensions.parsing.evalb import COUNTS, bracket_counts, f1
from t2t_flax.extensions.parsing.trees import UNKNOWN_TAG, leaves, read_trees
from t2t_flax.extensions.sweeps.trials import train_command
from t2t_flax.filesystem import atomic_write
from t2t_flax.monitoring.metrics_writer import read_metrics


def table3_record(sweep: Path) -> dict[str, Any]:
    """The results of a Table 3 sweep, one entry per row, in the sweep's order."""
    return sweep_record(
        sweep,
        what="rows of Table 3 with widths an eighth and depths half, Multi30k English-German, test2016",
        command="python -m t2t_flax sweep --sweep=configs/sweeps/table3.py:two_cores --workdir=sweeps/table3 "
        "--config.data.root=DATA/multi30k/raw --jobs=2",
        baseline="base",
    )


def parsing_record(path: Path) -> dict[str, Any]:
    """A parser's evaluation record with its training command; local paths are omitted."""
    record = read_record(path)
    run = path.parents[1]
    marker = json.loads((run / "complete.json").read_text())
    config = record["config"]
    overrides = {"data.root": "DATA/craft_treebank"}
    if config["train"]["steps"] != load_config("configs/parsing.py").train.steps:
        overrides["train.steps"] = str(config["train"]["steps"])
    return {
        "what": "a small parser on the CRAFT treebank, labelled F1 on its dev split",
        "command": train_command("configs/parsing.py", overrides, {}, "runs/parsing"),
        "note": "other programs ran on the two cores beside the training for a part of it",
        "seconds": {key: round(value, 1) for key, value in marker["seconds"].items()},
        "updates": marker["step"],
        "valid_nll": [
            [line["step"], round(line["valid_nll"], 4)]
            for line in read_metrics(run)
            if "valid_nll" in line and line["step"] <= marker["step"]
        ],
        "scores": record["scores"],
        "by_words": by_words(
            *((path.parent / record[side]).read_text().splitlines() for side in ("hypotheses", "references"))
        ),
        "checkpoint": record["checkpoint"]["averaged"],
        "data": {"corpus": "CRAFT's dev split"} | {key: record["data"][key] for key in ("sentences", "digest")},
        "decode": config["decode"],
        "parameters": record["parameters"],
        "versions": record["versions"],
        "machine": machine(),
    }


def by_words(answers: list[str], references: list[str]) -> list[dict[str, Any]]:
    """F1 and evalb_f1 by sentence length, and how many outputs leave words without a tag."""
    gold = [tree for _, tree in read_trees(references, "the references")]
    predicted = [tree for _, tree in read_trees(answers, "the answers")]
    counts = np.array([bracket_counts(answer, reference) for answer, reference in zip(predicted, gold, strict=True)])
    words = np.array([len(leaves(tree)) for tree in gold])
    untagged = np.array([any(leaf.tag == UNKNOWN_TAG for leaf in leaves(tree)) for tree in predicted])
    skipped = counts[:, COUNTS.index("skipped_by_evalb")] > 0
    rows = []
    for low, high in ((1, 10), (11, 20), (21, 30), (31, 45), (46, None)):
        selected = (words >= low) & (words <= (high or words.max()))
        scored = selected & ~skipped
        rows.append({
            "words": [low, high],
            "sentences": int(selected.sum()),
            "f1": round(f1(counts[selected].sum(0)), 2),
            "taken_by_evalb": int(scored.sum()),
            "evalb_f1": round(f1(counts[scored].sum(0)), 2) if scored.any() else None,
            "with_words_without_tag": int((selected & untagged).sum()),
            "of_these_taken_by_evalb": int((scored & untagged).sum()),
        })  # fmt: skip
    return rows


def main() -> None:
    """Writes the requested records and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--table3", metavar="DIR", help="folder of a finished sweep of configs/sweeps/table3.py:two_cores"
    )
    parser.add_argument("--parsing", metavar="FILE.json", help="evaluation record of a run of configs/parsing.py")
    parser.add_argument("--page", default=str(PAGE), help="path of the page")
    args = parser.parse_args()
    if args.table3:
        publish(table3_record(Path(args.table3)), str(TABLE3))
    if args.parsing:
        publish(parsing_record(Path(args.parsing)), str(PARSING))
    atomic_write(args.page, page())


if __name__ == "__main__":
    main()
