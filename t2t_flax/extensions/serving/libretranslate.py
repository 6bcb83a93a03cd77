"""LibreTranslate's API: GET /languages and POST /translate."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from t2t_flax.data.hooks import Direction
from t2t_flax.extensions.serving import schemas
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.extensions.serving.service import Service
from t2t_flax.extensions.serving.text import RequestError, join_lines, split_lines

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


def router(service: Service) -> APIRouter:
    """The routes for the runs of data.task = translation."""
    routes = APIRouter(tags=["LibreTranslate"])

    @routes.get("/languages")
    async def languages() -> Any:
        """The languages, and those into which each can be translated."""
        pairs = _directions(_translation_models(service))
        codes = sorted(dict.fromkeys(code for pair in pairs for code in pair))
        return [
            {
                "code": code,
                "name": _language_name(code),
                "targets": [target for source, target in pairs if source == code],
            }
            for code in codes
        ]

    @routes.post("/translate", openapi_extra=schemas.request_schema(schemas.LibreTranslateRequest, form=True))
    async def translate(request: Request) -> Response:
        """Translates each line of a text, or of several texts. `source: "auto"` chooses by the target language."""
        body = await service.read(request, schemas.LibreTranslateRequest, form=True)
        texts = [body.q] if isinstance(body.q, str) else body.q
        service.check_text("q", texts)
        if not any(text.strip() for text in texts):
            raise RequestError(400, "q has no text.")
        if body.format != "text":
            raise RequestError(400, f'format = {body.format[:50]!r} is not supported: send "text".')
        model = _find(service, body.source, body.target)
        n_best = min(1 + body.alternatives, model.max_n_best)
        lines = [line for text in texts for line in split_lines(text)]
        target = body.target if model.target_languages else None
        results = iter(await service.translate(request, model, lines, [""] * len(lines), n_best, target))
        answers = [_answers(text, [next(results) for _ in split_lines(text)], n_best) for text in texts]
        one = isinstance(body.q, str)
        content: dict[str, Any] = {"translatedText": answers[0][0] if one else [answer[0] for answer in answers]}
        if body.alternatives:
            content["alternatives"] = answers[0][1:] if one else [answer[1:] for answer in answers]
        if body.source == "auto":  # not detected: it is what the model translates from, if that is one language
            sources = _sources([model], body.target)
            detected = {"language": sources[0] if len(sources) == 1 else "auto", "confidence": 0}
            content["detectedLanguage"] = detected if one else [detected] * len(texts)
        return JSONResponse(content)

    return routes


def _translation_models(service: Service) -> Sequence[ServedModel]:
    service.require_ready()
    return [model for model in service.models if model.config.data.task == "translation"]


def _find(service: Service, source: str, target: str) -> ServedModel:
    """The first model from one language to the other. Raises RequestError. A model of several directions translates from any of
    its languages without being told which, so that it fits `auto`.
    """
    models = _translation_models(service)
    fitting = [
        model
        for model in models
        if any(target == into and source in ("auto", origin) for origin, into in model.directions)
    ]
    if not fitting:
        pairs = ", ".join(f"{origin} to {into}" for origin, into in _directions(models))
        raise RequestError(
            400, f"{source[:20]} to {target[:20]} is not supported; this server has {pairs or 'nothing'}."
        )
    if source == "auto" and len(fitting) > 1 and len(_sources(fitting, target)) > 1:
        raise RequestError(400, f"source = auto is ambiguous: name one of {', '.join(_sources(fitting, target))}.")
    return fitting[0]


def _directions(models: Sequence[ServedModel]) -> list[Direction]:
    return list(dict.fromkeys(direction for model in models for direction in model.directions))


def _sources(models: Sequence[ServedModel], target: str) -> list[str]:
    """The languages from which the models translate into this one, sorted."""
    return sorted({origin for origin, into in _directions(models) if into == target})


def _answers(text: str, lines: Sequence[list[dict[str, Any]]], n_best: int) -> list[str]:
    """Different translations of a text, best first: the i-th is made of the i-th of each line that has as many."""
    ranked = [
        join_lines(text, [hypotheses[min(rank, len(hypotheses) - 1)]["text"] for hypotheses in lines])
        for rank in range(n_best)
    ]
    return list(dict.fromkeys(ranked))


def _language_name(code: str) -> str:
    """ "German" for "de" and "German (AT)" for "de-AT"; a code that is not in the table is its own name."""
    language, _, region = code.replace("_", "-").partition("-")
    name = _NAMES.get(language.lower())
    if name is None:
        return code
    return f"{name} ({region})" if region else name
