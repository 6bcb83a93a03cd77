"""Train published recipes that take one accelerator minutes, after preparation on a CPU.

    python -m benchmarks.published --data=DATA --prepared=DIR [--recipes=multi30k,envi_t2t] \\
        [--config.KEY=VALUE]

This command copies the texts of DATA/multi30k and DATA/iwslt15-envi, by the names in the presets,
into DIR and prepares a workdir for each recipe. DIR can be moved to the machine with the
accelerator. There, `benchmarks.accelerator --prepared=DIR` trains its workdirs as `train` does. A
run that its time limit stops is scored in its current state, and a later call goes on from there.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.environments import variables
from t2t_flax import api
from t2t_flax.cli import arguments
from t2t_flax.config import Config, load_config
from t2t_flax.errors import STOPPED, USER_ERROR, UserError
from t2t_flax.json_file import parse_json


class Recipe(NamedTuple):
    """A preset with keys, and its published score.

    Attributes:
      folder: holds the text.
      score: name of the published score in a record.
      published: its value.
      average: checkpoints to average where the time limit ends the run; 0 = the last one alone.
      seconds: time limit, scoring included.
    """

    preset: str
    folder: str
    score: str
    published: float
    average: int
    seconds: int
    keys: dict[str, str] = {}


# Published in float32, which a GPU multiplies many times slower, and with batches counted with
# padding, which need several programs, each compiled for a minute. 3,400 real tokens are about as
# many as 4,096 with padding hold.
_FAST = {"train.precision": "bfloat16", "recipes.batch_groups": "0", "data.batch_tokens": "3400"}
RECIPES = {
    "multi30k": Recipe("wu2021_tiny", "multi30k", "tokenized_bleu", 41.02, average=10, seconds=240),
    "envi_t2t": Recipe(
        "t2t_envi", "iwslt15-envi", "sacrebleu", 28.54, average=5, seconds=540, keys=_FAST
    ),
    "envi_tears": Recipe(
        "transformers_without_tears_envi",
        "iwslt15-envi",
        "tokenized_bleu",
        32.8,
        average=0,
        seconds=540,
        keys=_FAST,
    ),
}
EVALUATION = 90
"""Seconds kept for scoring a run that the time limit stops, compiling included."""


def prepare(name: str, data: Path, prepared: Path, overrides: dict[str, str]) -> None:
    """Copy the text of a recipe, and make its tokenizer and token stores."""
    recipe, root = RECIPES[name], prepared / "text" / RECIPES[name].folder
    config = load_config(recipe.preset, recipe.keys | overrides)
    for file in text_files(config):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data / recipe.folder / file, root / file)
    api.prepare(recipe.preset, prepared / name, recipe.keys | overrides | {"data.root": str(root)})


def text_files(config: Config) -> list[str]:
    """Return the files that a config names."""
    d = config.data
    return [
        file
        for spec in (d.train, d.valid, d.test, d.tokenizer_model)
        for file in spec.split(",")
        if file
    ]


def train(name: str, prepared: Path, seconds: float, overrides: dict[str, str]) -> dict[str, Any]:
    """Train a prepared recipe for at most so long, score it, and return its row."""
    recipe, workdir = RECIPES[name], prepared / name
    if not (workdir / "tokenizer").exists():
        raise UserError(
            f"{workdir} is not prepared: run python -m benchmarks.published --prepared={prepared}"
            " before."
        )
    keys = (
        {"trackers.names": "", "data.root": str(prepared / "text" / recipe.folder)}
        | recipe.keys
        | overrides
    )
    flags = [f"--workdir={workdir}"]
    config = [
        f"--config={recipe.preset}",
        *(f"--config.{key}={value}" for key, value in keys.items()),
    ]
    began = time.monotonic()
    code, error = _run(["train", *flags, *config], seconds - EVALUATION)
    chosen = [[f"--average={recipe.average}"], []] if recipe.average else [[]]
    # A run that is stopped early may lack checkpoints.
    for average in chosen if code == STOPPED else ():
        code, error = _run(
            ["evaluate", *flags, *average, *config[1:]], seconds - (time.monotonic() - began)
        )
        if code != USER_ERROR:
            break
    return _row(recipe, workdir) | ({"failed": f"exit code {code}: {error}"} if code else {})


def _run(words: list[str], seconds: float) -> tuple[int, str]:
    """Return a command's exit code and last line of errors; after `seconds` it gets SIGTERM."""
    command = [sys.executable, "-m", "t2t_flax", *words]
    with subprocess.Popen(
        command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, env=variables()
    ) as process:
        try:
            _, errors = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate()
    print(errors, file=sys.stderr)
    return process.returncode, (errors.strip().splitlines() or ["no message"])[-1][:300]


def _row(recipe: Recipe, workdir: Path) -> dict[str, Any]:
    """Read the current results of a run."""
    from t2t_flax.training.progress import read_metrics

    lines = read_metrics(workdir)
    updates = [line for line in lines if "target_tokens_per_second" in line]
    row: dict[str, Any] = {"preset": recipe.preset, "keys": recipe.keys}
    if updates:
        last = updates[-1]
        row |= {
            "update": last["step"],
            "epoch": last["epoch"],
            "seconds": last["seconds"],
            "loss": round(last["loss"], 4),
        }
        row["target_tokens_per_second"] = round(last["target_tokens_per_second"])
    if records := sorted((workdir / "eval").glob("*.json"), key=lambda path: path.stat().st_mtime):
        record = parse_json(records[-1].read_text())
        score = record["scores"][recipe.score]
        row |= {
            "record": records[-1].name,
            "score": score["score"],
            "signature": score["signature"],
        }
    row |= {"published": recipe.published, "complete": (workdir / "complete.json").exists()}
    return row


def main(argv: list[str]) -> None:
    """Prepare the recipes."""
    parser = arguments.parser("published", __doc__ or "")
    parser.prog = "python -m benchmarks.published"
    parser.add_argument(
        "--data", required=True, type=Path, metavar="DIR", help="holds multi30k/ and iwslt15-envi/"
    )
    parser.add_argument(
        "--prepared", required=True, type=Path, metavar="DIR", help="gets texts and workdirs"
    )
    parser.add_argument(
        "--recipes", default=",".join(RECIPES), help="comma-separated (default: all)"
    )
    args, overrides = arguments.parse(parser, argv)
    for name in args.recipes.split(","):
        prepare(name, args.data, args.prepared, overrides)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"benchmarks.published: {error}")
