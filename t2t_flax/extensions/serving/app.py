"""The application: routes, the page, health, metrics and errors."""

import datetime
import html
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import StarletteHTTPException
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from t2t_flax.extensions.serving import libretranslate, model_api
from t2t_flax.extensions.serving.access import Access
from t2t_flax.extensions.serving.access_log import AccessLog, request_id
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.extensions.serving.service import Limits, Service
from t2t_flax.extensions.serving.text import RequestError
from t2t_flax.version import __version__

log = logging.getLogger("t2t_flax")
PAGE = Path(__file__).parent / "page"
# Pages load nothing from other servers, and text that came into one by mistake would not run as a script.
_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; default-src 'none'; style-src "
_PAGE_HEADERS = {
    "Content-Security-Policy": f"{_POLICY}'self'; script-src 'self'; img-src 'self'; connect-src 'self'",
    "Cache-Control": "no-cache",  # files of two versions must not meet
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_DOCS_HEADERS = {"Content-Security-Policy": f"{_POLICY}'unsafe-inline'"}
_OTHER = "other"
"""The path of requests for what does not exist, in the metrics."""


def create_app(
    models: Sequence[ServedModel],
    limits: Limits,
    metrics: Metrics,
    *,
    hosts: Sequence[str] = ("*",),
    origins: Sequence[str] = (),
    access: Access | None = None,
    access_log: AccessLog | None = None,
    split: bool = False,
) -> FastAPI:
    """The application for these models, which somebody else starts and stops. hosts: names that requests may call this server by.
    origins: those of other servers' pages that may read its answers. split: paragraphs of LibreTranslate's clients are
    translated sentence by sentence. `app.state.service` is its `Service`.
    """
    service = Service(models, limits, access or Access(), split=split)
    app = FastAPI(title="t2t_flax", version=__version__, docs_url=None, redoc_url=None, exception_handlers=_HANDLERS)
    app.state.service = service
    app.include_router(libretranslate.router(service))
    app.include_router(model_api.router(service))

    @app.get("/health", tags=["operation"])
    async def health() -> dict[str, str]:
        """503 if a model has failed, hangs, or gives numbers that are not finite; 200 also while models are loaded."""
        service.require_health()
        return {"status": "ok"}

    @app.get("/ready", tags=["operation"])
    async def ready() -> dict[str, str]:
        """200 once all models are restored and warmed up, as long as /health is and the server does not stop; else 503."""
        service.require_ready()
        service.require_open()
        service.require_health()
        return {"status": "ready"}

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def exposition() -> Response:
        """Counters in Prometheus' text format."""
        return Response(metrics.exposition(), media_type=metrics.content_type)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app.openapi()), headers=_DOCS_HEADERS)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    app.mount("/page", _PageFiles(directory=PAGE, check_dir=False))
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    # A page elsewhere whose host name is made to mean this machine must not reach a server that only this machine may.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(_Measured, metrics=metrics, paths=_paths(app), log=access_log)
    return app


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **keys: Any) -> Response:
        response = super().file_response(*args, **keys)
        response.headers.update(_PAGE_HEADERS)
        return response


def _paths(app: FastAPI) -> frozenset[str]:
    return frozenset([*app.openapi()["paths"], "/", "/docs", "/openapi.json"])


class _Measured:
    """Counts, times and logs requests, and gives each an id. Paths that do not exist count as one, so that no client can add to
    the metrics. HEAD is GET, of which uvicorn leaves out the body.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        metrics: Metrics,
        paths: frozenset[str],
        log: AccessLog | None = None,
    ):
        self._app, self._metrics, self._paths, self._log = app, metrics, paths, log

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, time.monotonic()
        headers = dict(scope["headers"])
        name = request_id(headers.get(b"x-request-id", b"").decode("latin-1"))
        facts = scope["state"] = {}  # `request.state`
        inner = scope | {"method": "GET"} if scope["method"] == "HEAD" else scope

        async def observed(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = message | {"headers": [*message.get("headers", ()), (b"x-request-id", name.encode())]}
            await send(message)

        try:
            await self._app(inner, receive, observed)
        except Exception:
            log.exception("request %s failed", name)
            if status:  # the answer has begun: its connection ends
                raise
            await _FAILURE(inner, receive, observed)
        finally:
            path, seconds = scope["path"], time.monotonic() - began
            label = path if path in self._paths else "/page" if path.startswith("/page/") else _OTHER
            self._metrics.requests.labels(label, status or 500).inc()
            self._metrics.seconds.labels(label).observe(seconds)
            if self._log:
                now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                client = facts.get("client") or (scope.get("client") or ("", 0))[0]
                entry = {"time": now, "id": name, "client": client, "method": scope["method"], "path": path[:200]}
                measured = {"status": status or 500, "seconds": round(seconds, 4)}
                self._log(entry | measured | {k: facts[k] for k in ("characters", "sentences") if k in facts})


async def _request_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return JSONResponse({"error": error.message}, error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Unknown paths and methods."""
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": f"{error.detail}: see /docs."}, error.status_code, error.headers)


_FAILURE = JSONResponse({"error": "internal error: the server's log has the details."}, 500)
_HANDLERS: dict[Any, Any] = {RequestError: _request_error, StarletteHTTPException: _http_error}


def _docs_page(openapi: dict[str, Any]) -> str:
    """The routes as a page without scripts: FastAPI's own one loads from another server."""
    rows = []
    for path, methods in openapi["paths"].items():
        for method, entry in methods.items():
            text = html.escape(entry.get("description", ""))
            body = entry.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = [
                f"<li><code>{name}</code>{'' if name in body.get('required', ()) else ' (optional)'}: "
                f"{html.escape(field.get('description', ''))}</li>"
                for name, field in body.get("properties", {}).items()
            ]
            rows.append(f"<h2><code>{method.upper()} {path}</code></h2><p>{text}</p><ul>{''.join(fields)}</ul>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><title>t2t_flax: HTTP API</title>'
        "<style>body { font: 1rem/1.5 system-ui; max-width: 44rem; margin: 2rem auto; padding: 0 1rem } "
        "h2 { font-size: 1rem; margin-bottom: 0 } p { margin: 0 }</style>"
        '<h1>HTTP API</h1><p>Bodies and answers are JSON; errors are <code>{"error": text}</code>. In full: '
        f'<a href="openapi.json">openapi.json</a>.</p>{"".join(rows)}</html>'
    )
