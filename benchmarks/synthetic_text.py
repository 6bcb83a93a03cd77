"""Back-translation and sequence-level distillation on two halves of a corpus, as the chain of commands of docs/synthetic_text.md.

    python -m benchmarks.synthetic_text --data=DATA/multi30k/raw --workdir=runs/synthetic \\
        --out=benchmarks/results/synthetic_text.json

The first half of the pairs is the parallel text. Of the second half each recipe sees one language alone: back-translation
(Sennrich et al. 2016; tagged as by Caswell et al. 2019) the German side, distillation (Kim and Rush 2016) the English one. Every
model is trained for the same number of updates. A stopped chain goes on with the same command.
"""

import argparse
import gzip
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import chain
from benchmarks.record import machine, publish
from t2t_flax.filesystem import atomic_write

SMALLER = (
    "--config.model.d_model=64",
    "--config.model.d_ff=128",
    "--config.model.num_encoder_layers=2",
    "--config.model.num_decoder_layers=1",
)
SAMPLE = ("--config.decode.strategy=sample", "--config.decode.seed=1")
FILTERS = ("--config.data.drop_duplicates=True", "--config.data.max_length_ratio=3")
ROWS = {
    "half": "half of the pairs",
    "beam": "half, and back-translations by beam search",
    "sample": "half, and back-translations by sampling",
    "whole": "all pairs",
    "student": "small model, half of the pairs",
    "distilled": "small model, half, targets by the model of the first row",
    "distilled_more": "small model, the same, and the other half's English",
}


def train(run: str, text: str, *flags: str, direction: str = "en,de") -> list[str]:
    """The command that trains `run` on `text`, and evaluates it. direction: `SOURCE,TARGET` languages."""
    source, target = direction.split(",")
    data = [f"--config.data.{split}={split}.{source},{split}.{target}" for split in ("valid", "test")]
    languages = [f"--config.data.source_language={source}", f"--config.data.target_language={target}"]
    data += languages if direction != "en,de" else []
    return ["train", "--config=CONFIG", f"--workdir={run}", f"--config.data.train={text}", *data, *flags]


def translate(run: str, lines: str, output: str, *flags: str) -> list[str]:
    """The command that writes the translations of the file `lines` into `output`, continuing what is there."""
    return [
        "translate",
        f"--workdir={run}",
        "--average=8",
        f"--input={lines}",
        f"--output={output}",
        "--resume",
        *flags,
    ]


def commands() -> list[list[str]]:
    """The commands, in order."""
    mixed, tag = "real=a.en,a.de; bt={},b.de", "--config.data.tags=bt=<bt>"
    return [
        train("half", "a.en,a.de"),
        train("back", "a.de,a.en", direction="de,en"),
        translate("back", "b.de", "b.beam.en"),
        translate("back", "b.de", "b.sample.en", *SAMPLE),
        train("beam", mixed.format("b.beam.en"), tag, *FILTERS),
        train("whole", "whole.en,whole.de"),
        translate("half", "whole.en", "whole.distilled.de"),
        ["head", "a.en", "whole.distilled.de", "a.distilled.de"],
        train("student", "a.en,a.de", *SMALLER),
        train("distilled", "a.en,a.distilled.de", *SMALLER),
        train("sample", mixed.format("b.sample.en"), tag, *FILTERS),
        train("distilled_more", "whole.en,whole.distilled.de", *SMALLER),
    ]


def write_text(data: Path, folder: Path) -> int:
    """Writes the halves `a`, `b`, the `whole` and the held-out text; returns the number of pairs."""
    pairs = 0
    for language in ("en", "de"):
        lines = gzip.decompress((data / f"train.{language}.gz").read_bytes()).decode().splitlines(keepends=True)
        pairs = len(lines)
        for name, part in {"a": lines[: pairs // 2], "b": lines[pairs // 2 :], "whole": lines}.items():
            (folder / f"{name}.{language}").write_text("".join(part))
        for name, split in {"valid": "val", "test": "test2016"}.items():
            (folder / f"{name}.{language}").write_bytes(gzip.decompress((data / f"{split}.{language}.gz").read_bytes()))
    return pairs


def run(command: list[str], folder: Path, config: Path, flags: Iterable[str]) -> None:
    """Runs one command of the chain in `folder`; one that has finished before does nothing."""
    if command[0] == "head":
        lines, source, output = (folder / name for name in command[1:])
        count = len(lines.read_text().splitlines())
        atomic_write(str(output), "".join(source.read_text().splitlines(keepends=True)[:count]))
        return
    if command[0] == "translate" and (folder / command[4].partition("=")[2]).exists():
        return
    if command[0] == "train":
        command = [part.replace("CONFIG", str(config)) for part in command] + list(flags)
    chain.run(command, folder)


def row(folder: Path, name: str) -> dict[str, Any]:
    """The scores of a finished run."""
    record = chain.record_of(folder / name)
    scores = record["scores"]
    return {
        "row": ROWS[name],
        "run": name,
        "bleu": scores["sacrebleu"],
        "chrf": scores["chrf"]["score"],
        "parameters": record["parameters"],
        "record": record["file"],
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the chain, then writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.synthetic_text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", metavar="DIR", required=True, help="folder of train, val, test2016 as .en.gz and .de.gz"
    )
    parser.add_argument("--workdir", metavar="DIR", required=True, help="for the text and the runs")
    parser.add_argument("--steps", type=int, default=1000, help="updates of each run")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    folder = Path(args.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = write_text(Path(args.data), folder)
    config = Path("configs/text.py").absolute()
    flags = [f"--config.train.steps={args.steps}", "--config.log.tensorboard=False"]
    for command in commands():
        run(command, folder, config, flags)
    record = {
        "what": f"{pairs} pairs in halves, {args.steps} updates of each model of configs/text.py, test2016",
        "command": f"python -m benchmarks.synthetic_text --data=DATA/multi30k/raw --workdir=runs/synthetic --steps={args.steps}",
        "chain": [shlex.join(command) for command in commands()],
        "rows": [row(folder, name) for name in ROWS],
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
