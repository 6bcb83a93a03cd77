"""Ways of fine-tuning the built-in model on a shifted text: everything, a part, adapters, another vocabulary.

    python -m benchmarks.fine_tuning --workdir=runs/fine-tuning --out=benchmarks/results/fine_tuning.json

The shift is German without capital letters, which most sentences need, in the first pairs of the built-in corpus. All rows have
the same pairs and updates; learning rates are one try each. Held-out sentences are scored in both spellings: what was learnt,
and what was forgotten. One core.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import machine, publish

BASE = "pretrained:toy"
TUNED = {"train.init_from": BASE}
WAYS: dict[str, dict[str, Any]] = {
    "everything": TUNED | {"optimizer.peak_lr": 1e-3},
    "decoder alone": TUNED | {"optimizer.peak_lr": 1e-3, "train.freeze": "encoder_* shared_embedding"},
    "adapters of rank 8, queries and values": TUNED | {"optimizer.peak_lr": 5e-3, "train.lora_rank": 8},
    "adapters of rank 8, all kernels": TUNED
    | {"optimizer.peak_lr": 5e-3, "train.lora_rank": 8, "train.lora_modules": "*"},
    "everything, new vocabulary by piece": TUNED | {"optimizer.peak_lr": 1e-3, "train.init_vocabulary": "by_piece"},
    "from scratch": {"optimizer.peak_lr": 3e-3},
}
COMMON = {
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 20,
    "data.valid": "",
    "data.test": "",
    "eval.every_steps": 0,
    "checkpoint.keep_best": 0,
    "log.tensorboard": False,
    "mesh.cpu_devices": 1,
    "decode.strategy": "greedy",
}


def scores(folder: str, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Percent of exact translations by greedy search, and nats per reference sentence."""
    from t2t_flax import load

    run = load(folder, overrides={"decode.strategy": "greedy", "mesh.data": -1})
    found = [translation.text for translation in run.translate([source for source, _ in pairs])]
    exact = 100 * np.mean([text == target for text, (_, target) in zip(found, pairs, strict=True)])
    nats = -np.mean([score.log_prob for score in run.score(pairs)])
    return {"exact_percent": round(float(exact), 1), "nats_per_sentence": round(float(nats), 3)}


def shape_of(folder: Path) -> dict[str, float]:
    """Trained parameters and MiB of optimizer state of a run."""
    import jax

    from t2t_flax.data.tokenizers import TokenizerPair
    from t2t_flax.training.model_summary import abstract_state
    from t2t_flax.training.train_state import count_params
    from t2t_flax.training.trainable import split
    from t2t_flax.training.workdir import read_config

    config, sizes = read_config(folder), TokenizerPair.load(folder / "tokenizer").vocab_sizes
    state = abstract_state(config, sizes)
    state_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.opt_state))
    trained = count_params(split(config, state.params)[0], config, *sizes)
    return {"trained_parameters": trained, "optimizer_state_mib": round(state_bytes / 2**20, 2)}


def main(argv: list[str] | None = None) -> None:
    """Trains, scores and writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.fine_tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", metavar="DIR", required=True, help="a new folder for the text and the runs")
    parser.add_argument("--pairs", type=int, default=2000, help="of training")
    parser.add_argument("--steps", type=int, default=120, help="updates of each run")
    parser.add_argument("--test", type=int, default=200, help="sentences of the test set")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    import t2t_flax
    from t2t_flax.data.sources import toy

    workdir = Path(args.workdir)
    workdir.mkdir(parents=True)
    for name, side in (("en", 0), ("de", 1)):
        lines = [pair[side].lower() if side else pair[side] for pair in toy.pairs("train", args.pairs)]
        (workdir / f"train.{name}").write_text("\n".join(lines) + "\n")
    usual = list(toy.pairs("test", args.test))
    shifted = [(english, german.lower()) for english, german in usual]
    rows = []
    for name, keys in {"not fine-tuned": {}, **WAYS}.items():
        folder = workdir / name.replace(" ", "-").replace(",", "")
        row: dict[str, Any] = {"way": name, "keys": {key: x for key, x in keys.items() if key != "train.init_from"}}
        if keys:
            text = f"{workdir / 'train.en'},{workdir / 'train.de'}"
            steps = {"data.train": text, "train.steps": args.steps, "log.every_steps": max(1, args.steps // 12)}
            t2t_flax.train("toy", folder, COMMON | steps | keys)
            row |= shape_of(folder)
        where = str(folder) if keys else BASE
        row |= {"shifted": scores(where, shifted), "usual": scores(where, usual)}
        rows.append(row)
        print(row, flush=True)
    record = {
        "what": f"fine-tuning {BASE} on {args.pairs} pairs of lower-case German, {args.steps} updates each; greedy search on "
        f"{args.test} test sentences",
        "command": f"python -m benchmarks.fine_tuning --pairs={args.pairs} --steps={args.steps} --test={args.test}",
        "common": COMMON,
        "rows": rows,
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
