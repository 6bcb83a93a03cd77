"""Evaluation: decode a test set, score it, and write a record.

A record has everything that led to the scores. It is identified by its checkpoints, its test set
(by content) and the settings that affect scores. Records of different evaluations have different
names, so none overwrites another. Repeating an evaluation writes to the same name.
"""

import collections
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.data_keys import UNK
from t2t_flax.config.keys import SCORES, TRANSLATIONS
from t2t_flax.config.schema import keys_that_change, unmet
from t2t_flax.data.dataset import split_store
from t2t_flax.data.hooks import data_hooks
from t2t_flax.data.sources import Source, has_text
from t2t_flax.data.splits import split_source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.translator import Translation, Translator
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.mesh import Params
from t2t_flax.distributed.supervisor import RunSupervisor
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.files import atomic_write
from t2t_flax.json_file import parse_json
from t2t_flax.tasks import Metric, Predictions, Task, confidence_interval, lower_is_better, task_of
from t2t_flax.training.checkpoint_selection import named_steps
from t2t_flax.training.checksums import checksums
from t2t_flax.training.losses import perplexity
from t2t_flax.training.parts import TrainingSetup
from t2t_flax.training.train_state import count_params
from t2t_flax.training.validation import ValidationLoss, average_over_sets
from t2t_flax.version import __version__, source_digest

Record: TypeAlias = dict[str, Any]
"""Record, or a part of one, as JSON."""
RECORD_VERSION = 1
_SCORING_SECONDS = 24 * 3600.0  # a large model can score on a CPU
_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "sentencepiece",
    "sacrebleu",
    "sacremoses",
    "numpy",
)


def evaluate(
    loaded: TrainedModel,
    split: str,
    *,
    progress: Callable[[int, int], None] | None = None,
    group: ProcessGroup | None = None,
    why: str = "",
) -> tuple[Record, list]:
    """Decode and score a validation or test set (see `splits.sets_of`).

    Writes the record WORKDIR/eval/NAME.json, with NAME from `record_name`. Beside it are
    NAME.hyp.txt and NAME.ref.txt (further references: NAME.ref2.txt ...), with a line for each
    scored pair. With several processes (`group`) all must call this; each decodes its share, and
    process 0 writes.

    Args:
        progress: see `Translator.translate`.
        why: reason for the choice of checkpoints, stored in the record.

    Returns:
        (record, list of (source, first reference, hypothesis)).
    """
    loaded = loaded.for_set(split)
    task = task_of(loaded.config)
    source = split_source(task, split)
    store = split_store(task, loaded.workdir, split, loaded.tokenizers, group=group)
    # Compiled first: a program that does not fit in memory is reported before anything is decoded.
    loss = ValidationLoss(loaded.config, loaded.model, loaded.mesh, loaded.params, store, split)
    start = time.perf_counter()
    sources = [text for text, _ in source.pairs()]
    translations = loaded.translate(sources, progress=progress)
    decode_seconds = time.perf_counter() - start
    outputs, targets = [t.text for t in translations], list(zip(*source.references(), strict=True))
    nll = loss(loaded.params)["nll"]
    predictions = task.predictions(_sentences(loaded.tokenizers, sources), outputs, targets)
    hypotheses, references = predictions.hypotheses, predictions.references
    samples = loaded.config.eval.bootstrap_samples
    scores = compute_scores(loaded.config, task.metrics, predictions, samples=samples, group=group)
    data: Record = {
        "corpus": loaded.config.data.corpus,
        "spec": source.spec,
        "digest": source.fingerprint(),
        "sentences": len(sources),
    }
    if not_scored := {str(n): x for n, x in enumerate(source.rows(), 1) if isinstance(x, str)}:
        data["not_scored"] = not_scored
    for hook in data_hooks(loaded.config):
        data |= hook.record(split)
    name, identity = record_name(loaded, split, data["digest"])
    texts = {f"{name}.hyp.txt": _lines(hypotheses)}
    texts |= {
        f"{name}.ref{n if n > 1 else ''}.txt": _lines(lines)
        for n, lines in enumerate(references, 1)
    }
    hypotheses_file, *reference_files = texts
    record = {
        "record_version": RECORD_VERSION,
        "identity": identity,
        "split": split,
        "data": data,
        "scores": scores | {"nll": nll, "perplexity": perplexity(nll)},
        "counts": _counts(loaded, data, source, translations, targets),
        "checkpoint": _checkpoint(loaded, why),
        "config_changes": list(loaded.checkpoint.config_changes),
        "hypotheses": hypotheses_file,
        "references": _one_or_all(reference_files),
        "parameters": (
            sum(model["parameters"] for model in loaded.models)
            or count_params(loaded.params, loaded.config, *loaded.tokenizers.vocab_sizes)
        ),
        "digests": _digests(loaded, texts),
        "config": json.loads(config_lib.to_json(loaded.config)),
        "versions": versions(),
        "engine": {
            "name": loaded.decoder.name,
            "version": loaded.decoder.version,
            "type": loaded.decoder.dtype,
        },
        "hardware": {"device": jax.devices()[0].device_kind, "devices": jax.device_count()},
        "seconds": {
            "decode": round(decode_seconds, 3),
            "total": round(time.perf_counter() - start, 3),
        },
    }
    if jax.process_index() == 0:
        folder = loaded.workdir / "eval"
        for file, text in texts.items():
            atomic_write(folder / file, text)
        write_record(folder / f"{name}.json", record)
    return record, list(zip(sources, references[0], hypotheses, strict=True))


