"""`train_together`: trains several runs that differ in scalars with one vectorized train step. `sweep --stack` starts it.

python -m t2t_flax train_together --config=A.json --workdir=A --config=B.json --workdir=B ...
"""

import contextlib
import sys

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax import jobs
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import DIVERGED, OK, STOPPED, UserError
from t2t_flax.extensions.sweeps.scalars import vectorization_conflict
from t2t_flax.process_setup import prepare_process
from t2t_flax.tasks import task_of
from t2t_flax.training.workdir import adopt_config, check_config, check_run_folder, completed, writing


def run(argv: list[str]) -> int:
    """Exit code 0 when all runs are complete, 75 when stopped by a signal and saved, 3 when one has diverged."""
    parser = arguments.parser("train_together", "Trains runs that differ in scalars alone with one train step.")
    parser.add_argument("--config", action="append", required=True, metavar="FILE.json")
    parser.add_argument("--workdir", action="append", required=True, metavar="DIR")
    args, overrides = arguments.parse(parser, argv)
    configs = [config_lib.load_config(path, overrides) for path in args.config]
    if len(configs) != len(args.workdir):
        raise UserError(f"{len(configs)} configs and {len(args.workdir)} workdirs: give one of each for each run.")
    for path, config in zip(args.config, configs, strict=True):
        if conflict := vectorization_conflict(configs[0], config):
            raise UserError(f"{args.config[0]} and {path} cannot be trained together: {conflict}")
    prepare_process(configs[0])
    runs = list(zip(configs, map(epath.Path, args.workdir), strict=True))
    with contextlib.ExitStack() as stack:
        for _, workdir in runs:
            check_run_folder(workdir)
            stack.enter_context(writing(workdir, "train_together"))
        return run_job(configs[0], lambda supervisor: _job(runs, supervisor))


def _job(runs: list[tuple[Config, epath.Path]], supervisor: RunSupervisor) -> int:
    import jax

    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.evaluation.validation import validation_score
    from t2t_flax.extensions.sweeps.stacked_runs import train_stacked
    from t2t_flax.training.divergence import NonFiniteUpdate, advice, mark
    from t2t_flax.training.setup import set_up_training

    say, setups = supervisor.group.say, []
    for config, workdir in runs:
        if completed(workdir, config):
            continue
        jobs.check_metrics_available(config)
        config = jobs.with_precision(config, workdir, supervisor.group)
        with supervisor.exit_on_signal("preparing the data"):
            task = task_of(config)
            check_config(workdir, config)
            check_sources(task)
            adopt_config(workdir, config)
            corpus = prepare_corpus(task, workdir)
        device = jax.devices()[len(setups) % jax.device_count()]
        setups.append(set_up_training(config, workdir, corpus, devices=[device]))
    say(f"{len(setups)} runs together: {', '.join(str(run.workdir) for run in setups)}")
    if not setups:
        return OK

    def on_finish(run, end) -> None:
        with supervisor.exit_on_signal("evaluating at the end"):
            jobs.finish(run.config, run.workdir, end, supervisor)

    codes = []
    ends = train_stacked(setups, [validation_score(run) for run in setups], supervisor, say, on_finish)
    for run, end in zip(setups, ends, strict=True):
        if isinstance(end, NonFiniteUpdate):
            mark(run.workdir, end)
            print(f"t2t_flax train: {run.workdir}: {end} {advice(run.config, run.workdir)}", file=sys.stderr)
            codes.append(DIVERGED)
        elif not end.finished:
            say(f"{run.workdir}: stopped by {end.reason} after update {end.step}, saved")
            codes.append(STOPPED)
    return max(codes, default=OK)
