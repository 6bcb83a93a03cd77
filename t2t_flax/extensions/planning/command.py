"""`plan`: compile the train step for an absent machine.

It reports memory, collectives, traffic and the least time. The command starts again in a separate
environment, which JAX and XLA read once.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

from t2t_flax.cli import arguments
from t2t_flax.config import load_config
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.planning import topology
from t2t_flax.extensions.planning.topology import Topology
from t2t_flax.extensions.shared.processes import child_environment
from t2t_flax.files import atomic_write

COMPILES = "T2T_FLAX_PLAN_COMPILES"
_DESCRIPTION = f"""\
Compiles the real train step ahead of time for a named machine, and reports memory, collectives and
the least time that the data sheet allows; on GPUs the bytes that the program moves, on TPUs the
compiler's estimate of its cycles. A real update takes longer. The compilers need no TPU and no GPU.
To install them:
TPU: {install_hint("plan")}
GPU: {install_hint("plan-gpu")}"""
_MACHINES = """\
Machines: v5e-256, v6e-16, v5p-128, v4-32, v3-8, tpu7x-128 (numbers of v3, v4, v5p and tpu7x count
TensorCores, two to a chip), by shape v5p:4x4x4 (chips), several slices 2xv5e-256; a100-8, h100-8,
h200-8, b200-8, b300-8, gb200-72, several hosts 2xh100-8 or h100-16; cpu:8 (simulated devices).
Several machines give a table. The big model takes one to several minutes on two cores."""


def run(argv: list[str]) -> int:
    """Return exit code 0, even if a step does not fit: that is a result, not an error."""
    parser = arguments.parser(
        "plan", _DESCRIPTION, epilog=f"{arguments.OVERRIDE_HELP}\n\n{_MACHINES}"
    )
    arguments.add_config(parser)
    parser.add_argument(
        "--topology",
        action="append",
        required=True,
        metavar="NAME[,NAME]",
        help="the machine; may be repeated",
    )
    parser.add_argument(
        "--rows",
        type=arguments.count(1),
        default=0,
        metavar="N",
        help="packed rows per device, instead of the config's batch",
    )
    parser.add_argument(
        "--json", default="", metavar="FILE", help="write the plans to this file as well"
    )
    args, overrides = arguments.parse(parser, argv)
    if args.json:
        arguments.check_output("--json", args.json)
    config = load_config(args.config, overrides)
    machines = topology.parse_all(args.topology)
    if not machines:
        raise UserError("--topology names no machine: write for example --topology=v5e-16.")
    run_with_compilers(machines, ["t2t_flax", "plan", *argv])
    from t2t_flax.extensions.planning import plan, report

    plans = []
    for machine in machines:
        record = plan.make_plan(config, machine, rows=args.rows)
        plans.append(record)
        print(report.describe(config, machine, record), end="\n\n", flush=True)
        if args.json:  # print after each machine: a later compilation may take minutes
            atomic_write(args.json, json.dumps(plans, indent=1) + "\n")
    if len(plans) > 1:
        print(report.table(plans))
    return 0


def run_with_compilers(machines: list[Topology], command: list[str]) -> None:
    """Replace this process by `python -m COMMAND` in `compiler_environment`.

    Does nothing if it runs there already.

    Raises:
        UserError: a compiler is missing.
    """
    if os.environ.get(COMPILES) != "1":
        require_compilers(machines)
        environment = child_environment(**compiler_environment(machines))
        os.execve(sys.executable, [sys.executable, "-m", *command], environment)


def compiler_environment(machines: list[Topology]) -> dict[str, str]:
    """Return the environment variables of the process that compiles.

    JAX runs on the CPU, which the largest `cpu:N` of the machines divides into devices.
    """
    return {
        COMPILES: "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(
            max([m.devices for m in machines if m.platform == "cpu"], default=1)
        ),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "false",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # XLA would otherwise time kernels on a GPU to choose among them.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": (
            "1"
        ),  # skips the check of CUDA's library versions, which needs a driver
        "TPU_SKIP_MDS_QUERY": "1",
        # libtpu expects these of a TPU host.
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": "disabled",
        # Without it one process of a machine can load libtpu, which is right only where it uses a
        # TPU.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    }


def require_compilers(machines: list[Topology]) -> None:
    """Raise UserError for a missing compiler of a machine.

    The message has the command that installs it.
    """
    compilers = {
        "tpu": (has_tpu_compiler, "the TPU compiler (0.7 GB, works without a TPU)", "plan"),
        "gpu": (has_gpu_compiler, "XLA's GPU compiler (2.5 GB, works without a GPU)", "plan-gpu"),
    }
    for machine in machines:
        if machine.platform in compilers:
            installed, what, extra = compilers[machine.platform]
            if not installed():
                hint = install_hint(extra)
                raise UserError(
                    f"--topology={machine.name} needs {what}, which is not installed: {hint}."
                )


def has_tpu_compiler() -> bool:
    """Return True if libtpu is installed.

    This process may leave it out, see `runs_on_cpu`.
    """
    return importlib.machinery.PathFinder.find_spec("libtpu") is not None or bool(
        os.environ.get("TPU_LIBRARY_PATH")
    )


def has_gpu_compiler() -> bool:
    """Return True if JAX's CUDA plugin is installed, for CUDA 12 or 13."""
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return any(importlib.util.find_spec(f"jax_plugins.xla_cuda{version}") for version in (12, 13))
