"""LibreTranslate's API: GET /languages and /frontend/settings, POST /translate and /detect."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving import schemas
from t2t_flax.extensions.serving.languages import can_detect, detected, matching, name_of
from t2t_flax.extensions.serving.model import Hypotheses, ServedModel
from t2t_flax.extensions.serving.service import Service
from t2t_flax.extensions.serving.text import RequestError, join_lines, split_lines
from t2t_flax.extensions.shared.directions import Direction
from t2t_flax.registry import ANALYSES

_PAUSE = 500
"""Milliseconds for which LibreTranslate's page waits for more typing."""


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
                "name": name_of(code),
                "targets": [target for source, target in pairs if source == code],
            }
            for code in codes
        ]

    @routes.get("/frontend/settings")
    async def settings() -> Any:
        """What LibreTranslate's page asks first."""
        pairs = _directions(_translation_models(service))
        chosen = [("auto", "Detect language"), *((pair.target, name_of(pair.target)) for pair in pairs[:1])]
        return {
            "apiKeys": service.access.keys.required,
            "charLimit": service.limits.max_text_length,
            "filesTranslation": False,
            "frontendTimeout": _PAUSE,
            "keyRequired": service.access.keys.required,
            "language": {
                side: {"code": code, "name": name}
                for side, (code, name) in zip(("source", "target"), chosen, strict=False)
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    @routes.post("/detect", openapi_extra=schemas.request_schema(schemas.DetectRequest, form=True))
    async def detect(request: Request) -> Response:
        """The languages of the models, with the probability in percent that the text is in each; the most probable first."""
        body = await service.read(request, schemas.DetectRequest, form=True)
        service.check_text("q", [body.q])
        if not body.q.strip():
            raise RequestError(400, "q has no text.")
        pairs = _directions(_translation_models(service))
        codes = list(dict.fromkeys(code for pair in pairs for code in pair))
        found = await asyncio.to_thread(detected, body.q, codes)
        return JSONResponse([{"confidence": confidence, "language": code} for code, confidence in found])

    @routes.post("/translate", openapi_extra=schemas.request_schema(schemas.LibreTranslateRequest, form=True))
    async def translate(request: Request) -> Response:
        """Translates each line of a text, or of several texts; of HTML each block, tags are carried over to the aligned words.
        `source: "auto"` is the language that the text is detected to be in, of those from which the models translate into the
        target.
        """
        body = await service.read(request, schemas.LibreTranslateRequest, form=True)
        texts = [body.q] if isinstance(body.q, str) else body.q
        service.check_text("q", texts)
        if not any(text.strip() for text in texts):
            raise RequestError(400, "q has no text.")
        if body.format not in _formats():
            expected = " or ".join(f'"{name}"' for name in _formats())
            raise RequestError(400, f"format = {body.format[:50]!r} is not supported: send {expected}.")
        documents = [await asyncio.to_thread(ANALYSES.load("html"), text) for text in texts if body.format == "html"]
        parts = [document.lines for document in documents] or [split_lines(text) for text in texts]
        lines = [line for part in parts for line in part]
        if len(lines) > service.limits.max_lines:
            raise RequestError(400, f"q has {len(lines)} blocks: at most {service.limits.max_lines} are allowed.")
        models = _translation_models(service)
        into = matching(body.target, [pair.target for pair in _directions(models)]) or body.target
        source, sources, guess = body.source, _sources(models, into), ("auto", 0)
        if source.lower() == "auto":
            if sources and can_detect():
                guess = (await asyncio.to_thread(detected, "\n".join(lines), sources))[0]
            elif len(sources) == 1:
                guess = sources[0], 0
            source = guess[0]
        else:
            source = matching(source, sources) or source
        model = _find(service, source, into)
        n_best = min(1 + body.alternatives, model.max_n_best)
        target = into if model.target_languages else None
        if documents:
            found = await service.translate(request, model, lines, [""] * len(lines), n_best, target)
        else:
            known = "" if source == "auto" else source
            found = await service.translate_paragraphs(request, model, lines, n_best, target, known)
        remaining = iter(found)
        results = [[next(remaining) for _ in part] for part in parts]
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
        if body.source.lower() == "auto":
            detection = {"language": guess[0], "confidence": guess[1]}
            content["detectedLanguage"] = detection if one else [detection] * len(texts)
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
