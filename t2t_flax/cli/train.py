"""`train`: trains a config or resumes a run, with evaluations on the way and a record at the end."""

import sys

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax import jobs
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import DIVERGED, OK, STOPPED
from t2t_flax.filesystem import check_workdir
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when the run is complete, 75 when a signal stopped it (everything is saved), 3 when it diverged."""
    parser = arguments.parser(
        "train",
        "Trains a Transformer. Rerun the same command to resume; a kill loses nothing that was saved.",
        epilog=f"{arguments.OVERRIDE_HELP}\n\nWrites config.json, tokenizer/, data/, checkpoints/, metrics.jsonl and\n"
        "eval/ to the workdir. Exit codes: 0 complete, 75 stopped by a signal with everything saved,\n"
        "2 wrong input, 3 diverged (an update was not finite), 1 any other failure.",
    )
    arguments.add_config(parser)
    arguments.add_workdir(parser, "folder of the run; created if it does not exist")
    args, overrides = arguments.parse(parser, argv)
    config = config_lib.load_config(args.config, overrides)
    workdir = epath.Path(args.workdir)
    check_workdir(workdir)
    arguments.check_output("--workdir", args.workdir, folder=True)
    notes = prepare_process(config)
    return run_job(config, lambda supervisor: _job(config, workdir, supervisor, notes), stacks=workdir / "stacks")


def _job(config: Config, workdir: epath.Path, supervisor: RunSupervisor, notes: list[str]) -> int:
    from t2t_flax.errors import NonFiniteUpdate
    from t2t_flax.training.workdir import advice

    try:
        result = jobs.train(config, workdir, supervisor, notes)
    except NonFiniteUpdate as error:
        if supervisor.group.is_lead:
            print(f"t2t_flax train: {error} {advice(config, workdir)}", file=sys.stderr, flush=True)
        return DIVERGED
    return OK if result.finished else STOPPED
