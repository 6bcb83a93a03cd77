"""Application: routes, our own API, health, metrics and errors."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import StarletteHTTPException
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect

from t2t_flax.errors import UserError
from t2t_flax.extensions.serving import bodies, libretranslate
from t2t_flax.extensions.serving.batching import Closed, QueueFull
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.serving.model import NotFinite, ServedModel
from t2t_flax.extensions.serving.service import Service, Settings
from t2t_flax.version import __version__

PAGE = Path(__file__).parent / "page"
LAST_BATCH = 5.0
"""Seconds that a stopping server waits for the batches on the device."""
_WEIGHTS = 10
"""Attention weights that are written in the time of reading a character."""


class TranslateRequest(BaseModel):
    """Body of POST /api/translate."""

    text: Annotated[list[str], Field(fail_fast=True)]
    model: Annotated[str | None, Field(description="a name of GET /api/models")] = None
    n_best: Annotated[int, Field(ge=1)] = 1
    target_language: Annotated[str | None, Field(max_length=100)] = None
    source_language: Annotated[str | None, Field(max_length=100)] = None


class AttentionRequest(BaseModel):
    """Body of POST /api/attention."""

    source: str
    target: Annotated[str | None, Field(description="without it, the model's own translation")] = (
        None
    )
    model: Annotated[str | None, Field(description="a name of GET /api/models")] = None
    target_language: Annotated[str | None, Field(max_length=100)] = None


def create_app(
    models: Sequence[ServedModel],
    settings: Settings,
    metrics: Metrics,
    on_failure: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the application, whose lifespan starts and stops the models.

    Args:
        on_failure: called if a model cannot go on.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for model in models:
            model.start(on_failure)
        yield
        await asyncio.to_thread(lambda: [model.stop(LAST_BATCH) for model in models])

    service = Service(models, settings)
    no_pages = dict(docs_url=None, redoc_url=None)  # FastAPI's pages run scripts from other servers
    app = FastAPI(
        title="t2t_flax",
        version=__version__,
        lifespan=lifespan,
        exception_handlers=_HANDLERS,
        **no_pages,
    )
    app.include_router(libretranslate.router(service))

    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """503 if a model failed, hangs or gives non-finite numbers; 200 during loading."""
        service.require_health()
        return {"status": "ok"}

    @app.get("/ready", tags=["operation"])
    async def ready() -> dict[str, str]:
        """200 once all models are restored and warmed up, as long as /health is."""
        service.require_ready()
        service.require_health()
        return {"status": "ready"}

    @app.get("/metrics", tags=["operation"])
    async def exposition() -> PlainTextResponse:
        """Counters in Prometheus' text format."""
        return PlainTextResponse(metrics.exposition())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> PlainTextResponse:
        return PlainTextResponse(_routes(app.openapi()))

    @app.get("/api/models", tags=["models"])
    async def described() -> list[dict[str, Any]]:
        """The models; the first is the default."""
        service.require_ready()
        return [model.describe() for model in models]

    @app.post("/api/translate", tags=["models"], openapi_extra=bodies.described(TranslateRequest))
    async def translate(request: Request) -> dict[str, Any]:
        """Hypotheses of each line of `text`, with scores and pieces."""
        body = await bodies.read(service, request, TranslateRequest)
        with service.admitted(request):
            service.check_text("text", body.text)
            if any("\n" in line for line in body.text):
                raise HTTPException(
                    400, "text has a newline: send each line as an entry of its own."
                )
            model = service.model(body.model)
            languages = body.target_language, body.source_language
            results = await service.translate(request, model, body.text, body.n_best, *languages)
            pairs = zip(body.text, results, strict=True)
            translations = [
                {"source": line, "hypotheses": hypotheses} for line, hypotheses in pairs
            ]
            return {"model": model.name, "translations": translations}

    @app.post("/api/attention", tags=["models"], openapi_extra=bodies.described(AttentionRequest))
    async def attention(request: Request) -> Response:
        """Attention weights [layer][head][row][column] of a pair, in thousandths."""
        body = await bodies.read(service, request, AttentionRequest)
        with service.admitted(request):
            for field, text in (("source", body.source), ("target", body.target)):
                if text is not None and not text.strip():
                    raise HTTPException(400, f"{field} has no text.")
            texts = [body.source, body.target or ""]
            service.check_text("source", texts)
            model = service.model(body.model)
            arguments = body.source, body.target, body.target_language
            job = await service.work(request, sum(map(len, texts)), model.attend, *arguments)
            (maps,) = await service.wait(request, job.future)
            size = (
                sum(weights.size for weights in (maps.cross, maps.encoder, maps.decoder))
                // _WEIGHTS
            )
            answer = await service.work(request, size, _attention_json, maps)
            return Response(answer, media_type="application/json")

    files = StaticFiles(directory=PAGE)

    async def page(request: Request) -> Response:
        return await files.get_response(request.url.path.lstrip("/") or "index.html", request.scope)

    # A folder at / would answer GET /translate.
    for path in ("/", *(f"/{file.name}" for file in PAGE.iterdir())):
        app.add_route(path, page, include_in_schema=False)
    app.add_middleware(_Guard, service=service, metrics=metrics)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"], allow_headers=["*"]
        )
    # A page elsewhere whose host name is made to resolve to this machine must not reach a server
    # that only this machine may.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=settings.hosts, www_redirect=False)
    return app


