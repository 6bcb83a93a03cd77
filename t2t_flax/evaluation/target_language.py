"""What the target language decides about scores: sacreBLEU's tokenizer, and which metrics make sense."""

import re

from t2t_flax.errors import UserError

_ISO_639_3 = {
    "zho": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my",
}  # fmt: skip
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_UNSEGMENTED = ("th", "lo", "km", "my")
"""Scripts without spaces that sacreBLEU has no word segmenter for: the sentence pieces of Flores-200 stand in."""
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


def language_of(code: str) -> str:
    """The two-letter language of `zh`, `zh-CN`, `zh_Hans` or `zho_Hans`; other codes without region and script."""
    code = re.split(r"[-_]", code.lower())[0]
    return _ISO_639_3.get(code, code)


def tokenizer_of(setting: str, target_language: str) -> str:
    """sacreBLEU's name of the tokenizer that `eval.sacrebleu_tokenizer` = `setting` means for a target language."""
    if setting != "auto":
        return setting
    language = language_of(target_language)
    return _TOKENIZERS.get(language, "flores200" if language in _UNSEGMENTED else "13a")


def metric_names(target_language: str) -> tuple[str, ...]:
    """The corpus metrics of a target language, the main one first.

    Moses has no rules for Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese, so there is no BLEU of Moses tokens;
    TER counts edits of words, which Thai, Lao, Khmer and Burmese text does not mark.
    """
    language = language_of(target_language)
    moses = () if language in (*_TOKENIZERS, *_UNSEGMENTED) else ("tokenized_bleu", "paper_bleu")
    return ("sacrebleu", *moses, "chrf", "chrf++", *(() if language in _UNSEGMENTED else ("ter",)))


def ter_settings(target_language: str) -> dict[str, bool]:
    """sacreBLEU's TER for a target language: Chinese and Japanese characters are edited one by one."""
    return dict(normalized=True, asian_support=True) if language_of(target_language) in ("zh", "ja") else {}


def check_tokenizer(setting: str, target_language: str) -> None:
    """Raises UserError where the tokenizer lacks a package, or a model that cannot be downloaded."""
    from sacrebleu.metrics import BLEU

    name = tokenizer_of(setting, target_language)
    try:
        BLEU(tokenize=name)
    except (Exception, SystemExit) as error:  # sacreBLEU exits where TLS fails in a download
        raise UserError(_advice(name, setting, target_language, error)) from None


def _advice(name: str, setting: str, target_language: str, error: BaseException) -> str:
    why = f"config.eval.sacrebleu_tokenizer = {setting}"
    why += f" and config.data.target_language = {target_language}" if setting == "auto" else ""
    char = "or score characters: --config.eval.sacrebleu_tokenizer=char."
    if name in _EXTRAS:
        said = " ".join(str(error).split()) or type(error).__name__
        return (
            f"{why} need sacreBLEU's tokenizer {name}, which does not start ({said}). Install what it needs: "
            f"pip install 'sacrebleu[{_EXTRAS[name]}]', {char}"
        )
    from sacrebleu.utils import SACREBLEU_DIR

    return (
        f"{why} need the model of sacreBLEU's tokenizer {name}, which it could not download ({error}). Where there is a "
        f"network, run python -c \"from sacrebleu.metrics import BLEU; BLEU(tokenize='{name}')\", then copy the folder "
        f"~/.sacrebleu/models to {SACREBLEU_DIR}/models here, {char}"
    )
