"""The record of a finished sweep: the scores of each row's seeds, with mean, spread and the comparison with the baseline.

    python -m benchmarks.sweep_record --sweep=sweeps/unigram --what="unigram sampling, 3,000 pairs of Multi30k" \\
        --command="python -m t2t_flax sweep ..." --out=benchmarks/results/unigram_sampling.json
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import machine, publish
from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.compare import read_record
from t2t_flax.extensions.sweeps.folder import Folder, read_sweep
from t2t_flax.extensions.sweeps.results import learning_curve
from t2t_flax.extensions.sweeps.rows import Row, rows


def sweep_record(path: Path, score: str, baseline: str) -> dict[str, Any]:
    """One entry per row, the best first. score: of the records. Raises UserError if no trial has finished."""
    folder, sweep = Folder(path.absolute()), read_sweep(path)
    table, reference = rows(folder, sweep, score, baseline)
    record = next((read_record(r.record) for row in table for r in row.results if r.score is not None), None)
    if not record:
        raise UserError(f"{path}: no trial has finished with the score {score}.")
    return {
        "score": score,
        "signature": record["scores"][score].get("signature"),
        "data": {key: record["data"][key] for key in ("corpus", "sentences", "digest")},
        **{key: record[key] for key in ("parameters", "versions") if key in record},
        "code": sweep["code"],
        "machine": machine(),
        "baseline": reference,
        "trials": {name: folder.displayed_state(name) for name in sweep["trials"]},
        "rows": [_row_entry(folder, row) for row in table],
    }


def _row_entry(folder: Folder, row: Row) -> dict[str, Any]:
    results = [result for result in row.results if result.score is not None]
    return {
        "row": row.name,
        "overrides": row.overrides,
        "seeds": [folder.read_config(result.name).seed.init for result in results],
        "updates": [result.steps for result in results],
        "bleu": [result.score for result in results],
        "mean": row.mean,
        "spread": row.spread,
        "valid_nll_best": [min((nll for _, nll in learning_curve(folder, r.name)), default=None) for r in results],
        "seconds": [result.seconds for result in results],
        "against_base": row.comparison,
        **({"problem": row.problem} if row.problem else {}),
    }


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
    given = {"what": args.what, "command": args.command} | ({"note": args.note} if args.note else {})
    try:
        publish(given | sweep_record(Path(args.sweep), args.score, args.baseline), args.out)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
