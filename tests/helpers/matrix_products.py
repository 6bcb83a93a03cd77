"""The matrix products of a traced program."""

import math
from collections.abc import Iterator
from typing import Any

import jax


def matrix_products(jaxpr: Any) -> list[dict[str, Any]]:
    """The matrix products of a traced program by type, most FLOPs first.

    `types` such as "bfloat16 x bfloat16 -> float32", `count`, and `flops` on all devices. A while
    loop counts once, a scan each of its turns; where the program depends on the platform, the
    default counts.
    """
    sums: dict[str, dict[str, Any]] = {}
    for eqn, times, parts in _equations(jaxpr):
        if eqn.primitive.name != "dot_general":
            continue
        (left, right), (out,) = (v.aval for v in eqn.invars), (v.aval for v in eqn.outvars)
        types = f"{left.dtype} x {right.dtype} -> {out.dtype}"
        contracted = math.prod(left.shape[axis] for axis in eqn.params["dimension_numbers"][0][0])
        row = sums.setdefault(types, {"types": types, "count": 0, "flops": 0.0})
        row["count"] += times
        row["flops"] += 2.0 * out.size * contracted * times * parts
    return sorted(sums.values(), key=lambda row: -row["flops"])


def _equations(jaxpr: Any, times: int = 1, parts: int = 1) -> Iterator[tuple[Any, int, int]]:
    """Yield (equation, times that it runs, parts of its arrays: blocks of a kernel, devices)."""
    for eqn in jaxpr.eqns:
        yield eqn, times, parts
        params, name = eqn.params, eqn.primitive.name
        inner_times = times * (params["length"] if name == "scan" else 1)
        inner_parts = parts * (params["mesh"].size if name == "shard_map" else 1)
        inner_parts *= math.prod(params["grid_mapping"].grid) if name == "pallas_call" else 1
        inner = (
            params["branches"][-1:] if params.get("branches_platforms") else tuple(params.values())
        )
        for value in jax.tree.leaves(inner, is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(value, "eqns"):  # a Jaxpr, or a ClosedJaxpr
                yield from _equations(getattr(value, "jaxpr", value), inner_times, inner_parts)
