"""`sweep`: many trials of one config, and the table of what they found."""

import argparse
import dataclasses
import importlib.util
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.distributed.initialize import require_single_process
from t2t_flax.errors import OK, STOPPED, USER_ERROR, UserError
from t2t_flax.sweeps import space
from t2t_flax.sweeps.folder import FAILED, Folder, read_sweep
from t2t_flax.sweeps.live import live
from t2t_flax.sweeps.opening import check_code, open_folder
from t2t_flax.sweeps.opening import code as code_of
from t2t_flax.sweeps.report import report, text_table
from t2t_flax.sweeps.scores import check_score, default_score
from t2t_flax.sweeps.search import NO_OPTUNA, Searched
from t2t_flax.sweeps.shares import Share, shares
from t2t_flax.sweeps.space import Search, Sweep
from t2t_flax.sweeps.submit import NO_SUBMITIT, submit
from t2t_flax.sweeps.trials import expand, folder_name
from t2t_flax.sweeps.worker import Listed, Queue, counts, work

SWEEP_VERSION = 1


def run(argv: list[str]) -> int:
    """Exit code 0 when every trial is complete (or pruned), 2 when some failed for good: somebody must look, and no restart
    helps; 75 when stopped with everything saved.
    """
    args, fixed = arguments.parse(_arguments(), argv)
    if args.report:
        return _report(args, fixed)
    if not args.submit:
        require_single_process("sweep")
    parts, options = shares(1 if args.submit else args.jobs), _slurm(args)
    folder, described = _opened(args, fixed)
    if args.dry_run:
        return OK
    for name in described["trials"]:
        folder.try_again(name, given_up=args.retry_failed)
    if args.submit:
        return _submit(args, folder, options)
    return _work(args, folder, described, parts)


def _report(args: argparse.Namespace, fixed: dict[str, str]) -> int:
    given = ["--config.KEY"] * bool(fixed) + [
        f"--{name.replace('_', '-')}"
        for name in ("sweep", "config", "set", "seeds", "dry_run", "retry_failed", "extend", "submit", "slurm")
        if getattr(args, name)
    ]
    if given:
        raise UserError(f"--report only reads what is in --workdir: leave out {', '.join(given)}.")
    if args.score:
        _check_score_of(args.score, Path(args.workdir), read_sweep(args.workdir))
    print(report(Path(args.workdir), score=args.score, baseline=args.baseline))
    return OK


def _arguments() -> argparse.ArgumentParser:
    parser = arguments.parser(
        "sweep",
        "Trains a config with each of several overrides and seeds, and tells which is better and how surely. Give the\n"
        "same command again to go on after any kill. `sweep --workdir=DIR` alone joins a sweep that is there: on this or\n"
        "any other host that shares the folder.",
        epilog=f"{arguments.OVERRIDE_HELP}; here of every trial.\n\n"
        "  --set model.dropout=0.1,0.2,0.3 --set optimizer.warmup_steps=1000,4000 --seeds=3      18 trials\n\n"
        "A value that holds a comma: part the values by semicolons, --set 'log.profile_steps=(0,0);(5,9)'.\n"
        "Each trial is a workdir of `train` in DIR/trials; DIR/report gets the table. Exit codes: 0 all complete,\n"
        "75 stopped by a signal with everything saved, 2 a mistake in the input, or trials that were given up.",
    )
    arguments.add_workdir(parser, "folder of the sweep; made if it is not there")
    what = parser.add_argument_group("what is trained")
    what.add_argument("--sweep", metavar="FILE.py[:variant]", help="a file with get_sweep(): see configs/sweeps")
    what.add_argument("--config", metavar="FILE.py[:variant]", help="config of the trials, or the name of a preset")
    what.add_argument(
        "--set", action="append", default=[], metavar="KEY=V1,V2", help="each value with each of the others"
    )
    what.add_argument(
        "--seeds", type=arguments.count(1), metavar="N", help="runs of each row, with seeds 0 to N - 1 (default: 1)"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="check everything, list the trials, train nothing")
    how.add_argument(
        "--jobs",
        type=arguments.count(1, 1024),
        default=1,
        metavar="N",
        help="trials at a time; they share the machine evenly",
    )
    how.add_argument(
        "--stack", type=arguments.count(1, 1024), default=1, metavar="N",
        help="up to N trials that differ only in rates (learning, dropout, label smoothing, warm-up) and in seed.init, "
        "seed.dropout train together, vectorised in one program and divided over the devices",
    )  # fmt: skip
    how.add_argument(
        "--retries",
        type=arguments.count(),
        default=2,
        metavar="N",
        help="new attempts by this worker at a trial that fails (2)",
    )
    how.add_argument("--retry-failed", action="store_true", help="try again what was given up")
    how.add_argument("--extend", action="store_true", help="add the rows or seeds that the folder does not have yet")
    how.add_argument(
        "--any-code", action="store_true", help="go on although the code has changed since the sweep began"
    )
    how.add_argument(
        "--submit",
        type=arguments.count(high=10_000),
        default=0,
        metavar="N",
        help="N workers as SLURM jobs (submitit), not here",
    )
    how.add_argument(
        "--slurm", action="append", default=[], metavar="OPTION=VALUE",
        help="of submitit: timeout_min=600, slurm_partition=gpu, gpus_per_node=1, cpus_per_task=8 ...",
    )  # fmt: skip
    told = parser.add_argument_group("the table")
    told.add_argument("--report", action="store_true", help="only write the table of what there is")
    told.add_argument(
        "--score",
        default="",
        help="sacrebleu, chrf, ter, nll, valid_nll ... of the table; SET:sacrebleu of a named test set",
    )
    told.add_argument("--baseline", default="", metavar="ROW", help="row that the others are compared with (the best)")
    return parser


