"""Formats a plan as text. Every number states its source; predictions are labelled as such."""

import io
from typing import Any

import rich.console
import rich.table

from t2t_flax.config import Config
from t2t_flax.extensions.planning.chips import GIB, HOP_SECONDS
from t2t_flax.extensions.planning.plan import sent_bytes
from t2t_flax.extensions.planning.topology import Topology

MIB = 2.0**20


def describe(config: Config, topology: Topology, plan: dict[str, Any], *, store: str = "") -> str:
    """The whole plan of one machine."""
    mesh = " x ".join(f"{n} {axis}" for axis, n in plan["mesh"].items())
    sections = [[plan["machine"], f"  mesh {mesh}"], _batch(plan, store), _memory(plan)]
    if plan["train"]["fits"]:
        sections.append(_program(plan["train"]))
    sections += [_time(config, plan), _largest(plan), _assumptions(topology)]
    return "\n\n".join("\n".join(section) for section in sections if section)


_COLUMNS = (
    "topology", "chips", "mesh", "rows", "peak GiB", "of GiB", "sent MiB", "exchanges", "ms/update", "bottleneck", "tokens/s",
    "hours", "chip-hours",
)  # fmt: skip


def table(plans: list[dict[str, Any]]) -> str:
    """One line for each machine."""
    return (
        f"{text_table(_COLUMNS, [_row(plan) for plan in plans])}\nexchanges: how often an update sums gradients over devices. "
        "Times, rates and hours are predictions: rooflines, the least that is possible."
    )


