"""`mbr`: of the candidates of each line, the one with the highest expected utility."""

import argparse
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import iterate_lines, open_output, to_stderr
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.errors import OK, UserError
from t2t_flax.extensions.mbr.candidates import read_candidates
from t2t_flax.extensions.mbr.decision import METHODS, decide
from t2t_flax.extensions.mbr.utilities import UTILITIES, Bleu, Chrf, OfExtension, Question, Utility
from t2t_flax.registry import LINES, METRICS, load_extensions

if TYPE_CHECKING:
    from t2t_flax.tasks import Metric

SAMPLING = {"decode.strategy": "sample", "decode.epsilon": "0.02"}
"""How a workdir's candidates are drawn where the command line says nothing else."""
_WINDOW = 512
_PAIRS = 2**17
"""Of candidate and reference, which are scored at once: the model of a metric is loaded for each of these."""


def run(argv: list[str]) -> int:
    """Exit code 0 when the output and its record are written."""
    parser = arguments.parser(
        "mbr",
        "Minimum Bayes risk decoding: writes for each source line the candidate whose mean utility over all candidates is\n"
        "the highest, and OUTPUT.json, which names utility and candidates. Candidates are samples of a trained run, or a\n"
        "file: N lines for each source, or the n-best lists of `translate --n-best`.",
        epilog="Examples:\n"
        "  python -m t2t_flax mbr --workdir=runs/toy --input=test.en --num-candidates=64 --output=test.mbr\n"
        "  ... --write-candidates=test.samples         a line for each, for `mbr` or another program such as mbrs-decode\n"
        "  python -m t2t_flax mbr --candidates=test.samples --num-candidates=64 --utility=bleu --output=test.mbr\n"
        "  ... --method=aggregate_to_fine              linear time for all, pairwise for the best 20\n"
        "  ... --score-against=test.de                 scores in the record; those of the utility's kind marked as biased",
    )
    parser.add_argument("--candidates", metavar="FILE", help="candidates of each source, in place of --workdir")
    parser.add_argument(
        "--num-candidates", type=arguments.count(1, 1024), metavar="N",
        help="candidates of each source (of a file in which each has as many; default of --workdir: 64)",
    )  # fmt: skip
    parser.add_argument("--workdir", metavar="DIR", help=f"{arguments.workdir_help()}, of which candidates are sampled")
    arguments.add_checkpoint(parser)
    arguments.add_flags(parser, LINES)
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="with --workdir: lines to translate; else the sources, for metrics that read them",
    )
    parser.add_argument("--write-candidates", metavar="FILE", help="with --workdir: file that gets the candidates")
    parser.add_argument("--output", required=True, metavar="FILE", help="file that gets a translation a line")
    parser.add_argument(
        "--utility", type=_utility_name, default="chrf", metavar="NAME",
        help="chrf (default), bleu, or a metric of an extension: comet, kiwi, metricx",
    )  # fmt: skip
    parser.add_argument(
        "--method", choices=METHODS, default="pairwise",
        help="pairwise: each candidate with each reference (default); aggregate: with the mean of all references, linear time; "
        "aggregate_to_fine: that, then the best of it pairwise",
    )  # fmt: skip
    parser.add_argument(
        "--fine",
        type=arguments.count(1),
        default=20,
        metavar="N",
        help="candidates scored pairwise by aggregate_to_fine",
    )
    parser.add_argument(
        "--references", metavar="FILE", help="what candidates are scored with (default: the candidates)"
    )
    parser.add_argument("--num-references", type=arguments.count(1), metavar="N", help="lines of --references a source")
    parser.add_argument("--score-against", metavar="FILE", help="human translations, for scores in the record")
    args, overrides = arguments.parse(parser, argv)
    _check(args)
    for name in filter(None, (args.output, args.write_candidates)):
        arguments.check_output("--output" if name == args.output else "--write-candidates", name)
    began, record = time.perf_counter(), {"command": "mbr"}
    sources: list[str] = []
    targets = list(iterate_lines(args.score_against)) if args.score_against else []
    references = _texts(args.references, args.num_references) if args.references else None
    if args.workdir:
        config, groups, origin = _samples(args, overrides, sources)
    else:
        config = resolve(override(to_config_dict(Config()), overrides))
        groups, origin = _texts(args.candidates, args.num_candidates), {"file": args.candidates}
        sources = list(iterate_lines(args.input)) if args.input else []
    metrics = _metrics(config, args) if args.score_against else []
    utility = _utility(args, config)
    chosen, counts, changed, total = [], [], 0, 0.0
    for questions in _windows(groups, references, sources, args, utility):
        decisions = decide(questions, utility, args.method, args.fine)
        for (candidates, _, _), decision in zip(questions, decisions, strict=True):
            chosen.append(candidates[decision.index])
            counts.append(len(candidates))
            changed += candidates[decision.index] != candidates[0]
            total += decision.utility
    if not chosen:
        raise UserError("there are no candidates.")
    if references is not None and next(references, None) is not None:
        raise UserError(f"{args.references} has references of more than the {len(chosen)} sources with candidates.")
    if args.input and len(sources) != len(chosen):
        raise UserError(f"{args.input} has {len(sources)} lines, and there are candidates of {len(chosen)} sources.")
    record |= {
        "utility": {
            "name": args.utility,
            "signature": utility.signature,
            "method": args.method,
            "expected": total / len(chosen),
        }
        | ({"fine": args.fine} if args.method == "aggregate_to_fine" else {}),
        "candidates": {**_digest(origin), "sources": len(chosen), "least": min(counts), "most": max(counts)},
        "references": _digest({"file": args.references}) if args.references else "the candidates",
        "not_the_first_candidate": changed,
        "output": os.path.basename(args.output),
        "seconds": round(time.perf_counter() - began, 3),
    }
    text = ""
    if args.score_against:
        family = utility.FAMILY if max(counts) > 1 else ()  # of a single candidate nothing was chosen
        record["scores"], text = _scores(config, metrics, family, sources, chosen, targets, args)
    with open_output(args.output) as write:
        write("".join(line + "\n" for line in chosen))
    with open_output(f"{args.output}.json") as write:
        write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{args.output}: {len(chosen)} lines, expected {args.utility} {total / len(chosen):.2f}{text}")
    return OK


