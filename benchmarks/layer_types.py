"""The layer types of the paper's Table 1: formulas, counted FLOPs, measured time, dependent chain and path length.

    python -m benchmarks.layer_types --out=FOLDER

Writes layer_types.json and layer_types.png. The layers are the model's own mixers in their encoder form, except that
recurrent ones are unidirectional, as in Table 1, and dilated convolutions are causal, as in ByteNet. Times are of the
compiled forward and backward pass: medians over rounds in which the layers alternate.
"""

import argparse
import concurrent.futures
import functools
import io
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from benchmarks.record import machine
from t2t_flax.config import Model
from t2t_flax.filesystem import atomic_write
from t2t_flax.models.mixer_inputs import MixerInputs
from t2t_flax.models.mixers import MIXERS, make_mixer

WINDOW, WIDTH = 17, 3
LAYERS: dict[str, dict[str, Any]] = {
    "attention": dict(keys={}, formula="4nd^2 + 2n^2 d", table="O(n^2 d)", chain="O(1)", path="O(1)"),
    "window": dict(
        keys=dict(attention_window=WINDOW), formula="4nd^2 + 2rnd", table="O(r n d)", chain="O(1)", path="O(n/r)"
    ),
    "lstm": dict(keys=dict(mixer="lstm"), formula="8nd^2", table="O(n d^2)", chain="O(n)", path="O(n)"),
    "gru": dict(keys=dict(mixer="gru"), formula="6nd^2", table="O(n d^2)", chain="O(n)", path="O(n)"),
    "conv": dict(
        keys=dict(mixer="conv", conv_kernel_size=WIDTH), formula="knd^2", table="O(k n d^2)", chain="O(1)", path="O(n/k)"
    ),
    "dilated_conv": dict(
        keys=dict(mixer="dilated_conv", conv_kernel_size=WIDTH),
        formula="knd^2", table="O(k n d^2)", chain="O(1)", path="O(log_k n)",
    ),
}  # fmt: skip


