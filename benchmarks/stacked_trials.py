"""Throughput of trials in one vectorized train step (`sweep --stack`), relative to one trial after the other, and of one
trial on each core (`sweep --jobs`): trials times updates per second, measured in turns.

    python -m benchmarks.stacked_trials --out=benchmarks/results/stacked_trials.json
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import machine, publish

SIZES = {
    "d_model 16, 1 + 1 layers, 128 tokens": dict(d_model=16, d_ff=32, num_heads=2, layers=1, tokens=128),
    "d_model 64, 2 + 2 layers, 512 tokens": dict(d_model=64, d_ff=128, num_heads=4, layers=2, tokens=512),
    "d_model 128, 2 + 2 layers, 2,048 tokens (configs/toy.py)": dict(
        d_model=128, d_ff=512, num_heads=4, layers=2, tokens=2048
    ),
}


def measure(size: str, how: str, trials: int, updates: int, folder: str) -> float:
    """Trials times updates per second of one process, after its programs are compiled."""
    from t2t_flax import config as config_lib
    from t2t_flax.process_setup import prepare_process

    s = SIZES[size]
    c = config_lib.load_config("configs/toy.py")
    model = dataclasses.replace(
        c.model, d_model=s["d_model"], d_ff=s["d_ff"], num_heads=s["num_heads"], num_encoder_layers=s["layers"],
        num_decoder_layers=s["layers"], dropout=0.1,
    )  # fmt: skip
    data = dataclasses.replace(c.data, batch_tokens=s["tokens"], cache=folder, train="toy:train:6000")
    devices = 1 if how == "jobs" else os.cpu_count()
    mesh = dataclasses.replace(c.mesh, cpu_devices=devices)
    base = dataclasses.replace(c, model=model, data=data, mesh=mesh)
    prepare_process(base)
    import jax
    from etils import epath

    from t2t_flax.data.dataset import prepare_corpus
    from t2t_flax.tasks import task_of
    from t2t_flax.training.prefetch import put_batch
    from t2t_flax.training.setup import set_up_training
    from t2t_flax.training.train_state import init_state
    from t2t_flax.training.vectorized import SingleProgram, VectorizedProgram

    rates = [dataclasses.replace(base.optimizer, peak_lr=1e-3 * (1 + i)) for i in range(trials)]
    configs = [dataclasses.replace(base, optimizer=optimizer) for optimizer in rates]
    workdir = epath.Path(folder) / f"{how}{trials}"
    corpus = prepare_corpus(task_of(configs[0]), workdir)
    if how == "stacked":
        devices = [jax.devices()[i % devices] for i in range(trials)]
        runs = [
            set_up_training(c, workdir, corpus, devices=[device]) for c, device in zip(configs, devices, strict=True)
        ]
        step = VectorizedProgram(runs)
    else:
        runs, trials = [set_up_training(configs[0], workdir, corpus)], 1
        step = SingleProgram(runs[0])
    state = step.join([init_state(run.config, run.model, run.tx, run.mesh)[0] for run in runs])
    batches = [put_batch(runs[0].batches.batch(k), step.mesh).arrays for k in range(8)]
    for arrays in batches:
        state, metrics = step(state, arrays)
    jax.block_until_ready(metrics)
    began = time.perf_counter()
    for k in range(updates):
        state, metrics = step(state, batches[k % len(batches)])
        if k % 4 == 3:
            jax.block_until_ready(metrics)
    jax.block_until_ready(metrics)
    return trials * updates / (time.perf_counter() - began)


def in_processes(size: str, how: str, trials: int, updates: int, folder: str) -> float:
    """The rate of one process, or with "jobs" of one on each core, together."""
    cores = sorted(os.sched_getaffinity(0))
    sets = [[core] for core in cores] if how == "jobs" else [cores]
    arguments = [size, how, str(trials), str(updates), folder]
    command = [sys.executable, "-m", "benchmarks.stacked_trials", "--measure", *arguments]
    processes = [
        subprocess.Popen(["taskset", "-c", ",".join(map(str, own)), *command], stdout=subprocess.PIPE, text=True)
        for own in sets
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"{' '.join(command)} failed")
    return sum(json.loads(text.splitlines()[-1]) for text in outputs)


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", default="2,4,8")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--measure", nargs=5, metavar=("SIZE", "HOW", "TRIALS", "UPDATES", "FOLDER"), help=argparse.SUPPRESS
    )
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.measure:
        size, how, trials, updates, folder = args.measure
        print(json.dumps(measure(size, how, int(trials), int(updates), folder)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for n, size in enumerate(SIZES):
            folder = str(Path(name) / str(n))
            ways = [("apart", 1), ("jobs", 1), *(("stacked", int(t)) for t in args.trials.split(","))]
            rates: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
            for _ in range(args.rounds):
                for how, trials in ways:
                    rates[how, trials].append(in_processes(size, how, trials, args.updates, folder))
            for how, trials in ways[1:]:
                ratios = [a / b for a, b in zip(rates[how, trials], rates["apart", 1], strict=True)]
                rows.append({
                    "size": size, "how": how, "trials": trials, "ratio_to_apart": round(statistics.median(ratios), 3),
                    "ratios": [round(r, 3) for r in ratios],
                    "updates_per_second": round(statistics.median(rates[how, trials]), 2),
                    "updates_per_second_apart": round(statistics.median(rates["apart", 1]), 2),
                })  # fmt: skip
                print(rows[-1], flush=True)
    record = {
        "what": "trials x updates per second: stacked in one program, or one on each core (jobs), beside one after the other "
        "on all cores (apart)",
        "command": f"python -m benchmarks.stacked_trials --trials={args.trials} --updates={args.updates} --rounds={args.rounds}",
        "rows": rows,
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
