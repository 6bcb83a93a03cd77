"""Format a plan as text.

Every number states its source: the compiler, a formula or a data sheet.
"""

from typing import Any

from t2t_flax.config import Config
from t2t_flax.extensions.planning.chips import GIB, HOP_SECONDS
from t2t_flax.extensions.planning.plan import sent_bytes
from t2t_flax.extensions.planning.topology import Topology

MIB = 2.0**20
ESTIMATE = "the compiler's, never compared with a TPU; exchange and Pallas kernels excluded"


def describe(config: Config, topology: Topology, plan: dict[str, Any]) -> str:
    """Return the plan of one machine."""
    mesh = " x ".join(f"{n} {axis}" for axis, n in plan["mesh"].items())
    sections = [[plan["machine"], f"  mesh {mesh}"], _batch(plan), _memory(plan)]
    if plan["train"]["fits"]:
        sections.append(_program(plan["train"]))
    sections += [_time(config, plan), _assumptions(topology)]
    return "\n\n".join("\n".join(section) for section in sections if section)


def table(plans: list[dict[str, Any]]) -> str:
    """Return one line for each machine."""
    names = (
        "topology chips mesh rows peak_GiB of_GiB sent_MiB exchanges bound_ms bottleneck traffic_ms"
        " kernels estimate_ms tokens/s hours chip-hours"
    )
    rows = [tuple(name.replace("_", " ") for name in names.split()), *map(_row, plans)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:{'>' if i else '<'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines += [
        (
            "exchanges: how often an update sums gradients over devices. bound: products, state and"
            " exchange by data sheet."
        ),
        f"traffic: bytes of a GPU program by data sheet. estimate: {ESTIMATE}.",
        "tokens/s and hours: by the longest of the three times. A real update takes longer.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(plan: dict[str, Any]) -> tuple[str, ...]:
    train, bound, rates, shape = plan["train"], plan["bound"], plan["rates"], plan["shape"]
    shards = plan["mesh"]["data"] * plan["mesh"]["fsdp"]
    rows = f"{shape['micro']} x " * (shape["micro"] > 1) + f"{shape['rows'] // shards}"
    first = (plan["topology"], f"{plan['chips']}", "x".join(map(str, plan["mesh"].values())), rows)
    usable = _gib(plan["usable_bytes"])
    if not train["fits"]:
        return (*first, _gib(train["needed_bytes"]), usable, "does not fit", *("-",) * 9)
    sent = sum(sum(sent_bytes(row)) for row in train["collectives"])
    exchanges = (
        f"{train['gradient_exchanges']['times']}"
        + " in loop" * train["gradient_exchanges"]["in_loop"]
    )
    cells = (*first, _gib(train["memory"]["peak"]), usable, f"{sent / MIB:,.0f}", exchanges)
    if not bound:
        return (*cells, *("-",) * 8)
    traffic, estimate = train["traffic"], train["estimate"]
    return (
        *cells,
        _ms(bound["seconds"]),
        bound["bottleneck"],
        *((_ms(traffic["seconds"]), f"{traffic['kernels']:,}") if traffic else ("-", "-")),
        _ms(estimate and estimate["seconds"]),
        f"{rates['tokens_per_second']:,.0f}",
        f"{rates['hours']:.2f}",
        f"{rates['chip_hours']:,.1f}",
    )


def _gib(size: float | None) -> str:
    return f"{size / GIB:.2f}" if size else "-"


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.2f}" if seconds else "-"


def _batch(plan: dict[str, Any]) -> list[str]:
    shape, slots = plan["shape"], plan["slots"]
    fill = plan["tokens"] / slots
    lines = [
        (
            f"batch: {shape['micro']} x {shape['rows']:,} rows of {shape['length']} = {slots:,}"
            f" target slots, of which {plan['tokens']:,.0f} hold tokens ({100 * fill:.0f} %)"
        ),
    ]
    if fill < 0.8:
        lines.append(
            "  Most of the rest is padding: raise config.data.batch_tokens or use fewer chips."
        )
    return lines


def _memory(plan: dict[str, Any]) -> list[str]:
    train = plan["train"]
    if not train["fits"]:
        return [
            (
                "memory: the train step does not fit, says the compiler: it needs"
                f" {_gib(train['needed_bytes'])} GiB of {_gib(train['available_bytes'])} GiB."
            ),
            (
                "  Lower config.data.microbatch_tokens, set config.train.remat=full, or raise"
                " config.mesh.fsdp or config.mesh.tensor."
            ),
        ]
    sizes = {
        "parameters, optimizer state": plan["state_bytes"],
        "temporaries": train["memory"]["temp"],
        "peak": train["memory"]["peak"],
    }
    lines = ["memory of a device in the train step, MiB (from the compiler)"]
    lines += [f"  {name:30} {size / MIB:>12,.1f}" for name, size in sizes.items()]
    if usable := plan["usable_bytes"]:
        share = 100 * train["memory"]["peak"] / usable
        lines[-1] += f"  = {share:.0f} % of the {_gib(usable)} GiB that programs may use"
    return lines


def _program(train: dict[str, Any]) -> list[str]:
    """Return the kernels and collectives of the optimized program."""
    calls = ", ".join(f"{target} ({count})" for target, count in train["custom_calls"].items())
    rows = sorted(train["collectives"], key=lambda row: -row["bytes"])
    lines = [f"kernels called, not generated by XLA: {calls or 'none'}", ""]
    lines.append(f"collectives of one update, bytes on each device{'' if rows else ': none'}")
    heads = ("kind", "axes", "runs", "devices", "array MiB", "sent MiB", "beside other work")
    form = "  {:18} {:10} {:>5} {:>8} {:>11} {:>10}  {}"
    lines += [form.format(*heads)] if rows else []
    for row in rows:
        where = f"{row['devices']}" + (f" x {row['slices']}" if row["slices"] > 1 else "")
        note = ("yes" if row["overlaps"] else "no") + (
            "" if row["known"] else "; in a loop, one turn counted"
        )
        sizes = (f"{size / MIB:,.2f}" for size in (row["bytes"], sum(sent_bytes(row))))
        lines.append(form.format(row["kind"], row["axes"], row["runs"], where, *sizes, note))
    exchanges = train["gradient_exchanges"]
    where, size = (
        "in a loop" if exchanges["in_loop"] else "outside of loops",
        exchanges["bytes"] / MIB,
    )
    return [
        *lines,
        f"  gradients: exchanged {exchanges['times']} x an update, {where}, {size:,.2f} MiB in all",
    ]


def _time(config: Config, plan: dict[str, Any]) -> list[str]:
    lines = [
        f"{plan['flops_per_device'] / 1e9:,.1f} GFLOPs an update on each device, padding included"
        " (formula)"
    ]
    bound, rates = plan["bound"], plan["rates"]
    if bound is None:
        return (
            lines
            if plan["usable_bytes"]
            else [*lines, "no least time: there is no data sheet of this CPU"]
        )
    lines.append("least time of an update, ms (formulas, by data sheet)")
    terms = {
        "products at peak": "compute",
        "state read and written": "memory",
        "links in a slice, host": "ici",
        "network": "dcn",
        "of these overlapping": "overlapping",
    }
    lines += [f"  {name:22} {bound[key] * 1e3:>10.3f}" for name, key in terms.items()]
    lines.append(
        f"  {'bound':22} {bound['seconds'] * 1e3:>10.3f}, bottleneck: {bound['bottleneck']}"
    )
    return [
        *lines,
        *_compiled_time(plan["train"]),
        (
            f"by the longest of these times: {rates['tokens_per_second']:,.0f} target tokens/s;"
            f" {config.train.steps:,} updates in {rates['hours']:.2f} hours ="
            f" {rates['chip_hours']:,.1f} chip-hours. A real update takes longer."
        ),
    ]


def _compiled_time(train: dict[str, Any]) -> list[str]:
    """Return the bytes of a GPU program, the cycles of a TPU program."""
    if traffic := train["traffic"]:
        return [
            f"bytes that the program moves: {traffic['bytes'] / 1e9:,.1f} GB ="
            f" {traffic['seconds'] * 1e3:.1f} ms at the data sheet's bandwidth,"
            f" {traffic['kernels']:,} kernels, of which {traffic['custom_calls']:,} custom calls"
        ]
    if estimate := train["estimate"]:
        time = f" = {estimate['seconds'] * 1e3:.1f} ms" if estimate["seconds"] else ""
        calls = f": {estimate['custom_calls']:,}" if estimate["custom_calls"] else ""
        return [
            f"estimate: {estimate['cycles'] / 1e6:,.1f} million cycles{time}, {ESTIMATE}{calls}"
        ]
    return []


def _assumptions(topology: Topology) -> list[str]:
    chip = topology.chip
    if chip is None:
        return []
    return [
        (
            f"assumptions: data sheet of {chip.kind}: {chip.peak_flops / 1e12:,.1f} bfloat16"
            f" TFLOP/s a device, {chip.hbm_bytes / GIB:,.0f} GiB and"
            f" {chip.hbm_bandwidth / 1e9:,.0f} GB/s a chip,"
        ),
        (
            f"  links of {chip.link_bandwidth / 1e9:.0f} GB/s each way, {HOP_SECONDS * 1e6:.0f} us"
            f" a hop (assumed), {chip.network_bandwidth / 1e9:.2f} GB/s a chip between slices or"
            " hosts."
        ),
        (
            "  Host, input, evaluation and checkpoints are not counted. Bytes are counted as if no"
            " cache kept any."
        ),
        *(
            ["  JAX uses 75 % of a GPU's memory (XLA_PYTHON_CLIENT_MEM_FRACTION)."]
            if chip.target
            else []
        ),
        *([f"  uncertain: {chip.uncertain}."] if chip.uncertain else []),
    ]
