"""`plan`: compiles the train step for a machine that is not at hand; reports memory, collectives, time."""

import json

from t2t_flax.cli import arguments
from t2t_flax.config import load_config
from t2t_flax.errors import UserError, install_hint
from t2t_flax.extensions.planning import topology
from t2t_flax.extensions.planning.compiler_process import (
    compiler_environment,
    in_compiler_environment,
    require_compilers,
    run_in_child,
)
from t2t_flax.filesystem import atomic_write

_DESCRIPTION = f"""\
Compiles the real train step ahead of time for a named machine, and reports memory, collectives and a predicted
(roofline) time. The compilers need no TPU and no GPU. To install them:
TPU: {install_hint("plan")}
GPU: {install_hint("plan-gpu")}"""
_MACHINES = """\
Machines: v5e-256, v6e-16, v5p-128, v4-32, v3-8, tpu7x-128 (numbers of v3, v4, v5p and tpu7x count TensorCores, two to
a chip), by shape v5p:4x4x4 (chips), several slices 2xv5e-256; a100-8, h100-8, h200-8, b200-8, b300-8, gb200-72, several
hosts 2xh100-8 or h100-16; cpu:8 (simulated devices). Several machines give a table. The big model takes one to several
minutes on two cores, --largest-batch three such compilations more."""


def run(argv: list[str]) -> int:
    """Exit code 0, even if a step does not fit: that is a result, not an error."""
    parser = arguments.parser("plan", _DESCRIPTION, epilog=f"{arguments.OVERRIDE_HELP}\n\n{_MACHINES}")
    arguments.add_config(parser)
    parser.add_argument(
        "--topology", action="append", required=True, metavar="NAME[,NAME]", help="the machine; may be repeated"
    )
    parser.add_argument("--store", default="", metavar="DIR", help="take the batch shape from this token store")
    parser.add_argument(
        "--rows",
        type=arguments.count(1),
        default=0,
        metavar="N",
        help="packed rows per device, instead of the config's batch",
    )
    parser.add_argument("--largest-batch", action="store_true", help="find the largest batch that fits")
    parser.add_argument("--json", default="", metavar="FILE", help="write the plans to this file as well")
    args, overrides = arguments.parse(parser, argv)
    if args.json:
        arguments.check_output("--json", args.json)
    config = load_config(args.config, overrides)
    machines = topology.parse_all(args.topology)
    if not machines:
        raise UserError("--topology names no machine: write for example --topology=v5e-16.")
    if not in_compiler_environment():
        require_compilers(machines)
        return run_in_child("plan", *argv, environment=compiler_environment(machines))
    from t2t_flax.extensions.planning import plan, report

    plans = []
    for machine in machines:
        record = plan.make_plan(config, machine, store=args.store, rows=args.rows)
        if args.largest_batch:
            record["largest_batch"] = plan.largest_batch(config, machine)
        plans.append(record)
        print(report.describe(config, machine, record, store=args.store), end="\n\n", flush=True)
        if args.json:  # after each machine: a later compilation may take minutes
            atomic_write(args.json, json.dumps(plans, indent=1) + "\n")
    if len(plans) > 1:
        print(report.table(plans))
    return 0
