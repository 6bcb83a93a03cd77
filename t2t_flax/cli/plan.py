"""`plan`: compiles the train and decode steps for a machine that need not be there, and says what they will take."""

import json

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.errors import UserError, install_hint
from t2t_flax.filesystem import atomic_write


def run(argv: list[str]) -> int:
    """Exit code 0, also where a step does not fit: that is an answer."""
    parser = arguments.parser(
        "plan",
        "Compiles the real train step and decode step ahead of time for a named machine, and reports memory, collectives\n"
        "and a predicted (roofline) time. For TPUs it needs their compiler (no TPU):\n"
        f"{install_hint('plan')}.",
        epilog=f"{arguments.OVERRIDE_HELP}\n\nMachines: v5e-256, v6e-16, v5p-128, v4-32, v3-8 (numbers of v3, v4 and v5p count\n"
        "TensorCores, two to a chip), by shape v5p:4x4x4 (chips), several slices 2xv5e-256, cpu:8 (really compiled for\n"
        "simulated devices), gpu:h100x8 (formula only). Several machines give a table. A compilation of the big model\n"
        "takes one to several minutes on two cores, --largest-batch three more of them.",
    )
    arguments.add_config(parser)
    parser.add_argument(
        "--topology", action="append", required=True, metavar="NAME[,NAME]", help="the machine; may be given again"
    )
    parser.add_argument("--store", default="", metavar="DIR", help="take the batch shapes from this token store")
    parser.add_argument("--largest-batch", action="store_true", help="find the largest batch that fits")
    parser.add_argument("--no-decode", action="store_true", help="leave the decode step out")
    parser.add_argument("--json", default="", metavar="FILE", help="write the plans there too")
    args, overrides = arguments.parse(parser, argv)
    config = config_lib.load_config(args.config, overrides)
    from t2t_flax.planning import plan, report, topology

    machines = topology.parse_all(args.topology)
    if not machines:
        raise UserError("--topology names no machine: write for example --topology=v5e-16.")
    plans = []
    for machine in machines:
        made = plan.make_plan(config, machine, store=args.store, decode=not args.no_decode)
        if args.largest_batch:
            made["largest_batch"] = plan.largest_batch(config, machine)
        plans.append(made)
        print(report.describe(config, machine, made, store=args.store), flush=True)
        print()
    if len(plans) > 1:
        print(report.table(plans))
    if args.json:
        atomic_write(args.json, json.dumps(plans, indent=1) + "\n")
    return 0
