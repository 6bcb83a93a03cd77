"""Scaled dot-product, plain dot-product and additive attention (3.2.1): time, memory and saturation of the softmax.

    python -m benchmarks.attention_scores --out=benchmarks/results/attention_scores.json

Time and temporary memory are of the compiled forward and backward of scores, softmax and weighted sum of values, without
projections; the score functions alternate in each round. Saturation: mean over queries of sum_j p_j (1 - p_j) over 32 keys
with unit-variance components. 1 - 1/32 is uniform, 0 is all weight on one key; the softmax gradient is proportional to it.
"""

import argparse
import platform
import statistics
import time

import jax
import jax.numpy as jnp

from benchmarks.record import machine, publish
from t2t_flax.models.attention import SCORES
from t2t_flax.models.masks import masked_softmax

KEYS, QUERIES = 32, 4096


def program(score: str, rows: int, length: int, heads: int, d_k: int):
    """(compiled forward and backward, its inputs) of one score function at this shape."""
    module, shape = SCORES[score](), (rows, length, heads, d_k)
    q, k, v = (jax.random.normal(jax.random.key(i), shape) for i in range(3))
    params = jax.jit(module.init)(jax.random.key(3), q, k)

    def loss(params, q, k, v):
        weights = masked_softmax(module.apply(params, q, k), jnp.ones((1, 1, 1, length), bool))
        return jnp.sum(jnp.einsum("bnts,bsnh->btnh", weights, v) ** 2)

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(params, q, k, v).compile(), (params, q, k, v)


def saturation(score: str, d_k: int) -> float:
    """Mean over queries of sum p (1 - p) over 32 keys."""
    module = SCORES[score]()
    q, k = (jax.random.normal(jax.random.key(i), (QUERIES, n, 1, d_k)) for i, n in ((0, 1), (1, KEYS)))

    @jax.jit
    def mean(params):
        p = jax.nn.softmax(module.apply(params, q, k), axis=-1)
        return jnp.mean(jnp.sum(p * (1 - p), axis=-1))

    return float(mean(jax.jit(module.init)(jax.random.key(2), q, k)))


def main() -> None:
    """Prints the results and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="where to write the record (default: print it only)")
    parser.add_argument("--d_k", default="16,64,512", help="head widths")
    parser.add_argument("--length", type=int, default=64, help="number of queries and keys per row")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    widths = [int(x) for x in args.d_k.split(",")]
    programs = {(s, d): program(s, args.rows, args.length, args.heads, d) for d in widths for s in SCORES}
    times = {case: [] for case in programs}
    for _ in range(args.rounds + 1):
        for case, (compiled, inputs) in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(compiled(*inputs))
            times[case].append((time.perf_counter() - start) * 1e3)
    rows = [
        {
            "score": score,
            "d_k": d_k,
            "milliseconds": round(statistics.median(times[score, d_k][1:]), 4),
            "temporary_mib": round(compiled.memory_analysis().temp_size_in_bytes / 2**20, 3),
        }
        for (score, d_k), (compiled, _) in programs.items()
    ]
    record = {
        "what": "attention scores: forward + backward time, temporary memory, saturation of the softmax",
        "command": f"python -m benchmarks.attention_scores --d_k={args.d_k} --length={args.length} --heads={args.heads} "
        f"--rows={args.rows} --rounds={args.rounds}",
        "shape": {"rows": args.rows, "length": args.length, "heads": args.heads},
        "cost": rows,
        "saturation": {
            score: {str(d): round(saturation(score, d), 3) for d in sorted({4, *widths})} for score in SCORES
        },
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