def _counts(
    loaded: TrainedModel,
    data: Record,
    source: Source,
    translations: Sequence[Translation],
    targets: Sequence[Sequence[str]],
) -> dict[str, int]:
    """Count sentences with problems; `summary` names the counts that are not 0."""
    tokenizer, references = loaded.tokenizers.target, list(itertools.chain(*targets))
    not_scored = collections.Counter(data.get("not_scored", {}).values())
    return {
        "sentences": len(translations),
        "source_cut": sum(t.source_cut for t in translations),
        "hit_max_length": sum(t.hit_cap for t in translations),
        **{reason: not_scored[reason] for reason in source.reasons},
        "empty_references": sum(not has_text(t) for t in references),
        "unknown_target_tokens": sum(tokenizer.encode_text(t).count(UNK) for t in references),
        "changed_targets": sum(map(tokenizer.changes, references)),
    }


def _digests(loaded: TrainedModel, texts: Mapping[str, str]) -> Record:
    """Return digests of the inputs, and of the files with hypotheses and references."""
    hypotheses, *references = [hashlib.sha256(x.encode()).hexdigest() for x in texts.values()]
    return {
        "config": hashlib.sha256(config_lib.to_json(loaded.config).encode()).hexdigest(),
        "tokenizer": loaded.tokenizers.digest,
        "code": source_digest(),
        "hypotheses": hypotheses,
        "references": _one_or_all(references),
    }


def compute_scores(
    config: Config,
    metrics: Iterable[Metric],
    predictions: Predictions,
    *,
    samples: int = 0,
    group: ProcessGroup | None = None,
) -> Record:
    """Return the record entry of each metric, by name.

    Args:
        samples: number of bootstrap samples for 95 % intervals, 0 = no intervals.
        group: its process 0 computes the scores for all. All must call this, and all raise its
            UserError.
    """
    if group is None or group.count == 1:
        return _entries(config, metrics, predictions, samples)
    answer: Record = {}
    if group.is_lead:
        try:
            answer = {"scores": _entries(config, metrics, predictions, samples)}
        except UserError as error:
            answer = {"error": str(error)}
    answer = json.loads(group.broadcast("the scores", json.dumps(answer), _SCORING_SECONDS))
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["scores"]


def _entries(
    config: Config, metrics: Iterable[Metric], predictions: Predictions, samples: int
) -> Record:
    scores = {}
    for metric in metrics:
        if metric.statistics is None:
            assert metric.compute
            scores[metric.name] = metric.compute(predictions, config)
            continue
        statistics = metric.statistics(predictions, config)
        scores[metric.name] = statistics.entry()
        if samples and metric.confidence_interval:
            scores[metric.name]["confidence"] = confidence_interval(statistics, samples)
    return scores


