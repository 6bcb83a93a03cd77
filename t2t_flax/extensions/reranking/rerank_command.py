"""`rerank`: choose the candidate with the highest weighted sum of scores.

It does so for each line.
"""

import argparse
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from t2t_flax.cli import arguments
from t2t_flax.cli.lines import iterate_lines, open_output
from t2t_flax.config import Config, override, resolve, to_config_dict
from t2t_flax.data.sources import has_text
from t2t_flax.errors import OK, UserError
from t2t_flax.extensions.reranking.candidates import Candidate, read_candidates
from t2t_flax.extensions.reranking.rerank import choose, tune
from t2t_flax.language import named_languages
from t2t_flax.registry import LINES

_OWN = ("nbest", "words")


def run(argv: list[str]) -> int:
    """Return exit code 0 when the output is written."""
    parser = arguments.parser(
        "rerank",
        "Writes for each source line the candidate with the highest weighted sum of scores: the"
        " score in the n-best list\n(nbest), the number of words (words), the log-probability under"
        " each --workdir, and a number a candidate of each\n--scores file, such as an output of"
        " `score`. With --reference the weights are chosen by sacreBLEU, and printed.",
        epilog=(
            "Examples:\n  python -m t2t_flax translate --workdir=runs/toy --input=valid.en"
            " --n-best=8 --scores --output=valid.nbest \\\n      --config.decode.beam_size=8\n "
            " python -m t2t_flax rerank --candidates=valid.nbest --source=valid.en"
            " --workdir=runs/r2l --reference=valid.de \\\n      --output=valid.reranked\n  python"
            " -m t2t_flax rerank --candidates=test.nbest --source=test.en --workdir=runs/r2l"
            " --output=test.reranked \\\n      --weights=nbest=1,words=0.02,r2l=0.3      as"
            " printed\n\nA run with data.task = right_to_left scores candidates from right to left."
        ),
    )
    parser.add_argument(
        "--candidates", required=True, metavar="FILE", help="n-best lists, or a flat file"
    )
    parser.add_argument(
        "--num-candidates",
        type=arguments.count(1),
        metavar="N",
        help="of a flat file: candidates of each source",
    )
    parser.add_argument(
        "--workdir", action="append", default=[], metavar="DIR",
        help=f"{arguments.workdir_help()}, which scores candidates; may be given several times",
    )  # fmt: skip
    arguments.add_flags(parser, LINES)
    parser.add_argument("--source", metavar="FILE", help="with --workdir: source lines")
    parser.add_argument(
        "--scores", action="append", default=[], metavar="FILE",
        help="a number a candidate, in the first column; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--weights", metavar="NAME=W,...", help="of the scores; those without one are left out"
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help="human translations of a validation set, for the weights",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="file that gets a translation a line"
    )
    args, overrides = arguments.parse(parser, argv)
    if (args.weights is None) == (args.reference is None):
        raise UserError(
            "give either --weights, or --reference of a validation set, by which they are chosen."
        )
    if args.workdir and not args.source:
        raise UserError("--workdir needs the source lines: --source=FILE.")
    if not args.workdir and (flags := ", ".join(arguments.given_flags(args))):
        raise UserError(f"{flags}: for models that score, and no --workdir is given.")
    arguments.check_output("--output", args.output)
    groups = list(read_candidates(args.candidates, args.num_candidates))
    if not groups:
        raise UserError(f"{args.candidates} is empty.")
    candidates = [candidate for group in groups for candidate in group]
    starts = np.cumsum([0, *map(len, groups[:-1])]).tolist()
    names = [
        *_OWN,
        *_unique(
            [os.path.basename(os.path.abspath(name)) for name in [*args.workdir, *args.scores]]
        ),
    ]
    wanted = _parse(args.weights, names) if args.weights else dict.fromkeys(names, 1.0)
    left_out = ""
    # A flat file has no scores.
    if missing := sum(candidate.score is None for candidate in candidates):
        if args.weights and "nbest" in wanted:
            raise UserError(
                f"--weights has nbest, and not all lines of {args.candidates} have a score."
            )
        wanted.pop("nbest", None)
        if missing < len(candidates):
            left_out = (
                f"\nnbest is left out: {missing} of the {len(candidates)} lines of"
                f" {args.candidates} have no score"
            )
    references = list(iterate_lines(args.reference)) if args.reference else []
    if args.reference and len(references) != len(starts):
        raise UserError(
            f"{args.reference} has {len(references)} lines, and there are candidates of"
            f" {len(starts)} sources."
        )
    columns = dict(_columns(args, overrides, names, groups, list(wanted)))
    features = np.array([columns[name] for name in wanted]).T
    weights, text = np.array(list(wanted.values())), ""
    if args.reference:
        config = _scoring_config(args, overrides)
        weights, text = _tuned(
            args.reference, references, config, list(wanted), features, starts, candidates
        )
    chosen = choose(features, starts, weights)
    with open_output(args.output) as write:
        write("".join(candidates[i].text + "\n" for i in chosen))
    moved = int((chosen != np.array(starts)).sum())
    unscored = int((~np.isfinite(features).all(1)).sum())
    text += (
        f"\n{unscored} candidates have no score under some model, and were not chosen beside others"
        if unscored
        else ""
    )
    print(
        f"{args.output}: {len(chosen)} lines, {moved} of them not the first"
        f" candidate{text}{left_out}"
    )
    return OK


