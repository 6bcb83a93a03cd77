"""`sweep`: train variants of a config and report tested differences."""

import argparse
import dataclasses
import functools
import os
import threading
from pathlib import Path
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config.overrides import values_of_user
from t2t_flax.distributed.coordination import require_single_process
from t2t_flax.distributed.signals import on_stop_signals
from t2t_flax.errors import OK, STOPPED, USER_ERROR, UserError
from t2t_flax.extensions.shared.addresses import without_credentials
from t2t_flax.extensions.sweeps import space
from t2t_flax.extensions.sweeps.folder import Folder, check_host, open_or_create, read_sweep
from t2t_flax.extensions.sweeps.report import markdown_table, report
from t2t_flax.extensions.sweeps.resources import Resources, divide_machine
from t2t_flax.extensions.sweeps.results import check_score, default_score, validation_score
from t2t_flax.extensions.sweeps.search import SearchTrials
from t2t_flax.extensions.sweeps.space import Sweep
from t2t_flax.extensions.sweeps.trials import expand, folder_name
from t2t_flax.extensions.sweeps.worker import ListedTrials, Trials, Worker, count_states, has_result

STORAGE = "T2T_STORAGE"
"""Environment variable in place of --storage.

All users of the machine could see the flag's password.
"""


def run(argv: list[str]) -> int:
    """Return exit code 0 when every trial has a result (also diverged or pruned).

    2 when others failed, 75 when stopped, saved.
    """
    args, fixed = arguments.parse(_parser(), argv)
    if args.report:
        return _report(args, fixed)
    require_single_process("sweep")
    resources = divide_machine(args.parallel)
    folder, sweep = _create(args, fixed) if args.sweep or args.config else _join(args, fixed)
    _list_trials(sweep, brief=not args.dry_run)
    if args.dry_run:
        return OK
    stop = threading.Event()
    with on_stop_signals(lambda number: stop.set()):
        return _train(args, folder, sweep, resources, stop)


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(
        "sweep",
        "Trains variants of a config with one or more seeds each, and reports which are better and"
        " with what confidence.\nRerun the same command to continue after a kill. `sweep"
        " --workdir=DIR` alone joins an existing sweep, on this\nor any other host that shares the"
        " folder.",
        epilog=(
            f"{arguments.OVERRIDE_HELP}; here it applies to every trial.\n\n  --set"
            " model.dropout=0.1,0.2,0.3 --set optimizer.warmup_steps=1000,4000 --seeds=3      18"
            " trials\n\nIf a value contains a comma, separate values by semicolons: --set"
            " 'data.valid=a.en,a.de;b.en,b.de'.\nEach trial is a workdir of `train` in DIR/trials;"
            " the table is written to DIR/report. Exit codes: 0 all have\nresults (diverged too),"
            " 75 stopped by a signal with everything saved, 2 invalid input or failed trials."
        ),
    )
    arguments.add_workdir(parser, "folder of the sweep; created if it does not exist")
    flag = parser.add_argument_group("trials").add_argument
    flag(
        "--sweep",
        metavar="FILE.py[:variant]",
        help="file that defines get_sweep(); see configs/sweeps",
    )
    flag(
        "--config",
        metavar="FILE.py[:variant]",
        help="config of the trials, or the name of a preset",
    )
    flag(
        "--set",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values of a key; every combination is trained",
    )
    flag(
        "--seeds",
        type=arguments.count(1),
        metavar="N",
        help="runs per row, with seeds 0 to N - 1 (default: 1)",
    )
    flag = parser.add_argument_group("execution").add_argument
    at_least_one = arguments.count(1, 1024)
    flag(
        "--dry-run", action="store_true", help="validate everything, list the trials, train nothing"
    )
    parallel = "trials to train at a time, each on an equal share of the machine"
    flag("--parallel", type=at_least_one, default=1, metavar="N", help=parallel)
    flag(
        "--retries",
        type=arguments.count(),
        default=2,
        metavar="N",
        help="number of retries of a failing trial (2)",
    )
    flag(
        "--retry-failed",
        action="store_true",
        help="train failed and diverged trials of a grid again",
    )
    flag("--extend", action="store_true", help="add rows or seeds to the sweep in the folder")
    storage = (
        f"database of a search, such as postgresql://... (default: {STORAGE}, else a journal file"
        " in the folder)"
    )
    flag("--storage", default="", metavar="URL", help=storage)
    flag(
        "--any-code",
        action="store_true",
        help="continue even if the code has changed since the sweep began",
    )
    flag = parser.add_argument_group("report").add_argument
    flag("--report", action="store_true", help="only write the report on the trials so far")
    score = (
        "default: valid_nll, or that of eval.metric; valid_nll/SET, sacrebleu, chrf, SET:sacrebleu"
        " (of a test set) ..."
    )
    flag("--score", default="", help=score)
    flag(
        "--baseline",
        default="",
        metavar="ROW",
        help="row to compare the others with (default: the best)",
    )
    return parser


