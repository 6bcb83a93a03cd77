"""Codes and names of languages, and the language of a text."""

import functools
import importlib.util
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from t2t_flax.errors import install_hint
from t2t_flax.extensions.serving.text import RequestError
from t2t_flax.tasks.translation import language_of

_NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "cy": "Welsh",
    "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian",
    "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati",
    "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "km": "Khmer", "kn": "Kannada", "ko": "Korean", "la": "Latin", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "ml": "Malayalam", "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "my": "Burmese",
    "nb": "Norwegian Bokmål", "ne": "Nepali", "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian",
    "pa": "Punjabi", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "si": "Sinhala", "sk": "Slovak", "sl": "Slovenian", "so": "Somali", "sq": "Albanian", "sr": "Serbian",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "xh": "Xhosa", "yo": "Yoruba", "zh": "Chinese",
    "zu": "Zulu",
}  # fmt: skip
"""English names of language codes (ISO 639), as translation clients show them."""
_SAME = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro", "nb": "no", "zt": "zh"}
"""Codes of the same language: older ones, and LibreTranslate's for traditional Chinese."""
_SCRIPTS = {"cn": "hans", "sg": "hans", "my": "hans", "tw": "hant", "hk": "hant", "mo": "hant"}
"""Of Chinese by region."""
_loading = threading.Lock()


def name_of(code: str) -> str:
    """ "German" for "de" and "German (AT)" for "de-AT"; a code that is not in the table is its own name."""
    language, _, region = code.replace("_", "-").partition("-")
    name = _NAMES.get(language.lower())
    if name is None:
        return code
    return f"{name} ({region})" if region else name


def matching(code: str, known: Iterable[str]) -> str | None:
    """The one of the known codes that a client means: in another case or spelling, with a region or script too many or too few.
    None if there is none, or several would do.
    """
    known = list(dict.fromkeys(known))
    alike = [each for each in known if _parts(each) == _parts(code)]
    if not alike:
        alike = [each for each in known if _language(each) == _language(code) and _fit(_script(each), _script(code))]
        alike = [each for each in alike if len(_parts(each)) == 1] or alike
    return alike[0] if len(alike) == 1 else None


def _parts(code: str) -> list[str]:
    return code.replace("_", "-").lower().split("-")


def _language(code: str) -> str:
    language = language_of(code)
    return _SAME.get(language, language)


def _script(code: str) -> str:
    first, *others = _parts(code)
    scripts = [part for part in others if len(part) == 4]
    if scripts or _language(code) != "zh":
        return scripts[0] if scripts else ""
    return "hant" if first == "zt" else next(filter(None, map(_SCRIPTS.get, others)), "" if others else "hans")


def _fit(one: str, other: str) -> bool:
    return not one or not other or one == other


def can_detect() -> bool:
    """Whether the package that identifies languages is installed."""
    return importlib.util.find_spec("py3langid") is not None


def detected(text: str, known: Sequence[str]) -> list[tuple[str, int]]:
    """The known languages with the probability in percent that the text is in each, among all that py3langid knows; the most
    probable first, and all with 0 for a text without letters. Raises RequestError without py3langid.
    """
    if not can_detect():
        raise RequestError(501, f"the server lacks py3langid, which detects languages: {install_hint('langid')}.")
    ranked = dict(_identifier().rank(text)) if any(map(str.isalpha, text)) else {}
    shares = {code: ranked.get(_language(code), 0.0) for code in known}
    return [(code, round(100 * shares[code])) for code in sorted(known, key=lambda code: -shares[code])]


def _identifier() -> Any:
    with _loading:  # once, not in each of the threads that want it
        return _loaded_identifier()


@functools.cache
def _loaded_identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
