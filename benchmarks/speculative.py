"""Speculative decoding beside greedy search: tokens/s in turn, and how many proposals of the draft are kept.

    python -m benchmarks.speculative --workdir=RUN --draft=DIR --out=benchmarks/results/speculative.json

Sentences of the run's data.test, in batches of each of --batch_sizes (1: a line at a time). A first pass compiles; then each
search translates all in each round; rates by CPU time also hold on a busy machine. Which proposals are kept follows from the
outputs of greedy search: the draft's likeliest token after each of their beginnings is that token or not.
"""

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import command_of, machine, publish
from benchmarks.rounds import ratios, spread
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.dataset import split_source
from t2t_flax.decoding.batches import source_ids
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import TrainedModel, load
from t2t_flax.extensions.shared.scoring import PairIds, pair_batches
from t2t_flax.tasks import task_of


def agreements(draft: TrainedModel, lines: list[str], outputs: list[list[int]]) -> list[np.ndarray]:
    """For each token of the outputs, whether the draft would propose it after those before."""
    eos = [EOS] * draft.config.data.source_eos
    pairs = [
        PairIds(source_ids(draft.tokenizers.source, line) + eos, ids) for line, ids in zip(lines, outputs, strict=True)
    ]
    likeliest = jax.jit(lambda params, batch: jnp.argmax(draft.model.apply({"params": params}, batch), -1))
    found: dict[int, np.ndarray] = {}
    for chunk, batch in pair_batches(draft, pairs):
        with mesh_lib.use(draft.mesh):
            rows = np.asarray(likeliest(draft.params, batch))
        for i, row in zip(chunk, rows, strict=False):
            found[i] = row[: len(outputs[i])] == np.array(outputs[i])
    return [found[i] for i in range(len(outputs))]


def rounds_of(agreed: np.ndarray, tokens: int) -> int:
    """Rounds until all tokens of a sentence are written, of which each keeps at most `tokens` proposals."""
    count = rounds = 0
    while count < len(agreed):
        kept = 0
        while kept < tokens and count + kept < len(agreed) and agreed[count + kept]:
            kept += 1
        count, rounds = count + kept + 1, rounds + 1
    return rounds


def main(argv: list[str]) -> None:
    """Measures all searches and writes the record."""
    parser = argparse.ArgumentParser("python -m benchmarks.speculative", description=__doc__)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--tokens", default="2,4,8", help="numbers of proposed tokens")
    parser.add_argument("--batch_sizes", default="1,32")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    numbers, sizes = (list(map(int, text.split(","))) for text in (args.tokens, args.batch_sizes))
    model, draft = load(args.workdir), load(args.draft)
    lines = [pair[0] for pair in split_source(task_of(model.config), "test").read()][: args.sentences]
    rows, outputs = [], []
    for size in sizes:
        shared = {"decode.batch_size": str(size)}
        drafted = shared | {"decode.strategy": "speculative", "speculative.draft": args.draft}
        searches = {"greedy": shared | {"decode.strategy": "greedy"}}
        searches |= {f"{number} proposed": drafted | {"speculative.tokens": str(number)} for number in numbers}
        runs = {name: load(args.workdir, overrides=keys) for name, keys in searches.items()}
        groups = [[line] for line in lines] if size == 1 else [lines]
        texts: dict[str, list[list[int]]] = {}
        rates: dict[str, list[float]] = {name: [] for name in searches}
        cpu_rates: dict[str, list[float]] = {name: [] for name in searches}
        for number in range(args.rounds + 1):
            for name, run in runs.items():
                began, cpu_began = time.perf_counter(), time.process_time()
                found = [t.hypotheses[0] for group in groups for t in run.translate(group)]
                seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
                texts[name] = [[*each.tokens, *([] if each.hit_cap else [EOS])] for each in found]
                if number:
                    rates[name].append(sum(map(len, texts[name])) / seconds)
                    cpu_rates[name].append(sum(map(len, texts[name])) / cpu_seconds)
        outputs = texts["greedy"]
        rows += [
            {
                "batch_size": size,
                "search": name,
                "tokens_per_second": spread(rates[name]),
                "ratio": ratios(rates[name], rates["greedy"]),
                "tokens_per_cpu_second": spread(cpu_rates[name]),
                "cpu_ratio": ratios(cpu_rates[name], cpu_rates["greedy"]),
                "different_outputs": sum(a != b for a, b in zip(texts[name], outputs, strict=True)),
            }
            for name in searches
        ]
    agreed = agreements(draft, lines, outputs)
    count = sum(map(len, agreed))
    record = {
        "what": "speculative decoding beside greedy search, in turn",
        "command": command_of("speculative", argv),
        "sentences": len(lines),
        "output_tokens": count,
        "agreement": round(float(np.mean(np.concatenate(agreed))), 4),
        "tokens_a_round": {n: round(count / sum(rounds_of(each, n) for each in agreed), 3) for n in numbers},
        "median_output": statistics.median(map(len, outputs)),
        "rows": rows,
        "models": {
            name: {key: getattr(run.config.model, key) for key in ("d_model", "d_ff", "num_encoder_layers", "num_decoder_layers")}
            | {"parameters": sum(x.size for x in jax.tree.leaves(run.params))}
            for name, run in (("model", model), ("draft", draft))
        },
        "machine": machine(),
    }  # fmt: skip
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