def _report(args: argparse.Namespace, fixed: dict[str, str]) -> int:
    names = ("sweep", "config", "set", "seeds", "dry_run", "retry_failed", "extend", "storage")
    unused = ["--config.KEY"] * bool(fixed) + [
        f"--{n.replace('_', '-')}" for n in names if getattr(args, n)
    ]
    if unused:
        raise UserError(
            f"--report only reads the folder in --workdir: leave out {', '.join(unused)}."
        )
    _check_score(args.score, Folder(Path(args.workdir)), read_sweep(args.workdir))
    print(report(Path(args.workdir), score=args.score, baseline=args.baseline))
    return OK


def _join(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """Return the existing sweep in --workdir."""
    if args.set or fixed or args.seeds or args.extend:
        raise UserError("--set, --config.KEY=VALUE, --seeds and --extend need --config or --sweep.")
    sweep = read_sweep(args.workdir)
    folder = Folder(Path(args.workdir).absolute())
    check_host(folder.path, sweep, args.any_code)
    _check_values_of_user(folder, sweep)
    _check_flags(args, bool(sweep["search"]))
    _check_score(args.score, folder, sweep)
    _check_baseline(args.baseline, [trial["row"] for trial in sweep["trials"].values()])
    return folder, sweep


def _check_values_of_user(folder: Folder, sweep: dict[str, Any]) -> None:
    """Raise UserError if the stored configs name programs to run or a folder to write.

    The configs may be somebody else's.
    """
    for path in _configs(folder, sweep):
        if values := values_of_user(config_lib.from_json(path.read_text())):
            raise UserError(
                f"{path} sets {', '.join(f'config.{name}' for name in values)}: what is run, and a"
                " folder that is written, is not taken from a stored config. Join the sweep by the"
                " command that created it, with --config or --sweep."
            )


def _configs(folder: Folder, sweep: dict[str, Any]) -> list[Path]:
    """Return the stored configs of an existing sweep."""
    return [folder.base] if sweep["search"] else list(map(folder.config, sweep["trials"]))


def _create(args: argparse.Namespace, fixed: dict[str, str]) -> tuple[Folder, dict[str, Any]]:
    """Return the sweep of the command line, created or continued in --workdir."""
    sweep = _sweep_of(args)
    search, baseline = sweep.search, args.baseline or sweep.baseline
    _check_flags(args, bool(search))
    if search:
        search.validate()
        if baseline or sweep.seeds > 1:
            raise UserError(
                "a search trains each row once: leave out --baseline and --seeds, and repeat its"
                " best rows."
            )
        trials, base = [], config_lib.load_config(sweep.config, fixed)
        configs = [base]
    else:
        trials, base = expand(sweep.config, fixed, sweep.rows, sweep.seeds), None
        configs = [trial.config for trial in trials]
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
    storage = without_credentials(args.storage or os.environ.get(STORAGE, ""))
    options = dict(base=base, storage=storage, extend=args.extend)
    return open_or_create(
        args.workdir, values, trials, any_code=args.any_code, dry_run=args.dry_run, **options
    )


def _sweep_of(args: argparse.Namespace) -> Sweep:
    """Return the sweep of --sweep or --set, with the command line's config and seeds."""
    if args.sweep and args.set:
        raise UserError(
            "both --set and --sweep define what varies: put the values into the sweep file, or"
            " leave it out."
        )
    if args.sweep:
        sweep = config_lib.from_python_file(
            "--sweep", args.sweep, "get_sweep", "configs/sweeps/table3.py"
        )
        if not isinstance(sweep, Sweep):
            raise UserError(
                f"--sweep={args.sweep}: get_sweep() returned {type(sweep).__name__}, expected a"
                " Sweep."
            )
    else:
        parts = list(map(_values_of, args.set))
        sweep = Sweep(rows=space.product(*parts) if parts else space.named("base"))
    flags = {"seeds": args.seeds, "config": args.config}
    sweep = dataclasses.replace(
        sweep, **{key: value for key, value in flags.items() if value is not None}
    )
    if not sweep.config:
        raise UserError("the sweep has no config: give --config=FILE.py or the name of a preset.")
    return sweep


def _values_of(text: str) -> list[space.Overrides]:
    """Return the rows of --set KEY=V1,V2."""
    key, equals, values = text.partition("=")
    if not equals or not values or "." not in key:
        raise UserError(f"--set {text}: expected --set GROUP.KEY=VALUE,VALUE.")
    return space.over(key, [value.strip() for value in values.split(";" if ";" in values else ",")])


def _check_flags(args: argparse.Namespace, is_search: bool) -> None:
    if args.storage and not is_search:
        raise UserError("--storage is for a search by Optuna; the trials of a grid need none.")
    if args.retry_failed and is_search:
        raise UserError(
            "--retry-failed is for grids; a search proposes more rows with a larger count and"
            " --extend."
        )


def _check_score(score: str, folder: Folder, sweep: dict[str, Any]) -> None:
    """Raise UserError if the trials of an existing sweep will not have the score."""
    for path in _configs(folder, sweep) if score else ():
        check_score(score, config_lib.from_json(path.read_text()))


def _check_baseline(name: str, rows: list[str]) -> None:
    if name and folder_name(name) not in rows:
        raise UserError(
            f"--baseline={name} is not a row of the sweep: {', '.join(dict.fromkeys(rows))}."
        )


def _list_trials(sweep: dict[str, Any], *, brief: bool) -> None:
    trials, search = sweep["trials"], sweep["search"]
    more = f", the search proposes {search['count']} in all" if search else ""
    print(f"{len(trials)} trials of {sweep['config']}{more}")
    if not brief and trials:
        lines = [
            [name, " ".join(f"{k}={v}" for k, v in t["overrides"].items())]
            for name, t in trials.items()
        ]
        print(markdown_table(("trial", "overrides"), lines))
    if not sweep["selection"]:  # said before the trials cost anything
        print(
            f"warning: no trial evaluates a validation set, so rows are ranked by {sweep['score']}"
            " of the test set; set config.data.valid and config.eval.every_steps"
        )


def _train(
    args: argparse.Namespace,
    folder: Folder,
    sweep: dict[str, Any],
    resources: list[Resources],
    stop: threading.Event,
) -> int:
    """Work on the sweep until it ends or `stop` is set; return the exit code."""
    trials: Trials
    if sweep["search"]:
        trials = SearchTrials(folder, sweep, _storage(args, sweep))
    else:
        trials = ListedTrials(folder, list(sweep["trials"]))
        for name in trials.names() if args.retry_failed else ():
            folder.reopen(name)
    say = functools.partial(print, flush=True)
    Worker(folder, trials, resources, args.retries, stop, say, sweep["cwd"]).run()
    counts = count_states(folder, trials.names())
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if sweep["search"] and len(trials.names()) < sweep["search"]["count"] and not stop.is_set():
        print(
            f"the space of the search has no other valid config (count={sweep['search']['count']})"
        )
    if stop.is_set():  # a report may take too long before a scheduler kills this process
        print("stopped, everything saved; run the same command again to continue")
        return STOPPED
    print(report(folder.path, score=args.score, baseline=args.baseline))
    return OK if has_result(counts) else USER_ERROR


def _storage(args: argparse.Namespace, sweep: dict[str, Any]) -> str:
    """Return the URL of a search's database.

    It is --storage, or the one that is stored without credentials.
    """
    stored, given = sweep["study"]["storage"], args.storage or os.environ.get(STORAGE, "")
    if given and without_credentials(given) != stored:
        raise UserError(
            f"--storage={without_credentials(given)}: the sweep was created with"
            f" {stored or 'none'}."
        )
    return given or stored
