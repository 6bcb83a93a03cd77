"""Parts of a compiled train step: bytes and FLOPs of its kernels on a GPU, cycles on a TPU.

    python -m benchmarks.traffic --topology=h100-1 --rows=98 --config=aiayn_base \\
        --out=benchmarks/results/traffic.json
    python -m benchmarks.traffic --topology=v5e-8 --rows=32 --config=aiayn_base \\
        --config.model.attention_kernel=splash

Compiles as `plan` does, without a device; --hlo=FILE instead of --config reads a program that was
compiled before. Model ms, for an H100: each kernel takes 2 us and the longer of its bytes at 3.0
TB/s and its FLOPs at 650 TFLOP/s. The TPU compiler's cycles are an estimate, never compared with a
TPU; it has none for Pallas kernels and exchanges.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.record import command_of, machine, publish
from t2t_flax.cli import arguments
from t2t_flax.config import Config, load_config
from t2t_flax.errors import UserError
from t2t_flax.extensions.planning import hlo, topology, traffic
from t2t_flax.extensions.planning.command import run_with_compilers
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.extensions.planning.traffic import Kernel

BANDWIDTH, PRODUCTS, LAUNCH_SECONDS = 3.0e12, 650e12, 2e-6


def model_seconds(kernel: Kernel) -> float:
    """Return the time of one run on an H100 by the formula above."""
    return max(kernel.bytes / BANDWIDTH, kernel.flops / PRODUCTS) + LAUNCH_SECONDS


def compiled_text(config: Config, machine: Topology, rows: int) -> str:
    """Return the optimized program of an update. Runs in the environment of `plan`."""
    from t2t_flax.extensions.planning.abstract_run import abstract_run, trace_train_step
    from t2t_flax.extensions.planning.plan import batch_shape

    run = abstract_run(config, machine)
    return (
        trace_train_step(run, batch_shape(config, run.shards, rows=rows))
        .lower()
        .compile()
        .as_text()
    )


def gpu_row(kernels: list[Kernel]) -> dict[str, Any]:
    sums = traffic.totals(kernels)
    return {
        "kernels": sums["kernels"],
        "custom_calls": sums["custom_calls"],
        "gb": round(sums["bytes"] / 1e9, 2),
        "tflop": round(sums["flops"] / 1e12, 3),
        "model_ms": round(1e3 * sum(kernel.times * model_seconds(kernel) for kernel in kernels), 2),
    }


def tpu_row(machine: Topology) -> Callable[[list[Kernel]], dict[str, Any]]:
    """Return the function that sums cycles on this machine, and their time by a known clock."""

    def row(kernels: list[Kernel]) -> dict[str, Any]:
        estimated = traffic.totals(kernel for kernel in kernels if kernel.cycles is not None)
        sums = {
            "kernels": estimated["kernels"],
            "custom_calls": traffic.totals(kernels)["custom_calls"],
            "mcycles": round(estimated["cycles"] / 1e6, 3),
        }
        clock = machine.chip and machine.chip.clock_ghz
        return sums | ({"estimated_ms": round(sums["mcycles"] / clock, 2)} if clock else {})

    return row


def table(parts: dict[str, dict[str, Any]]) -> str:
    """Return one line for each part."""
    names = list(next(iter(parts.values())))
    lines = [f"{'':30}" + "".join(f"{name.replace('_', ' '):>14}" for name in names)]
    for part, row in parts.items():
        lines.append(f"{part:30}" + "".join(f"{row[name]:>14,}" for name in names))
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Print the table; write the record to --out."""
    parser = arguments.parser("traffic", __doc__ or "")
    parser.prog = "python -m benchmarks.traffic"
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument(
        "--config", metavar="FILE.py[:variant]", help=f"what to compile; {arguments.OVERRIDE_HELP}"
    )
    program.add_argument(
        "--hlo", metavar="FILE", help="read this optimized program instead of compiling"
    )
    parser.add_argument(
        "--topology", required=True, metavar="NAME", help="the machine, as in `plan`"
    )
    parser.add_argument(
        "--rows", type=arguments.count(1), default=0, metavar="N", help="packed rows per device"
    )
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record")
    args, overrides = arguments.parse(parser, argv)
    device = topology.parse(args.topology)
    if device.chip is None:
        raise UserError(
            f"--topology={args.topology} has no GPU and no TPU: name one, such as h100-1 or v5e-8."
        )
    if args.hlo:
        text = Path(args.hlo).read_text()
    else:
        config = load_config(args.config, overrides)
        run_with_compilers([device], ["benchmarks.traffic", *argv])
        text = compiled_text(config, device, args.rows)
    kernels = traffic.kernels(hlo.parse(text))
    row = gpu_row if device.platform == "gpu" else tpu_row(device)
    parts = {
        part: row([kernel for kernel in kernels if kernel.part == part]) for part in traffic.PARTS
    }
    parts["all"] = row(kernels)
    print(table(parts), file=sys.stderr)
    record = {
        "what": "kernels of one compiled update on one device, by part of the step; nothing ran",
        "command": command_of("traffic", argv),
        "commit": commit(),
        "jax": None if args.hlo else version("jax"),
        "parts": parts,
        "machine": machine(),
    }
    publish(record, args.out)


def commit() -> str | None:
    """Return the commit of this checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UserError, OSError) as error:
        sys.exit(f"benchmarks.traffic: {error}")
