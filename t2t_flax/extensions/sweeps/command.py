"""`sweep`: trains variants of a config, and reports which are better and with what confidence."""

import argparse
import dataclasses
import functools
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.distributed.coordination import check_shared, distributed_state
from t2t_flax.distributed.supervisor import RunSupervisor, run_job
from t2t_flax.errors import OK, STOPPED, USER_ERROR, UserError
from t2t_flax.extensions.sweeps import space
from t2t_flax.extensions.sweeps.attempts import start_training
from t2t_flax.extensions.sweeps.folder import FAILED, Folder, check_host, open_or_create, read_sweep
from t2t_flax.extensions.sweeps.optuna_search import NO_OPTUNA, SearchQueue
from t2t_flax.extensions.sweeps.pod import Pod
from t2t_flax.extensions.sweeps.report import report, text_table
from t2t_flax.extensions.sweeps.resources import Resources, divide_machine
from t2t_flax.extensions.sweeps.results import check_score, default_score, validation_score
from t2t_flax.extensions.sweeps.space import Search, Sweep
from t2t_flax.extensions.sweeps.trials import expand, folder_name
from t2t_flax.extensions.sweeps.worker import TrialQueue, Worker, count_states


def run(argv: list[str]) -> int:
    """Exit code 0 when every trial has a result (also diverged, out of memory), 2 when others failed, 75 when stopped, saved."""
    args, fixed = arguments.parse(_parser(), argv)
    if args.report:
        return _report(args, fixed)
    resources = divide_machine(args.parallel)
    if args.dry_run:
        _open(args, fixed)
        return OK
    work = lambda supervisor: _work(args, fixed, resources, supervisor)  # noqa: E731
    return run_job(_process_config(args, fixed), work, use_devices=False)


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
    flag = parser.add_argument_group("trials").add_argument
    flag("--sweep", metavar="FILE.py[:variant]", help="file that defines get_sweep(); see configs/sweeps")
    flag("--config", metavar="FILE.py[:variant]", help="config of the trials, or the name of a preset")
    flag(
        "--set", action="append", default=[], metavar="KEY=V1,V2", help="values of a key; every combination is trained"
    )
    flag("--seeds", type=arguments.count(1), metavar="N", help="runs per row, with seeds 0 to N - 1 (default: 1)")
    flag = parser.add_argument_group("execution").add_argument
    at_least_one = arguments.count(1, 1024)
    flag("--dry-run", action="store_true", help="validate everything, list the trials, train nothing")
    parallel = "trials to train at a time, each on an equal share of the machine"
    flag("--parallel", type=at_least_one, default=1, metavar="N", help=parallel)
    flag("--retries", type=arguments.count(), default=2, metavar="N", help="number of retries of a failing trial (2)")
    flag("--retry-failed", action="store_true", help="retry all failed trials")
    flag("--extend", action="store_true", help="add rows or seeds to the sweep in the folder")
    flag("--any-code", action="store_true", help="continue even if the code has changed since the sweep began")
    flag = parser.add_argument_group("report").add_argument
    flag("--report", action="store_true", help="only write the report on the trials so far")
    score = (
        "default: valid_nll, or that of eval.metric; valid_nll/SET, sacrebleu, chrf, SET:sacrebleu (of a test set) ..."
    )
    flag("--score", default="", help=score)
    flag("--baseline", default="", metavar="ROW", help="row to compare the others with (default: the best)")
    return parser


def _report(args: argparse.Namespace, fixed: dict[str, str]) -> int:
    names = ("sweep", "config", "set", "seeds", "dry_run", "retry_failed", "extend")
    unused = ["--config.KEY"] * bool(fixed) + [f"--{n.replace('_', '-')}" for n in names if getattr(args, n)]
    if unused:
        raise UserError(f"--report only reads the folder in --workdir: leave out {', '.join(unused)}.")
    _check_score_of_folder(args.score, Folder(Path(args.workdir)), read_sweep(args.workdir))
    print(report(Path(args.workdir), score=args.score, baseline=args.baseline))
    return OK