def record_name(loaded: TrainedModel, split: str, digest: str) -> tuple[str, str]:
    """Return a record's name, and the evaluation's identity.

    The identity is a digest of the test set, the checkpoints and the settings that affect scores.
    In a folder for records of several runs it includes the parameters.

    The name is `test-500`, `test-500-best`, or `test-500-mean5` for an average, if text and
    settings equal the run's own config. For others, or if the record of another evaluation already
    has the name, the identity's first digits are appended.

    Args:
        digest: digest of the test set's content.
    """
    steps, best, usual = loaded.steps, loaded.checkpoint.metric is not None, Config()
    parameters = checksums(loaded.params) if loaded.elsewhere else {}

    def identity(config: Config) -> str:
        settings = config.compared(keys_that_change(TRANSLATIONS, SCORES))
        changed = {name: value for name, value in settings.items() if value != usual.value(name)}
        parts = {"split": split, "data": digest, "steps": steps, "best": best, "settings": changed}
        parts |= {"models": loaded.models} if loaded.models else {}
        parts |= {"parameters": parameters} if parameters else {}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def spec(config: Config) -> str | None:
        return (config.data.valid_sets | config.data.test_sets).get(split)

    current = identity(loaded.config)
    base = f"{split}-{steps[0]}" + (
        f"-mean{len(steps)}" if len(steps) > 1 else "-best" if best else ""
    )
    unchanged = current == identity(loaded.stored) and spec(loaded.config) == spec(loaded.stored)
    if unchanged and _identity_in(loaded.workdir / "eval" / f"{base}.json") in (None, current):
        return base, current
    return f"{base}-{current[:8]}", current


