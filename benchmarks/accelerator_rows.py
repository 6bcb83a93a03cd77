"""Rows of `benchmarks.accelerator` that train on random pairs, and its self-test."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.environments import variables
from benchmarks.rounds import spread

Keys = dict[str, Any]
BLOCK, TRACED = 20, 3


def set_up(preset: str, keys: Keys, corpus: Path, workdir: Path) -> Any:
    """Return the `TrainingSetup` of a run on random pairs, which `corpus` keeps."""
    from t2t_flax.config import load_config
    from t2t_flax.process_setup import prepare_process

    config = load_config(preset, {name: str(value) for name, value in keys.items()})
    prepare_process(config)
    from etils import epath

    from benchmarks.input_rate import write_corpus
    from t2t_flax.data.dataset import Corpus
    from t2t_flax.data.token_store import TokenStore
    from t2t_flax.training.setup import set_up_training

    if not corpus.exists():
        pairs = max(2000, config.train.steps * config.data.batch_tokens // BLOCK)
        write_corpus(corpus, "wmt", pairs, config.data.vocab_size)
    sizes = (config.data.vocab_size, config.data.vocab_size)
    tokenizers = SimpleNamespace(vocab_sizes=sizes, digest="random")
    return set_up_training(
        config, epath.Path(workdir), Corpus(tokenizers, TokenStore.open(corpus), {})
    )


def train_row(preset: str, keys: Keys, updates: int) -> dict[str, Any]:
    """Train in this process and return the row. Prints it before tracing, which may fail."""
    fixed = {"train.steps": updates, "log.every_steps": BLOCK}
    with tempfile.TemporaryDirectory() as folder:
        setup = set_up(preset, fixed | keys, Path(folder, "store"), Path(folder, "run"))
        import jax

        from t2t_flax.training import loop
        from t2t_flax.training.attention_kernel import attention_kernel
        from t2t_flax.training.prefetcher import put_batch
        from t2t_flax.training.progress import read_metrics

        programs: dict[tuple[int, ...], Any] = {}
        compile_programs = loop.compile_programs
        loop.compile_programs = lambda *args: programs.update(compile_programs(*args)) or programs  # type: ignore[func-returns-value]
        end = loop.train(setup, None, lambda text: print(text, file=sys.stderr))
        lines = list(read_metrics(folder + "/run"))
    blocks = [line for line in lines if "target_tokens_per_second" in line][1:]
    shape = max(setup.batches.shapes, key=lambda shape: shape.slots)
    rates = [line["target_tokens_per_second"] for line in blocks]
    tokens = setup.batches.batch(0).target_tokens
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    row = {
        "preset": preset,
        "keys": keys,
        "attention": attention_kernel(setup.config, setup.model.dtype)[0],
        "shape": str(shape),
        "target_tokens": tokens,
        "target_tokens_per_second": spread(rates),
        "ms_an_update": round(1e3 * tokens / statistics.median(rates), 2),
        "bound_ms": bound(setup, shape),
        "mfu": {
            name: round(statistics.median(b[name] for b in blocks), 3)
            for name in blocks[0]
            if "mfu" in name
        },
        "peak_gib": used and round(used / 2**30, 2),
        "compile_seconds": round(end.seconds["compile"], 1),
        "losses": [round(lines[0]["loss"], 4), round(blocks[-1]["loss"], 4)],
        "versions": {"jax": jax.__version__},
    }
    print(json.dumps(row), flush=True)
    from benchmarks.device_trace import trace

    batches = [put_batch(setup.batches.batch(k), setup.mesh).arrays for k in range(TRACED)]
    state = end.state

    def update(k: int) -> None:
        nonlocal state
        state, metrics = programs[batches[k]["target"].shape](state, batches[k])
        jax.block_until_ready((state, metrics))

    return row | {"trace": trace(update, TRACED, programs[batches[0]["target"].shape].as_text())}


def resume_row(preset: str, keys: Keys, updates: int) -> dict[str, Any]:
    """Compare the state after 2 N updates with N updates, a new start, and N more."""
    from t2t_flax.training.checksums import checksums
    from t2t_flax.training.loop import train

    with tempfile.TemporaryDirectory() as folder:
        sums, losses = {}, {}
        for name, steps in (("whole", [2 * updates]), ("resumed", [updates, 2 * updates])):
            for last in steps:
                fixed = {"train.steps": last, "log.every_steps": last}
                setup = set_up(preset, fixed | keys, Path(folder, "store"), Path(folder, name))
                end = train(setup, None, lambda text: print(text, file=sys.stderr))
            sums[name] = checksums((end.state.params, end.state.opt_state))
            lines = Path(folder, name, "metrics.jsonl").read_text().splitlines()
            losses[name] = json.loads(lines[-1])["loss"]
    differ = [path for path, value in sums["whole"].items() if value != sums["resumed"][path]]
    return {
        "preset": preset,
        "keys": keys,
        "updates": [updates, 2 * updates],
        "equal": not differ,
        "arrays": len(sums["whole"]),
        "different": differ[:10],
        "losses": losses,
    }


def selftest_row(overrides: dict[str, str]) -> dict[str, Any]:
    """Run the self-test of base."""
    flags = [f"--config.{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "t2t_flax", "selftest", "--config=aiayn_base", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=variables(), check=False)
    print(done.stderr, file=sys.stderr)
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return {"says": said[-12:]} | (
        {"failed": f"exit code {done.returncode}"} if done.returncode else {}
    )


def bound(setup: Any, shape: Any) -> float | None:
    """Return the least milliseconds of an update, exchange left out; None without a data sheet."""
    import jax

    from t2t_flax.extensions.planning.chips import GPUS, TPUS
    from t2t_flax.extensions.planning.plan import roofline, update_flops
    from t2t_flax.extensions.planning.topology import Topology
    from t2t_flax.training.setup import resident_bytes

    kind = jax.devices()[0].device_kind.replace(" lite", "e")
    chip = next((chip for chip in (GPUS | TPUS).values() if kind.startswith(chip.kind)), None)
    flops = update_flops(setup.config, shape, setup.abstract.params) / setup.mesh.size
    line = roofline(
        Topology("here", "", chip, (setup.mesh.size,)),
        flops,
        2 * resident_bytes(setup.abstract),
        [],
    )
    return line and round(1e3 * line.seconds, 2)
