"""Model FLOPs utilization (MFU): FLOP/s of a run over the peak of its devices."""

import time

import jax
import jax.numpy as jnp

from t2t_flax.data.batching.rows import HostBatch
from t2t_flax.extensions.planning.chips import data_sheet_peak
from t2t_flax.training.flops import Products, padded_tokens, real_tokens, training_products
from t2t_flax.training.hooks import Hook
from t2t_flax.training.parts import DeviceBatch, TrainingSetup


def hooks(setup: TrainingSetup) -> list[Hook]:
    """Return a hook that adds `mfu_*` to the lines of metrics.jsonl.

    The value is the utilization since the line before.
    """
    products = training_products(
        setup.config, setup.model.target_vocab, setup.abstract.params, setup.parametrization
    )
    peaks = peaks_of(setup)
    hardware = useful = tokens = 0.0

    def add(step: int, batch: DeviceBatch, values: dict[str, float]) -> None:
        nonlocal hardware, useful, tokens
        of_slots, of_tokens = update_flops(setup, batch.host, products)
        hardware, useful, tokens = (
            hardware + of_slots,
            useful + of_tokens,
            tokens + batch.host.target_tokens,
        )
        if "target_tokens_per_second" in values:
            seconds = tokens / values["target_tokens_per_second"]
            values |= mfu(hardware, useful, seconds, peaks)
            hardware = useful = tokens = 0.0

    return [Hook("update", add)]


def update_flops(run: TrainingSetup, batch: HostBatch, products: Products) -> tuple[float, float]:
    """Return (FLOPs of all slots of an update's batch, FLOPs of its real tokens)."""
    shape, lengths = batch.shape, [side.lengths for side in batch.sides]
    slots, real = padded_tokens(shape.rows * shape.micro, shape.length), real_tokens(*lengths)
    return products.flops(run.config.model, slots), products.flops(run.config.model, real)


def peaks_of(run: TrainingSetup) -> dict[str, float | None]:
    """Return the FLOP/s of all devices of a run: measured, and by data sheet.

    None where there is no data sheet or products are not bfloat16.
    """
    count = run.mesh.size
    sheet = data_sheet_peak(jax.devices()[0]) if run.model.dtype == jnp.bfloat16 else None
    measured = measured_peak(run.model.dtype, precision=run.model.matmul_precision)
    # Simulated devices share cores, which a single product already saturates.
    return {
        "data_sheet": sheet and sheet * count,
        "measured": measured * (1 if jax.default_backend() == "cpu" else count),
    }


def measured_peak(
    dtype: jnp.dtype, size: int | None = None, *, precision: str | None = None
) -> float:
    """Return the FLOP/s of one device in a square product, the best of three.

    Args:
        dtype: type of the product.
        precision: its `jax.default_matmul_precision`.
    """
    size = size or (1024 if jax.default_backend() == "cpu" else 8192)
    # At the power limit, products of ones are faster than products of training values.
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    product(x, x).block_until_ready()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def mfu(
    hardware_flops: float, useful_flops: float, seconds: float, peaks: dict[str, float | None]
) -> dict[str, float]:
    """Return `mfu_hardware_measured`, ...: FLOP/s over each known peak of all devices.

    FLOP/s are counted for all tokens and for real ones.
    """
    return {
        f"mfu_{name}_{kind}": flops / seconds / peak
        for kind, peak in peaks.items()
        if peak
        for name, flops in (("hardware", hardware_flops), ("useful", useful_flops))
    }