def _opened(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """The sweep's folder (not made by a dry run), and what the sweep is with its trials as far as they are known."""
    if not (args.sweep or args.config):
        if args.set or fixed or args.seeds or args.extend:
            raise UserError("--set, --config.KEY=VALUE, --seeds and --extend need --config or --sweep.")
        described = read_sweep(args.workdir)
        check_code(Path(args.workdir), described, args.any_code)
        search = described["search"] and Search.from_json(described["search"])
        _check_search(args, search, bool(args.baseline))
        folder = Folder(Path(args.workdir).absolute())
        if args.score:
            _check_score_of(args.score, folder.path, described)
        args.baseline = _baseline(args.baseline, [trial["row"] for trial in described["trials"].values()])
        _list(described, brief=not args.dry_run)
        return folder, described
    sweep = _sweep(args)
    if not sweep.config:
        raise UserError("the sweep names no config: give --config=FILE.py or the name of a preset.")
    adaptive = bool(sweep.search and not sweep.search.known)
    baseline = args.baseline or sweep.baseline
    if sweep.search:
        sweep.search.check()
        _check_search(args, sweep.search, bool(baseline))
    if adaptive and sweep.seeds > 1:
        raise UserError(
            "a search that learns or prunes trains each row once: give --seeds=1, and repeat the best rows."
        )
    rows = () if adaptive else sweep.search.rows() if sweep.search else sweep.rows
    trials = expand(sweep.config, fixed, rows, sweep.seeds, numbered=bool(sweep.search))
    base = config_lib.load_config(sweep.config, fixed) if adaptive else None
    configs = [base] if adaptive else [trial.config for trial in trials]
    score = args.score or (sweep.search.metric if sweep.search else sweep.score) or default_score(configs[0])
    for config in configs:
        check_score(score, config)
        if sweep.search:
            check_score(sweep.search.metric, config)
    baseline = _baseline(baseline, [trial.row for trial in trials])
    described = {
        "version": SWEEP_VERSION,
        "config": sweep.config,
        "fixed": fixed,
        "search": sweep.search and sweep.search.as_json(),
        "seeds": sweep.seeds,
        "score": score,
        "baseline": baseline,
    }
    how = dict(base=base, extend=args.extend, any_code=args.any_code, dry_run=args.dry_run)
    folder, described = open_folder(args.workdir, described, trials, **how)
    _list(described, brief=not args.dry_run)
    return folder, described


def _check_score_of(score: str, path: Path, described: dict[str, Any]) -> None:
    """Raises UserError where the trials of a sweep that is there will not have the score."""
    folder, search = Folder(path), described["search"] and Search.from_json(described["search"])
    for file in [folder.base] if search and not search.known else map(folder.config, described["trials"]):
        check_score(score, config_lib.from_json(file.read_text()))


def _baseline(name: str, rows: list[str]) -> str:
    """The row of that name, as folders have it. Raises UserError where there is none."""
    if name and folder_name(name) not in rows:
        raise UserError(f"the baseline {name!r} is no row of the sweep: {', '.join(dict.fromkeys(rows))}.")
    return name and folder_name(name)


def _check_search(args: argparse.Namespace, search: Search | None, baseline: bool) -> None:
    if search is None or search.known:
        return
    if importlib.util.find_spec("optuna") is None:
        raise UserError(NO_OPTUNA)
    if args.stack > 1:
        raise UserError("--stack trains listed rows together; this search proposes one trial after the other.")
    if baseline:
        raise UserError("--baseline names a listed row; the rows of this search are not known yet.")


def _sweep(args: argparse.Namespace) -> Sweep:
    varied = _set(args.set)
    if args.sweep and varied:
        raise UserError("--set and --sweep both say what varies: put the values into the sweep file, or leave it out.")
    if args.sweep:
        sweep = config_lib.from_python_file("--sweep", args.sweep, "get_sweep", "configs/sweeps/table3.py")
        if not isinstance(sweep, Sweep):
            raise UserError(f"--sweep={args.sweep}: get_sweep() returned {type(sweep).__name__}, expected a Sweep.")
    else:
        sweep = Sweep(rows=space.product(*varied) if varied else space.named("base"))
    given = {"seeds": args.seeds, "config": args.config}
    return dataclasses.replace(sweep, **{key: value for key, value in given.items() if value is not None})


def _set(given: list[str]) -> list[list[space.Overrides]]:
    parts = []
    for text in given:
        key, equals, values = text.partition("=")
        if not equals or not values or "." not in key:
            raise UserError(f"--set {text}: write --set GROUP.KEY=VALUE,VALUE.")
        parts.append(space.over(key, [value.strip() for value in values.split(";" if ";" in values else ",")]))
    return parts


def _list(described: dict[str, Any], brief: bool = False) -> None:
    trials = described["trials"]
    search = described["search"]
    left = search["count"] - len(trials) if search and not Search.from_json(search).known else 0
    more = f", {left} more that the search will propose" if left > 0 else ""
    print(f"{len(trials)} trials of {described['config']}{more}")
    if not brief and trials:
        lines = [[name, " ".join(f"{k}={v}" for k, v in t["overrides"].items())] for name, t in trials.items()]
        print(text_table(("trial", "overrides"), lines))


def _queue(folder: Folder, described: dict[str, Any]) -> Queue:
    search = described["search"] and Search.from_json(described["search"])
    if search and not search.known:
        return Searched(folder, search)
    return Listed(list(described["trials"]))


def _work(args: argparse.Namespace, folder: Folder, described: dict[str, Any], parts: list[Share]) -> int:
    queue = _queue(folder, described)
    stop = threading.Event()
    before = {s: signal.signal(s, lambda number, frame: stop.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    steps = {}

    def updates(name: str) -> int:
        if name not in steps:
            steps[name] = config_lib.from_json(folder.config(name).read_text()).train.steps
        return steps[name]

    try:
        with live(folder, queue.names, updates) as say:
            code = code_of()["digest"]
            how = dict(retries=args.retries, stop=stop, say=say, code=code, stack=args.stack, cwd=described["cwd"])
            work(folder, queue, parts, **how)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found = counts(folder, queue.names())
    print(", ".join(f"{count} {state}" for state, count in found.items() if count))
    if stop.is_set():  # without a report, which may take longer than whoever stops it waits
        print("stopped, everything saved; give the same command again to go on")
        return STOPPED
    print(report(folder.path, score=args.score, baseline=args.baseline))
    return USER_ERROR if found[FAILED] else OK


def _slurm(args: argparse.Namespace) -> dict[str, str]:
    if args.slurm and not args.submit:
        raise UserError("--slurm says how jobs are submitted: give --submit=N too.")
    options = dict(text.partition("=")[::2] for text in args.slurm)
    if not all(options.values()):
        raise UserError(f"--slurm {' '.join(args.slurm)}: write --slurm OPTION=VALUE.")
    if args.submit and importlib.util.find_spec("submitit") is None:
        raise UserError(NO_SUBMITIT)
    return options


def _submit(args: argparse.Namespace, folder: Folder, options: dict[str, str]) -> int:
    worker = [sys.executable, "-m", "t2t_flax", "sweep", f"--workdir={folder.path.absolute()}"]
    worker += [f"--jobs={args.jobs}", f"--stack={args.stack}", f"--retries={args.retries}"]
    worker += ["--any-code"] * args.any_code + [f"--score={args.score}"] * bool(args.score)
    worker += [f"--baseline={args.baseline}"] * bool(args.baseline)
    ids = submit(folder.path, worker, args.submit, options)
    print(f"submitted {len(ids)} workers: jobs {', '.join(ids)}; their logs: {folder.path / 'slurm'}")
    print(f"python -m t2t_flax sweep --workdir={folder.path} --report tells how far they are")
    return OK
