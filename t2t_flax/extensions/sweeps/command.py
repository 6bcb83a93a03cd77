"""`sweep`: trains variants of a config, and reports which are better and with what confidence."""

import argparse
import dataclasses
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.coordination import check_shared
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import OK, STOPPED, USER_ERROR, UserError
from t2t_flax.extensions.sweeps import space
from t2t_flax.extensions.sweeps.device_hours import Prices
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, check_code, open_or_create, read_sweep
from t2t_flax.extensions.sweeps.launchers import LAUNCHERS, commands, launch
from t2t_flax.extensions.sweeps.optuna_search import NO_OPTUNA, SearchQueue
from t2t_flax.extensions.sweeps.pod import Pod, check_same_code
from t2t_flax.extensions.sweeps.progress import progress_table
from t2t_flax.extensions.sweeps.report import report
from t2t_flax.extensions.sweeps.resources import Resources, divide_machine
from t2t_flax.extensions.sweeps.results import check_score, default_score, validation_score
from t2t_flax.extensions.sweeps.slurm import NO_SUBMITIT, submit
from t2t_flax.extensions.sweeps.space import Search, Sweep
from t2t_flax.extensions.sweeps.trials import expand, folder_name
from t2t_flax.extensions.sweeps.worker import TrialQueue, Worker, count_states, start_training
from t2t_flax.filesystem import is_remote
from t2t_flax.tables import text_table

SWEEP_VERSION = 1
SLURM = "slurm"


def run(argv: list[str]) -> int:
    """Exit code 0 when every trial has a result (also diverged, out of memory), 2 when others failed, 75 when stopped, saved."""
    args, fixed = arguments.parse(_parser(), argv)
    Prices.parse(args.price)  # raises its error before any training
    if args.report:
        return _report(args, fixed)
    options = _submit_options(args)
    if args.submit and args.submit.launcher != SLURM:
        return _launch(args, fixed, options)
    if args.submit:
        folder, sweep = _open(args, fixed)
        return _submit(args, folder, options)
    resources = divide_machine(args.jobs)
    if args.dry_run:
        _open(args, fixed)
        return OK
    body = lambda supervisor: _job(args, fixed, resources, supervisor)  # noqa: E731
    return run_job(_worker_config(args, fixed), body, use_devices=False)


