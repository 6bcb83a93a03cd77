"""From 8 to 4096 chips on paper: writes docs/scaling.md from a few compiled points and the formulas of `plan`.

    python -m benchmarks.scaling             # the page, from benchmarks/results/scaling.json; needs no TPU compiler
    python -m benchmarks.scaling --compile   # compiles the points that the record lacks (minutes each), then the page
    python -m benchmarks.scaling --compile --only=base

Nothing here was measured on an accelerator: every time is a roofline.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.scaling_page import write
from benchmarks.scaling_points import POINTS

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "scaling.json"
PAGE = ROOT / "docs" / "scaling.md"


def main(argv: list[str] | None = None) -> None:
    """Compiles what is asked for and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile the points that the record lacks")
    parser.add_argument("--only", default="", help="points whose name holds this text")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    args = parser.parse_args(argv)
    if args.only and not args.compile:
        parser.error("--only says what --compile compiles")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["JAX_NUM_CPU_DEVICES"] = "16"
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name, (preset, machine, rows, overrides) in POINTS.items():
        if args.compile and args.only in name and name not in record:
            print(f"compiling {name}", flush=True)
            record[name] = compile_point(preset, machine, rows, overrides)
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
    args.page.write_text(write(record))
    print(f"wrote {args.page}")


def compile_point(preset: str, machine: str, rows: int, overrides: dict[str, str]) -> dict[str, Any]:
    """What the compiler says of the train step; see `t2t_flax.planning.worker`."""
    from t2t_flax.config import load_config
    from t2t_flax.planning.ask import ask, requirement
    from t2t_flax.planning.topology import parse

    config = load_config(preset, overrides)
    told = ask(config, parse(machine), (config.data.vocab_size,) * 2, ("train",), rows=rows)
    return told | {"compiler": requirement()}


if __name__ == "__main__":
    main()
