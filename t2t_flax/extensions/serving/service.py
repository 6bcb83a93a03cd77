"""Shared parts of all routes: access, limits, and waiting for a result."""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import ipaddress
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from t2t_flax.extensions.serving.batching import Closed, QueueFull
from t2t_flax.extensions.serving.model import Hypotheses, ServedModel

_RETRY = {"Retry-After": "2"}
_KEY_IN_BODY = ("/translate", "/detect")
"""Routes whose clients may send their key in the body."""
SMALL = 2000
"""Characters or bytes that are read within a millisecond."""
_LINE = 50
"""Characters that take as long to read as an empty line."""
MOST_SLOW = 64
"""Maximum number of larger requests that wait for the thread that reads them."""
_REST = 9.0
"""Seconds that the thread sleeps for each second of its work."""
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Limits and access rules of a server.

    Args:
        max_text_length: characters of a request.
        max_lines: lines of a request, empty ones included.
        max_body_bytes: bytes of a request's body.
        timeout: seconds of a request, reading and waiting included.
        keys: API keys; empty = none is needed.
        max_client_requests: simultaneous requests of a key, or else an address; 0 = any number.
        hosts: host names that requests may use.
        origins: origins of other servers' pages that may use it.
        split_sentences: whether LibreTranslate's clients send paragraphs.
    """

    max_text_length: int = 20_000
    max_lines: int = 1000
    max_body_bytes: int = 2**18
    timeout: float = 60.0
    keys: Sequence[str] = ()
    max_client_requests: int = 0
    hosts: Sequence[str] = ("*",)
    origins: Sequence[str] = ()
    split_sentences: bool = False


class _Slow:
    """A thread for slow work, and the number of requests that wait for it."""

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "slow")
        self._waiting = 0
        self._worked = 0.0

    @contextlib.contextmanager
    def queued(
        self, function: Callable[..., _Result], *arguments: Any
    ) -> Iterator["concurrent.futures.Future[_Result]"]:
        """Yield the future of function(*arguments).

        It is awaited within the block. Raises QueueFull.
        """
        if self._waiting >= MOST_SLOW:
            raise QueueFull
        self._waiting += 1
        try:
            future = self._thread.submit(self._timed, function, *arguments)
            self._thread.submit(self._rest)
            yield future
        finally:
            self._waiting -= 1

    def _timed(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            self._worked = time.thread_time() - began

    def _rest(self) -> None:
        """Leave the interpreter to the other threads for a while after slow work."""
        time.sleep(_REST * self._worked)
        self._worked = 0.0


class Service:
    """Models of a server, by name, and the requests in progress."""

    def __init__(self, models: Sequence[ServedModel], settings: Settings):
        self.models = models
        self.settings = settings
        self._keys = {_digest(key) for key in settings.keys}
        self._active: collections.Counter[str] = collections.Counter()
        self._slow, self._unknown = _Slow(), _Slow()

    def require_ready(self) -> None:
        """Raise HTTPException while models are loaded."""
        if not all(model.ready for model in self.models):
            raise HTTPException(
                503, "the models are being loaded: try again in some seconds.", _RETRY
            )

    def require_health(self) -> None:
        """Raise HTTPException for a model that does not answer as it should."""
        if faults := list(filter(None, (model.fault() for model in self.models))):
            raise HTTPException(503, "; ".join(faults) + ".")

    def model(self, name: str | None) -> ServedModel:
        """Return the model of that name, or the first. Raises HTTPException."""
        for model in self.models:
            if name in (None, model.name):
                return model
        names = ", ".join(model.name for model in self.models)
        raise HTTPException(404, f"there is no model {str(name)[:100]!r}; there is {names}.")

    async def work(
        self,
        request: Request,
        size: float,
        function: Callable[..., _Result],
        *arguments: Any,
        known: bool = True,
    ) -> _Result:
        """Return function(*arguments).

        A thread that all slow work shares computes it if `size` is above `SMALL`. Work that has not
        begun is dropped when the request ends. Raises QueueFull.

        Args:
            known: whether the client's key is known; requests with an unknown key wait only for
                each other.
        """
        if size <= SMALL:
            return function(*arguments)
        with (self._slow if known else self._unknown).queued(function, *arguments) as result:
            return await self.wait(request, result)

    def check_before_body(self, request: Request) -> None:
        """Raise HTTPException for a request that is refused regardless of its body."""
        self.require_ready()
        key = _header_key(request)
        if key is not None or request.url.path not in _KEY_IN_BODY:
            self._check_key(key)

    def has_known_key(self, request: Request) -> bool:
        """Return True if the client's key is known before the body is read.

        Also if no key is needed.
        """
        # `check_before_body` has checked it.
        return not self._keys or _header_key(request) is not None

    def _check_key(self, key: str | None) -> None:
        if self._keys and _digest(key or "") not in self._keys:
            wanted = 'send a known key as "api_key", or as "Authorization: Bearer KEY".'
            raise HTTPException(403, f"an API key is needed: {wanted}", {"Connection": "close"})

    @contextlib.contextmanager
    def admitted(self, request: Request, api_key: str | None = None) -> Iterator[None]:
        """Answer a request within this block.

        Raises HTTPException for a wrong key or too many requests of its client.
        """
        self.require_ready()
        header = _header_key(request)
        key = (api_key or "") if header is None else header
        self._check_key(key)
        client = key if self._keys else client_of(request.client.host) if request.client else ""
        most = self.settings.max_client_requests
        if most and self._active[client] >= most:
            raise HTTPException(
                429, f"more than {most} requests at the same time: wait for an answer.", _RETRY
            )
        self._active[client] += 1
        try:
            yield
        finally:
            self._active[client] -= 1
            if not self._active[client]:
                del self._active[client]

    def check_text(self, field: str, texts: Sequence[str]) -> None:
        """Raise HTTPException for text that is too long."""
        characters, lines = sum(map(len, texts)), sum(text.count("\n") + 1 for text in texts)
        if characters > (most := self.settings.max_text_length):
            raise HTTPException(
                400, f"{field} has {characters} characters: at most {most} are allowed."
            )
        self.check_lines(field, lines)

    def check_lines(self, field: str, lines: int) -> None:
        """Raise HTTPException for too many lines."""
        if lines > (most := self.settings.max_lines):
            raise HTTPException(
                400, f"{field} has {lines} lines or sentences: at most {most} are allowed."
            )

    async def translate(
        self,
        request: Request,
        model: ServedModel,
        lines: Sequence[str],
        n_best: int,
        target_language: str | None,
        source_language: str | None = None,
    ) -> list[Hypotheses]:
        """Return the hypotheses of each line. Empty lines do not wait for the device."""
        size = sum(len(line) + _LINE for line in lines)
        languages = target_language, source_language
        job = await self.work(request, size, model.translate, lines, n_best, *languages)
        found = await self.wait(request, job.future)
        results = {item.number: result for item, result in zip(job.items, found, strict=True)}
        return [results.get(i) or model.untranslated(line, n_best) for i, line in enumerate(lines)]

    async def translate_paragraphs(
        self,
        request: Request,
        model: ServedModel,
        lines: Sequence[str],
        n_best: int,
        target_language: str | None,
        source_language: str,
        own: str | None = None,
    ) -> list[Hypotheses]:
        """Return the hypotheses of each line.

        With --split-sentences each is a text that joins the translations of the line's sentences.

        Args:
            source_language: code by which sentences are found, or "".
            own: code of the source language for a model that is told it.
        """
        if not self.settings.split_sentences:
            return await self.translate(request, model, lines, n_best, target_language, own)
        size = sum(len(line) + _LINE for line in lines)
        paragraphs = await self.work(
            request, size, model.sentences, lines, target_language, source_language
        )
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph.sentences]
        self.check_lines("q", len(sentences))
        found = await self.translate(request, model, sentences, n_best, target_language, own)
        results = iter(found)
        answers: list[Hypotheses] = []
        for paragraph in paragraphs:
            parts = [next(results) for _ in paragraph.sentences]
            texts = by_rank(parts, max(map(len, parts)), paragraph.join)
            answers.append([{"text": text} for text in texts])
        return answers

    async def wait(self, request: Request, future: "concurrent.futures.Future[_Result]") -> _Result:
        """Return the result of work.

        The work leaves its queue if the client goes or the request's time is up.
        """
        result = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(_disconnected(request))
        either: set[asyncio.Future[Any]] = {result, gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnect
            if result.cancelled():
                raise Closed
            return result.result()
        finally:
            gone.cancel()
            result.cancel()


def by_rank(
    parts: Sequence[Hypotheses], n_best: int, join: Callable[[list[str]], str]
) -> list[str]:
    """Return texts, best first.

    The i-th joins the i-th hypothesis of each part that has enough hypotheses.
    """
    return [
        join([part[min(rank, len(part) - 1)]["text"] for part in parts]) for rank in range(n_best)
    ]


async def _disconnected(request: Request) -> None:
    """Return once the client has closed the connection.

    Call it after the body was read.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _header_key(request: Request) -> str | None:
    """Return the key in the header of a request, or None."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def client_of(host: str) -> str:
    """Return the name of a client.

    It is an IPv4 address, or a network of 2^64 IPv6 addresses. One user may have such a network.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped:
        return str(getattr(address, "ipv4_mapped", address))
    return str(ipaddress.ip_network((int(address), 64), strict=False))


def _digest(key: str) -> bytes:
    """Return a digest of a key.

    With it, the time of a comparison reveals nothing about the keys.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
