"""A run's test set decoded by CTranslate2 in float32, float16 and int8, beside the JAX search: equal outputs, and BLEU.

    python -m benchmarks.export_fidelity --workdir=runs/toy --out=benchmarks/results/export_fidelity_toy.json
    python -m benchmarks.export_fidelity --workdir=runs/toy --passes=5        and sentences/s, on a quiet machine

All by `Loaded.translate`'s own engines with `decode.length_penalty=power` and `decode.early_stopping=beam_full`, with each beam
size. An output that differs counts as a near tie if its score differs by rounding at most. float16 is a type of the file: on a
CPU CTranslate2 multiplies in float32 (`multiplies_in`). Passes of the engines alternate; the first, which compiles, is not timed.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.decoding import NEAR_TIE, agreement
from benchmarks.record import machine, publish
from benchmarks.rounds import threads

TYPES = ("float32", "float16", "int8")
RULES = {"decode.length_penalty": "power", "decode.early_stopping": "beam_full", "decode.n_best": "1"}


def exported(run: Any, kind: str, folder: Path) -> Any:
    """The run's model in CTranslate2 with matrices of this type."""
    import ctranslate2

    from t2t_flax.extensions.interop.ctranslate2_export import write_ctranslate2

    vocabularies = tuple([str(i) for i in range(s.vocab_size)] for s in (run.tokenizers.source, run.tokenizers.target))
    quantization = None if kind == "float32" else kind
    write_ctranslate2(folder, run.config.model, run.params, vocabularies, source_eos=False, quantization=quantization)
    return ctranslate2.Translator(str(folder), inter_threads=threads(), intra_threads=1)


def measure(run: Any, pairs: list[tuple[str, str]], models: dict[str, Any], passes: int) -> dict[str, Any]:
    """The entry of each engine for the run's beam size."""
    from t2t_flax.evaluation.evaluate import compute_scores
    from t2t_flax.extensions.interop.ctranslate2_translator import CTranslate2Translator
    from t2t_flax.tasks import task_of

    task, left = task_of(run.config), 0
    sources = [task.preprocess_source(source) for source, _ in pairs]
    by_jax = run.engine.translate

    def jax_translate(lines: list[str], prefixes: list[str]) -> list[Any]:
        nonlocal left
        left += len(lines)
        return by_jax(lines, prefixes=prefixes)

    engines: dict[str, Callable[..., list[Any]]] = {"jax": by_jax}
    for kind, model in models.items():
        engines[kind] = CTranslate2Translator(
            model, run.tokenizers, run.config.model, run.config.decode, jax_translate,
            source_eos=run.config.data.source_eos,
        ).translate  # fmt: skip
    entries, results, seconds = {}, {}, {name: [] for name in engines}
    for name, translate in engines.items():
        left = 0
        done = [t.hypotheses[0] for t in translate(sources)]
        results[name] = {"outputs": [h.tokens for h in done], "scores": [h.score for h in done]}
        predictions = task.predictions([s for s, _ in pairs], [h.text for h in done], [[t for _, t in pairs]])
        scores = compute_scores(run.config, task.metrics[:1], predictions)
        entries[name] = {metric: round(score["score"], 2) for metric, score in scores.items()}
        if name != "jax":
            same = [a == b for a, b in zip(results["jax"]["outputs"], results[name]["outputs"], strict=True)]
            differences = [abs(a - b) for a, b in zip(results["jax"]["scores"], results[name]["scores"], strict=True)]
            largest = max((d for d, equal in zip(differences, same, strict=True) if equal), default=0.0)
            entries[name] |= agreement(results["jax"], results[name]) | {
                "largest_score_difference_of_equal_outputs": float(f"{largest:.2g}"),
                "decoded_by_jax": left,
                "multiplies_in": models[name].compute_type,
            }
    for _ in range(passes):
        for name, translate in engines.items():
            began = time.perf_counter()
            translate(sources)
            seconds[name].append(time.perf_counter() - began)
    for name, each in seconds.items():
        if each:
            entries[name]["sentences_per_second"] = float(f"{len(sources) / statistics.median(each):.4g}")
            entries[name]["seconds"] = [round(s, 3) for s in each]
    return entries


def main(argv: list[str] | None = None) -> None:
    """Decodes with all engines and writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.export_fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workdir", required=True, metavar="DIR", help="a trained run; its test set is decoded")
    parser.add_argument("--sentences", type=int, help="the first of the set (default: all)")
    parser.add_argument("--beams", default="1,4", help="beam sizes (default: 1,4)")
    parser.add_argument("--passes", type=int, default=0, help="timed passes of each engine (default: none)")
    parser.add_argument("--data-root", metavar="DIR", help="folder of the test set, if not the run's")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)

    from t2t_flax.evaluation.restore import load, stored_config
    from t2t_flax.process_setup import prepare_process

    overrides = RULES | {"mesh.cpu_devices": str(threads()), "mesh.data": "-1", "mesh.fsdp": "1", "mesh.tensor": "1"}
    overrides |= {"data.root": args.data_root} if args.data_root else {}
    prepare_process(stored_config(args.workdir, overrides))
    import ctranslate2
    import jax

    from t2t_flax.data.dataset import sets_of, split_source
    from t2t_flax.tasks import task_of

    run = load(args.workdir, overrides=overrides)
    source = split_source(task_of(run.config), sets_of(run.config, "test")[0])
    pairs = list(source.pairs())[: args.sentences]
    beams = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for kind in TYPES:
            Path(folder, kind).mkdir()
            models[kind] = exported(run, kind, Path(folder, kind))
        sizes = {kind: Path(folder, kind, "model.bin").stat().st_size for kind in TYPES}
        for size in map(int, args.beams.split(",")):
            decode = dataclasses.replace(run.config.decode, beam_size=size)
            config = dataclasses.replace(run.config, decode=decode)
            beams[str(size)] = measure(dataclasses.replace(run, config=config), pairs, models, args.passes)
    name, keys = Path(args.workdir).name, run.config.model
    words = ["python -m benchmarks.export_fidelity", f"--workdir=runs/{name}", f"--beams={args.beams}"]
    words += [f"--sentences={args.sentences}"] if args.sentences else []
    words += [f"--passes={args.passes}"] if args.passes else []
    record = {
        "what": f"{name}: outputs of CTranslate2 beside those of the JAX search under the same rules",
        "command": " ".join(words),
        "model": {k: getattr(keys, k) for k in ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers")}
        | {"vocab": run.tokenizers.target.vocab_size, "steps": list(run.steps)},
        "data": {"corpus": run.config.data.corpus, "spec": source.spec, "sentences": len(pairs)},
        "search": {**RULES, "decode.alpha": run.config.decode.alpha, "near_tie": NEAR_TIE},
        "beams": beams,
        "bytes": sizes,
        "versions": {"jax": jax.__version__, "ctranslate2": ctranslate2.__version__},
        "machine": machine(),
    }  # fmt: skip
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
