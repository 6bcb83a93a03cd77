"""Trains several runs with one program; `sweep --stack` starts it.

python -m t2t_flax.cli.train_together --config=A.json --workdir=A --config=B.json --workdir=B ...
"""

import contextlib
import sys

from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.config.scalars import can_train_together, share_a_program
from t2t_flax.distributed.job import run_job
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import DIVERGED, OK, STOPPED, USER_ERROR, WRITE_HINT, UserError
from t2t_flax.filesystem import is_write_refused
from t2t_flax.jobs import check_metrics_available, finish
from t2t_flax.process_setup import prepare_process
from t2t_flax.training.workdir import adopt_config, check_ours, completed, writing


def run(argv: list[str]) -> int:
    """Exit code 0 when all runs are complete, 75 when asked to stop and saved, 3 when one has diverged."""
    parser = arguments.parser("train_together", "Trains runs that differ in scalars alone with one program.")
    parser.add_argument("--config", action="append", required=True, metavar="FILE.json")
    parser.add_argument("--workdir", action="append", required=True, metavar="DIR")
    args, overrides = arguments.parse(parser, argv)
    configs = [config_lib.load_config(path, overrides) for path in args.config]
    if len(configs) != len(args.workdir):
        raise UserError(f"{len(configs)} configs and {len(args.workdir)} workdirs: give one of each for each run.")
    for path, config in zip(args.config, configs, strict=True):
        if not share_a_program(configs[0], config):
            told = ", ".join(config_lib.differences(configs[0], config))
            raise UserError(f"{path} and {args.config[0]} differ in more than scalars: {told}.")
        if not can_train_together(config):
            raise UserError(
                f"{path}: runs that train together have one device each and no profile: leave config.mesh and "
                "config.log.profile_steps at their defaults."
            )
    prepare_process(configs[0])
    workdirs = [epath.Path(path) for path in args.workdir]
    with contextlib.ExitStack() as until_the_end:
        for workdir in workdirs:
            check_ours(workdir)
            until_the_end.enter_context(writing(workdir, "train_together"))
        return run_job(
            configs[0].distributed, lambda supervisor: _job(list(zip(configs, workdirs, strict=True)), supervisor)
        )


def _job(runs: list[tuple[Config, epath.Path]], supervisor: RunSupervisor) -> int:
    import jax

    from t2t_flax.data.dataset import check_sources, prepare_corpus
    from t2t_flax.evaluation.validation import validation_score
    from t2t_flax.training.divergence import NonFiniteUpdate, advice, mark, unmark
    from t2t_flax.training.loop import Outcome
    from t2t_flax.training.setup import TrainingSetup, set_up_training
    from t2t_flax.training.vectorized import train_together

    say, assembled = supervisor.group.say, list[TrainingSetup]()
    left = [(config, workdir) for config, workdir in runs if not completed(workdir, config)]
    for i, (config, workdir) in enumerate(left):
        check_metrics_available(config)
        adopt_config(workdir, config)
        unmark(workdir)
        with supervisor.exit_on_signal("preparing the data"):
            check_sources(config)
            corpus = prepare_corpus(config, workdir)
        assembled.append(set_up_training(config, workdir, corpus, devices=[jax.devices()[i % jax.device_count()]]))
    say(f"{len(assembled)} runs together: {', '.join(str(run.workdir) for run in assembled)}")
    if not assembled:
        return OK

    def ended(run: TrainingSetup, outcome: Outcome) -> None:
        with supervisor.exit_on_signal("evaluating at the end"):
            finish(run.config, run.workdir, outcome, supervisor)

    outcomes = train_together(assembled, [validation_score(run) for run in assembled], say, supervisor, ended)
    for run, outcome in zip(assembled, outcomes, strict=True):
        if isinstance(outcome, NonFiniteUpdate):
            mark(run.workdir, outcome)
            print(f"t2t_flax train: {run.workdir}: {outcome} {advice(run.config, run.workdir)}", file=sys.stderr)
        elif not outcome.finished:
            say(f"{run.workdir}: stopped by {outcome.reason} after update {outcome.step}, saved")
    diverged = [isinstance(outcome, NonFiniteUpdate) for outcome in outcomes]
    stopped = [not (broken or outcome.finished) for broken, outcome in zip(diverged, outcomes, strict=True)]
    return STOPPED if any(stopped) else DIVERGED if any(diverged) else OK


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except UserError as error:
        print(f"t2t_flax train_together: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except OSError as error:
        if not is_write_refused(error):
            raise
        print(f"t2t_flax train_together: {error}. {WRITE_HINT}", file=sys.stderr)
        sys.exit(USER_ERROR)
