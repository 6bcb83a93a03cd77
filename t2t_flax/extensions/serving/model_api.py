"""Our own API: models, hypotheses with scores and pieces, attention weights, scores of given translations."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from t2t_flax.extensions.serving import schemas
from t2t_flax.extensions.serving.service import Service
from t2t_flax.extensions.serving.text import RequestError, split_lines


def router(service: Service) -> APIRouter:
    """The routes below /api."""
    routes = APIRouter(prefix="/api", tags=["models"])

    @routes.get("/models")
    async def models() -> Any:
        """The models; the first is the default."""
        service.require_ready()
        return [model.describe() for model in service.models]

    @routes.post("/translate", openapi_extra=schemas.request_schema(schemas.TranslateRequest))
    async def translate(request: Request) -> Response:
        """Hypotheses of each line. A text that is a string is cut into lines; in a list each entry is a line."""
        body = await service.read(request, schemas.TranslateRequest)
        model, single = service.model(body.model), isinstance(body.text, str)
        texts = [body.text] if isinstance(body.text, str) else body.text
        prefixes = [body.prefix] if isinstance(body.prefix, str) else body.prefix
        service.check_text("text", texts, several_lines=single)
        service.check_text("prefix", prefixes or [], several_lines=False)
        lines = split_lines(texts[0]) if single else texts
        if not any(line.strip() for line in lines):
            raise RequestError(400, "text has no text.")
        prefixes = _for_lines(prefixes, len(lines))
        results = await service.translate(request, model, lines, prefixes, body.n_best, body.target_language)
        translations = [
            {"source": line, "hypotheses": hypotheses} for line, hypotheses in zip(lines, results, strict=True)
        ]
        return JSONResponse({"model": model.name, "translations": translations})

    @routes.post("/attention", openapi_extra=schemas.request_schema(schemas.AttentionRequest))
    async def attention(request: Request) -> Response:
        """Attention weights of every layer and head for a pair, in thousandths."""
        body = await service.read(request, schemas.AttentionRequest)
        model = service.model(body.model)
        _check_pair(service, body.source, body.target)
        job = await service.submit(model.attend, body.source, body.target, body.target_language)
        (maps,) = await service.wait(request, job)
        text = await asyncio.to_thread(_attention_json, model.name, maps)
        return Response(text, media_type="application/json")

    @routes.post("/score", openapi_extra=schemas.request_schema(schemas.ScoreRequest))
    async def score(request: Request) -> Response:
        """Log-probability of a translation given its source, and of each of its pieces."""
        body = await service.read(request, schemas.ScoreRequest)
        model = service.model(body.model)
        _check_pair(service, body.source, body.target)
        job = await service.submit(model.score, body.source, body.target, body.target_language)
        (result,) = await service.wait(request, job)
        pieces = [
            {"piece": piece, "log_prob": value}
            for piece, value in zip(result.tokens, result.token_log_probs, strict=True)
        ]
        return JSONResponse({"model": model.name, "log_prob": result.log_prob, "pieces": pieces})

    return routes


def _attention_json(name: str, maps: Any) -> str:
    """The answer. Each layer is encoded on its own, because the encoder lets no other thread run meanwhile."""
    pieces = {"source_pieces": maps.source_tokens, "target_pieces": maps.target_tokens}
    parts = [json.dumps({"model": name, **pieces}, ensure_ascii=False).removesuffix("}")]
    for kind in ("cross", "encoder", "decoder"):
        thousandths = np.rint(1000 * getattr(maps, kind)).astype(np.int16)
        layers = ",".join(json.dumps(layer.tolist(), separators=(",", ":")) for layer in thousandths)
        parts.append(f'"{kind}":[{layers}]')
    return ",".join(parts) + "}"


def _for_lines(prefixes: Sequence[str] | None, count: int) -> Sequence[str]:
    """A prefix for each line. Raises RequestError if their numbers differ."""
    if prefixes is not None and len(prefixes) != count:
        raise RequestError(400, f"{len(prefixes)} prefixes for {count} lines: send one for each line.")
    return prefixes or [""] * count


def _check_pair(service: Service, source: str, target: str | None) -> None:
    service.check_text("source", [source], several_lines=False)
    if not source.strip():
        raise RequestError(400, "source has no text.")
    if target is not None:
        service.check_text("target", [target], several_lines=False)
        if not target.strip():
            raise RequestError(400, "target has no text.")