class _Guard:
    """Limit of the time and the body of each request.

    It counts requests by route and status.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service, metrics: Metrics):
        self._app = app
        self._service = service
        self._metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, size = time.monotonic(), 0, 0
        most, seconds = self._service.settings.max_body_bytes, self._service.settings.timeout
        checked = scope["method"] != "POST"

        async def bounded() -> dict[str, Any]:
            nonlocal size, checked
            if not checked:
                checked = True
                self._service.check_before_body(Request(scope))
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(
                    413, f"the body has more than {most} bytes.", {"Connection": "close"}
                )
            return message

        async def observed(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            async with asyncio.timeout(seconds):
                await self._app(scope, bounded, observed)
        except TimeoutError:
            if status:
                raise
            answer = JSONResponse(
                {"error": f"no answer within {seconds:g} s."}, 504, {"Retry-After": "5"}
            )
            await answer(scope, receive, observed)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(path, status or 500).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - began)


def _routes(openapi: dict[str, Any]) -> str:
    """Describe the routes, and name the fields of their bodies."""
    parts = []
    for path, methods in openapi["paths"].items():
        for method, entry in methods.items():
            schema = (
                entry.get("requestBody", {})
                .get("content", {})
                .get("application/json", {})
                .get("schema", {})
            )
            fields = f"\n    {', '.join(schema['properties'])}" if "properties" in schema else ""
            parts.append(f"{method.upper()} {path}\n    {entry.get('description', '')}{fields}")
    return "\n\n".join([*parts, "/openapi.json describes every field.\n"])


def _attention_json(maps: Any) -> str:
    """Return the answer, encoded layer by layer.

    The encoder lets no other thread run meanwhile.
    """
    pieces = {"source_pieces": maps.source_tokens, "target_pieces": maps.target_tokens}
    parts = [json.dumps(pieces, ensure_ascii=False).removesuffix("}")]
    for kind in ("cross", "encoder", "decoder"):
        thousandths = np.rint(1000 * getattr(maps, kind)).astype(np.int16)
        layers = ",".join(
            json.dumps(layer.tolist(), separators=(",", ":")) for layer in thousandths
        )
        parts.append(f'"{kind}":[{layers}]')
    return ",".join(parts) + "}"


def _handler(
    status: int, message: Callable[[Any], str], **headers: str
) -> Callable[[Request, Any], Any]:
    async def handle(request: Request, error: Any) -> JSONResponse:
        own = getattr(error, "headers", None) or {}
        return JSONResponse(
            {"error": message(error)}, getattr(error, "status_code", status), {**headers, **own}
        )

    return handle


def _invalid(error: ValidationError) -> str:
    first = error.errors()[0]  # only the first: lists end at their first error
    where = ".".join(map(str, first["loc"])) or "the body"
    return f"{where[:100]}: {first['msg']}."


_LATER = {"Retry-After": "2"}
_HANDLERS: dict[Any, Any] = {
    StarletteHTTPException: _handler(500, lambda error: error.detail),
    ValidationError: _handler(400, _invalid),
    ClientDisconnect: _handler(499, lambda _: "the client closed the connection."),
    UserError: _handler(400, str),
    NotFinite: _handler(500, str),
    QueueFull: _handler(
        429, lambda _: "too many requests are waiting: try again in a second.", **_LATER
    ),
    Closed: _handler(503, lambda _: "the server is stopping.", **_LATER),
    Exception: _handler(500, lambda _: "internal error: the server's log has the details."),
}