def _texts(name: str, count: int | None) -> Iterator[list[str]]:
    return ([candidate.text for candidate in group] for group in read_candidates(name, count))


def _check(args: argparse.Namespace) -> None:
    if (args.candidates is None) == (args.workdir is None):
        raise UserError("say where the candidates come from: --candidates=FILE, or --workdir=DIR with --input=FILE.")
    if args.workdir and not args.input:
        raise UserError("--workdir needs the lines to translate: --input=FILE.")
    flags = ", ".join(arguments.given_flags(args))
    if args.candidates and (args.write_candidates or flags or args.input and not _reads_input(args)):
        raise UserError(f"{flags or '--input and --write-candidates'}: for candidates of --workdir alone.")
    if args.write_candidates and os.path.realpath(args.write_candidates) == os.path.realpath(args.output):
        raise UserError("--output and --write-candidates name the same file.")
    if args.output == "-":
        raise UserError("--output: name a file; its record is written beside it.")


def _reads_input(args: argparse.Namespace) -> bool:
    return bool(args.score_against) or args.utility in METRICS


def _utility_name(text: str) -> str:
    load_extensions()
    if text not in (names := [*UTILITIES, *METRICS]):
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}.")
    return text


def _utility(args: argparse.Namespace, config: Config) -> Utility:
    from t2t_flax.tasks.translation import tokenizer_of

    name = args.utility
    if name in METRICS:
        if args.method == "aggregate":
            raise UserError(f"--utility={name} has no mean reference: give --method=pairwise or aggregate_to_fine.")
        utility = OfExtension(name, config, Chrf() if args.method == "aggregate_to_fine" else None)
        if utility.reads_sources and not args.input:
            raise UserError(f"--utility={name} needs the source lines: --input=FILE.")
        return utility
    if name == "bleu":
        return Bleu(tokenizer_of(config.eval.sacrebleu_tokenizer, config.data.target_language))
    return UTILITIES[name]()


def _windows(
    groups: Iterator[list[str]],
    references: Iterator[list[str]] | None,
    sources: list[str],
    args: argparse.Namespace,
    utility: Utility,
) -> Iterator[list[Question]]:
    """The candidates of each source with what they are compared with; so many sources at once as have some `_PAIRS`."""
    window, pairs = [], 0
    for number, candidates in enumerate(groups):
        others = candidates if references is None else next(references, None)
        if others is None:
            raise UserError(
                f"{args.references} has the references of {number} sources, and there are candidates of more."
            )
        if utility.reads_sources and number >= len(sources):
            raise UserError(f"{args.input} has {len(sources)} lines, and there are candidates of more sources.")
        window.append(Question(candidates, others, sources[number] if utility.reads_sources else ""))
        pairs += min(len(candidates), args.fine if args.method == "aggregate_to_fine" else len(candidates)) * len(
            others
        )
        if pairs >= _PAIRS:
            yield window
            window, pairs = [], 0
    yield window