def _identity_in(path: epath.Path) -> str | None:
    """Return the identity in a record; None without a valid record."""
    try:
        return parse_json(path.read_bytes())["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def path_of(loaded: TrainedModel, record: Record) -> epath.Path:
    """Return the path of an evaluation's record."""
    return loaded.workdir / "eval" / record["hypotheses"].replace(".hyp.txt", ".json")


def _checkpoint(loaded: TrainedModel, why: str) -> Record:
    entry: Record = {"step": loaded.steps[0], "averaged": list(loaded.steps)}
    if (metric := loaded.checkpoint.metric) is not None:
        name = loaded.config.eval.metric
        entry["best"] = {"metric": name, "value": -metric if lower_is_better(name) else metric}
    if loaded.checkpoint.dtype != "float32":
        entry["weights"] = f"rounded to {loaded.checkpoint.dtype}"
    entry |= {"models": list(loaded.models)} if loaded.models else {}
    return entry | ({"why": why} if why else {})


_NOTED_COUNTS = {
    "without_source": "lines have no source and are not scored",
    "without_reference": "lines have no reference and are not scored",
    "empty_references": "references are empty; their lines are scored by the others",
    "unknown_target_tokens": "reference tokens are out of vocabulary (<unk>)",
    "changed_targets": (
        "references are text that the tokenizer cannot write (config.data.normalization)"
    ),
    "source_cut": "sources were truncated to config.decode.max_source_length",
    "hit_max_length": "outputs reached their maximum length without EOS",
}


_LENGTH_RATIOS = 0.9, 1.1
"""Length ratios outside of this range have a note."""


def length_ratio(scores: Record) -> float | None:
    """Return the length of all outputs over the length of the references, in words.

    None for tasks without such a score.
    """
    entries = (entry for entry in scores.values() if isinstance(entry, dict))
    return next((entry["length_ratio"] for entry in entries if "length_ratio" in entry), None)


def summary(record: Record, task: Task) -> str:
    """Return the scores of a record in a few lines of text."""
    scores, counts, data = record["scores"], record["counts"], record["data"]
    checkpoint = named_steps(record["checkpoint"]["averaged"])
    if best := record["checkpoint"].get("best"):
        checkpoint += f", the best by {best['metric']} ({best['value']:.4f})"
    if models := record["checkpoint"].get("models"):
        checkpoint = f"{len(models)} models, the first at {checkpoint}"
    corpus = f"{data['corpus']}, " if data["corpus"] else ""
    lines = [
        f"{record['split']} ({corpus}{data['spec']}, {counts['sentences']} sentences),"
        f" {checkpoint}:"
    ]
    lines += task.summary(scores)
    ratio = length_ratio(scores)
    if ratio is not None and not _LENGTH_RATIOS[0] <= ratio <= _LENGTH_RATIOS[1]:
        note = f"  outputs have {ratio:.2f} times the length of the references"
        if unmet("decode.alpha", task.config.value) is None:  # else the key would be refused
            note += f": try a {'higher' if ratio < 1 else 'lower'} config.decode.alpha"
        lines.append(note)
    for name, text in _NOTED_COUNTS.items():
        numbers = [
            number for number, reason in data.get("not_scored", {}).items() if reason == name
        ]
        places = f": {', '.join(numbers[:5])}{' ...' if numbers[5:] else ''}" if numbers else ""
        lines += [f"  {counts[name]} {text}{places}"] if counts.get(name) else []
    return "\n".join(lines)


def write_record(path: epath.Path, record: Record) -> None:
    """Write a record as indented JSON."""
    atomic_write(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect a score."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"t2t_flax": __version__, "python": platform.python_version()} | packages


def _one_or_all(values: list[str]) -> str | list[str]:
    """Return the value if there is only one, else the list."""
    return values[0] if len(values) == 1 else values


def _sentences(tokenizers: TokenizerPair, sources: Sequence[str]) -> list[str]:
    """Return the sources without leading control symbols, which are not scored."""
    return [tokenizers.source.split(line)[1] for line in sources]


def _lines(texts: Sequence[str]) -> str:
    return "".join(text + "\n" for text in texts)


def validation_score(
    setup: TrainingSetup, supervisor: RunSupervisor | None = None
) -> Callable[..., dict[str, float]]:
    """Return a function that scores the validation sets.

    Its arguments are (parameters, after_batch, compiling). It decodes the first
    eval.decode_sentences of each set (0 = all); see `Translator.translate`. All processes of the
    supervisor's group must call it. It returns the task's primary metric and eval.metric, as
    `valid_NAME`: the mean over the sets, and the value for each if there are several, see
    `average_over_sets`.
    """
    config, task, tokenizers = setup.config, task_of(setup.config), setup.corpus.tokenizers
    translator = Translator(setup.model, tokenizers, setup.mesh, config)
    group = supervisor.group if supervisor else None

    def score_set(
        name: str, params: Params, after_batch: Callable[[], None], compiling
    ) -> dict[str, float]:
        valid, set_task = split_source(task, name), task.of_set(name)
        first = config.eval.decode_sentences or None
        sources = [source for source, _ in itertools.islice(valid.pairs(), first)]
        targets = list(zip(*itertools.islice(valid.references(), first), strict=True))
        translations = translator.translate(
            params, sources, progress=lambda *_: after_batch(), compiling=compiling
        )
        sources = _sentences(tokenizers, sources)
        predictions = set_task.predictions(sources, [t.text for t in translations], targets)
        metrics = set_task.validation_metrics()
        # The model of a metric can take long, without a sign of progress.
        with supervisor.expect_progress(False) if supervisor else contextlib.nullcontext():
            scores = compute_scores(set_task.config, metrics, predictions, group=group)
        values = {metric.training_name: scores[metric.name]["score"] for metric in metrics}
        if (ratio := length_ratio(scores)) is not None:
            values["length_ratio"] = ratio
        return {f"valid_{name}": value for name, value in values.items()}

    def score(
        params: Params,
        after_batch: Callable[[], None] = lambda: None,
        compiling=contextlib.nullcontext,
    ) -> dict[str, float]:
        sets = config.data.valid_sets
        return average_over_sets(
            {name: score_set(name, params, after_batch, compiling) for name in sets}
        )

    return score
