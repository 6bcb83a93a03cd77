"""`evaluate`: restores runs, decodes test sets, writes a record of each and compares them."""

import argparse
import dataclasses
import json
import sys

from etils import epath

from t2t_flax import jobs
from t2t_flax.cli import arguments
from t2t_flax.distributed.coordination import check_shared
from t2t_flax.distributed.job import run_job
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import FAILURE, OK, STOPPED, UserError
from t2t_flax.filesystem import atomic_write
from t2t_flax.pretrained import check_writable
from t2t_flax.process_setup import prepare_process, run_in_child
from t2t_flax.tables import csv_text, text_table


def run(argv: list[str]) -> int:
    """Exit code 0 when the record is written, or two records are compared."""
    parser = arguments.parser(
        "evaluate",
        "Decodes and scores test sets with a trained run, and writes a record of each, with hypotheses and references:\n"
        "WORKDIR/eval/<set>-<step>.json (-mean<n> for an average of n, -best for --best). With other text or settings than\n"
        "the run's own, the name also has a digest, so that no record replaces another. Needs only the workdir and the\n"
        "text; runs on any hardware. An exported model is a workdir too (`pretrained:toy`: one of the package).",
        epilog="A translation record has three BLEUs, each with a note on how it was computed: sacrebleu (detokenised\n"
        "text), tokenized_bleu (Moses tokens) and paper_bleu (as the paper's figures were scored); and chrf, chrf++ and\n"
        "ter (lower is better). A parsing record has labelled F1 by EVALB's rules.\n\n"
        "--config.decode.KEY=VALUE changes the search, --config.data.test=SRC,TGT the text (SRC,REF1,REF2: several\n"
        "references), --config.eval.sacrebleu_tokenizer=NAME how sacreBLEU tokenises. Several test sets are\n"
        "--config.data.test='NAME=SRC,TGT; NAME=SRC,TGT'.\n\n"
        "With several --workdir or --step all combinations are evaluated one after the other, and compared with the first\n"
        "in a table. Records that exist are not computed again: rerun the same command to continue after a kill.",
    )
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--workdir", metavar="DIR", action="append", help="folder of a run; may be given several times")
    of.add_argument(
        "--record", metavar="FILE.json", help="an existing record instead of a run; decodes nothing, only compares"
    )
    parser.add_argument(
        "--split",
        metavar="SET",
        help="valid, test (default; all sets of config.data.test), or the name of a set (valid.NAME of validation sets)",
    )
    arguments.add_checkpoint(parser, several=True)
    parser.add_argument(
        "--output", metavar="DIR", help="folder that gets the records, as DIR/eval/..., instead of the workdir"
    )
    parser.add_argument(
        "--compare",
        metavar="FILE.json",
        help="record of another system on the same test set: score difference, its 95 %% interval and two-sided p-value by "
        "paired bootstrap, stored as `compare` in the run's record; with --record printed as JSON",
    )
    parser.add_argument(
        "--compare-score",
        metavar="SCORE",
        help="score that --compare uses: sacrebleu (default), tokenized_bleu, paper_bleu, chrf, chrf++, ter; parsing: f1",
    )
    parser.add_argument(
        "--table", metavar="FILE.csv", help="also write the table of several runs or steps to this file"
    )
    args, overrides = arguments.parse(parser, argv)
    several = len(args.workdir or ()) > 1 or len(args.step or ()) > 1
    if several and args.record:
        raise UserError("--record decodes nothing: leave out --step.")
    if several and args.compare:
        raise UserError("--compare is for one run: several runs are compared with the first one.")
    if args.table and not several:
        raise UserError("--table needs several runs or checkpoints: give --workdir or --step more than once.")
    if args.compare_score and not (args.compare or several):
        raise UserError("--compare-score needs --compare=FILE.json, or several runs.")
    if args.output and (several or args.record):
        raise UserError("--output is for the evaluation of one run: leave it out.")
    if several:
        for workdir in args.workdir:
            check_writable(workdir, "evaluate it by itself, with --output=DIR, and --compare with its record")
        if args.table:
            arguments.check_output("--table", args.table)
        return _many(args, overrides)
    args.workdir = args.workdir and args.workdir[0]
    args.step = args.step and args.step[0]
    return _compare_records(args, overrides) if args.record else _evaluate(args, overrides)


