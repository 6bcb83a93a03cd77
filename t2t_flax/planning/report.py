"""A plan in words: every figure with where it is from, every prediction called one."""

from typing import Any

from t2t_flax.config import Config
from t2t_flax.planning.chips import CHIPS, GIB, HOP_SECONDS
from t2t_flax.planning.plan import RESERVED
from t2t_flax.planning.roofline import sent_bytes
from t2t_flax.planning.topology import Topology
from t2t_flax.tables import text_table

MIB = 2.0**20


def describe(config: Config, topology: Topology, plan: dict[str, Any], *, store: str = "") -> str:
    """The whole plan of one machine."""
    parts = [
        [plan["machine"], f"  mesh {' x '.join(f'{n} {axis}' for axis, n in plan['mesh'].items())}"],
        _batch(config, plan, store),
        _memory(plan),
        _collectives(plan["train"]["collectives"], "collectives of one update, bytes on each device", plan["by"]),
        _time(config, plan),
        _decode(plan),
        _largest(plan),
        _assumptions(topology, plan),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


_HEAD = (
    "topology",
    "chips",
    "mesh",
    "by",
    "peak GiB",
    "of GiB",
    "ms/update",
    "binds",
    "tokens/s",
    "hours",
    "chip-hours",
)


def table(plans: list[dict[str, Any]]) -> str:
    """One line a machine."""
    lines = text_table(_HEAD, list(map(_row, plans)), right=_HEAD[1:])
    return "\n".join([lines, "Times, rates and hours are predictions (rooflines: the least that is possible)."])


def _row(plan: dict[str, Any]) -> tuple[str, ...]:
    hbm, refused = plan["hbm_per_device"], plan.get("refused")
    p = None if refused else plan["prediction"]
    peak = refused["needed_bytes"] if refused else plan["train"]["memory"]["peak"]
    return (
        plan["topology"],
        str(plan["chips"]),
        "x".join(str(n) for n in plan["mesh"].values()),
        "does not fit" if refused else plan["by"],
        f"{peak / GIB:.2f}" if peak else "-",
        f"{hbm / GIB:.2f}" if hbm else "-",
        f"{p['seconds'] * 1e3:.2f}" if p else "-",
        p["binds"] if p else "-",
        f"{p['tokens_per_second']:,.0f}" if p else "-",
        f"{p['hours']:.2f}" if p else "-",
        f"{p['chip_hours']:,.1f}" if p else "-",
    )


def _batch(config: Config, plan: dict[str, Any], store: str) -> list[str]:
    shape, slots = plan["shape"], plan["slots"]
    origin = f"from the store {store}" if store else "an estimate, as `explain` makes it, before the data is known"
    fill = plan["tokens"] / slots
    lines = [
        f"batch ({origin})",
        f"  {shape['micro']} x {shape['rows']:,} rows of {shape['length']} = {slots:,} target slots, of which "
        f"{plan['tokens']:,.0f} real tokens ({100 * fill:.0f} %)",
    ]
    if fill < 0.8:
        lines.append(
            "  most of it is padding: there are more devices along the batch than rows. Raise config.data.batch_tokens, or "
            "take fewer chips."
        )
    return lines


def _memory(plan: dict[str, Any]) -> list[str]:
    if "refused" in plan:
        refused = plan["refused"]
        needed, there = refused["needed_bytes"], refused["available_bytes"]
        sizes = f": {needed / GIB:.2f} GiB are needed, {there / GIB:.2f} GiB are there" if needed else ""
        return [
            f"memory: the compiler says that the train step does not fit{sizes}.",
            "  Lower config.data.microbatch_tokens or raise config.mesh.fsdp, config.mesh.tensor; config.train.remat helps.",
            "  What follows is by formula.",
        ]
    m, hbm = plan["train"]["memory"], plan["hbm_per_device"]
    origin = "the compiler's" if plan["by"] == "compiler" else "by formula, nothing was compiled"
    lines = [f"memory of a device in the train step, MiB ({origin})"]
    lines.append(f"  {'parameters, optimizer state':30} {plan['state_bytes'] / MIB:>12,.1f}  from the shardings")
    for key, name in (
        ("argument", "arguments"), ("output", "results"), ("alias", "of these in place of arguments"),
        ("temp", "temporary"), ("generated_code", "code"), ("peak", "peak"),
    ):  # fmt: skip
        lines.append(f"  {name:30} {m[key] / MIB:>12,.1f}")
    if hbm:
        lines[-1] += f"  = {100 * m['peak'] / hbm:.0f} % of {hbm / GIB:.2f} GiB"
    return lines


def _collectives(rows: list[dict[str, Any]], title: str, by: str) -> list[str]:
    if not rows:
        return [f"{title}: none"]
    lines = [f"{title} ({'in the optimised program' if by == 'compiler' else 'by formula'})"]
    lines.append(f"  {'kind':18} {'runs':>5} {'devices':>8} {'array MiB':>11} {'sent MiB':>10}  overlap")
    for row in sorted(rows, key=lambda r: -r["bytes"]):
        where = f"{row['devices']}" + (f" x {row['slices']}" if row["slices"] > 1 else "")
        overlap = "yes" if row["overlaps"] else "no"
        unknown = "" if row["known"] else "; in a loop, one turn counted"
        sent = sum(sent_bytes(row))
        lines.append(
            f"  {row['kind']:18} {row['runs']:>5} {where:>8} {row['bytes'] / MIB:>11,.2f} {sent / MIB:>10,.2f}  "
            f"{overlap}{unknown}"
        )
    if by == "compiler":
        lines.append("  overlap: yes where the schedule has other work between the start of a collective and its end.")
    return lines


def _time(config: Config, plan: dict[str, Any]) -> list[str]:
    lines = [f"{plan['flops_per_device'] / 1e9:,.1f} GFLOPs an update on each device, padding included (formula)"]
    p = plan["prediction"]
    if p is None:
        return [*lines, "no time is predicted: a CPU has no data sheet here."]
    lines += ["predicted time of an update, at best (roofline)"]
    lines += _terms(p, plan["train"]["hbm_bytes"])
    lines += [
        f"  {'update':22} {p['seconds'] * 1e3:>10.3f} ms, bound by {p['binds']}",
        f"  {p['tokens_per_second']:,.0f} real target tokens/s; {config.train.steps:,} updates in {p['hours']:.2f} hours = "
        f"{p['chip_hours']:,.1f} chip-hours, at best",
    ]
    return lines


def _terms(p: dict[str, Any], traffic: float) -> list[str]:
    lines = [
        f"  {'compute':22} {p['compute'] * 1e3:>10.3f} ms",
        f"  {'memory':22} {p['memory'] * 1e3:>10.3f} ms  ({traffic / GIB:,.2f} GiB of HBM traffic)",
        f"  {'interconnect, ICI':22} {p['ici'] * 1e3:>10.3f} ms",
    ]
    if p["dcn"]:
        lines.append(f"  {'interconnect, DCN':22} {p['dcn'] * 1e3:>10.3f} ms")
    if p["overlapping"]:
        lines.append(f"  {'of which overlapping':22} {p['overlapping'] * 1e3:>10.3f} ms")
    return lines


def _decode(plan: dict[str, Any]) -> list[str]:
    decode = plan.get("decode")
    if decode is None:
        return []
    if not decode["fits"]:
        return ["decoding: the compiler says that the step does not fit. Lower config.decode.batch_size."]
    m = decode["memory"]
    lines = [
        f"decode step: one target token of {decode['sentences']:,} sentences, sources of {decode['source_length']}, a cache "
        f"of {decode['cache_length']} tokens",
        f"  peak {m['peak'] / MIB:,.1f} MiB of a device (arguments {m['argument'] / MIB:,.1f}, temporary "
        f"{m['temp'] / MIB:,.1f}), the compiler's",
    ]
    lines += _collectives(decode["collectives"], "  collectives of one token", "compiler")
    p = decode["prediction"]
    if p:
        lines += ["predicted time of one token, at best (roofline)", *_terms(p, decode["hbm_bytes"])]
        lines.append(f"  {'token':22} {p['seconds'] * 1e3:>10.3f} ms: {p['tokens_per_second']:,.0f} tokens/s at best")
    return lines


def _largest(plan: dict[str, Any]) -> list[str]:
    found = plan.get("largest_batch")
    if found is None:
        return []
    if found["rows"] is None:
        return [f"largest batch: not known, {found['why']}."]
    said = "the compiler accepts it" if found["confirmed"] else "but the compiler REFUSES it: take less"
    return [
        f"largest batch: {found['rows']} rows on a device, {found['tokens_of_all_devices']:,} target slots on all; {said} "
        f"(peak {(found['peak'] or 0) / GIB:.2f} GiB)",
        f"  from a line through the peaks at {' and '.join(map(str, found['measured_rows']))} rows: "
        f"{found['bytes_per_row'] / MIB:,.1f} MiB a row + {found['bytes_without_rows'] / MIB:,.1f} MiB",
    ]


def _assumptions(topology: Topology, plan: dict[str, Any]) -> list[str]:
    chip = topology.chip
    if chip is None:
        return []
    lines = [
        f"assumptions: data sheet of {chip.kind}: {chip.peak_flops / 1e12:,.1f} bfloat16 TFLOP/s a device, HBM "
        f"{chip.hbm_bytes / GIB:,.0f} GiB and {chip.hbm_bandwidth / 1e9:,.0f} GB/s a chip ({RESERVED / GIB:.2f} GiB taken by "
        "the runtime),",
        f"  links of {chip.link_bandwidth / 1e9:.0f} GB/s each way, {HOP_SECONDS * 1e6:.0f} us a hop (a guess), between "
        f"slices or hosts {chip.network_bandwidth / 1e9:.2f} GB/s a chip. All of these at full speed, which no program "
        "reaches:",
        "  a real update takes longer. Host, input, evaluation, checkpoints, compilation and restarts are not counted.",
    ]
    if chip.unsure:
        lines.append(f"  uncertain: {chip.unsure}.")
    if chip.cores_in_name > 1 and chip in CHIPS.values():
        lines.append("  The number in the vendor's name counts TensorCores, two to a chip.")
    return lines
