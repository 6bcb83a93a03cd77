"""Codes and names of languages, and detection of the language of a text."""

import contextlib
import functools
import importlib.util
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import HTTPException

from t2t_flax.errors import UserError, install_hint
from t2t_flax.language import Language

_NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan",
    "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati",
    "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian",
    "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada", "ko": "Korean", "la": "Latin",
    "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mr": "Marathi",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål", "ne": "Nepali",
    "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish",
    "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovenian", "so": "Somali", "sq": "Albanian", "sr": "Serbian",
    "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese",
    "xh": "Xhosa", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip
"""English names of language codes (ISO 639), as translation clients show them."""
_loading = threading.Lock()


def name_of(code: str) -> str:
    """Return "German" for "de" and "German (AT)" for "de-AT".

    A code that is not in the table is its own name.
    """
    name = _NAMES.get(Language.read(code).base)
    if name is None:
        return code
    region = code.replace("_", "-").partition("-")[2]
    return f"{name} ({region})" if region else name


def matching(code: str, known: Iterable[str]) -> str | None:
    """Return the known code that a client means.

    The client's code may differ in case, spelling, region or script.

    Returns:
        None if no code matches, or several do.
    """
    known = list(dict.fromkeys(known))
    spelled = code.replace("_", "-").lower()
    same = [each for each in known if each.replace("_", "-").lower() == spelled]
    with contextlib.suppress(UserError):  # a client may send any text
        same = same or [
            each for each in known if Language.read(each).group == Language.read(code).group
        ]
    return same[0] if len(same) == 1 else None


def can_detect() -> bool:
    """Return whether the package that identifies languages is installed."""
    return importlib.util.find_spec("py3langid") is not None


def load() -> None:
    """Load the data of `detected` once; it takes a second.

    Raises HTTPException without py3langid.
    """
    if not can_detect():
        raise HTTPException(
            501, f"the server lacks py3langid, which detects languages: {install_hint('langid')}."
        )
    with _loading:
        _identifier()


def detected(text: str, known: Sequence[str]) -> list[tuple[str, int]]:
    """Return the known languages, the most probable first.

    Each has the probability in percent that the text is in it.
    """
    ranked = dict(_identifier().rank(text)) if any(map(str.isalpha, text)) else {}
    shares = {code: ranked.get(Language.read(code).spelling(ranked) or "", 0.0) for code in known}
    return [
        (code, round(100 * shares[code])) for code in sorted(known, key=lambda code: -shares[code])
    ]


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
