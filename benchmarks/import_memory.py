"""Peak memory of `import` for models in the shapes of NLLB-200, with random weights.

    python -m benchmarks.import_memory --out=benchmarks/results/import_memory.json

The weights are float32, in one file of safetensors for each layer. A shape takes twice its
weights on disk, in a temporary folder.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import command_of, machine, publish
from t2t_flax.data.sources import toy

PIECES, ROWS = 150, 256_206  # of the tokenizer, which takes little memory, and of the tables
SHAPES = {
    "600M": dict(d_model=1024, d_ff=4096, layers=12),
    "1.3B": dict(d_model=1024, d_ff=8192, layers=24),
    "3.3B": dict(d_model=2048, d_ff=8192, layers=24),
}


def train_sentencepiece() -> bytes:
    """Return a SentencePiece model of the built-in corpus, with fairseq's ids of special tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in toy.pairs("train", 200) for text in pair]),
        model_writer=model,
        vocab_size=PIECES,
        model_type="bpe",
        minloglevel=2,
        character_coverage=1.0,
    )
    return model.getvalue()


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of two languages, as transformers saves NLLB's."""
    (folder / "sentencepiece.bpe.model").write_bytes(train_sentencepiece())
    languages = {"additional_special_tokens": ["deu_Latn", "eng_Latn"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(languages))
    (folder / "tokenizer_config.json").write_text(json.dumps({"src_lang": "eng_Latn"}))


def layer(d_model: int, d_ff: int, attentions: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's arrays by their names in transformers."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc1.weight": (d_ff, d_model),
        "fc1.bias": (d_ff,),
        "fc2.weight": (d_model, d_ff),
        "fc2.bias": (d_model,),
    }
    for attention in attentions:
        for name in ("q", "k", "v", "out"):
            shapes[f"{attention}.{name}_proj.weight"] = (d_model, d_model)
            shapes[f"{attention}.{name}_proj.bias"] = (d_model,)
    for norm in [f"{attention}_layer_norm" for attention in attentions] + ["final_layer_norm"]:
        shapes |= {f"{norm}.weight": (d_model,), f"{norm}.bias": (d_model,)}
    return shapes


def write_model(folder: Path, d_model: int, d_ff: int, layers: int) -> int:
    """Write a model with random weights, and return their bytes."""
    from safetensors.numpy import save_file

    write_tokenizer(folder)
    config: dict[str, Any] = {"model_type": "m2m_100", "vocab_size": ROWS, "d_model": d_model}
    for stack in "encoder", "decoder":
        config |= {f"{stack}_layers": layers, f"{stack}_ffn_dim": d_ff}
        config[f"{stack}_attention_heads"] = d_model // 64
    (folder / "config.json").write_text(json.dumps(config))
    parts: dict[str, dict[str, tuple[int, ...]]] = {
        "table": {"model.shared.weight": (ROWS, d_model)}
    }
    for stack in "encoder", "decoder":
        attentions = ["self_attn"] + ["encoder_attn"] * (stack == "decoder")
        norm = f"model.{stack}.layer_norm"
        parts[f"{stack}-norm"] = {f"{norm}.weight": (d_model,), f"{norm}.bias": (d_model,)}
        for number in range(layers):
            parts[f"{stack}-{number}"] = {
                f"model.{stack}.layers.{number}.{name}": shape
                for name, shape in layer(d_model, d_ff, attentions).items()
            }
    random = np.random.default_rng(0).standard_normal(2**20, np.float32) * np.float32(0.02)
    files: dict[str, str] = {}
    for part, shapes in parts.items():
        file = f"{part}.safetensors"
        save_file({n: np.resize(random, shape) for n, shape in shapes.items()}, folder / file)
        files |= dict.fromkeys(shapes, file)
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return 4 * sum(int(np.prod(shape)) for shapes in parts.values() for shape in shapes.values())


def peak_memory(folder: Path, workdir: Path) -> int:
    """Import a folder in a process, and return its peak memory in bytes."""
    command = ["import", f"--from={folder}", f"--workdir={workdir}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", *command],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"python -m t2t_flax {' '.join(command)} failed")
    return usage.ru_maxrss * 1024


def measure(name: str) -> dict[str, Any]:
    """Return a row of the record."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        size = write_model(folder, **SHAPES[name])
        peak = peak_memory(folder, Path(temporary) / "run")
    return {
        "shape": name,
        **SHAPES[name],
        "weights_gib": round(size / 2**30, 2),
        "peak_gib": round(peak / 2**30, 2),
        "ratio": round(peak / size, 2),
    }


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.import_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--shapes", default="600M,1.3B", help=f"of {', '.join(SHAPES)} (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record")
    args = parser.parse_args(argv)
    record = {
        "what": "peak memory of the process of `import` with float32 random weights",
        "command": command_of("import_memory", argv),
        "rows": [measure(name) for name in args.shapes.split(",")],
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
