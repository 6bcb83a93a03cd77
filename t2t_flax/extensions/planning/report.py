"""Formats a plan as text. Every number states its source; predictions are labelled as such."""

from typing import Any

from t2t_flax.config import Config
from t2t_flax.extensions.planning.chips import GIB, HOP_SECONDS
from t2t_flax.extensions.planning.roofline import sent_bytes
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.tables import text_table

MIB = 2.0**20


def describe(config: Config, topology: Topology, plan: dict[str, Any], *, store: str = "") -> str:
    """The whole plan of one machine."""
    sections = [
        [plan["machine"], f"  mesh {' x '.join(f'{n} {axis}' for axis, n in plan['mesh'].items())}"],
        _batch(plan, store),
        _memory(plan),
        _program(topology, plan),
        _time(config, plan),
        _decode(plan),
        _largest(plan),
        _assumptions(topology),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


_COLUMNS = (
    "topology", "chips", "mesh", "rows", "peak GiB", "of GiB", "traffic GiB", "sent MiB", "exchanges", "compute", "memory",
    "links", "ms/update", "bottleneck", "ideal ms", "tokens/s", "hours", "chip-hours",
)  # fmt: skip


def table(plans: list[dict[str, Any]]) -> str:
    """One line for each machine."""
    lines = text_table(_COLUMNS, [_row(plan) for plan in plans], right=_COLUMNS[1:])
    return (
        f"{lines}\nexchanges: how often an update sums gradients over devices. Times, rates and hours are predictions: "
        "rooflines, the least that is possible."
    )


def _row(plan: dict[str, Any]) -> tuple[str, ...]:
    train, p, shape = plan["train"], plan["prediction"], plan["shape"]
    shards = plan["mesh"]["data"] * plan["mesh"]["fsdp"]
    rows = f"{shape['micro']} x " * (shape["micro"] > 1) + f"{shape['rows'] // shards}"
    first = (plan["topology"], f"{plan['chips']}", "x".join(map(str, plan["mesh"].values())), rows)
    usable = f"{plan['usable_bytes'] / GIB:.2f}" if plan["usable_bytes"] else "-"
    if not train["fits"]:
        needed = f"{train['needed_bytes'] / GIB:.2f}" if train["needed_bytes"] else "-"
        return (*first, needed, usable, "does not fit", *("-",) * 11)
    sent = sum(sum(sent_bytes(row)) for row in train["collectives"])
    exchanges = f"{train['gradient_exchanges']['times']}" + " in loop" * train["gradient_exchanges"]["in_loop"]
    cells = (*first, f"{train['memory']['peak'] / GIB:.2f}", usable, f"{train['hbm_bytes'] / GIB:.2f}",
             f"{sent / MIB:,.0f}", exchanges)  # fmt: skip
    if not p:
        return (*cells, *("-",) * 9)
    times = [f"{seconds * 1e3:.2f}" for seconds in (p["compute"], p["memory"], p["ici"] + p["dcn"], p["seconds"])]
    rates = (f"{p['tokens_per_second']:,.0f}", f"{p['hours']:.2f}", f"{p['chip_hours']:,.1f}")
    return (*cells, *times, p["bottleneck"], f"{plan['ideal']['seconds'] * 1e3:.2f}", *rates)


def _batch(plan: dict[str, Any], store: str) -> list[str]:
    shape, slots = plan["shape"], plan["slots"]
    origin = f"from the store {store}" if store else "estimated from the config"
    fill = plan["tokens"] / slots
    lines = [
        f"batch ({origin})",
        f"  {shape['micro']} x {shape['rows']:,} rows of {shape['length']} = {slots:,} target slots, of which "
        f"{plan['tokens']:,.0f} hold tokens ({100 * fill:.0f} %)",
    ]
    if fill < 0.8:
        lines.append(
            "  Most of it is padding: more devices along the batch than rows. Raise config.data.batch_tokens or use "
            "fewer chips."
        )
    return lines


def _memory(plan: dict[str, Any]) -> list[str]:
    train, usable = plan["train"], plan["usable_bytes"]
    if not train["fits"]:
        needed, available = train["needed_bytes"], train["available_bytes"]
        sizes = f": it needs {needed / GIB:.2f} GiB, {available / GIB:.2f} GiB are available" if needed else ""
        return [
            f"memory: the train step does not fit, says the compiler{sizes}.",
            "  Lower config.data.microbatch_tokens, set config.train.remat=full, or raise config.mesh.fsdp or "
            "config.mesh.tensor.",
        ]
    m = train["memory"]
    lines = ["memory of a device in the train step, MiB (from the compiler)"]
    lines.append(f"  {'parameters, optimizer state':30} {plan['state_bytes'] / MIB:>12,.1f}  from the shardings")
    for key, name in (
        ("argument", "arguments"), ("output", "results"), ("alias", "results in place of arguments"),
        ("temp", "temporaries"), ("generated_code", "code"), ("peak", "peak"),
    ):  # fmt: skip
        lines.append(f"  {name:30} {m[key] / MIB:>12,.1f}")
    if usable:
        lines[-1] += f"  = {100 * m['peak'] / usable:.0f} % of the {usable / GIB:.2f} GiB that programs may use"
    return lines


def _program(topology: Topology, plan: dict[str, Any]) -> list[str]:
    train = plan["train"]
    lines = ["matrix products of one update by type (from the traced program)"]
    total = sum(row["flops"] for row in train["products"])
    for row in train["products"]:
        lines.append(
            f"  {row['types']:36} {row['count']:>6} products {100 * row['flops'] / total:>6.1f} % of the FLOPs"
        )
    if not train["fits"]:
        return lines
    calls = ", ".join(f"{target} ({count})" for target, count in train["custom_calls"].items())
    lines.append(f"  kernels called, not generated by XLA: {calls or 'none'}")
    if topology.platform == "gpu":
        lines.append("  Which kernels autotuning would choose on a GPU is not known here.")
    title = "collectives of one update, bytes on each device"
    return [*lines, "", *_collectives(train["collectives"], title), *_exchanges(train["gradient_exchanges"])]


def _exchanges(exchanges: dict[str, Any]) -> list[str]:
    times, size = exchanges["times"], exchanges["bytes"] / MIB
    if not times:
        return ["  gradients: no device adds those of another"]
    where = "in a loop" if exchanges["in_loop"] else "outside of loops"
    return [f"  gradients: exchanged {times} time{'s' * (times > 1)} an update, {where}, {size:,.2f} MiB in all"]


def _collectives(rows: list[dict[str, Any]], title: str) -> list[str]:
    if not rows:
        return [f"{title}: none"]
    lines = [f"{title} (from the optimized program)"]
    lines.append(f"  {'kind':18} {'axes':10} {'runs':>5} {'devices':>8} {'array MiB':>11} {'sent MiB':>10}  overlap")
    for row in sorted(rows, key=lambda r: -r["bytes"]):
        where = f"{row['devices']}" + (f" x {row['slices']}" if row["slices"] > 1 else "")
        note = ("yes" if row["overlaps"] else "no") + ("" if row["known"] else "; in a loop, one turn counted")
        sent = sum(sent_bytes(row))
        lines.append(
            f"  {row['kind']:18} {row['axes']:10} {row['runs']:>5} {where:>8} {row['bytes'] / MIB:>11,.2f} "
            f"{sent / MIB:>10,.2f}  {note}"
        )
    lines.append("  overlap: other work is scheduled between the start of the collective and its end")
    return lines


def _time(config: Config, plan: dict[str, Any]) -> list[str]:
    lines = [f"{plan['flops_per_device'] / 1e9:,.1f} GFLOPs an update on each device, padding included (formula)"]
    p, ideal = plan["prediction"], plan["ideal"]
    if ideal is None:
        return [*lines, "no time is predicted: there is no data sheet of this CPU"]
    lines += [
        f"ideal update: {ideal['seconds'] * 1e3:.3f} ms (products at peak {ideal['compute'] * 1e3:.3f}, parameters and "
        f"optimizer state read and written once {ideal['memory'] * 1e3:.3f})"
    ]
    if p is None:
        return lines
    return [
        *lines,
        "predicted time of an update, at best (roofline)",
        *_terms(p, plan["train"]["hbm_bytes"]),
        f"  {'update':22} {p['seconds'] * 1e3:>10.3f} ms, bottleneck: {p['bottleneck']}; "
        f"{p['seconds'] / ideal['seconds']:.1f} times the ideal",
        f"  {p['tokens_per_second']:,.0f} target tokens/s; {config.train.steps:,} updates in {p['hours']:.2f} hours = "
        f"{p['chip_hours']:,.1f} chip-hours, at best",
    ]


def _terms(p: dict[str, Any], traffic: float) -> list[str]:
    lines = [
        f"  {'compute':22} {p['compute'] * 1e3:>10.3f} ms",
        f"  {'memory':22} {p['memory'] * 1e3:>10.3f} ms  ({traffic / GIB:,.2f} GiB of memory traffic)",
        f"  {'links in a slice, host':22} {p['ici'] * 1e3:>10.3f} ms",
    ]
    if p["dcn"]:
        lines.append(f"  {'network':22} {p['dcn'] * 1e3:>10.3f} ms")
    if p["overlapping"]:
        lines.append(f"  {'of these overlapping':22} {p['overlapping'] * 1e3:>10.3f} ms")
    return lines


def _decode(plan: dict[str, Any]) -> list[str]:
    decode = plan.get("decode")
    if decode is None:
        return []
    if not decode["fits"]:
        return ["decode step: does not fit, says the compiler. Lower config.decode.batch_size."]
    m, p = decode["memory"], decode["prediction"]
    lines = [
        f"decode step: one target token of {decode['sentences']:,} sentences, sources of {decode['source_length']}, a "
        f"cache of {decode['cache_length']} tokens",
        f"  peak {m['peak'] / MIB:,.1f} MiB of a device (arguments {m['argument'] / MIB:,.1f}, temporaries "
        f"{m['temp'] / MIB:,.1f}), from the compiler",
        f"  memory traffic {decode['hbm_bytes'] / MIB:,.1f} MiB, {decode['hbm_bytes'] / decode['least_hbm_bytes']:.1f} times "
        f"the weights and caches read once ({decode['least_hbm_bytes'] / MIB:,.1f} MiB)",
        *_collectives(decode["collectives"], "  collectives of one token"),
    ]
    if p:
        lines += ["predicted time of one token, at best (roofline)", *_terms(p, decode["hbm_bytes"])]
        lines.append(f"  {'token':22} {p['seconds'] * 1e3:>10.3f} ms: {p['tokens_per_second']:,.0f} tokens/s at best")
    return lines


def _largest(plan: dict[str, Any]) -> list[str]:
    largest = plan.get("largest_batch")
    if largest is None:
        return []
    if largest["rows"] is None:
        return [f"largest batch: unknown, {largest['why']}."]
    verdict = "it fits" if largest["confirmed"] else "it does NOT fit: use less"
    return [
        f"largest batch: {largest['rows']} rows on a device, {largest['tokens_of_all_devices']:,} target slots on all; "
        f"compiled, {verdict} (peak {(largest['peak'] or 0) / GIB:.2f} GiB)",
        f"  from a line through the peaks at {' and '.join(map(str, largest['measured_rows']))} rows: "
        f"{largest['bytes_per_row'] / MIB:,.1f} MiB a row + {largest['bytes_without_rows'] / MIB:,.1f} MiB",
    ]


def _assumptions(topology: Topology) -> list[str]:
    chip = topology.chip
    if chip is None:
        return []
    lines = [
        f"assumptions: data sheet of {chip.kind}: {chip.peak_flops / 1e12:,.1f} bfloat16 TFLOP/s a device (float32 "
        f"products are slower), {chip.hbm_bytes / GIB:,.0f} GiB and {chip.hbm_bandwidth / 1e9:,.0f} GB/s a chip,",
        f"  links of {chip.link_bandwidth / 1e9:.0f} GB/s each way, {HOP_SECONDS * 1e6:.0f} us a hop (assumed), between "
        f"slices or hosts {chip.network_bandwidth / 1e9:.2f} GB/s a chip. No program reaches these speeds:",
        "  a real update takes longer. Host, input, evaluation, checkpoints, compilation and restarts are not counted.",
    ]
    if topology.platform == "gpu":
        lines.append("  JAX uses 75 % of a GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.")
    if chip.uncertain:
        lines.append(f"  uncertain: {chip.uncertain}.")
    if chip.cores_in_name > 1:
        lines.append("  The number in the vendor's name counts TensorCores, two to a chip.")
    return lines