def _evaluate(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from t2t_flax.data.dataset import sets_of
    from t2t_flax.evaluation.compare import check_comparable
    from t2t_flax.evaluation.engine import check_engine
    from t2t_flax.evaluation.records import planned_record, read_record
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.tasks import task_of

    folder = jobs.evaluation_folder(args.workdir, args.output)
    if args.output:
        arguments.check_output("--output", args.output, folder=True)
    compared = read_record(args.compare) if args.compare else None
    config = stored_config(args.workdir, overrides)
    sets = sets_of(config, args.split or "test")
    if compared and len(sets) > 1:
        raise UserError(f"--compare is for one test set: add --split=NAME, one of {', '.join(sets)}.")
    for name in sets:
        task_of(config).of_set(name).check_requirements()
    check_engine(config)
    if compared:  # checked before decoding, not after
        planned = planned_record(config, sets[0])
        check_comparable(planned, compared, args.workdir, args.compare, args.compare_score or "")
    prepare_process(config)
    return run_job(config, lambda supervisor: _job(args, folder, sets, overrides, supervisor))


def _job(
    args: argparse.Namespace, folder: epath.Path, sets: list[str], overrides: dict[str, str], supervisor: RunSupervisor
) -> int:
    from t2t_flax.evaluation.compare import compare, describe
    from t2t_flax.evaluation.evaluate import planned_path, write_record
    from t2t_flax.evaluation.restore import load

    say = supervisor.group.say
    check_shared(supervisor.group, folder, "--output" if args.output else "--workdir")
    with supervisor.exit_on_signal("evaluating"):
        choice = dict(step=args.step, average=args.average, best=args.best)
        loaded = load(args.workdir, **choice, overrides=overrides, group=supervisor.group)
        loaded = dataclasses.replace(loaded, workdir=folder)
        if args.compare and planned_path(loaded, sets[0]).resolve() == epath.Path(args.compare).resolve():
            raise UserError(
                f"--compare={args.compare} is the record that this evaluation would replace: copy it, with its .hyp.txt "
                "and .ref.txt, to another folder and compare with the copy."
            )
        records = []
        for name in sets:
            path, record, _ = jobs.evaluate_set(loaded, name, supervisor)
            records.append(record)
            if args.compare and supervisor.group.is_lead:
                record["compare"] = compare(path, args.compare, score=args.compare_score or "")
                write_record(path, record)
                say(describe(record["compare"]))
            say(f"record: {path}")
        for text in jobs.summaries(records):
            say(text)
        supervisor.group.barrier("evaluated")
    return 0


def _many(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Evaluates each run in its own process: settings that JAX reads when it starts differ between runs."""
    from t2t_flax.data.dataset import sets_of
    from t2t_flax.distributed.initialize import require_single_process
    from t2t_flax.evaluation.compare import COLUMNS, check_runs, compare_runs
    from t2t_flax.evaluation.evaluate import existing_record
    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.training.checkpoint_selection import Choice

    require_single_process("an evaluation of several runs")
    configs = [(workdir, stored_config(workdir, overrides)) for workdir in args.workdir]
    sets = sets_of(configs[0][1], args.split or "test")
    checkpoints = [(workdir, step) for workdir in args.workdir for step in args.step or [None]]
    for name in sets:
        check_runs(configs, name, args.compare_score or "")  # before any decoding
    records, names, failed = {name: [] for name in sets}, [], []
    for workdir, step in checkpoints:
        choice = Choice(step, args.average, args.best)
        for name in sets:
            record = existing_record(workdir, name, choice, overrides)
            if record is None:
                words = [f"--workdir={workdir}", f"--split={name}"]
                words += [f"--step={step}"] if step is not None else []
                words += [f"--average={args.average}"] if args.average else []
                words += ["--best"] if args.best else []
                words += [f"--config.{key}={value}" for key, value in overrides.items()]
                print(f"== {' '.join(words)}", flush=True)
                code = run_in_child("evaluate", *words)
                if code == STOPPED:
                    print("stopped; rerun the same command to continue")
                    return STOPPED
                record = None if code else existing_record(workdir, name, choice, overrides)
                if record is None:
                    reason = f"exit code {code}" if code else "its checkpoints or this code changed meanwhile"
                    label = f"{workdir}{'' if step is None else f' step {step}'}{f' {name}' if len(sets) > 1 else ''}"
                    failed.append(f"{label} ({reason})")
            records[name].append(record)
        names.append(workdir)
    lines = []
    for name in sets:
        if any(records[name]):
            table = compare_runs(records[name], names, args.compare_score or "")
            print("\n".join([f"{name}:"] * (len(sets) > 1) + [text_table(COLUMNS, table, right=("score",))]))
            lines += [[*line, name] for line in table]
    if args.table and lines:
        header, width = (*COLUMNS, "set"), len(COLUMNS) + (len(sets) > 1)
        atomic_write(args.table, csv_text(header[:width], [line[:width] for line in lines]))
    if failed:
        print(f"t2t_flax evaluate: not evaluated: {', '.join(failed)}", file=sys.stderr)
    return FAILURE if failed else OK


def _compare_records(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from t2t_flax.evaluation.compare import compare

    if not args.compare:
        raise UserError("--record needs --compare=OTHER_RECORD.json.")
    flags = {"--split": args.split, "--step": args.step, "--average": args.average, "--best": args.best} | {
        f"--config.{key}": value for key, value in overrides.items()
    }
    without_effect = [flag for flag, value in flags.items() if value]
    if without_effect:
        raise UserError(f"{', '.join(without_effect)} has no effect: --record decodes nothing.")
    print(json.dumps(compare(args.record, args.compare, score=args.compare_score or ""), indent=2))
    return 0