def text_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width under their names, right-aligned but for the first."""
    out = rich.table.Table(box=None, pad_edge=False, padding=(0, 1))
    for i, name in enumerate(columns):
        out.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        out.add_row(*row)
    console = rich.console.Console(file=io.StringIO(), width=10_000)
    console.print(out, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _row(plan: dict[str, Any]) -> tuple[str, ...]:
    train, p, shape = plan["train"], plan["prediction"], plan["shape"]
    shards = plan["mesh"]["data"] * plan["mesh"]["fsdp"]
    rows = f"{shape['micro']} x " * (shape["micro"] > 1) + f"{shape['rows'] // shards}"
    first = (plan["topology"], f"{plan['chips']}", "x".join(map(str, plan["mesh"].values())), rows)
    usable = f"{plan['usable_bytes'] / GIB:.2f}" if plan["usable_bytes"] else "-"
    if not train["fits"]:
        needed = f"{train['needed_bytes'] / GIB:.2f}" if train["needed_bytes"] else "-"
        return (*first, needed, usable, "does not fit", *("-",) * 6)
    sent = sum(sum(sent_bytes(row)) for row in train["collectives"])
    exchanges = f"{train['gradient_exchanges']['times']}" + " in loop" * train["gradient_exchanges"]["in_loop"]
    cells = (*first, f"{train['memory']['peak'] / GIB:.2f}", usable, f"{sent / MIB:,.0f}", exchanges)
    if not p:
        return (*cells, *("-",) * 5)
    rates = (f"{p['tokens_per_second']:,.0f}", f"{p['hours']:.2f}", f"{p['chip_hours']:,.1f}")
    return (*cells, f"{p['seconds'] * 1e3:.2f}", p["bottleneck"], *rates)


def _batch(plan: dict[str, Any], store: str) -> list[str]:
    shape, slots = plan["shape"], plan["slots"]
    fill = plan["tokens"] / slots
    lines = [
        f"batch ({f'from the store {store}' if store else 'estimated from the config'})",
        f"  {shape['micro']} x {shape['rows']:,} rows of {shape['length']} = {slots:,} target slots, of which "
        f"{plan['tokens']:,.0f} hold tokens ({100 * fill:.0f} %)",
    ]
    if fill < 0.8:
        lines.append("  Most of the rest is padding: raise config.data.batch_tokens or use fewer chips.")
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
    sizes = {
        "parameters, optimizer state": plan["state_bytes"],
        "temporaries": train["memory"]["temp"],
        "peak": train["memory"]["peak"],
    }
    lines = ["memory of a device in the train step, MiB (from the compiler)"]
    lines += [f"  {name:30} {size / MIB:>12,.1f}" for name, size in sizes.items()]
    if usable:
        share = 100 * train["memory"]["peak"] / usable
        lines[-1] += f"  = {share:.0f} % of the {usable / GIB:.2f} GiB that programs may use"
    return lines


def _program(train: dict[str, Any]) -> list[str]:
    """Kernels and collectives of the optimized program."""
    calls = ", ".join(f"{target} ({count})" for target, count in train["custom_calls"].items())
    lines = [f"kernels called, not generated by XLA: {calls or 'none'}", ""]
    rows = sorted(train["collectives"], key=lambda row: -row["bytes"])
    lines.append(f"collectives of one update, bytes on each device{'' if rows else ': none'}")
    if rows:
        lines.append(
            f"  {'kind':18} {'axes':10} {'runs':>5} {'devices':>8} {'array MiB':>11} {'sent MiB':>10}  beside other work"
        )
    for row in rows:
        where = f"{row['devices']}" + (f" x {row['slices']}" if row["slices"] > 1 else "")
        note = ("yes" if row["overlaps"] else "no") + ("" if row["known"] else "; in a loop, one turn counted")
        lines.append(
            f"  {row['kind']:18} {row['axes']:10} {row['runs']:>5} {where:>8} {row['bytes'] / MIB:>11,.2f} "
            f"{sum(sent_bytes(row)) / MIB:>10,.2f}  {note}"
        )
    exchanges = train["gradient_exchanges"]
    if not exchanges["times"]:
        return [*lines, "  gradients: no device adds those of another"]
    where = "in a loop" if exchanges["in_loop"] else "outside of loops"
    size = exchanges["bytes"] / MIB
    return [*lines, f"  gradients: exchanged {exchanges['times']} x an update, {where}, {size:,.2f} MiB in all"]


def _time(config: Config, plan: dict[str, Any]) -> list[str]:
    lines = [f"{plan['flops_per_device'] / 1e9:,.1f} GFLOPs an update on each device, padding included (formula)"]
    p = plan["prediction"]
    if p is None:
        return lines if plan["usable_bytes"] else [*lines, "no time is predicted: there is no data sheet of this CPU"]
    lines.append("predicted time of an update, at best (roofline)")
    terms = {
        "products at peak": "compute",
        "state read and written": "memory",
        "links in a slice, host": "ici",
        "network": "dcn",
        "of these overlapping": "overlapping",
    }
    lines += [f"  {name:22} {p[key] * 1e3:>10.3f} ms" for name, key in terms.items()]
    return [
        *lines,
        f"  {'update':22} {p['seconds'] * 1e3:>10.3f} ms, bottleneck: {p['bottleneck']}",
        f"  {p['tokens_per_second']:,.0f} target tokens/s; {config.train.steps:,} updates in {p['hours']:.2f} hours = "
        f"{p['chip_hours']:,.1f} chip-hours, at best",
    ]


def _largest(plan: dict[str, Any]) -> list[str]:
    largest = plan.get("largest_batch")
    if largest is None:
        return []
    if largest["rows"] is None:
        return [f"largest batch: unknown, {largest['why']}."]
    verdict = "it fits" if largest["confirmed"] else "it does NOT fit: use less"
    return [
        f"largest batch: {largest['rows']} rows on a device, {largest['tokens_of_all_devices']:,} target slots on all; "
        f"compiled, {verdict} (peak {(largest['peak'] or 0) / GIB:.2f} GiB)"
    ]


def _assumptions(topology: Topology) -> list[str]:
    chip = topology.chip
    if chip is None:
        return []
    network = f"{chip.network_bandwidth / 1e9:.2f} GB/s a chip between slices or hosts"
    lines = [
        f"assumptions: data sheet of {chip.kind}: {chip.peak_flops / 1e12:,.1f} bfloat16 TFLOP/s a device, "
        f"{chip.hbm_bytes / GIB:,.0f} GiB and {chip.hbm_bandwidth / 1e9:,.0f} GB/s a chip,",
        f"  links of {chip.link_bandwidth / 1e9:.0f} GB/s each way, {HOP_SECONDS * 1e6:.0f} us a hop (assumed), {network}.",
        "  A real update takes longer; host, input, evaluation and checkpoints are not counted.",
    ]
    if topology.platform == "gpu":
        lines.append("  JAX uses 75 % of a GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.")
    return lines + ([f"  uncertain: {chip.uncertain}."] if chip.uncertain else [])
