"""Throughput of the train step in real target tokens/s, against PyTorch's `nn.Transformer` of the same size.

    pip install -e '.[torch]' && python -m benchmarks.train_step --model=tiny --out=benchmarks/results/train_step_tiny.json

Both sides train on the same sentences, with lengths as in Multi30k (tiny) or WMT (base). Ours packs them as in training;
for PyTorch they are sorted by length and padded to the longest of the batch, the best it can do without packing. The
sides alternate in separate processes, so that neither affects the other; the ratio is computed per pair of
processes. Loss, optimizer (Adam) and dropout are equal: dropout on embeddings and sublayer outputs, but not on attention
weights or inside feed-forward layers, where nn.Transformer would apply it too.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
import time

from benchmarks.record import machine, publish

SIZES = {
    "tiny": dict(layers=4, d_model=128, d_ff=256, heads=4, vocab=10_000, tokens=4096, dropout=0.3, row=64, mean=14.5),
    "base": dict(layers=6, d_model=512, d_ff=2048, heads=8, vocab=32_000, tokens=2048, dropout=0.1, row=128, mean=27.0),
}


def sentences(size: dict, batches: int, seed: int = 0) -> list:
    """Batches of (source ids, target ids) with at most `tokens` real tokens per side; gamma-distributed lengths, seeded."""
    import numpy as np

    rng = np.random.default_rng(seed)
    out = []
    for _ in range(batches):
        batch, source_used, target_used = [], 0, 0
        while True:
            s = int(np.clip(rng.gamma(6, size["mean"] / 6), 3, size["row"] - 4))
            t = int(np.clip(s * rng.normal(1.0, 0.15), 3, size["row"] - 4))
            if max(source_used + s, target_used + t) > size["tokens"]:
                break
            batch.append(tuple(rng.integers(3, size["vocab"], n - 1).tolist() + [1] for n in (s, t)))
            source_used, target_used = source_used + s, target_used + t
        out.append(batch)
    return out


def run_ours(size: dict, batches: list, rounds: int, cpu_devices: int) -> dict:
    """Seconds per round over all batches with our train step, and details for the record."""
    from t2t_flax import config as config_lib
    from t2t_flax.process_setup import prepare_process

    c = config_lib.Config()
    model = dataclasses.replace(
        c.model, num_encoder_layers=size["layers"], num_decoder_layers=size["layers"], d_model=size["d_model"],
        d_ff=size["d_ff"], num_heads=size["heads"], dropout=size["dropout"], pad_vocab_to_multiple=8,
    )  # fmt: skip
    mesh = dataclasses.replace(c.mesh, cpu_devices=cpu_devices)
    train = dataclasses.replace(c.train, compile_cache="")
    c = dataclasses.replace(c, model=model, mesh=mesh, train=train)
    notes = prepare_process(c)
    import jax
    import numpy as np

    from t2t_flax.data.batching.packing import fill_rows, first_fit
    from t2t_flax.data.store.token_store import Sentences
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.train_state import init_state, make_model
    from t2t_flax.training.train_step import make_train_step

    mesh = mesh_lib.make_mesh(c.mesh)
    module, tx = make_model(c, size["vocab"], size["vocab"]), make_optimizer(c)
    state, shardings = init_state(c, module, tx, mesh)
    step = make_train_step(c, module, tx, mesh, shardings)
    lengths = [[np.array([len(p[n]) for p in b]) for n in (0, 1)] for b in batches]
    placements = [first_fit(*x, size["row"]) for x in lengths]
    shards = mesh_lib.batch_shards(mesh)
    rows = -(-max(int(p[0].max()) + 1 for p in placements) // shards) * shards
    device_batches = []
    for batch, (row, *starts), lens in zip(batches, placements, lengths, strict=True):
        arrays = {}
        for n, side in enumerate(("source", "target")):
            ids = np.concatenate([p[n] for p in batch])
            sentences = Sentences(ids, np.cumsum(lens[n]) - lens[n], lens[n])
            parts = fill_rows(sentences, np.arange(len(batch)), row, starts[n], (rows, size["row"]))
            arrays |= {side if k == "ids" else f"{side}_{k}": x[None] for k, x in parts.items()}
        rows_between = lambda first, last, arrays=arrays: {k: x[:, first:last] for k, x in arrays.items()}  # noqa: E731
        device_batches.append(
            mesh_lib.to_global(rows_between, arrays["target"].shape, mesh_lib.named(mesh, mesh_lib.MICRO_ROWS))
        )
    start = time.perf_counter()
    with mesh_lib.use(mesh):
        compiled = step.lower(state, device_batches[0]).compile()
        compile_seconds = time.perf_counter() - start
        seconds = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            for batch in device_batches:
                state, metrics = compiled(state, batch)
            jax.block_until_ready(state)
            seconds.append(time.perf_counter() - start)
    return {
        "seconds": seconds[1:],
        "compile_seconds": compile_seconds,
        "loss": float(metrics["loss"]),
        "settings": [*notes, f"{cpu_devices} CPU devices", f"packed rows: {rows} x {size['row']}"],
        "versions": {"jax": jax.__version__},
    }


def run_torch(size: dict, batches: list, rounds: int) -> dict:
    """The same with eager nn.Transformer: post-norm, tied embeddings, label smoothing, Adam."""
    import math

    import torch
    from torch import nn

    torch.manual_seed(0)
    d, vocab = size["d_model"], size["vocab"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocab, d, padding_idx=0)
            nn.init.normal_(self.embedding.weight, std=d**-0.5)
            self.body = nn.Transformer(
                d, size["heads"], size["layers"], size["layers"], size["d_ff"], size["dropout"], batch_first=True
            )
            self.dropout = nn.Dropout(size["dropout"])
            for layer in (*self.body.encoder.layers, *self.body.decoder.layers):
                layer.dropout.p = 0.0  # inside the feed-forward layer
                for module in layer.modules():
                    if isinstance(module, nn.MultiheadAttention):
                        module.dropout = 0.0  # of attention weights
            position = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
            self.register_buffer("table", torch.stack([position.sin(), position.cos()], -1).reshape(512, d))

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * math.sqrt(d) + self.table[: ids.shape[1]])

        def forward(self, source, shifted):
            hidden = self.body(
                self.embed(source),
                self.embed(shifted),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(shifted.shape[1]),
                src_key_padding_mask=source == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            return hidden @ self.embedding.weight.T

    model = Model().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)

    def padded(rows):
        out = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for i, row in enumerate(rows):
            out[i, : len(row)] = torch.tensor(row)
        return out

    # Sorted by length to minimize padding, as an eager loop without packing would.
    pairs = sorted((p for b in batches for p in b), key=lambda p: (len(p[1]), len(p[0])))
    tensors, chunk, used = [], [], 0
    for pair in pairs:
        if used + len(pair[1]) > size["tokens"]:
            tensors.append(tuple(padded([p[n] for p in chunk]) for n in (0, 1)))
            chunk, used = [], 0
        chunk.append(pair)
        used += len(pair[1])
    tensors.append(tuple(padded([p[n] for p in chunk]) for n in (0, 1)))

    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for source, target in tensors:
            shifted = torch.nn.functional.pad(target, (1, 0), value=1)[:, :-1]
            loss = criterion(model(source, shifted).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": seconds[1:],
        "loss": float(loss.detach()),
        "settings": [f"eager, float32, {torch.get_num_threads()} threads, sorted by length, padded to the longest"],
        "versions": {"torch": torch.__version__},
    }


def main() -> None:
    """Runs both sides alternately and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds over the batches per process")
    parser.add_argument("--repeats", type=int, default=3, help="processes per side, alternating")
    parser.add_argument("--cpu_devices", type=int, default=2, help="number of CPU devices for our side")
    parser.add_argument("--out", help="where to write the record (default: print it)")
    parser.add_argument("--side", choices=("ours", "torch"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = SIZES[args.model]
    batches = sentences(size, args.batches)
    if args.side:
        result = (
            run_ours(size, batches, args.rounds, args.cpu_devices)
            if args.side == "ours"
            else run_torch(size, batches, args.rounds)
        )
        print("RESULT " + json.dumps(result))
        return
    tokens = sum(len(t) for b in batches for _, t in b)
    sides = {"ours": [], "torch": []}
    for _ in range(args.repeats):
        for side, results in sides.items():
            command = [sys.executable, "-m", "benchmarks.train_step", f"--side={side}", f"--model={args.model}",
                       f"--batches={args.batches}", f"--rounds={args.rounds}", f"--cpu_devices={args.cpu_devices}"]  # fmt: skip
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                sys.exit(f"{side} failed:\n{out.stderr[-3000:]}")
            results.append(json.loads(out.stdout.split("RESULT ")[1]))
            speed = tokens / statistics.median(results[-1]["seconds"])
            print(f"{side}: {speed:,.0f} real target tokens/s", flush=True)
    speeds = {side: [tokens / statistics.median(r["seconds"]) for r in results] for side, results in sides.items()}
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["torch"], strict=True)]
    record = {
        "what": f"train step, {args.model}: real target tokens/s, ours beside torch nn.Transformer (eager, as installed)",
        "command": f"python -m benchmarks.train_step --model={args.model} --batches={args.batches} --rounds={args.rounds} "
        f"--repeats={args.repeats} --cpu_devices={args.cpu_devices}",
        "model": size,
        "target_tokens_per_round": tokens,
        "tokens_per_second": {s: {"median": statistics.median(v), "all": v} for s, v in speeds.items()},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "settings": {s: r[0]["settings"] for s, r in sides.items()},
        "compile_seconds": statistics.median(r["compile_seconds"] for r in sides["ours"]),
        "versions": sides["ours"][0]["versions"]
        | sides["torch"][0]["versions"]
        | {"python": platform.python_version()},
        "machine": machine(),
    }
    publish(record, args.out)


if __name__ == "__main__":
    main()
