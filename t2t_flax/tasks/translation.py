"""Translation: sentence pairs, SentencePiece or BPE, and corpus metrics.

The two sides of a metric go through the same steps. Three BLEUs are often mistaken for one another.
`sacrebleu`: detokenized text, reproducible by anyone from its signature. `tokenized_bleu`: Moses
tokens and the arithmetic of multi-bleu. `paper_bleu`: computed as the paper's figures were, by
tensor2tensor's get_ende_bleu.sh. `chrf`, `chrf++` and `ter` are sacreBLEU's, on the same text as
`sacrebleu`.
"""

import dataclasses
import functools
import importlib.metadata
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from t2t_flax.config import Config, Data
from t2t_flax.data.hooks import control_symbols
from t2t_flax.data.sources import has_text, open_source
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.language import Language, named_languages
from t2t_flax.tasks import Metric, Predictions, SentenceStatistics, Task

log = logging.getLogger("t2t_flax")
_NO_WORD_BOUNDARIES = ("th", "lo", "km", "my", "shn", "bo", "dz")
"""Languages whose text sacreBLEU cannot divide into words.

Its Flores-200 SentencePiece model is used, and TER makes no sense.
"""
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"} | dict.fromkeys(
    _NO_WORD_BOUNDARIES, "flores200"
)
"""sacreBLEU's tokenizers for languages that Moses cannot divide into words."""
_SPACED_SCRIPTS = ("Latn", "Cyrl")
"""Scripts with spaces between words, in any language."""
_HAN, _KANA = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "\u3041-\u30ff\u31f0-\u31ff",
)
_UNSPACED = _HAN + _KANA + "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
"""Scripts without spaces between words, with Thai, Lao, Tibetan, Burmese, Khmer."""
_NOT_DIVIDED = {
    "zh": f"(?![{_HAN}])",
    "ja-mecab": f"(?![{_HAN}{_KANA}])",
    "char": "(?!)",
    "flores101": "(?!)",
    "flores200": "(?!)",
}
_LONGEST_WORD = 5
"""Largest mean number of characters between spaces in divided text.

Text of such scripts with more counts as undivided.
"""
_COMPOUND = re.compile(r"(\S)-(\S)")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Computation of a metric.

    Args:
        prepare: processes the text of both sides.
        settings: settings of sacreBLEU's class.
        method: the whole computation in one sentence.
        kind: sacreBLEU's class.
        tokenizer: the tokenizer of eval.sacrebleu_tokenizer, if the metric has one.
    """

    prepare: Callable[[Sequence[str]], list[str]]
    settings: dict[str, Any]
    method: str
    kind: str = "BLEU"
    tokenizer: str = ""

    def metric(self) -> Any:
        """Return a new metric of `sacrebleu.metrics` for prepared text."""
        import sacrebleu.metrics

        return getattr(sacrebleu.metrics, self.kind)(**self.settings)


def tokenizer_of(setting: str, target_language: str) -> str:
    """Return sacreBLEU's tokenizer for eval.sacrebleu_tokenizer and a language."""
    return setting if setting != "auto" else _recommended(Language.read(target_language))


def _recommended(language: Language) -> str:
    return "13a" if language.script in _SPACED_SCRIPTS else _TOKENIZERS.get(language.group, "13a")


def _moses_rules(code: str) -> tuple[str, str]:
    """Return (a language's code for sacremoses, its name in a record)."""
    from sacremoses.corpus import NonbreakingPrefixes

    language = Language.read(code)
    if known := language.spelling(NonbreakingPrefixes().available_langs.values()):
        return known, known
    return language.base, f"{language.base} (abbreviations of en)"


def recipe(name: str, config: Config) -> Recipe:
    """Return the computation of the metric `name` of `METRICS`.

    The target language (data.target_language) selects the Moses rules, sacreBLEU's tokenizer (with
    eval.sacrebleu_tokenizer = auto) and the variant of TER. Text that is already Moses-tokenized
    and escaped (data.pretokenized) is detokenized for all metrics but the BLEUs on Moses tokens.
    """
    language, pretokenized = config.data.target_language, config.data.pretokenized
    ours, moses = (importlib.metadata.version(package) for package in ("sacrebleu", "sacremoses"))
    rules = f"sacremoses {moses} with the rules of language {_moses_rules(language)[1]}"
    if name in ("sacrebleu", "chrf", "chrf++", "ter"):
        text = (
            f"both sides detokenized and unescaped by {rules}."
            if pretokenized
            else "the text as it is."
        )
        prepare = detokenizer(language) if pretokenized else list
        if name == "sacrebleu":
            tokenizer = tokenizer_of(config.eval.sacrebleu_tokenizer, language)
            method = f"sacreBLEU {ours}, tokenizer {tokenizer}, on {text}"
            return Recipe(prepare, dict(tokenize=tokenizer), method, tokenizer=tokenizer)
        if name == "ter":
            method = (
                f"TER of sacreBLEU {ours}: edits in percent of the reference's words, lower is"
                f" better; on {text}"
            )
            asian_words = tokenizer_of("auto", language) in ("zh", "ja-mecab")
            asian = dict(normalized=True, asian_support=True) if asian_words else {}
            return Recipe(prepare, asian, method, "TER")
        settings: dict[str, Any] = dict(word_order=2) if name == "chrf++" else {}
        method = f"{'chrF++' if settings else 'chrF'} of sacreBLEU {ours} on {text}"
        return Recipe(prepare, settings, method, "CHRF")
    tokenize = list if pretokenized else _tokenizer(language)
    tokens = "the text's own Moses tokens" if pretokenized else f"Moses tokens by {rules}"
    arithmetic = (
        f"the arithmetic of multi-bleu (sacreBLEU {ours}, tokenizer none, no smoothing), cased as"
        " the text is"
    )
    settings = dict(tokenize="none", smooth_method="none", force=True)
    if name == "tokenized_bleu":
        return Recipe(tokenize, settings, f"{tokens} on both sides, then {arithmetic}.")
    method = (
        "The steps of tensor2tensor's get_ende_bleu.sh on both sides: Unicode punctuation replaced"
        f" (sacremoses {moses}), {tokens}, each hyphen between two non-spaces made a token; then"
        f" {arithmetic}."
    )
    return Recipe(
        lambda lines: split_compounds(tokenize(replace_punctuation(lines))), settings, method
    )


