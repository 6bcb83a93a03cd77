"""Bodies of requests: read with limits, checked, and described for /openapi.json."""

import email.message
import urllib.parse
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import from_json

from t2t_flax.extensions.serving.text import RequestError


class _FailFast(FailFast):
    __hash__ = object.__hash__  # for the union of types


Texts = str | Annotated[list[str], _FailFast()]
TargetLanguage = Annotated[str | None, Field(description="one of the model's target_languages, if it has any")]
_FORM = "application/x-www-form-urlencoded"
_PARTS = "multipart/form-data"
_MAX_FIELDS = 2_000
_MAX_HEAD = 1_000
"""Bytes before the text of a part of a form."""


class _Strict(BaseModel):
    """texts: the fields whose characters count."""

    model_config = ConfigDict(strict=True)
    other_fields: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]]

    @property
    def characters(self) -> int:
        """Those of all texts."""
        values = (getattr(self, name) or "" for name in self.texts)
        return sum(len(value) if isinstance(value, str) else sum(map(len, value)) for value in values)


class _LibreTranslate(_Strict):
    """As LibreTranslate's; fields that are not listed are ignored."""

    other_fields: ClassVar[bool] = True
    texts = ("q",)

    api_key: Annotated[str | None, Field(description="the client's key, where the server wants one")] = None


class DetectRequest(_LibreTranslate):
    q: Annotated[str, Field(description="a string")]


class LibreTranslateRequest(_LibreTranslate):
    q: Annotated[Texts, Field(description="a string or a list of strings")]
    source: Annotated[str, Field(description='a language code or "auto"')]
    target: Annotated[str, Field(description="a language code")]
    format: Annotated[str, Field(description='"text" or "html"')] = "text"
    alternatives: Annotated[int, Field(ge=0, description="a whole number from 0")] = 0


class TranslateRequest(_Strict):
    texts = ("text", "prefix")

    model: Annotated[str | None, Field(description="a name of GET /api/models")] = None
    text: Annotated[Texts, Field(description="a string or a list of strings")]
    prefix: Annotated[Texts | None, Field(description="a string or a list of strings, one for each line")] = None
    n_best: Annotated[int, Field(ge=1, description="a whole number from 1")] = 1
    target_language: TargetLanguage = None


class AttentionRequest(_Strict):
    texts = ("source", "target")

    model: Annotated[str | None, Field(description="a name of GET /api/models")] = None
    source: Annotated[str, Field(description="a string")]
    target: Annotated[str | None, Field(description="a string; without it, the model's own translation")] = None
    target_language: TargetLanguage = None


class ScoreRequest(_Strict):
    texts = ("source", "target")

    model: Annotated[str | None, Field(description="a name of GET /api/models")] = None
    source: Annotated[str, Field(description="a string")]
    target: Annotated[str, Field(description="a string")]
    target_language: TargetLanguage = None


Shape = TypeVar("Shape", bound=_Strict)


def request_schema(shape: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """The part of OpenAPI that describes the body of a request."""
    types = ["application/json", *([_FORM, _PARTS] if form else [])]
    schema = shape.model_json_schema()
    return {"requestBody": {"required": True, "content": {name: {"schema": schema} for name in types}}}


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises RequestError as soon as more than `limit` bytes have come or are announced."""
    # The rest of the body is not read, so the connection cannot be used again.
    error = RequestError(413, f"the body has more than {limit} bytes.", {"Connection": "close"})
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise error
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise error
        parts.append(part)
    return b"".join(parts)


def parse_body(body: bytes, content_type: str, shape: type[Shape], *, form: bool = False) -> Shape:
    """The request in a body: JSON or, with `form` and a content type of forms, its fields. Raises RequestError at the first
    thing that is wrong, so that no body takes longer than one that is right.
    """
    kind = content_type.partition(";")[0].strip().lower()
    fields: Any
    if form and kind == _FORM:
        fields = _form_fields(body)
    elif form and kind == _PARTS:
        fields = _form_parts(body, content_type)
    elif kind == "application/json":
        try:
            fields = from_json(body)
        except ValueError as error:
            raise RequestError(400, f"the body is not valid JSON: {error}.") from None
    else:
        # Browsers send other types, and forms, to any server for any page.
        expected = f"application/json{f', {_FORM}, {_PARTS}' if form else ''}"
        raise RequestError(415, f"the content type is {kind[:50] or 'missing'}: expected {expected}.")
    if not isinstance(fields, dict):
        raise RequestError(422, "the body must be a JSON object.")
    unknown = next((name for name in fields if name not in shape.model_fields), None)
    if unknown is not None and not shape.other_fields:
        raise RequestError(422, f"unknown field {unknown[:100]!r}: expected {', '.join(shape.model_fields)}.")
    try:
        return shape.model_validate(fields, strict=kind not in (_FORM, _PARTS))
    except ValidationError as error:
        raise _request_error(error, shape) from None


def _form_fields(body: bytes) -> dict[str, Texts]:
    """The fields of a form by name; one that comes several times is a list."""
    try:
        fields = urllib.parse.parse_qs(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        raise RequestError(400, f"the body is not a form in UTF-8 with at most {_MAX_FIELDS} fields.") from None
    return _single(fields)


def _form_parts(body: bytes, content_type: str) -> dict[str, Texts]:
    """The fields of a form as pages of LibreTranslate send it. A part is text, whatever its type: `email` would parse those
    within it, which takes time.
    """
    message = email.message.Message()
    message["Content-Type"] = content_type
    fields: dict[str, list[str]] = {}
    try:
        boundary = message.get_boundary("").encode()
        _, *parts, end = (b"\r\n" + body).split(b"\r\n--" + boundary)
        if not boundary or not end.startswith(b"--") or len(parts) > _MAX_FIELDS:
            raise ValueError
        for part in parts:
            head, blank, text = part.partition(b"\r\n\r\n")
            if not blank or len(head) > _MAX_HEAD:
                raise ValueError
            headers = email.message_from_bytes(head.lstrip())
            name = headers.get_param("name", header="content-disposition")
            fields.setdefault(str(name), []).append(text.decode())
    except ValueError:
        raise RequestError(
            400,
            f"the body is not a form in UTF-8 with the boundary of its content type and at most {_MAX_FIELDS} fields.",
        ) from None
    return _single(fields)


def _single(fields: dict[str, list[str]]) -> dict[str, Texts]:
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _request_error(error: ValidationError, shape: type[BaseModel]) -> RequestError:
    """400 for missing fields, 422 for wrong types and values."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return RequestError(400, f"{name} is missing: {_description(shape, name)}.")
    return RequestError(422, f"{name} must be {_description(shape, name)}.")


def _description(shape: type[BaseModel], name: str) -> str:
    return shape.model_fields[name].description or "given"
