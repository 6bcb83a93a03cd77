"""LibreTranslate's API: GET /languages and POST /translate."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from t2t_flax.data.hooks import Direction
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving import schemas
from t2t_flax.extensions.serving.model import Hypotheses, ServedModel
from t2t_flax.extensions.serving.service import Service
from t2t_flax.extensions.serving.text import RequestError, join_lines, split_lines
from t2t_flax.registry import ANALYSES

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
        """Translates each line of a text, or of several texts; of HTML each block, tags are carried over to the aligned words.
        `source: "auto"` chooses by the target language.
        """
        body = await service.read(request, schemas.LibreTranslateRequest, form=True)
        texts = [body.q] if isinstance(body.q, str) else body.q
        service.check_text("q", texts)
        if not any(text.strip() for text in texts):
            raise RequestError(400, "q has no text.")
        if body.format not in _formats():
            expected = " or ".join(f'"{name}"' for name in _formats())
            raise RequestError(400, f"format = {body.format[:50]!r} is not supported: send {expected}.")
        model = _find(service, body.source, body.target)
        n_best = min(1 + body.alternatives, model.max_n_best)
        documents = [await asyncio.to_thread(ANALYSES.load("html"), text) for text in texts if body.format == "html"]
        parts = [document.lines for document in documents] or [split_lines(text) for text in texts]
        lines = [line for part in parts for line in part]
        if len(lines) > service.limits.max_lines:
            raise RequestError(400, f"q has {len(lines)} blocks: at most {service.limits.max_lines} are allowed.")
        target = body.target if model.target_languages else None
        found = iter(await service.translate(request, model, lines, [""] * len(lines), n_best, target))
        results = [[next(found) for _ in part] for part in parts]
        if documents:
            work = functools.partial(_html_answers, documents, results, n_best, target)
            (answers,) = await service.wait(request, await service.submit(model.finish, work))
        else:
            joins = [functools.partial(join_lines, text) for text in texts]
            answers = [_answers(*of_text, n_best) for of_text in zip(joins, results, strict=True)]
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


def _formats() -> list[str]:
    return ["text", *(["html"] if "html" in ANALYSES else [])]


def _answers(join: Callable[[list[str]], str], lines: Sequence[Hypotheses], n_best: int) -> list[str]:
    """Different translations of a text, best first: the i-th is made of the i-th of each line that has as many."""
    ranked = [
        join([hypotheses[min(rank, len(hypotheses) - 1)]["text"] for hypotheses in lines]) for rank in range(n_best)
    ]
    return list(dict.fromkeys(ranked))


def _html_answers(
    documents: Sequence[Any],
    results: Sequence[Sequence[Hypotheses]],
    n_best: int,
    target: str | None,
    run: TrainedModel,
) -> list[list[str]]:
    """As `_answers`, of documents of HTML."""
    answers = []
    for document, of_document in zip(documents, results, strict=True):
        sources = [run.in_language(line, target) for line in document.lines]
        answers.append(_answers(functools.partial(document.translated, run, sources), of_document, n_best))
    return answers


def _language_name(code: str) -> str:
    """ "German" for "de" and "German (AT)" for "de-AT"; a code that is not in the table is its own name."""
    language, _, region = code.replace("_", "-").partition("-")
    name = _NAMES.get(language.lower())
    if name is None:
        return code
    return f"{name} ({region})" if region else name