def path_formula(config: Model, n: int) -> int:
    """Number of layers to connect the ends of n positions; for recurrent layers the number of steps."""
    if config.mixer in ("lstm", "gru"):
        return n
    if config.mixer == "attention":
        return math.ceil((n - 1) / ((config.attention_window - 1) // 2)) if config.attention_window else 1
    if config.mixer == "conv":
        return math.ceil((n - 1) / (config.conv_kernel_size // 2))
    layers = 1
    while config.conv_kernel_size**layers < n:
        layers += 1
    return layers


def is_causal(config: Model) -> bool:
    """Whether the layer is measured in its causal form: recurrent layers and dilated convolutions."""
    return config.mixer in ("lstm", "gru", "dilated_conv")


@functools.cache
def layer_of(config: Model, depth: int = 0) -> tuple[Callable, Any]:
    """(function of (params, x [B, n, D]), params) of a mixer; each row is one segment."""
    module = make_mixer(config, jnp.dtype("float32"), causal=is_causal(config), depth=depth)

    def one_segment(x):
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        return x, MixerInputs(jnp.ones(x.shape[:2], jnp.int32), positions)

    init = jax.jit(lambda key: module.init(key, *one_segment(jnp.zeros((1, 4, config.d_model)))))
    return lambda params, x: module.apply(params, *one_segment(x)), init(jax.random.key(0))


def forward_flops(config: Model, n: int) -> float:
    """FLOPs of the matrix products for one row of n positions, by the mixer's formula."""
    mixer, _ = MIXERS[config.mixer]
    return 2 * mixer.multiply_adds(config, n, n * n, causal=is_causal(config))


def dependence(config: Model, n: int, depth: int = 0) -> np.ndarray:
    """bool [n, n]: whether output i of a layer depends on input j, from its Jacobian at a random point."""
    apply, params = layer_of(config, depth)
    x, direction = (jax.random.normal(jax.random.key(i), (*s, config.d_model)) for i, s in ((1, (n,)), (2, ())))
    jacobian = jax.jit(jax.jacrev(lambda x: apply(params, x[None])[0] @ direction))(x)
    return np.asarray(jnp.abs(jacobian).max(-1) > 0)


def layers_to_connect(config: Model, n: int) -> int:
    """Number of layers until every output depends on every input (causal layers: on every earlier input)."""
    goal = np.tril(np.ones((n, n), bool)) if is_causal(config) else np.ones((n, n), bool)
    reach, layers, single = np.eye(n, dtype=bool), 0, dependence(config, n)
    while not (reach == goal).all():
        if layers > n:
            raise RuntimeError(f"{config.mixer}: {n} layers do not connect {n} positions")
        step = dependence(config, n, layers) if config.mixer == "dilated_conv" else single
        reach, layers = step.astype(np.int32) @ reach > 0, layers + 1
    return layers


def dependent_chain(config: Model, n: int) -> int:
    """Longest chain of sequential steps in the layer's program: its loop iterations, or 1."""
    apply, params = layer_of(config)
    jaxpr = jax.make_jaxpr(apply)(params, jax.ShapeDtypeStruct((1, n, config.d_model), jnp.float32))
    return max(1, _chain(jaxpr.jaxpr))


def _chain(jaxpr) -> int:
    depth: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        before = max((depth.get(v, 0) for v in eqn.invars if not hasattr(v, "val")), default=0)
        inner = max((_chain(sub) for sub in _subprograms(eqn.params)), default=0)
        if eqn.primitive.name == "while":
            raise NotImplementedError("the number of iterations of a `while` loop is unknown before it runs")
        own = eqn.params["length"] * max(1, inner) if eqn.primitive.name == "scan" else inner
        depth |= dict.fromkeys(eqn.outvars, before + own)
    return max(depth.values(), default=0)


def _subprograms(params: dict[str, Any]):
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if hasattr(item, "jaxpr"):
                yield item.jaxpr
            elif hasattr(item, "eqns"):
                yield item


def path_length(config: Model, n: int) -> int:
    """Measured path length: number of layers to connect the ends, times the sequential steps in each."""
    return layers_to_connect(config, n) * dependent_chain(config, n)


def measure(configs: dict[str, Model], lengths: list[int], batch: int, rounds: int) -> dict[str, dict[int, float]]:
    """Milliseconds of forward and backward by layer and n; the layers alternate in each round."""
    programs = {}

    def build(name, n):
        apply, params = layer_of(configs[name])
        x = jax.random.normal(jax.random.key(n), (batch, n, configs[name].d_model))
        step = jax.jit(jax.grad(lambda p, x: jnp.sum(apply(p, x) ** 2), argnums=(0, 1)))
        return (name, n), (step.lower(params, x).compile(), (params, x))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = dict(pool.map(lambda pair: build(*pair), [(name, n) for name in configs for n in lengths]))
    repeats, times = {}, {case: [] for case in programs}
    for case, (program, inputs) in programs.items():
        jax.block_until_ready(program(*inputs))
        start = time.perf_counter()
        jax.block_until_ready(program(*inputs))
        repeats[case] = max(1, int(0.01 / (time.perf_counter() - start)))
    for _ in range(rounds):
        for case, (program, inputs) in programs.items():
            start = time.perf_counter()
            for _ in range(repeats[case]):
                out = program(*inputs)
            jax.block_until_ready(out)
            times[case].append((time.perf_counter() - start) / repeats[case] * 1e3)
    return {name: {n: statistics.median(times[name, n]) for n in lengths} for name in configs}


def draw(record: dict[str, Any], figure_class) -> bytes:
    """A PNG with one column per d_model: time above, counted FLOPs below."""
    widths, lengths = record["d_model"], record["n"]
    figure = figure_class(figsize=(4 * len(widths), 6.5), layout="constrained")
    axes = figure.subplots(2, len(widths), squeeze=False, sharex=True)
    for column, d in enumerate(widths):
        for name, layer in record["layers"].items():
            axes[0][column].plot(lengths, layer["milliseconds"][str(d)], marker="o", markersize=3, label=name)
            axes[1][column].plot(lengths, layer["forward_flops"][str(d)], marker="o", markersize=3, label=name)
        axes[0][column].set_title(f"d_model {d}", fontsize=10)
        axes[1][column].set_xlabel("n (positions)")
        for row in axes:
            row[column].set_xscale("log", base=2)
            row[column].set_yscale("log")
            row[column].grid(alpha=0.3)
    axes[0][0].set_ylabel(f"forward + backward, ms ({record['batch']} rows)")
    axes[1][0].set_ylabel("forward FLOPs by formula (1 row)")
    axes[0][0].legend(fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def main() -> None:
    """Prints the table and writes the record and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=".", help="folder for layer_types.json and layer_types.png")
    parser.add_argument("--n", default="16,32,64,128,256,512", help="lengths")
    parser.add_argument("--d_model", default="64,128,256", help="widths")
    parser.add_argument("--batch", type=int, default=4, help="rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path_n", type=int, default=64, help="number of positions for the measured path")
    args = parser.parse_args()
    lengths, widths = ([int(x) for x in text.split(",")] for text in (args.n, args.d_model))
    shape = lambda name, d: Model(d_model=d, num_heads=max(1, d // 32), **LAYERS[name]["keys"])  # noqa: E731
    layers = {}
    for name, layer in LAYERS.items():
        small = shape(name, 32)
        layers[name] = {
            **{k: layer[k] for k in ("table", "formula")},
            "order": {k: layer[k] for k in ("chain", "path")},
            "dependent_chain": [dependent_chain(small, n) for n in lengths],
            "path": {
                "n": args.path_n,
                "formula": path_formula(small, args.path_n),
                "measured": path_length(small, args.path_n),
            },
            "forward_flops": {str(d): [forward_flops(shape(name, d), n) for n in lengths] for d in widths},
            "milliseconds": {},
        }
    for d in widths:
        for name, times in measure({name: shape(name, d) for name in LAYERS}, lengths, args.batch, args.rounds).items():
            layers[name]["milliseconds"][str(d)] = [round(times[n], 4) for n in lengths]
        print(f"d_model {d} measured", flush=True)
    record = {
        "what": "layer types of Table 1: counted FLOPs (forward, 1 row), forward + backward time, chain, path length",
        "command": f"python -m benchmarks.layer_types --out=FOLDER --n={args.n} --d_model={args.d_model} --batch={args.batch} "
        f"--rounds={args.rounds} --path_n={args.path_n}",
        "n": lengths, "d_model": widths, "batch": args.batch, "window_r": WINDOW, "width_k": WIDTH,
        "layers": layers, "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "machine": machine(),
    }  # fmt: skip
    atomic_write(Path(args.out) / "layer_types.json", (json.dumps(record, indent=2) + "\n").encode())
    atomic_write(Path(args.out) / "layer_types.png", draw(record, Figure))
    n, d = lengths[-1], str(widths[-1])
    print(f"\n{'layer':13} {'per layer':11} {'products':15} {'MFLOP':>8} {'ms':>8} {'chain':>6} {'path':>5}/formula")
    for name, layer in layers.items():
        path = layer["path"]
        print(
            f"{name:13} {layer['table']:11} {layer['formula']:15} {layer['forward_flops'][d][-1] / 1e6:8.1f} "
            f"{layer['milliseconds'][d][-1]:8.2f} {layer['dependent_chain'][-1]:6} "
            f"{path['measured']:5}/{path['formula']}"
        )
    print(f"MFLOP (1 row), ms ({args.batch} rows) and chain at n {n}, d_model {d}; path at n {args.path_n}")


if __name__ == "__main__":
    main()