def sacrebleu_statistics(steps: Recipe, predictions: Predictions) -> SentenceStatistics:
    """Return sufficient statistics of a sacreBLEU metric for each sentence.

    sacreBLEU computes every corpus score from them, but has no public function that returns them.
    The tests compare the resulting scores with its public ones.
    """
    metric = steps.metric()
    if missing := [
        n
        for n, lines in enumerate(zip(*predictions.references, strict=True), 1)
        if not any(map(has_text, lines))
    ]:
        raise UserError(
            f"{len(missing)} lines have no reference, the first is line {missing[0]}: evaluate"
            " again, which leaves them out."
        )
    # sacreBLEU scores by the references that are not None.
    references = [
        [
            text if has_text(line) else None
            for line, text in zip(lines, steps.prepare(lines), strict=True)
        ]
        for lines in predictions.references
    ]
    statistics = metric._extract_corpus_statistics(
        steps.prepare(predictions.hypotheses), references
    )
    values = np.array(statistics, np.float64)

    def score(sums: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(sums.tolist()).score)

    def signature(**bootstrap: int) -> str:
        text = metric.get_signature()
        for key, value in bootstrap.items():
            text.update(key, value)
        return str(text)

    details = {}
    if steps.kind == "BLEU":
        bleu = metric._compute_score_from_stats(values.sum(0).tolist())
        details = {
            "precisions": [round(p, 4) for p in bleu.precisions],
            "brevity_penalty": round(bleu.bp, 6),
            "hypothesis_length": bleu.sys_len,
            "reference_length": bleu.ref_len,
            "length_ratio": round(bleu.sys_len / max(bleu.ref_len, 1), 4),
        }
    undivided = (
        undivided_lines(steps.tokenizer, filter(None, itertools.chain(*references)))
        if steps.tokenizer
        else 0
    )
    if undivided:
        details["undivided_references"] = undivided
        _warn_of_undivided(steps.tokenizer, undivided)
    return SentenceStatistics(values, score, steps.method, signature, details)


def undivided_lines(tokenizer: str, lines: Iterable[str]) -> int:
    """Return the number of lines that the tokenizer does not divide into words.

    Such lines are mostly in a script that it does not divide. Returns 0 if spaces divide them.
    """
    pattern = re.compile(f"{_NOT_DIVIDED.get(tokenizer, '')}[{_UNSPACED}]")
    counts = ((len(pattern.findall(line)), line.split()) for line in lines)
    mostly = [(count, len(words)) for count, words in counts if 2 * count > sum(map(len, words))]
    characters, words = map(sum, zip(*mostly, strict=True)) if mostly else (0, 0)
    return len(mostly) if characters > _LONGEST_WORD * words else 0


@functools.cache
def _warn_of_undivided(tokenizer: str, count: int) -> None:
    """Warn once, because a validation set is scored several times."""
    log.warning(
        "%d references are in a script that sacreBLEU's tokenizer %s does not divide into words, so"
        " that BLEU counts whole phrases: set config.data.target_language, or"
        " config.eval.sacrebleu_tokenizer.",
        count,
        tokenizer,
    )


def _statistics(name: str) -> Callable[[Predictions, Config], SentenceStatistics]:
    return lambda predictions, config: sacrebleu_statistics(recipe(name, config), predictions)


def exact_match(predictions: Predictions, config: Config) -> dict[str, Any]:
    """Return the share of outputs that equal one of their references."""
    hypotheses, references = predictions.hypotheses, predictions.references
    count = sum(h in filter(has_text, rs) for h, *rs in zip(hypotheses, *references, strict=True))
    return {"score": round(100.0 * count / len(hypotheses), 4), "sentences": count}