def _open(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """Creates, continues or joins the sweep, lists its trials, and reopens failed ones."""
    folder, sweep = _create(args, fixed) if args.sweep or args.config else _join(args, fixed)
    _list_trials(sweep, brief=not args.dry_run)
    for name in () if args.dry_run else sweep["trials"]:
        folder.retry(name, all_failures=args.retry_failed)
    return folder, sweep


def _join(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """The existing sweep in --workdir."""
    if args.set or fixed or args.seeds or args.extend:
        raise UserError("--set, --config.KEY=VALUE, --seeds and --extend need --config or --sweep.")
    sweep = read_sweep(args.workdir)
    folder = Folder(Path(args.workdir).absolute())
    check_host(folder.path, sweep, args.any_code)
    _check_adaptive(args, _search(sweep), args.baseline)
    _check_score_of_folder(args.score, folder, sweep)
    _check_baseline(args.baseline, [trial["row"] for trial in sweep["trials"].values()])
    return folder, sweep


def _create(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """The sweep of the command line, created or continued in --workdir."""
    sweep = _sweep_of(args)
    search, baseline = sweep.search, args.baseline or sweep.baseline
    adaptive = bool(search and search.adaptive)
    if search:
        search.validate()
    _check_adaptive(args, search, baseline)
    if adaptive and sweep.seeds > 1:
        raise UserError("an adaptive search trains each row once: use --seeds=1, and repeat the best rows in a sweep.")
    rows = () if adaptive else search.rows() if search else sweep.rows

    trials = expand(sweep.config, fixed, rows, sweep.seeds, numbered=bool(search))
    base = config_lib.load_config(sweep.config, fixed) if adaptive else None
    configs = [base] if base else [trial.config for trial in trials]
    score = args.score or (search.metric if search else sweep.score) or default_score(configs[0])
    for config in configs:
        for name in (score, search.metric) if search else (score,):
            check_score(name, config)
    _check_baseline(baseline, [trial.row for trial in trials])
    values = {
        "config": sweep.config,
        "fixed": fixed,
        "search": search and search.to_json(),
        "seeds": sweep.seeds,
        "score": score,
        "selection": validation_score(configs[0]),
        "baseline": baseline and folder_name(baseline),
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
    sweep = dataclasses.replace(sweep, **{key: value for key, value in flags.items() if value is not None})
    if not sweep.config:
        raise UserError("the sweep has no config: give --config=FILE.py or the name of a preset.")
    return sweep


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


def _check_baseline(name: str, rows: list[str]) -> None:
    if name and folder_name(name) not in rows:
        raise UserError(f"the baseline {name!r} is not a row of the sweep: {', '.join(dict.fromkeys(rows))}.")


def _check_adaptive(args: argparse.Namespace, search: Search | None, baseline: str) -> None:
    if search is None or not search.adaptive:
        return
    if importlib.util.find_spec("optuna") is None:
        raise UserError(NO_OPTUNA)
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


def _process_config(args: argparse.Namespace, fixed: dict[str, str]) -> Config:
    """The config whose timeouts count for a pod: that of the trials, without what the sweep varies."""
    if args.sweep or args.config:
        return config_lib.load_config(_sweep_of(args).config, fixed)
    folder = Path(args.workdir)
    stored = next((path for name in ("base.json", "configs/*.json") for path in folder.glob(name)), None)
    return config_lib.from_json(stored.read_text()) if stored else Config()  # `_work` names the hosts that see none


def _work(
    args: argparse.Namespace, fixed: dict[str, str], resources: list[Resources], supervisor: RunSupervisor
) -> int:
    """Works on the sweep, alone or as one process of a pod, until it ends or a signal comes; returns the exit code."""
    group, stop, path = supervisor.group, supervisor.stop_requested, Path(args.workdir).absolute()
    if group.count == 1:
        return _train(args, _open(args, fixed), resources, stop)
    if args.parallel > 1:
        raise UserError("--parallel divides one host; each trial of a pod uses all of its hosts.")
    if group.is_lead:
        opened = _open(args, fixed)
    check_shared(group, path, "--workdir")
    pod = Pod(group, distributed_state().coordinator_address)
    if group.is_lead:
        code = _train(args, opened, [Resources(description=f"{group.count} processes")], stop, pod.start)
        pod.end(code)
        return code
    sweep = read_sweep(path)
    check_host(path, sweep, args.any_code)
    return pod.follow(Folder(path), sweep["cwd"], stop)


def _train(
    args: argparse.Namespace,
    opened: tuple[Folder, dict[str, Any]],
    resources: list[Resources],
    stop: threading.Event,
    start: Callable[..., Any] = start_training,
) -> int:
    folder, sweep = opened
    search = _search(sweep)
    queue = SearchQueue(folder, search) if search and search.adaptive else TrialQueue(list(sweep["trials"]))
    options = dict(retries=args.retries, stop=stop, cwd=sweep["cwd"], start=start)
    Worker(folder, queue, resources, say=functools.partial(print, flush=True), **options).run()
    counts = count_states(folder, queue.names())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if stop.is_set():  # no report: it may take longer than the time before a scheduler kills this process
        print("stopped, everything saved; run the same command again to continue")
        return STOPPED
    print(report(folder.path, score=args.score, baseline=args.baseline))
    return USER_ERROR if FAILED in counts else OK
