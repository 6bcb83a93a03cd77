"""One model for English and three languages, with little Czech, at two temperatures of the mixture (docs/languages.md).

    python -m benchmarks.many_languages --data=DATA/multi30k --workdir=runs/many_languages \\
        --out=benchmarks/results/many_languages.json

The text is Multi30k's, aligned by lines: `train`, `val` and `test_2016_flickr`, each as .en, .de, .fr and .cs. The model is
trained from and into English, with the first 5,000 pairs of Czech; German to French and back are zero-shot. A stopped chain goes
on with the same command.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks import chain
from benchmarks.record import machine, publish

TRAINED = ("en-de", "de-en", "en-fr", "fr-en", "en-cs", "cs-en")
ZERO_SHOT = ("de-fr", "fr-de")
LIMITED = 5000
TEMPERATURES = ("5", "1")


def train(temperature: str, data: str, steps: int) -> list[str]:
    """The command that trains and evaluates the model at this temperature."""
    return [
        "train",
        "--config=configs/many_languages.py",
        f"--workdir=WORKDIR/temperature-{temperature}",
        f"--config.data.root={data}",
        f"--config.data.train={sources('train', TRAINED)}",
        f"--config.data.limits=en-cs={LIMITED}, cs-en={LIMITED}",
        f"--config.data.valid={sources('val', TRAINED)}",
        f"--config.data.test={sources('test_2016_flickr', TRAINED + ZERO_SHOT)}",
        f"--config.data.mixture_temperature={temperature}",
        f"--config.train.steps={steps}",
        "--config.eval.samples=0",
        "--config.log.trackers=",
    ]


def sources(split: str, directions: tuple[str, ...]) -> str:
    """The files of a split in each direction, as a value of data.train."""
    pairs = (direction.split("-") for direction in directions)
    return "; ".join(f"{source}-{target}={split}.{source},{split}.{target}" for source, target in pairs)


def row(folder: Path, direction: str) -> dict[str, Any]:
    """The scores of a finished run in one direction."""
    record = chain.record_of(folder, direction)
    return {
        "direction": direction,
        "zero_shot": record["data"]["zero_shot"],
        "bleu": record["scores"]["sacrebleu"],
        "chrf": record["scores"]["chrf"]["score"],
        "averaged": record["checkpoint"]["averaged"],
    }


def result(folder: Path, temperature: str) -> dict[str, Any]:
    """What a finished run gave."""
    seconds = json.loads((folder / "complete.json").read_text())["seconds"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "valid_nll" in line][-1]
    return {
        "temperature": float(temperature),
        "rows": [row(folder, direction) for direction in TRAINED + ZERO_SHOT],
        "validation": {name: round(value, 4) for name, value in last.items() if name.startswith(("step", "valid_nll"))},
        "seconds": seconds,
        "machine": machine(),
    }


def earlier_results(path: str | None, what: str) -> list[dict[str, Any]]:
    """Those in a record of the same trainings, which may have been at another temperature."""
    if not path or not Path(path).exists():
        return []
    record = json.loads(Path(path).read_text())
    return record["results"] if record["what"] == what else []


def main(argv: list[str] | None = None) -> None:
    """Runs the chain, then writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.many_languages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="folder of the text")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="for the runs")
    parser.add_argument("--steps", type=int, default=9000, help="updates of each run")
    parser.add_argument(
        "--temperature",
        action="append",
        choices=TEMPERATURES,
        help="of the mixture; may be repeated (default: both). The record at --out keeps results of the other",
    )
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    temperatures = args.temperature or TEMPERATURES
    for temperature in temperatures:
        chain.run([part.replace("WORKDIR", args.workdir) for part in train(temperature, args.data, args.steps)])
    results = [result(Path(args.workdir) / f"temperature-{temperature}", temperature) for temperature in temperatures]
    what = f"Multi30k, English from and into German, French and (the first {LIMITED:,} pairs) Czech, {args.steps} updates of the "
    what += "model of configs/many_languages.py; test_2016_flickr"
    measured = {str(each["temperature"]): each for each in [*earlier_results(args.out, what), *results]}
    record = {
        "what": what,
        "command": f"python -m benchmarks.many_languages --data=DATA/multi30k --workdir=runs/many_languages --steps={args.steps}",
        "chain": [shlex.join(train(temperature, "DATA/multi30k", args.steps)) for temperature in TEMPERATURES],
        "results": list(measured.values()),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
