"""The words and tables of docs/scaling.md; see `scaling`."""

from collections.abc import Callable
from typing import Any

from benchmarks import input_page
from benchmarks.scaling_points import CHIPS, POINTS, ROWS, SIZES, Point, machine, point

GIB, MIB = 2.0**30, 2.0**20
_COMPILED_AT = {("base", "v5e", 8): "base, v5e-8", ("big", "v5e", 8): "big, v5e-8"}


def write(record: dict[str, Any]) -> str:
    """The page."""
    parts = [_INTRODUCTION, "## What was compiled", _compiled(record), _FOUND]
    parts += ["## Weak scaling", _WEAK]
    for size, family in (("base", "v5e"), ("big", "v5e"), ("big", "v5p")):
        parts += [f"{size.capitalize()}, {ROWS} rows of 256 on each {family} chip:", weak(size, family, record)]
    parts += ["## Strong scaling", _STRONG, strong(), "## Where the interconnect binds", _BINDS, binding()]
    parts += ["## The large-batch recipe", _RECIPE, recipe(), input_page.section(_markdown)]
    return "\n\n".join(parts) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _compiled(record: dict[str, Any]) -> str:
    from t2t_flax.config import load_config
    from t2t_flax.data.batching.batches import Shape
    from t2t_flax.planning.roofline import roofline, sent_bytes
    from t2t_flax.planning.shapes import update_flops
    from t2t_flax.planning.topology import parse

    rows = []
    for name, (preset, where, _, _) in POINTS.items():
        if name not in record:
            continue
        told, topology, config = record[name], parse(where), load_config(preset)
        length, batch, micro = told["shape"]
        mesh = " x ".join(str(n) for n in told["mesh"].values())
        cells = [name, f"{topology.chips}", mesh, f"{batch // told['shards']}"]
        if not told["train"]["fits"]:
            rows.append([*cells, "does not fit", "", "", "", "", ""])
            continue
        flops = update_flops(config, config.data.vocab_size, Shape(length, batch, micro)) / told["devices"]
        facts = told["train"]
        line = roofline(topology, flops, facts["hbm_bytes"], facts["collectives"])
        formula = told["formula"]
        sent = [sum(sum(sent_bytes(row)) for row in of["collectives"]) / MIB for of in (facts, formula)]
        traffic = [of["hbm_bytes"] / GIB for of in (facts, formula)]
        peaks = [of["memory"]["peak"] / GIB for of in (facts, formula)]
        times = ", ".join(map(_ms, (line.compute, line.memory, line.ici, line.dcn)))
        both = lambda pair: f"{pair[0]:,.2f} / {pair[1]:,.2f}"  # noqa: E731
        overlapping = line.overlapping / (line.ici + line.dcn)
        rows.append([*cells, both(peaks), both(traffic), f"{sent[0]:,.0f} / {sent[1]:,.0f}", f"{100 * overlapping:.0f} %",
                     times, _ms(line.seconds)])  # fmt: skip
    head = ["point", "chips", "mesh (data x fsdp x tensor)", "rows a device", "peak GiB", "HBM traffic GiB",
            "sent MiB", "overlapping", "compute, memory, ICI, DCN ms", "predicted ms an update"]  # fmt: skip
    missing = [name for name in POINTS if name not in record]
    note = [f"Not compiled yet (`python -m benchmarks.scaling --compile`): {'; '.join(missing)}."] if missing else []
    return "\n\n".join([_markdown(head, rows), *note])


def weak(size: str, family: str, record: dict[str, Any]) -> str:
    """The same work on every chip, from 8 to 4096 of them."""
    rows, first = [], None
    for chips in CHIPS:
        told = record.get(_COMPILED_AT.get((size, family, chips), ""))
        by_formula = point(SIZES[size], family, chips, ROWS)
        if told and told["train"]["fits"]:
            rows.append([*_cells(point(SIZES[size], family, chips, ROWS, told)), ""])
        each = by_formula.slots / by_formula.line.seconds / chips
        first = first or each
        rows.append([*_cells(by_formula), f"{100 * each / first:.0f} %"])
    return _markdown([*_HEAD, "per chip, of 8 chips"], rows)


_HEAD = [
    "chips",
    "slices",
    "slots an update",
    "by",
    "compute ms",
    "memory ms",
    "ICI ms",
    "DCN ms",
    "update ms",
    "M slots/s",
]