def _unique(names: list[str]) -> list[str]:
    """Return the names, with "-2", "-3" ... added where one is taken."""
    made: list[str] = []
    for base in names:
        name, number = base, 1
        while name in made or name in _OWN:
            number += 1
            name = f"{base}-{number}"
        made.append(name)
    return made


def _parse(text: str, names: Sequence[str]) -> dict[str, float]:
    weights = {}
    for item in text.split(","):
        name, _, value = item.rpartition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = math.nan
        if name not in names or not math.isfinite(weights[name]):
            raise UserError(
                f"--weights={text}: expected NAME=NUMBER of some of {', '.join(names)}, separated"
                " by commas."
            )
    return weights


def _columns(
    args: argparse.Namespace,
    overrides: dict[str, str],
    names: Sequence[str],
    groups: list[list[Candidate]],
    wanted: Sequence[str],
) -> Iterator[tuple[str, list[float]]]:
    """Yield the wanted scores of all candidates, by name."""
    candidates = [candidate for group in groups for candidate in group]
    yield "words", [float(len(candidate.text.split())) for candidate in candidates]
    if "nbest" in wanted:
        yield "nbest", [float(candidate.score or 0.0) for candidate in candidates]
    others = names[len(_OWN) :]
    sources = list(iterate_lines(args.source)) if args.source else []
    if args.workdir and len(sources) != len(groups):
        raise UserError(
            f"{args.source} has {len(sources)} lines, and there are candidates of {len(groups)}"
            " sources."
        )
    pairs = [
        (line, candidate.text)
        for line, group in zip(sources, groups, strict=False)
        for candidate in group
    ]
    for file, name in zip(args.scores, others[len(args.workdir) :], strict=True):
        if name in wanted:
            yield name, _numbers(file, len(candidates))
    for number, (workdir, name) in enumerate(zip(args.workdir, others, strict=False)):
        if name in wanted:
            yield (
                name,
                _log_probs(
                    workdir, overrides, arguments.given_flags(args), pairs, first=number == 0
                ),
            )


def _log_probs(
    workdir: str,
    overrides: dict[str, str],
    flags: dict[str, str],
    pairs: list[tuple[str, str]],
    *,
    first: bool,
) -> list[float]:
    """Return log-probabilities; nan for a pair that has no score.

    Args:
        flags: see `arguments.Changes`.
    """
    from t2t_flax.evaluation.restore import load

    if first:
        arguments.prepare_to_load(workdir, overrides)
    model = load(workdir, overrides=overrides)
    change = arguments.Changes(model, flags)
    encoded, places = [], []
    for place, (source, target) in enumerate(pairs):
        source = change.source(source)
        model.in_language(source)  # a missing language affects all pairs
        try:
            encoded.append(model.encode_pair(source, target))
            places.append(place)
        except UserError:
            continue
    values = [math.nan] * len(pairs)
    for place, score in zip(places, model.score_pairs(encoded) if encoded else [], strict=True):
        values[place] = score.log_prob
    return values


def _numbers(file: str, count: int) -> list[float]:
    values = []
    for at, line in enumerate(iterate_lines(file), 1):
        try:
            values.append(float(line.split("\t")[0]))
        except ValueError:
            raise UserError(f"{file} line {at}: expected a number in the first column.") from None
    if len(values) != count:
        raise UserError(f"{file} has {len(values)} lines, and there are {count} candidates.")
    return values


def _scoring_config(args: argparse.Namespace, overrides: dict[str, str]) -> Config:
    """Return the config of the first run, or one with the references' target language.

    The name of their file says it.
    """
    from t2t_flax.evaluation.restore import stored_config

    stored = stored_config(args.workdir[0]) if args.workdir else Config()
    *_, named = named_languages(f"-,{args.reference}")
    language = named.code if named and not args.workdir else None
    language = arguments.given_flags(args).get("--target-language", language)
    data = {"data.target_language": language} if language else {}
    data |= {key: value for key, value in overrides.items() if key.startswith(("data.", "eval."))}
    return resolve(override(to_config_dict(stored), data))


def _tuned(
    name: str,
    references: Sequence[str],
    config: Config,
    names: Sequence[str],
    features: np.ndarray,
    starts: Sequence[int],
    candidates: Sequence[Candidate],
) -> tuple[np.ndarray, str]:
    """Return (weights, a line of text on them).

    Args:
        name: file of the references.
    """
    from t2t_flax.tasks import Predictions
    from t2t_flax.tasks.translation import recipe, sacrebleu_statistics

    counts = np.diff([*starts, len(candidates)])
    scored = np.array([has_text(line) for line in references])
    if not scored.any():
        raise UserError(f"{name} has no text: give the translations by which weights are chosen.")
    kept = np.flatnonzero(np.repeat(scored, counts)).tolist()
    repeated = np.repeat(np.array(references, object), counts)[kept].tolist()
    features, starts = features[kept], np.cumsum([0, *counts[scored][:-1]]).tolist()
    metric = sacrebleu_statistics(
        recipe("sacrebleu", config), Predictions([candidates[i].text for i in kept], [repeated])
    )
    weights, best = tune(features, starts, metric.values, metric.score)
    first = metric.score(metric.values[list(starts)].sum(0))
    shown = ",".join(f"{score}={weight:.4g}" for score, weight in zip(names, weights, strict=True))
    missing = (
        f" ({(~scored).sum()} lines have no reference and are not scored)"
        if not scored.all()
        else ""
    )
    return (
        weights,
        (
            f"\nsacreBLEU {first:.2f} of the first candidates, {best:.2f} with"
            f" --weights={shown}{missing}"
        ),
    )