def _has_moses_rules(config: Config) -> bool:
    return tokenizer_of("auto", config.data.target_language) == "13a"


METRICS = [
    Metric(
        "sacrebleu",
        "sacreBLEU",
        statistics=_statistics("sacrebleu"),
        log_name="bleu",
        confidence_interval=True,
    ),
    Metric(
        "tokenized_bleu",
        "tokenized BLEU",
        statistics=_statistics("tokenized_bleu"),
        applies=_has_moses_rules,
        note="Moses tokens, multi-bleu",
    ),
    Metric(
        "paper_bleu",
        "paper BLEU",
        statistics=_statistics("paper_bleu"),
        applies=_has_moses_rules,
        note="Moses tokens, hyphens split, multi-bleu",
    ),
    Metric("chrf", "chrF", statistics=_statistics("chrf"), confidence_interval=True),
    Metric("chrf++", "chrF++", statistics=_statistics("chrf++"), confidence_interval=True),
    Metric(
        "ter",
        "TER",
        statistics=_statistics("ter"),
        higher_is_better=False,
        confidence_interval=True,
        applies=lambda config: tokenizer_of("auto", config.data.target_language) != "flores200",
    ),
    Metric("exact_match", "exact match", exact_match, unit="%"),
]
"""Metrics, one per row; code that reads metrics reads this table."""


def replace_punctuation(lines: Sequence[str]) -> list[str]:
    """Replace full-width and curly punctuation by ASCII.

    Equals Moses' replace-unicode-punctuation.
    """
    from sacremoses import MosesPunctNormalizer

    normalizer = MosesPunctNormalizer()
    return [normalizer.replace_unicode_punct(line) for line in lines]


def split_compounds(lines: Sequence[str]) -> list[str]:
    """Replace `rich-text` by `rich ##AT##-##AT## text`.

    This is the compound splitting of tensor2tensor.
    """
    return [_COMPOUND.sub(r"\1 ##AT##-##AT## \2", line) for line in lines]


def _tokenizer(language: str) -> Callable[[Sequence[str]], list[str]]:
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(_moses_rules(language)[0])
    return lambda lines: [moses.tokenize(line, return_str=True) for line in lines]


def detokenizer(language: str) -> Callable[[Sequence[str]], list[str]]:
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(_moses_rules(language)[0])
    return lambda lines: [moses.detokenize(line.split()) for line in lines]


def _check_languages(spec: str, key: str, data: Data) -> None:
    """Raise UserError if file or column names contradict the config's languages.

    Also raised if the config lacks a language.
    """
    for i, named in enumerate(named_languages(spec)):
        side = "target" if i else "source"
        name, given = f"config.data.{side}_language", getattr(data, f"{side}_language")
        if not given:
            raise UserError(
                f"{key} = {spec!r} does not say the {side} language: set {name}, such as"
                f" --{name}=de."
            )
        if named and named.group != Language.read(given).group:
            raise UserError(
                f"{key} = {spec!r} names the {side} language {named.code}, and {name} = {given}:"
                f" set --{name}={named.code}, or rename the file."
            )


class Translation(Task):
    """Translation, with the metrics that make sense for the target language."""

    metrics = METRICS

    def open_source(self, spec, *, key):
        data = self.config.data
        _check_languages(spec, key, data)
        languages = dict(source_language=data.source_language, target_language=data.target_language)
        return open_source(spec, root=data.root, key=key, **languages)

    def train_tokenizers(self, source):
        return train_tokenizers(source, self.config.data, list(control_symbols(self.config)))

    def validate_config(self):
        super().validate_config()
        for name in self.config.data.valid_sets:  # not all metrics make sense for all languages
            Task.validate_config(self.of_set(name))

    def check_requirements(self):
        """Raise UserError if sacreBLEU's tokenizer lacks a package or a model.

        A model can be missing because it cannot be downloaded. Other errors as in `Task`.
        """
        import sacrebleu.utils

        super().check_requirements()

        setting, language = self.config.eval.sacrebleu_tokenizer, self.config.data.target_language
        name = tokenizer_of(setting, language)
        try:
            sacrebleu.BLEU(tokenize=name)
        except (Exception, SystemExit) as error:  # sacreBLEU exits when TLS fails during a download
            advice = (
                'with network access, run python -c "from sacrebleu.metrics import BLEU;'
                f" BLEU(tokenize='{name}')\", then copy ~/.sacrebleu/models to"
                f" {sacrebleu.utils.SACREBLEU_DIR}/models here"
            )
            if name.endswith("-mecab"):
                advice = f"pip install 'sacrebleu[{name.partition('-')[0]}]'"
            why = f" and config.data.target_language = {language}" if setting == "auto" else ""
            raise UserError(
                f"config.eval.sacrebleu_tokenizer = {setting}{why} need sacreBLEU's tokenizer"
                f" {name}, which is missing ({' '.join(str(error).split())}): {advice}, or score"
                " characters: --config.eval.sacrebleu_tokenizer=char."
            ) from None