def _cells(p: Point) -> list[str]:
    line = p.line
    return [f"{p.chips}", f"{p.slices}", f"{p.slots:,}", p.by, _ms(line.compute), _ms(line.memory), _ms(line.ici),
            _ms(line.dcn), _ms(line.seconds), f"{p.slots / line.seconds / 1e6:,.1f}"]  # fmt: skip


def strong() -> str:
    """One batch over more and more chips; hours for the preset's updates."""
    from t2t_flax.config import load_config

    rows = []
    for title, size, batch in (("25,000", "base", 101), ("25,000", "big", 101), ("508,000", "big", 2048)):
        steps = load_config(SIZES[size]).train.steps
        for chips in CHIPS:
            each = -(-batch // chips)
            p = point(SIZES[size], "v5e", chips, each)
            line, used = p.line, batch / (each * chips)
            hours = f"{line.seconds * steps / 3600:.2f}" if batch == 101 else "-"
            rows.append([size, title, f"{chips}", f"{p.slices}", f"{each}", f"{100 * used:.0f} %", _ms(line.compute),
                         _ms(line.memory), _ms(line.ici + line.dcn), _ms(line.seconds),
                         f"{100 * line.compute / line.seconds * used:.1f} %", hours])  # fmt: skip
    head = ["model", "tokens an update", "chips", "slices", "rows a chip", "rows that hold text", "compute ms", "memory ms",
            "interconnect ms", "update ms", "of peak, at best", "hours for the preset's updates"]  # fmt: skip
    return _markdown(head, rows)


_MACHINES = [(family, chips) for family, sizes in (("v5e", (8, 256, 512, 4096)), ("v6e", (256, 4096)), ("v5p", (64, 4096)))
             for chips in sizes]  # fmt: skip


def binding() -> str:
    """Rows on a chip from which its work takes longer than the gradients' way, and from which half the peak is possible."""
    rows = []
    for size, preset in SIZES.items():
        for family, chips in _MACHINES:
            where = machine(family, chips)
            cells = [size, where.name, f"{chips}", f"{where.slices}"]
            longest = needed_rows(
                preset, family, chips, lambda line: max(line.compute, line.memory) >= line.ici + line.dcn
            )
            half = needed_rows(preset, family, chips, lambda line: line.compute >= 0.5 * line.seconds)
            slots = [f"{half:,}", f"{half * 256:,}", f"{half * 256 * chips:,}"] if half else ["never", "-", "-"]
            rows.append([*cells, f"{longest:,}", *slots])
    head = ["model", "machine", "chips", "slices", "rows a chip: interconnect not the longest",
            "rows a chip: half of peak possible", "slots a chip for that", "slots an update for that"]  # fmt: skip
    return _markdown(head, rows)


def needed_rows(preset: str, family: str, chips: int, enough: Callable[[Any], bool]) -> int | None:
    """The least rows a chip whose roofline is `enough`, which more rows must not undo; None where no number is."""
    holds = lambda rows: enough(point(preset, family, chips, rows).line)  # noqa: E731
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
        if high > 1 << 16:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def recipe() -> str:
    """The batch of `mlperf_big`, 2,048 rows, on machines that it can fill."""
    rows = []
    for family, chips in (("v5e", 256), ("v5e", 1024), ("v5e", 2048), ("v5p", 256), ("v5p", 1024), ("v5p", 2048)):
        for zero_1 in (False, True):
            p = point("mlperf_big", family, chips, 2048 // chips, zero_1=zero_1)
            line, epoch = p.line, p.line.seconds * 566_340 / 2048
            rows.append([machine(family, chips).name, f"{chips}", "ZeRO-1 over 16" if zero_1 else "data", f"{2048 // chips}",
                         _ms(line.compute), _ms(line.memory), _ms(line.ici + line.dcn), _ms(line.seconds),
                         f"{100 * line.compute / line.seconds:.0f} %", f"{epoch:.1f}"])  # fmt: skip
    head = ["machine", "chips", "mesh", "rows a chip", "compute ms", "memory ms", "interconnect ms", "update ms",
            "of peak, at best", "s an epoch of 566,340 rows"]  # fmt: skip
    return _markdown(head, rows)


_INTRODUCTION = f"""# Scaling, on paper and in the compiler

Written by `python -m benchmarks.scaling`; do not edit. **Nothing on this page was measured on an accelerator.** Rows marked
*compiler* take memory, HBM traffic and collectives from the real TPU compiler (libtpu, ahead of time, no TPU); rows marked
*formula* take them from [t2t_flax/planning/formula.py](../t2t_flax/planning/formula.py). All times are rooflines: the
data sheets of [chips.py](../t2t_flax/planning/chips.py) at full speed, so that a real update takes longer. FLOPs are always
the formula's, padding included. A *slot* is a place for a target token, filled or not; packed rows of {256} are about 97 %
full. `python -m t2t_flax plan` says the same of any config and machine.

One v5e or v6e slice ends at 256 chips, beyond are several slices, joined by the data-centre network (DCN); a v5p slice goes
to 6,144 chips. The mesh is (data, fsdp, tensor); where nothing else is said, data alone."""

_FOUND = """Pairs are *compiler / formula*; the traffic of an update is an estimate in both (each instruction, or each
matrix product, reads its operands and writes its result once). What the compiler's programs show:

- Gradients of matrices travel in bfloat16, because the products' weights are; the tied table travels twice in float32, once
  for its use in the lookups and once for its use in the output layer.
- On one slice no all-reduce overlaps with anything: the compiler joins the gradients into few large ones and waits for them.
- With data parallelism the programs send what the formula says; the formula's HBM traffic is some 25 % under the compiler's
  to 15 % over it, so the memory column of the tables by formula is no better than that.
- With ZeRO-1 and FSDP over 16 chips the formula's HBM traffic is 2.5 and 3.5 times too low: parameters that are gathered are
  written and read once more. The memory column of the ZeRO-1 rows by formula below is that much too small.
- Over four slices a gradient is summed within each slice first; a chip then exchanges its 256th part, 4.0 MiB in all, with its
  peers over the network while it computes. Within the slice the program sends 1.9 times what the formula says: a part of
  the gradients is scattered and gathered in separate steps, and the tied table is summed twice.
- The batch of the preset leaves one row for each chip of a v5e-256, or two on 64 chips, and so little work that
  HBM traffic of parameters and moments is most of an update."""

_WEAK = f"""Every chip has {ROWS} rows, so the batch grows with the machine; whether training still converges at such a batch is
another question (see the last section). The way of the gradients becomes shorter at 128 and 256 chips of v5e because an axis of
16 closes to a ring and offers two links where an open one offers one; a v5p slice closes from 4 x 4 x 4 on."""

_STRONG = """The batch stays: the paper's 25,000 tokens (101 rows of 256) or those of the large-batch recipe (2,048 rows). A chip
has at least one row, so 25,000 tokens fill no more than 101 chips: beyond, most rows are padding, and what is computed for
them is waste. By formula, on v5e; the share of peak counts rows that hold text. The floor under every column is what does not
shrink with the rows: with data parallelism each chip reads and writes the parameters, the gradients and both moments of the
whole model (memory), and receives all gradients (interconnect)."""

_BINDS = """By formula, data parallelism, nothing overlapping within a slice. At the first number of rows the work of a chip takes
as long as the way of the gradients; at the second half of the chip's peak becomes possible at all, the rest of the update being
HBM and interconnect. The batch that this asks of a large machine is the last column: at 4,096 chips it is hundreds of times the
paper's 25,000. More often than the interconnect it is HBM that binds, and for base on v6e nothing helps: the chip computes
faster, compared with its memory, than the products of 512 columns can use. The data-centre network adds little to a slice of
256, because each chip has only its 256th part of the gradients to exchange; small slices would feel it. FSDP sends the matrices
three times where data parallelism sends the gradients twice, half as much again: it is for models that do not fit, and these
do."""

_RECIPE = """MLPerf Training v0.7, Google's JAX entry: this model (big) to 25.0 uncased BLEU in 13.6 to 17.3 s on 8,192 TPU v3
cores, with 2,048 packed rows an update, Adam betas 0.9087 and 0.9199, and a warm-up of 664 updates to a peak rate of 4.0e-3. It
is the preset `mlperf_big`; the number of updates there is ours, and it was not trained here.

What it changes: the batch is 20 times the paper's, so 20 times as many chips have a row each. A beta 2 of 0.92 in place of 0.98
forgets the second moment within about 12 updates, which a run of some hundred updates needs, and the warm-up shrinks with the
number of updates. What it does not change: at a row or two on a chip the floor of the strong-scaling table is most of an
update. ZeRO-1 (`mesh.fsdp_mode`) takes the optimizer's part of the memory term away and pays for it with a gather of the
parameters. On 8,192 cores a core had a quarter of a row: data parallelism alone ends before that, and the model itself must be
divided over chips (`mesh.tensor`)."""
