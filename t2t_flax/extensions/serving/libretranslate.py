"""LibreTranslate's API.

GET /languages and /frontend/settings, POST /translate and /detect.
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving.bodies import described, read
from t2t_flax.extensions.serving.languages import can_detect, detected, load, matching, name_of
from t2t_flax.extensions.serving.model import Hypotheses, ServedModel
from t2t_flax.extensions.serving.service import Service, by_rank
from t2t_flax.extensions.shared.directions import Direction
from t2t_flax.registry import FLAGS

_PAUSE = 500
"""Milliseconds that LibreTranslate's page waits for more typing."""


class DetectRequest(BaseModel):
    """Body of POST /detect."""

    q: str
    api_key: str | None = None


class TranslateRequest(BaseModel):
    """Body of POST /translate."""

    q: str | Annotated[list[str], Field(fail_fast=True)]
    source: Annotated[str, Field(description='a language code or "auto"')]
    target: str
    format: Annotated[str, Field(description='"text" or "html"')] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    api_key: str | None = None


def router(service: Service) -> APIRouter:
    """Return the routes for the runs of data.task = translation."""
    routes = APIRouter(tags=["LibreTranslate"])

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """Languages, and the languages into which each can be translated."""
        pairs = _directions(_translation_models(service))
        codes = sorted({code for pair in pairs for code in pair})
        return [
            {
                "code": code,
                "name": name_of(code),
                "targets": [pair.target for pair in pairs if pair.source == code],
            }
            for code in codes
        ]

    @routes.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Settings that LibreTranslate's page asks for first."""
        pairs = _directions(_translation_models(service))
        language: dict[str, Any] = {"source": {"code": "auto", "name": "Detect language"}}
        for pair in pairs[:1]:
            language["target"] = {"code": pair.target, "name": name_of(pair.target)}
        return {
            "apiKeys": bool(service.settings.keys),
            "charLimit": service.settings.max_text_length,
            "filesTranslation": False,
            "frontendTimeout": _PAUSE,
            "keyRequired": bool(service.settings.keys),
            "language": language,
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    @routes.post("/detect", openapi_extra=described(DetectRequest, forms=True))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """Languages of the models with probabilities in percent, the most probable first."""
        body = await read(service, request, DetectRequest, forms=True)
        with service.admitted(request, body.api_key):
            service.check_text("q", [body.q])
            pairs = _directions(_translation_models(service))
            codes = list(dict.fromkeys(code for pair in pairs for code in pair))
            found = await _detected(service, request, body.q, codes)
            return [{"confidence": confidence, "language": code} for code, confidence in found]

    @routes.post("/translate", openapi_extra=described(TranslateRequest, forms=True))
    async def translate(request: Request) -> dict[str, Any]:
        """Translate each line of texts; HTML by block, with tags around the aligned words."""
        body = await read(service, request, TranslateRequest, forms=True)
        with service.admitted(request, body.api_key):
            return await _translated(service, request, body)

    return routes


async def _translated(service: Service, request: Request, body: TranslateRequest) -> dict[str, Any]:
    single = isinstance(body.q, str)
    texts = [body.q] if isinstance(body.q, str) else body.q
    if not body.q:
        raise HTTPException(400, "q has no text.")
    service.check_text("q", texts)
    formats = ["text", *(["html"] if "--tags" in FLAGS else [])]
    if body.format not in formats:
        raise HTTPException(
            400, f"format = {body.format[:50]!r} is not supported: send {' or '.join(formats)}."
        )
    kind = FLAGS.load("--tags").document if body.format == "html" else None
    size = sum(map(len, texts))
    documents = await service.work(request, size, lambda: list(map(kind, texts))) if kind else []
    parts = [document.lines for document in documents] or [_split_lines(text) for text in texts]
    lines = [line for part in parts for line in part]
    service.check_lines("q", len(lines))
    model, source, into, confidence = await _choose(service, request, body, lines)
    n_best = min(1 + body.alternatives, model.max_n_best)
    target = into if model.target_languages else None
    own = source if model.source_languages and source != "auto" else None
    if documents:
        found = await service.translate(request, model, lines, n_best, target, own)
    else:
        known = "" if source == "auto" else source
        found = await service.translate_paragraphs(
            request, model, lines, n_best, target, known, own
        )
    remaining = iter(found)
    results = [[next(remaining) for _ in part] for part in parts]
    if documents:
        job = model.run(functools.partial(_html, documents, results, n_best, target, own))
        (answers,) = await service.wait(request, job.future)
    else:
        joins = [functools.partial(_join_lines, text) for text in texts]
        answers = [
            by_rank(result, n_best, join) for result, join in zip(results, joins, strict=True)
        ]
    answers = [list(dict.fromkeys(answer)) for answer in answers]
    content: dict[str, Any] = {"translatedText": [answer[0] for answer in answers]}
    if body.alternatives:
        content["alternatives"] = [answer[1:] for answer in answers]
    if body.source.lower() == "auto":
        content["detectedLanguage"] = [{"language": source, "confidence": confidence}] * len(texts)
    return {name: values[0] for name, values in content.items()} if single else content


async def _choose(
    service: Service, request: Request, body: TranslateRequest, lines: Sequence[str]
) -> tuple[ServedModel, str, str, int]:
    """Return the model, its source and target codes, and the detection confidence.

    The confidence is for a detected source. A model of several directions translates from any of
    its languages without being told its code, so it fits `auto`; one that is told the code takes
    data.source_language then.
    """
    models = _translation_models(service)
    pairs = _directions(models)
    into = matching(body.target, [pair.target for pair in pairs]) or body.target
    sources = sorted({pair.source for pair in pairs if pair.target == into})
    source, confidence = matching(body.source, sources) or body.source, 0
    if body.source.lower() == "auto":
        source = sources[0] if len(sources) == 1 else "auto"
        if sources and can_detect():
            source, confidence = (await _detected(service, request, "\n".join(lines), sources))[0]
    for model in models:
        if any(
            pair.target == into and source in ("auto", pair.source) for pair in model.directions
        ):
            if source == "auto" and not {
                pair.source for pair in model.directions if pair.target == into
            } >= {*sources}:
                raise HTTPException(
                    400, f"source = auto is ambiguous: name one of {', '.join(sources)}."
                )
            return model, source, into, confidence
    known = ", ".join(f"{pair.source} to {pair.target}" for pair in pairs[:20]) or "nothing"
    known += f" and {len(pairs) - 20} more" if len(pairs) > 20 else ""
    raise HTTPException(
        400, f"{source[:20]} to {into[:20]} is not supported; this server has {known}."
    )


async def _detected(
    service: Service, request: Request, text: str, known: Sequence[str]
) -> list[tuple[str, int]]:
    await asyncio.to_thread(load)
    return await service.work(request, len(text), detected, text, known)


def _translation_models(service: Service) -> Sequence[ServedModel]:
    service.require_ready()
    return [model for model in service.models if model.config.data.task == "translation"]


def _directions(models: Sequence[ServedModel]) -> list[Direction]:
    return list(dict.fromkeys(direction for model in models for direction in model.directions))


def _html(
    documents: Sequence[Any],
    results: Sequence[Sequence[Hypotheses]],
    n_best: int,
    target: str | None,
    own: str | None,
    run: TrainedModel,
) -> list[list[str]]:
    """Return the translations of each document, best first."""
    answers = []
    for document, result in zip(documents, results, strict=True):
        sources = [run.in_language(run.from_language(line, own), target) for line in document.lines]
        answers.append(
            by_rank(result, n_best, functools.partial(document.translated, run, sources))
        )
    return answers


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text, without their LF or CR LF."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def _join_lines(text: str, lines: Sequence[str]) -> str:
    """Join lines with the line ends of `text`."""
    ends = ["\r" if line.endswith("\r") else "" for line in text.split("\n")]
    return "\n".join(line + end for line, end in zip(lines, ends, strict=True))
