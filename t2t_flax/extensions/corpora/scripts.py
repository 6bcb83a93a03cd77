"""The scripts of languages, as in CLDR's likely subtags; codes of ISO 15924."""

import functools

import regex

from t2t_flax.errors import UserError

_LANGUAGES = {
    "Latn": "ace af an az bcl br bs ca crh cs cy da de en eo es et eu ext fi fo fr fuv fy ga gcf gcr gd gl gug guw ha hr ht hu "
    "id ig is it jv kab kik la lb lg lij ln lt ltg lv mg mi ms mt nb nl nn no nso oc om pcm pl pt qu ro rw se sk sl sm sn so sq "
    "st su sv sw tk tl tn tr ts uz uzs vec vi vo wa wo xh yo zu",
    "Cyrl": "ba be bg cv kk ky mk mn os ru tg tt uk",
    "Arab": "ar ary arz ckb fa ps sd sdh ug ur",
    "Deva": "bho gom hi mai mr ne sa",
    "Beng": "as bn",
    "Hebr": "hbo he yi",
    "Grek": "el grc",
    "Ethi": "am ti",
    "Hani": "wuu yue zh",
    "Tibt": "bo dz",
    "Armn": "hy",
    "Geor": "ka",
    "Gujr": "gu",
    "Guru": "pa",
    "Khmr": "km",
    "Knda": "kn",
    "Laoo": "lo",
    "Mlym": "ml",
    "Mymr": "my",
    "Orya": "or",
    "Sinh": "si",
    "Taml": "ta",
    "Telu": "te",
    "Thaa": "dv",
    "Thai": "th",
}
_SEVERAL = {"ja": ("Hira", "Kana", "Hani"), "ko": ("Hang", "Hani"), "sr": ("Cyrl", "Latn"), "ku": ("Latn", "Arab")}
_TOGETHER = {
    "Hans": ("Hani",), "Hant": ("Hani",), "Jpan": ("Hira", "Kana", "Hani"), "Kore": ("Hang", "Hani"),
    "Hrkt": ("Hira", "Kana"), "Aran": ("Arab",), "Latf": ("Latn",), "Latg": ("Latn",), "Cyrs": ("Cyrl",),
}  # fmt: skip
"""Of codes for several scripts, and for a form of one."""
_OF = {language: (script,) for script, languages in _LANGUAGES.items() for language in languages.split()} | _SEVERAL


@functools.cache
def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of a language code, such as "sr" or "sr-Latn". Raises UserError if they are not known."""
    first, *others = language.replace("_", "-").split("-")
    for part in others:
        if len(part) == 4 and part.isalpha():
            return _known(_TOGETHER.get(part.title(), (part.title(),)), language)
    if first.lower() in _OF:
        return _OF[first.lower()]
    raise UserError(
        f"config.filters.script does not know the script of the language {language!r}: write it into the code, as {first}-Latn "
        "or another code of ISO 15924."
    )


def _known(scripts: tuple[str, ...], language: str) -> tuple[str, ...]:
    """The scripts. Raises UserError for one that Unicode does not have."""
    for script in scripts:
        try:
            regex.compile(rf"\p{{Script={script}}}")
        except regex.error:
            raise UserError(
                f"config.filters.script does not know the script {script} of the language {language!r}: expected a code of ISO "
                "15924, as in sr-Latn."
            ) from None
    return scripts
