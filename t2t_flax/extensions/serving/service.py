"""What all routes share: the models and their names, reading a request within its limits, waiting for its result."""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from t2t_flax.errors import UserError
from t2t_flax.extensions.serving.access import Access
from t2t_flax.extensions.serving.batching import Closed, Job, QueueFull
from t2t_flax.extensions.serving.model import Hypotheses, ServedModel
from t2t_flax.extensions.serving.probe import NotFinite
from t2t_flax.extensions.serving.schemas import Shape, parse_body, read_body
from t2t_flax.extensions.serving.text import RequestError, check_text

CLIENT_GONE = 499
"""Status in the metrics of a request whose client closed the connection."""
_GONE = "the client closed the connection."
_LARGE = 2**15
"""Bytes of a body above which it is parsed after the others of its size, which have at most a `_SHARE` of the interpreter."""
_SHARE = 0.2
_REFUSED_AFTER = 0.5
"""Seconds until a body that is too large is refused: a client that sends nothing else has few answers."""
_RETRY_SOON, _RETRY_LATER = {"Retry-After": "1"}, {"Retry-After": "5"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """max_body_bytes: of a request. max_text_length: characters of a request. max_lines: of a request, empty ones included.
    timeout: seconds for a request, reading it included.
    """

    max_body_bytes: int = 2**18
    max_text_length: int = 20_000
    max_lines: int = 1000
    timeout: float = 60.0


class Service:
    """The models of a server, by name and by languages. split: see `create_app`. stopping: no more work is to be sent here."""

    def __init__(
        self, models: Sequence[ServedModel], limits: Limits, access: Access | None = None, *, split: bool = False
    ):
        self.models, self.limits, self.access, self.split = models, limits, access or Access(), split
        self.stopping = False
        self._large = asyncio.Lock()

    @property
    def ready(self) -> bool:
        return all(model.ready for model in self.models)

    def require_ready(self) -> None:
        """Raises RequestError while models are loaded."""
        if not self.ready:
            raise RequestError(503, "the models are being loaded: try again in some seconds.", _RETRY_LATER)

    def stop(self) -> None:
        """From now on /ready fails."""
        self.stopping = True

    def require_open(self) -> None:
        """Raises RequestError once the server is about to stop, although it still answers."""
        if self.stopping:
            raise RequestError(503, "the server is stopping.", _RETRY_LATER)

    def require_health(self) -> None:
        """Raises RequestError for a model that does not answer as it should."""
        if faults := [fault for model in self.models if (fault := model.fault())]:
            raise RequestError(503, "; ".join(faults) + ".")

    def model(self, name: str | None) -> ServedModel:
        """The model of that name, or the first. Raises RequestError."""
        self.require_ready()
        for model in self.models:
            if name in (None, model.name):
                return model
        names = ", ".join(model.name for model in self.models)
        raise RequestError(404, f"there is no model {str(name)[:100]!r}; there is {names}.")

    async def read(self, request: Request, shape: type[Shape], *, form: bool = False) -> Shape:
        """The request's body, once its client is admitted. Raises RequestError."""
        self.require_ready()
        request.state.deadline = asyncio.get_running_loop().time() + self.limits.timeout
        try:
            async with asyncio.timeout_at(request.state.deadline):
                try:
                    body = await read_body(request, self.limits.max_body_bytes)
                except RequestError as error:
                    if error.status == 413:
                        await asyncio.sleep(_REFUSED_AFTER)
                    raise
        except TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {self.limits.timeout:g} s.", {"Connection": "close"}
            ) from None
        except ClientDisconnect:
            raise RequestError(CLIENT_GONE, _GONE) from None
        # In a thread, as everything that takes longer for a larger body: others are answered meanwhile. Large ones take turns.
        parse = functools.partial(parse_body, body, request.headers.get("content-type", ""), shape, form=form)
        if len(body) <= _LARGE:
            return self._admitted(request, await asyncio.to_thread(parse))
        async with self._large:
            began = time.monotonic()
            try:
                return self._admitted(request, await asyncio.to_thread(parse))
            finally:
                await asyncio.sleep((time.monotonic() - began) * (1 / _SHARE - 1))

    def _admitted(self, request: Request, body: Shape) -> Shape:
        """The body, whose characters are taken from the account of its client. Raises RequestError."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else getattr(body, "api_key", None)
        address = request.client.host if request.client else ""
        request.state.client = client = self.access.client(address, given)
        request.state.characters = body.characters
        self.access.take(client, body.characters)
        return body

    def check_text(self, field: str, texts: Sequence[str], *, several_lines: bool = True) -> None:
        """`text.check_text` with the server's limits."""
        check_text(field, texts, self.limits.max_text_length, self.limits.max_lines, several_lines=several_lines)

    async def translate_paragraphs(
        self,
        request: Request,
        model: ServedModel,
        lines: Sequence[str],
        n_best: int,
        target_language: str | None,
        source_language: str,
    ) -> list[Hypotheses]:
        """As `translate`; with `split` without scores and pieces, each line made of the translations of its sentences."""
        if not self.split:
            return await self.translate(request, model, lines, [""] * len(lines), n_best, target_language)
        with _refusals():
            paragraphs = await asyncio.to_thread(model.sentences, lines, target_language, source_language)
        places, sentences = [], []
        for number, paragraph in enumerate(paragraphs, 1):
            one = len(paragraph.sentences) == 1
            places += [
                f"line {number}{'' if one else f', sentence {i}'}" for i in range(1, len(paragraph.sentences) + 1)
            ]
            sentences += paragraph.sentences
        if len(sentences) > self.limits.max_lines:
            raise RequestError(400, f"q has {len(sentences)} sentences: at most {self.limits.max_lines} are allowed.")
        request.state.sentences = len(sentences)
        prefixes = [""] * len(sentences)
        results = iter(await self.translate(request, model, sentences, prefixes, n_best, target_language, places))
        answers = []
        for paragraph in paragraphs:
            parts = [next(results) for _ in paragraph.sentences]
            ranks = range(max(map(len, parts)))
            texts = [paragraph.join([part[min(rank, len(part) - 1)]["text"] for part in parts]) for rank in ranks]
            answers.append([{"text": text} for text in texts])
        return answers

    async def translate(
        self,
        request: Request,
        model: ServedModel,
        lines: Sequence[str],
        prefixes: Sequence[str],
        n_best: int,
        target_language: str | None = None,
        places: Sequence[str] | None = None,
    ) -> list[Hypotheses]:
        """The hypotheses of each line. Lines that need no search do not wait for the device. places: what errors call each line.
        Raises RequestError.
        """
        job = await self.submit(model.translate, lines, prefixes, n_best, target_language, places)
        queued = zip((item.number for item in job.items), await self.wait(request, job), strict=True)
        results: dict[int, Hypotheses] = dict(queued)
        return [results[i] if i in results else model.untranslated(line, n_best) for i, line in enumerate(lines)]

    async def wait(self, request: Request, job: Job[Any]) -> list[Any]:
        """The results of a job of a request that `read` has read. Takes it out of the queue when the request's time is up or
        its client has gone. Raises RequestError.
        """
        remaining = max(0.0, request.state.deadline - asyncio.get_running_loop().time())
        result = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({result, gone}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                if gone.done():
                    raise RequestError(CLIENT_GONE, _GONE)
                raise RequestError(504, f"no result within {self.limits.timeout:g} s.", _RETRY_LATER)
            with _refusals():
                if result.cancelled():
                    raise Closed
                return result.result()
        finally:
            gone.cancel()
            result.cancel()

    async def submit(self, submit: Callable[..., Job[Any]], *arguments: Any) -> Job[Any]:
        """`submit(*arguments)`, one of a model's methods, in a thread, because it counts tokens. Raises RequestError."""
        with _refusals():
            return await asyncio.to_thread(submit, *arguments)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Errors of the model and of its queue, as those of the request."""
    try:
        yield
    except QueueFull:
        raise RequestError(429, "too many requests are waiting: try again in a second.", _RETRY_SOON) from None
    except Closed:
        raise RequestError(503, "the server is stopping.", _RETRY_LATER) from None
    except UserError as error:
        raise RequestError(400, str(error)) from None
    except NotFinite as error:
        raise RequestError(500, f"{error}.") from None


async def _disconnected(request: Request) -> None:
    """Returns once the client has closed the connection; call it after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