def _open(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """Creates, continues or joins the sweep, lists its trials, and reopens failed ones."""
    folder, sweep = _create(args, fixed) if args.sweep or args.config else _join(args, fixed)
    _list_trials(sweep, brief=not args.dry_run)
    for name in () if args.dry_run else sweep["trials"]:
        folder.retry(name, all_failures=args.retry_failed)
    return folder, sweep


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(
        "sweep",
        "Trains variants of a config with one or more seeds each, and reports which are better and with what confidence.\n"
        "Rerun the same command to continue after a kill. `sweep --workdir=DIR` alone joins an existing sweep, on this\n"
        "or any other host that shares the folder. Started on each host of a pod, it trains each trial on all of them.",
        epilog=f"{arguments.OVERRIDE_HELP}; here it applies to every trial.\n\n"
        "  --set model.dropout=0.1,0.2,0.3 --set optimizer.warmup_steps=1000,4000 --seeds=3      18 trials\n\n"
        "If a value contains a comma, separate values by semicolons: --set 'data.valid=a.en,a.de;b.en,b.de'.\n"
        "Each trial is a workdir of `train` in DIR/trials; the table is written to DIR/report. Exit codes: 0 all have\n"
        "results (diverged too), 75 stopped by a signal with everything saved, 2 invalid input or failed trials.",
    )
    arguments.add_workdir(parser, "folder of the sweep; created if it does not exist")
    trial_flag = parser.add_argument_group("trials").add_argument
    trial_flag("--sweep", metavar="FILE.py[:variant]", help="file that defines get_sweep(); see configs/sweeps")
    trial_flag("--config", metavar="FILE.py[:variant]", help="config of the trials, or the name of a preset")
    trial_flag(
        "--set", action="append", default=[], metavar="KEY=V1,V2", help="values of a key; every combination is trained"
    )
    trial_flag("--seeds", type=arguments.count(1), metavar="N", help="runs per row, with seeds 0 to N - 1 (default: 1)")
    run_flag = parser.add_argument_group("execution").add_argument
    at_least_one, any_number = arguments.count(1, 1024), arguments.count()
    run_flag("--dry-run", action="store_true", help="validate everything, list the trials, train nothing")
    run_flag(
        "--jobs",
        type=at_least_one,
        default=1,
        metavar="N",
        help="trials to train at a time, each on an equal share of the machine",
    )
    stack = "up to N trials that differ only in rates (learning, dropout, label smoothing, warm-up) and in seed.init, "
    stack += "seed.dropout (so of one seed) train in one vectorized program, divided over the devices"
    run_flag("--stack", type=at_least_one, default=1, metavar="N", help=stack)
    run_flag("--retries", type=any_number, default=2, metavar="N", help="number of retries of a failing trial (2)")
    run_flag("--retry-failed", action="store_true", help="retry all failed trials")
    run_flag("--extend", action="store_true", help="add rows or seeds to the sweep in the folder")
    run_flag("--any-code", action="store_true", help="continue even if the code has changed since the sweep began")
    submit_help = (
        "start N workers (1) and leave the training to them; LAUNCHER: slurm (the default, through submitit), "
    )
    submit_help += f"{', '.join(LAUNCHERS)} (launch/README.md). With --dry-run only prints the commands"
    run_flag("--submit", type=_Submission.parse, metavar="[LAUNCHER:]N", help=submit_help)
    option = "option of the launcher: for slurm one of submitit (timeout_min=600, slurm_partition=gpu, gpus_per_node=1 ...), "
    option += "else a flag of its script in launch/ (accelerators=tpu-v6e-16)"
    run_flag("--submit-option", action="append", default=[], metavar="OPTION=VALUE", help=option)
    report_flag = parser.add_argument_group("report").add_argument
    report_flag("--report", action="store_true", help="only write the report on the trials so far")
    score = (
        "default: valid_nll, or that of eval.metric; valid_nll/SET, sacrebleu, chrf, SET:sacrebleu (of a test set) ..."
    )
    report_flag("--score", default="", help=score)
    report_flag("--baseline", default="", metavar="ROW", help="row to compare the others with (default: the best)")
    price = "price of an hour of one chip, or of one kind: 'TPU v5 lite=AMOUNT'; the report then has costs"
    report_flag("--price", action="append", default=[], metavar="[KIND=]AMOUNT", help=price)
    return parser


def _report(args: argparse.Namespace, fixed: dict[str, str]) -> int:
    names = ("sweep", "config", "set", "seeds", "dry_run", "retry_failed", "extend", "submit", "submit_option")
    unused = ["--config.KEY"] * bool(fixed) + [f"--{n.replace('_', '-')}" for n in names if getattr(args, n)]
    if unused:
        raise UserError(f"--report only reads the folder in --workdir: leave out {', '.join(unused)}.")
    _check_score_of_folder(args.score, Folder(Path(args.workdir)), read_sweep(args.workdir))
    print(report(Path(args.workdir), score=args.score, baseline=args.baseline, prices=Prices.parse(args.price)))
    return OK


def _join(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """The existing sweep in --workdir."""
    _check_join_flags(args, fixed)
    sweep = read_sweep(args.workdir)
    folder = Folder(Path(args.workdir).absolute())
    check_code(folder.path, sweep, args.any_code)
    _check_adaptive(args, _search(sweep), bool(args.baseline))
    _check_score_of_folder(args.score, folder, sweep)
    args.baseline = _baseline(args.baseline, [trial["row"] for trial in sweep["trials"].values()])
    return folder, sweep


def _check_join_flags(args: argparse.Namespace, fixed: dict[str, str]) -> None:
    if args.set or fixed or args.seeds or args.extend:
        raise UserError("--set, --config.KEY=VALUE, --seeds and --extend need --config or --sweep.")


def _create(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """The sweep of the command line, created or continued in --workdir."""
    sweep = _sweep_of(args)
    if not sweep.config:
        raise UserError("the sweep has no config: give --config=FILE.py or the name of a preset.")
    search, baseline = sweep.search, args.baseline or sweep.baseline
    adaptive = bool(search and search.adaptive)
    if search:
        search.validate()
        _check_adaptive(args, search, bool(baseline))
    if adaptive and sweep.seeds > 1:
        raise UserError("an adaptive search trains each row once: use --seeds=1, and repeat the best rows in a sweep.")
    rows = () if adaptive else search.rows() if search else sweep.rows

    trials = expand(sweep.config, fixed, rows, sweep.seeds, numbered=bool(search))
    base = config_lib.load_config(sweep.config, fixed) if adaptive else None
    configs = [base] if adaptive else [trial.config for trial in trials]
    score = args.score or (search.metric if search else sweep.score) or default_score(configs[0])
    for config in configs:
        check_score(score, config)
        if search:
            check_score(search.metric, config)
    values = {
        "version": SWEEP_VERSION,
        "config": sweep.config,
        "fixed": fixed,
        "search": search and search.to_json(),
        "seeds": sweep.seeds,
        "score": score,
        "selection": validation_score(configs[0]),
        "baseline": _baseline(baseline, [trial.row for trial in trials]),
    }
    options = dict(base=base, extend=args.extend, any_code=args.any_code, dry_run=args.dry_run)
    return open_or_create(args.workdir, values, trials, **options)


def _sweep_of(args: argparse.Namespace) -> Sweep:
    """The sweep of --sweep or --set, with the config and seeds of the command line."""
    if args.sweep and args.set:
        raise UserError(
            "both --set and --sweep define what varies: put the values into the sweep file, or leave it out."
        )
    if args.sweep:
        sweep = config_lib.from_python_file("--sweep", args.sweep, "get_sweep", "configs/sweeps/table3.py")
        if not isinstance(sweep, Sweep):
            raise UserError(f"--sweep={args.sweep}: get_sweep() returned {type(sweep).__name__}, expected a Sweep.")
    else:
        parts = list(map(_values_of, args.set))
        sweep = Sweep(rows=space.product(*parts) if parts else space.named("base"))
    flags = {"seeds": args.seeds, "config": args.config}
    return dataclasses.replace(sweep, **{key: value for key, value in flags.items() if value is not None})


def _values_of(text: str) -> list[space.Overrides]:
    """The rows of --set KEY=V1,V2."""
    key, equals, values = text.partition("=")
    if not equals or not values or "." not in key:
        raise UserError(f"--set {text}: expected --set GROUP.KEY=VALUE,VALUE.")
    return space.over(key, [value.strip() for value in values.split(";" if ";" in values else ",")])


def _search(sweep: dict[str, Any]) -> Search | None:
    return sweep["search"] and Search.from_json(sweep["search"])


def _check_score_of_folder(score: str, folder: Folder, sweep: dict[str, Any]) -> None:
    """Raises UserError if the trials of an existing sweep will not have the score."""
    search = _search(sweep)
    paths = [folder.base] if search and search.adaptive else map(folder.config, sweep["trials"])
    for path in paths if score else ():
        check_score(score, config_lib.from_json(path.read_text()))


def _baseline(name: str, rows: list[str]) -> str:
    """The row's name as a folder has it. Raises UserError if it is not a row."""
    if name and folder_name(name) not in rows:
        raise UserError(f"the baseline {name!r} is not a row of the sweep: {', '.join(dict.fromkeys(rows))}.")
    return name and folder_name(name)


def _check_adaptive(args: argparse.Namespace, search: Search | None, baseline: bool) -> None:
    if search is None or not search.adaptive:
        return
    if importlib.util.find_spec("optuna") is None:
        raise UserError(NO_OPTUNA)
    if args.stack > 1:
        raise UserError("--stack trains listed rows together; this search proposes one trial after the other.")
    if baseline:
        raise UserError("--baseline names a listed row; the rows of this search are not known yet.")


def _list_trials(sweep: dict[str, Any], *, brief: bool) -> None:
    trials, search = sweep["trials"], _search(sweep)
    missing = search.count - len(trials) if search and search.adaptive else 0
    more = f", the search will propose {missing} more" if missing > 0 else ""
    print(f"{len(trials)} trials of {sweep['config']}{more}")
    if not brief and trials:
        lines = [[name, " ".join(f"{k}={v}" for k, v in t["overrides"].items())] for name, t in trials.items()]
        print(text_table(("trial", "overrides"), lines))


def _worker_config(args: argparse.Namespace, fixed: dict[str, str]) -> Config:
    """The config of a worker on several hosts, for its timeouts: that of the trials, without what the sweep varies."""
    if args.sweep or args.config:
        path = _sweep_of(args).config
        return config_lib.load_config(path, fixed) if path else Config()
    folder = Folder(Path(args.workdir))
    if not (folder.path / "sweep.json").exists():  # `_job` names the hosts that do not see it
        return Config()
    sweep = read_sweep(args.workdir)
    paths = [folder.base, *map(folder.config, sweep["trials"])]
    stored = next((path for path in paths if path.exists()), None)
    return config_lib.from_json(stored.read_text()) if stored else Config()


def _job(args: argparse.Namespace, fixed: dict[str, str], resources: list[Resources], supervisor: RunSupervisor) -> int:
    """A worker, or its process on this host."""
    group = supervisor.group
    if group.count == 1:
        return _work(args, *_open(args, fixed), resources, supervisor, None)
    if args.jobs > 1 or args.stack > 1:
        raise UserError("--jobs and --stack divide one host; each trial of a worker on several hosts uses all of them.")
    check_same_code(group)
    resources = [Resources(description=f"{group.count} processes")]
    if group.is_lead:
        folder, sweep = _open(args, fixed)
    check_shared(group, Path(args.workdir).absolute(), "--workdir")
    pod = Pod(group)
    if not group.is_lead:
        return pod.follow(
            Folder(Path(args.workdir).absolute()), read_sweep(args.workdir)["cwd"], supervisor.stop_requested
        )
    code = _work(args, folder, sweep, resources, supervisor, pod)
    pod.end(code)
    return code


def _work(
    args: argparse.Namespace,
    folder: Folder,
    sweep: dict[str, Any],
    resources: list[Resources],
    supervisor: RunSupervisor,
    pod: Pod | None,
) -> int:
    search, stop = _search(sweep), supervisor.stop_requested
    queue = SearchQueue(folder, search) if search and search.adaptive else TrialQueue(list(sweep["trials"]))
    with progress_table(folder, queue.names) as say:
        options = dict(retries=args.retries, stop=stop, say=say, stack=args.stack, cwd=sweep["cwd"])
        Worker(folder, queue, resources, **options, start=pod.start if pod else start_training).run()
    counts = count_states(folder, queue.names())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if stop.is_set():  # no report: it may take longer than the time before a scheduler kills this process
        print("stopped, everything saved; run the same command again to continue")
        return STOPPED
    print(report(folder.path, score=args.score, baseline=args.baseline, prices=Prices.parse(args.price)))
    return USER_ERROR if FAILED in counts else OK


@dataclasses.dataclass(frozen=True)
class _Submission:
    """What --submit starts."""

    launcher: str
    workers: int

    @classmethod
    def parse(cls, text: str) -> "_Submission":
        """Of `8`, `slurm:8`, `gke:2` or `gke`: one worker. Raises ArgumentTypeError."""
        launcher, colon, count = text.rpartition(":")
        if not colon and not text.lstrip("-").isdecimal():
            launcher, count = text, "1"
        launcher = launcher or SLURM
        if launcher not in (SLURM, *LAUNCHERS):
            names = ", ".join((SLURM, *LAUNCHERS))
            raise argparse.ArgumentTypeError(f"there is no launcher {launcher!r}: expected one of {names}")
        return cls(launcher, arguments.count(1, 10_000)(count))


def _submit_options(args: argparse.Namespace) -> dict[str, str]:
    if args.submit_option and not args.submit:
        raise UserError("--submit-option is for submitted workers: give --submit=[LAUNCHER:]N too.")
    options = dict(text.partition("=")[::2] for text in args.submit_option)
    if not all(options.values()) or len(options) < len(args.submit_option):
        raise UserError(
            f"--submit-option {' '.join(args.submit_option)}: expected --submit-option OPTION=VALUE, once for each option."
        )
    if (
        args.submit
        and args.submit.launcher == SLURM
        and not args.dry_run
        and importlib.util.find_spec("submitit") is None
    ):
        raise UserError(NO_SUBMITIT)
    return options


def _submit(args: argparse.Namespace, folder: Folder, options: dict[str, str]) -> int:
    """SLURM jobs that join the sweep in its folder."""
    command = [sys.executable, "-m", "t2t_flax", "sweep", f"--workdir={folder.path}", *_worker_flags(args)]
    if args.dry_run:
        given = " ".join(f"{key}={value}" for key, value in options.items())
        print(f"{args.submit.workers} SLURM jobs through submitit, {given or 'without options'}: {shlex.join(command)}")
        return OK
    ids = submit(folder.path, command, args.submit.workers, options)
    print(f"submitted {len(ids)} workers: jobs {', '.join(ids)}; their logs: {folder.path / 'slurm'}")
    print(f"their progress: python -m t2t_flax sweep --workdir={folder.path} --report")
    return OK


def _launch(args: argparse.Namespace, fixed: dict[str, str], options: dict[str, str]) -> int:
    """Pods that run this command: the first one creates the sweep, for its folder may not be visible here."""
    launcher = args.submit.launcher
    if not Path(args.workdir).is_absolute() or is_remote(args.workdir):
        raise UserError(
            f"--submit={launcher} needs the absolute path of a folder that all hosts mount, with file locks (NFS 4): "
            f"--workdir={args.workdir} is not an absolute local path."
        )
    if args.retry_failed:
        raise UserError(
            f"--retry-failed with --submit={launcher} would retry at every restart: run `sweep --workdir=DIR --retry-failed` "
            "on a host that sees the folder."
        )
    command = ["python", "-m", "t2t_flax", "sweep", f"--workdir={args.workdir}"]
    if args.sweep or args.config:
        _, sweep = _create(argparse.Namespace(**vars(args) | {"dry_run": True}), fixed)
        _list_trials(sweep, brief=not args.dry_run)
        command += [f"--{name}={getattr(args, name)}" for name in ("sweep", "config", "seeds") if getattr(args, name)]
        command += [f"--set={text}" for text in args.set] + ["--extend"] * args.extend
        command += [f"--config.{key}={value}" for key, value in fixed.items()]
    else:
        _check_join_flags(args, fixed)
    command += _worker_flags(args)
    calls = commands(launcher, args.workdir, command, args.submit.workers, options, dry_run=args.dry_run)
    code = launch(launcher, calls)
    if not args.dry_run and code == OK:
        print(f"their progress, where the folder is: python -m t2t_flax sweep --workdir={args.workdir} --report")
    return code


def _worker_flags(args: argparse.Namespace) -> list[str]:
    """The flags that a worker needs beside those that say which sweep it is."""
    flags = [f"--jobs={args.jobs}", f"--stack={args.stack}", f"--retries={args.retries}"]
    flags += ["--any-code"] * args.any_code + [f"--score={args.score}"] * bool(args.score)
    return flags + [f"--baseline={args.baseline}"] * bool(args.baseline) + [f"--price={price}" for price in args.price]