def _samples(
    args: argparse.Namespace, overrides: dict[str, str], sources: list[str]
) -> tuple[Config, Iterator[list[str]], dict[str, Any]]:
    """(config of the run, candidates of each line, what the record says of them). sources: gets the lines as they are read,
    without control symbols.
    """
    from t2t_flax.config.keys import TRANSLATIONS
    from t2t_flax.config.schema import fields, keys_that_change
    from t2t_flax.tasks import task_of

    count = {"decode.n_best": str(args.num_candidates or overrides.get("decode.n_best", 64))}
    overrides, flags = SAMPLING | overrides | count, arguments.given_flags(args)
    lines = iterate_lines(args.input)
    change = arguments.Changes(arguments.load_run(args, overrides).for_decoding(), flags)
    loaded = change.model
    task = task_of(loaded.config)

    def groups() -> Iterator[list[str]]:
        with open_output(args.write_candidates or os.devnull) as write:
            done = 0
            while window := list(map(change.source, itertools.islice(lines, _WINDOW))):
                translations = loaded.translate(window, first_line=done)
                done += len(window)
                to_stderr(f"candidates of {done:,} lines")
                for line, translation in zip(window, translations, strict=True):
                    sources.append(loaded.tokenizers.source.split(line)[1])
                    texts = [task.postprocess(line, hypothesis.text) for hypothesis in translation.hypotheses]
                    write("".join(text + "\n" for text in texts))
                    yield texts

    settings = loaded.config.compared(keys_that_change(TRANSLATIONS))
    decode = {
        name: value for name, value in settings.items() if name.startswith("decode.") or value != fields()[name].default
    }
    origin = {"workdir": str(args.workdir), "steps": list(loaded.steps), "input": args.input, "decode": decode, **flags}
    config = loaded.config
    if language := flags.get("--target-language"):
        config = config.with_values({"data.target_language": language})
    return config, groups(), origin | ({"models": list(loaded.models)} if loaded.models else {})


def _digest(origin: dict[str, Any]) -> dict[str, Any]:
    name = origin.get("file")
    if name is None or not Path(name).is_file():
        return origin
    with open(name, "rb") as file:
        return origin | {"digest": hashlib.file_digest(file, "sha256").hexdigest()}


def _metrics(config: Config, args: argparse.Namespace) -> "list[Metric]":
    """Those of --score-against. Raises UserError for one that cannot be computed, before anything is decoded."""
    from t2t_flax.tasks import task_of

    task = task_of(config)
    task.check_requirements()
    metrics = [metric for metric in task.metrics if metric.statistics]
    if not args.input and (names := [metric.name for metric in metrics if metric.reads_sources]):
        raise UserError(f"{', '.join(names)} of --score-against needs the source lines: --input=FILE.")
    return metrics


def _scores(
    config: Config,
    metrics: "Sequence[Metric]",
    family: tuple[str, ...],
    sources: list[str],
    outputs: list[str],
    targets: list[str],
    args: argparse.Namespace,
) -> tuple[dict[str, Any], str]:
    """(entries of a record, lines of text). family: metrics that are marked, since outputs that were chosen by a metric get too
    high a score of its kind.
    """
    from t2t_flax.evaluation.evaluate import compute_scores
    from t2t_flax.tasks import Predictions

    if len(targets) != len(outputs):
        raise UserError(
            f"{args.score_against} has {len(targets)} lines, and there are candidates of {len(outputs)} sources."
        )
    predictions = Predictions(outputs, [targets], sources)
    scores = compute_scores(config, metrics, predictions, samples=config.eval.bootstrap_samples)
    text = []
    for metric in metrics:
        line = metric.describe(scores[metric.name])
        if metric.name in family:
            scores[metric.name]["biased"] = f"the outputs were chosen by {args.utility}"
            line += f"  biased: chosen by {args.utility}"
        text.append("\n" + line)
    return scores, "".join(text)
