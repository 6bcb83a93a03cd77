"""How the target language affects scoring: sacreBLEU's tokenizer, and which metrics make sense."""

import re

from t2t_flax.errors import UserError

_ISO_639_3 = {
    "zho": "zh", "cmn": "zh", "yue": "zh", "jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my",
}  # fmt: skip
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
_UNSEGMENTED = ("th", "lo", "km", "my")
"""Scripts without spaces for which sacreBLEU has no word segmenter; the Flores-200 SentencePiece model is used."""
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


def language_of(code: str) -> str:
    """The two-letter language of `zh`, `zh-CN`, `zh_Hans` or `zho_Hans`; other codes without region and script."""
    code = re.split(r"[-_]", code.lower())[0]
    return _ISO_639_3.get(code, code)


def tokenizer_of(setting: str, target_language: str) -> str:
    """sacreBLEU's name of the tokenizer for eval.sacrebleu_tokenizer = `setting` and a target language."""
    if setting != "auto":
        return setting
    language = language_of(target_language)
    return _TOKENIZERS.get(language, "flores200" if language in _UNSEGMENTED else "13a")


def has_moses_rules(target_language: str) -> bool:
    """Whether BLEU of Moses tokens makes sense: Moses cannot segment Chinese, Japanese, Korean, Thai,
    Lao, Khmer or Burmese.
    """
    return language_of(target_language) not in (*_TOKENIZERS, *_UNSEGMENTED)


def has_word_boundaries(target_language: str) -> bool:
    """Whether TER, which counts edits of words, makes sense: Thai, Lao, Khmer and Burmese text has no
    word boundaries.
    """
    return language_of(target_language) not in _UNSEGMENTED


def ter_settings(target_language: str) -> dict[str, bool]:
    """sacreBLEU's settings of TER for a target language: Chinese and Japanese count edits of characters."""
    return dict(normalized=True, asian_support=True) if language_of(target_language) in ("zh", "ja") else {}


def check_tokenizer(setting: str, target_language: str) -> None:
    """Raises UserError if the tokenizer lacks a package, or a model that cannot be downloaded."""
    from sacrebleu.metrics import BLEU

    name = tokenizer_of(setting, target_language)
    try:
        BLEU(tokenize=name)
    except (Exception, SystemExit) as error:  # sacreBLEU exits when TLS fails during a download
        raise UserError(_advice(name, setting, target_language, error)) from None


def _advice(name: str, setting: str, target_language: str, error: BaseException) -> str:
    why = f"config.eval.sacrebleu_tokenizer = {setting}"
    why += f" and config.data.target_language = {target_language}" if setting == "auto" else ""
    char = "or score characters: --config.eval.sacrebleu_tokenizer=char."
    if name in _EXTRAS:
        reason = " ".join(str(error).split()) or type(error).__name__
        return (
            f"{why} need sacreBLEU's tokenizer {name}, which failed to load ({reason}). Install its packages: "
            f"pip install 'sacrebleu[{_EXTRAS[name]}]', {char}"
        )
    from sacrebleu.utils import SACREBLEU_DIR

    return (
        f"{why} need the model of sacreBLEU's tokenizer {name}, which could not be downloaded ({error}). On a machine with "
        f"network access, run python -c \"from sacrebleu.metrics import BLEU; BLEU(tokenize='{name}')\", then copy "
        f"~/.sacrebleu/models to {SACREBLEU_DIR}/models here, {char}"
    )
