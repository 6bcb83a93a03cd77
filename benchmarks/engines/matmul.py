"""This machine's peak: products of type `dtype` at the model's shapes, by JAX or PyTorch."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.engines.child import main, preloaded, torch_device, torch_threads

SECONDS = 0.4
"""Time that one shape is repeated."""


def shapes(size: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return (m, k, n): a large square, and the feed-forward layer and the logits of a batch."""
    tokens, d = size["tokens"], size["d_model"]
    return [
        (2048, 2048, 2048),
        (tokens, d, size["d_ff"]),
        (tokens, size["d_ff"], d),
        (tokens, d, size["vocab"]),
    ]


def rate(product: Callable[..., Any], *operands: Any, flops: float) -> float:
    """GFLOP/s of the fastest of many repetitions."""
    product(*operands)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        product(*operands)
        best = min(best, time.perf_counter() - began)
    return flops / best / 1e9


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """GFLOP/s at each shape."""
    rates, dtype = {}, task.get("dtype", "float32")
    if task["library"] == "jax":
        from t2t_flax.config import Config
        from t2t_flax.process_setup import prepare_process

        prepare_process(Config())
        import jax
        import jax.numpy as jnp

        program = jax.jit(jnp.dot)
        dot = lambda x, y: program(x, y).block_until_ready()  # noqa: E731
        for m, k, n in shapes(task["size"]):
            x, y = (
                jax.random.normal(jax.random.key(0), size, jnp.dtype(dtype))
                for size in ((m, k), (k, n))
            )
            rates[f"{m}x{k}x{n}"] = round(rate(dot, x, y, flops=2.0 * m * k * n), 1)
        return {"gflops": rates, "versions": {"jax": jax.__version__}}
    torch_threads(task)
    import torch

    device = torch_device()

    def mm(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.mm(x, y)
        if device.type == "cuda":
            torch.cuda.synchronize()

    for m, k, n in shapes(task["size"]):
        x, y = (
            torch.randn(size, device=device).to(getattr(torch, dtype)) for size in ((m, k), (k, n))
        )
        rates[f"{m}x{k}x{n}"] = round(rate(mm, x, y, flops=2.0 * m * k * n), 1)
    return {"gflops": rates, "versions": {"torch": torch.__version__}, "settings": preloaded()}


if __name__ == "__main__":
    main(measure)
