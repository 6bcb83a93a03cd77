"""Growth of the time of a train step and a search with length, width, vocabulary, batch and beam.

    python -m benchmarks.growth --out=benchmarks/results/growth.json

Each row doubles one size of a small model several times and gives the slope of time on log-log
axes, beside the slope of the counted FLOPs at the same points: 1 is linear. The points alternate in
each round. On one device, in this process.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engines.ours_training import config_of, row_arrays
from benchmarks.record import command_of, machine, publish

BASE = dict(layers=2, d_model=128, d_ff=512, heads=4, vocab=4000, dropout=0.1, rows=16, length=32)
TRAINING = {
    "length": {"length": [32, 64, 128, 256]},
    "width": {"d_model": [64, 128, 256, 512]},
    "vocabulary": {"vocab": [2000, 4000, 8000, 16_000]},
    "batch": {"rows": [8, 16, 32, 64]},
}
"""d_ff and the number of heads follow d_model."""
DECODING = {
    "beam": {"beam": [1, 2, 4, 8, 16]},
    "length": {"length": [16, 32, 64, 128]},
}


def point(changes: dict[str, int]) -> dict[str, Any]:
    """Return the sizes of a point; widths scale together, heads stay 32 wide."""
    size = BASE | changes
    return size | {"d_ff": 4 * size["d_model"], "heads": max(1, size["d_model"] // 32)}


def slope(xs: list[float], ys: list[float]) -> float:
    """Least-squares slope of log y over log x."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def training_step(size: dict[str, Any]) -> tuple[Callable[[], None], float]:
    """Return (a function that trains one step on full rows, its FLOPs)."""
    import jax

    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.flops import padded_tokens, training_products
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.parametrization import parametrization_of
    from t2t_flax.training.train_state import init_state, make_model
    from t2t_flax.training.train_step import jit_train_step

    c, vocab = config_of(size), size["vocab"]
    mesh = mesh_lib.make_mesh(c.mesh)
    model, parametrization = make_model(c, vocab, vocab), parametrization_of(c)
    tx = make_optimizer(c, parametrization)
    state, shardings = init_state(c, model, tx, parametrization, mesh)
    flops = training_products(c, vocab, state.params, parametrization).flops(
        c.model, padded_tokens(size["rows"], size["length"])
    )
    ids = np.random.default_rng(0).integers(3, vocab, (2, size["rows"], size["length"]), np.int32)
    batch = {k: jax.device_put(x) for k, x in row_arrays(*ids, 1).items()}
    with mesh_lib.use(mesh):
        step = jit_train_step(c, model, tx, parametrization, mesh, shardings)
        program = step.lower(state, batch).compile()

    def step() -> None:
        nonlocal state
        state, _ = program(state, batch)
        jax.block_until_ready(state)

    return step, flops


def search(size: dict[str, Any]) -> tuple[Callable[[], None], float]:
    """Return (a function that translates a batch to the cap, its FLOPs).

    Sources are as long as the outputs.
    """
    from types import SimpleNamespace

    from benchmarks.engines.ours_decoding import Ids
    from t2t_flax.decoding.translator import Translator
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.flops import Tokens, forward_products
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.parametrization import parametrization_of
    from t2t_flax.training.train_state import init_state, make_model

    c, vocab, beam, length = config_of(size), size["vocab"], size.get("beam", 4), size["length"]
    decode = dataclasses.replace(
        c.decode,
        batch_size=size["rows"],
        beam_size=beam,
        max_length_ratio=0.0,
        max_length_offset=length,
    )
    mesh = mesh_lib.make_mesh(c.mesh)
    model = make_model(c, vocab, vocab)
    parametrization = parametrization_of(c)
    tx = make_optimizer(c, parametrization)
    params = init_state(c, model, tx, parametrization, mesh)[0].params
    # The logit of EOS is then 0, which is never among the best: every hypothesis runs to the cap.
    table = params["shared_embedding"]["table"].at[1].set(0.0)
    params = params | {"shared_embedding": {"table": table}}
    ids = np.random.default_rng(0).integers(3, vocab, (size["rows"], length - 1))
    lines = [" ".join(map(str, row)) for row in ids.tolist()]
    translator = Translator(
        model,
        SimpleNamespace(source=Ids(), target=Ids()),
        mesh,
        dataclasses.replace(c, decode=decode),
    )

    def translate() -> None:
        translations = translator.translate(params, lines)
        assert all(t.hit_cap for t in translations), (
            "an output ended before its cap: the times are not comparable"
        )

    rows = float(size["rows"])
    sources = Tokens(rows * length, 0.0, rows * length**2, 0.0, 0.0)
    targets = Tokens(
        0.0, rows * beam * length, 0.0, rows * beam * length**2 / 2, rows * beam * length**2
    )
    products = forward_products(c.model, vocab, params)
    flops = products.flops(c.model, sources) + products.flops(c.model, targets)
    return translate, flops


def measure(
    make: Callable, cases: dict[str, dict[str, list[int]]], rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each case: sizes, fastest milliseconds, slopes of time and of FLOPs."""
    rows = []
    for name, [(key, values)] in ((name, case.items()) for name, case in cases.items()):
        points = [make(point({key: value})) for value in values]
        times = [[] for _ in points]
        for number in range(rounds + 1):
            for each, (step, _) in zip(times, points, strict=True):
                began = time.perf_counter()
                step()
                each += [time.perf_counter() - began] * (number > 0)  # the first calls compile
        fastest, flops = [min(each) for each in times], [f for _, f in points]
        row = {
            "what": name,
            "key": key,
            "values": values,
            "milliseconds": [float(f"{t * 1e3:.4g}") for t in fastest],
            "gflop": [float(f"{f / 1e9:.4g}") for f in flops],
            "slope": round(slope(values, fastest), 2),
            "slope_of_flops": round(slope(values, flops), 2),
            "last_slope": round(slope(values[-2:], fastest[-2:]), 2),
            "last_slope_of_flops": round(slope(values[-2:], flops[-2:]), 2),
        }
        print(
            f"{name}: slope {row['slope']}, of FLOPs {row['slope_of_flops']};"
            f" {row['milliseconds']} ms",
            flush=True,
        )
        rows.append(row)
    return rows


def main(argv: list[str]) -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--points", type=int, default=5, help="at most this many sizes in each row")
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write the record (default: print it)"
    )
    args = parser.parse_args(argv)
    from t2t_flax.process_setup import prepare_process

    notes = prepare_process(config_of(BASE))
    import jax

    training, decoding = (
        {
            name: {key: values[: args.points] for key, values in case.items()}
            for name, case in cases.items()
        }
        for cases in (TRAINING, DECODING)
    )
    record = {
        "what": "time of a train step and of a search as one size grows; slopes on log-log axes",
        "command": command_of("growth", argv),
        "base": BASE,
        "training": measure(training_step, training, args.rounds),
        "decoding": measure(search, decoding, max(2, args.rounds // 2)),
        "settings": ["float32", "1 device", *notes],
        "versions": {"jax": jax.__version__},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
