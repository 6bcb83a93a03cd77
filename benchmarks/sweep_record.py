"""The record of a finished sweep: the scores of each row's seeds, with mean, spread and the comparison with the baseline.

    python -m benchmarks.sweep_record --sweep=sweeps/unigram --what="unigram sampling, 3,000 pairs of Multi30k" \\
        --command="python -m t2t_flax sweep ..." --out=benchmarks/results/unigram_sampling.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import machine, publish
from t2t_flax.config import load_config
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.extensions.sweeps.records import read_record
from t2t_flax.extensions.sweeps.results import Result, learning_curve
from t2t_flax.extensions.sweeps.rows import Row, rows


def sweep_record(
    sweep: Path, *, what: str, command: str, score: str = "sacrebleu", baseline: str = "", note: str = ""
) -> dict[str, Any]:
    """One entry per row, in the order of the sweep. command: as a reader would give it, without local paths. note: what else a
    reader must know, such as interruptions. score: of the records. Raises UserError if no trial has finished.
    """
    folder, stored = Folder(sweep.absolute()), read_sweep(sweep)
    table, reference = rows(folder, stored, score, baseline)
    order = list(dict.fromkeys(trial["row"] for trial in stored["trials"].values()))
    records = [read_record(result.record) for row in table for result in _usable(row)]
    if not records:
        raise UserError(f"{sweep}: no trial has finished with the score {score}.")
    first = records[0]
    return {
        "what": what,
        "command": command,
        **({"note": note} if note else {}),
        "score": score,
        "signature": first["scores"][score].get("signature"),
        "data": {key: first["data"][key] for key in ("corpus", "sentences", "digest")},
        **{key: first[key] for key in ("parameters", "versions") if key in first},
        "code": stored["code"],
        "machine": machine(),
        "baseline": reference,
        "trials": {
            name: {"state": folder.state(name), "attempts": folder.status(name).attempts} for name in stored["trials"]
        },
        "rows": [_row_entry(folder, row, score) for row in sorted(table, key=lambda row: order.index(row.name))],
    }


def _usable(row: Row) -> list[Result]:
    return [result for result in row.results if result.score is not None]


def _row_entry(folder: Folder, row: Row, score: str) -> dict[str, Any]:
    results = _usable(row)
    records = [read_record(result.record) for result in results]
    curves = [[nll for _, nll in learning_curve(folder, result.name)] for result in results]
    configs = [load_config(str(folder.config(result.name))) for result in results]
    return {
        "row": row.name,
        "overrides": row.overrides,
        "seeds": [config.seed.init for config in configs],
        "updates": [result.steps for result in results],
        "bleu": [_rounded(result.score) for result in results],
        "confidence": [record["scores"][score].get("confidence") for record in records],
        "mean": row.mean,
        "spread": row.spread,
        "perplexity": [_rounded(record["scores"].get("perplexity")) for record in records],
        "valid_nll_last": [_rounded(points[-1] if points else None) for points in curves],
        "valid_nll_best": [_rounded(min(points, default=None)) for points in curves],
        "seconds": [result.seconds for result in results],
        "seconds_of": [_phases(folder, result.name) for result in results],
        "against_base": row.comparison,
        **({"problem": row.problem} if row.problem else {}),
    }


def _phases(folder: Folder, name: str) -> dict[str, float]:
    """Seconds of a trial by phase: preparing data, compiling, updates, evaluations, checkpoints."""
    marker = json.loads((folder.workdir(name) / "complete.json").read_text())
    return {phase: round(seconds, 1) for phase, seconds in marker.get("seconds", {}).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main(argv: list[str] | None = None) -> None:
    """Writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.sweep_record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", metavar="DIR", required=True, help="folder of the sweep")
    parser.add_argument("--what", required=True, help="what was trained, on which text")
    parser.add_argument("--command", required=True, help="the sweep's command, without local paths")
    parser.add_argument("--note", default="", help="what else a reader must know, such as interruptions")
    parser.add_argument("--score", default="sacrebleu", help="sacrebleu, tokenized_bleu ..., as records have it")
    parser.add_argument("--baseline", default="", metavar="ROW", help="row to compare with (default: the best)")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    keys = dict(what=args.what, command=args.command, score=args.score, baseline=args.baseline, note=args.note)
    try:
        publish(sweep_record(Path(args.sweep), **keys), args.out)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
