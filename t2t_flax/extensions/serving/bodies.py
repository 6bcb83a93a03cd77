"""Bodies of requests: JSON and forms."""

import functools
import io
import urllib.parse
from typing import Any, TypeVar

import python_multipart
from fastapi import HTTPException, Request
from pydantic import BaseModel
from python_multipart.exceptions import FormParserError

from t2t_flax.extensions.serving.service import Service

Body = TypeVar("Body", bound=BaseModel)
_JSON = "application/json"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MOST_FIELDS = 1100
"""Maximum fields of a form: the maximum lines of a request, and some more."""


async def read(
    service: Service, request: Request, shape: type[Body], *, forms: bool = False
) -> Body:
    """Return the body of a request: JSON or a form.

    Raises HTTPException for another type, and ValidationError.
    """
    form = request.headers.get("content-type", "")
    kind = form.partition(";")[0].strip().lower()
    if kind not in (_JSON, *(_FORMS if forms else ())):
        wanted = f"{_JSON}{' or a form' if forms else ''}"
        raise HTTPException(415, f"the content type is {kind[:50] or 'missing'}: send {wanted}.")
    body = await request.body()
    reader = (
        shape.model_validate_json if kind == _JSON else functools.partial(_read_form, form, shape)
    )
    return await service.work(
        request, len(body), reader, body, known=service.has_known_key(request)
    )


def described(shape: type[BaseModel], *, forms: bool = False) -> dict[str, Any]:
    """Describe a body that `read` returns, for OpenAPI."""
    content = {
        name: {"schema": shape.model_json_schema()} for name in (_JSON, *(_FORMS if forms else ()))
    }
    return {"requestBody": {"required": True, "content": content}}


def _read_form(form: str, shape: type[Body], body: bytes) -> Body:
    names: dict[str, list[str]] = {}
    try:
        for name, value in _fields(form, body):
            names.setdefault(name, []).append(value)
    except (FormParserError, ValueError) as error:
        raise HTTPException(400, f"the form cannot be read: {error}.") from None
    return shape.model_validate(
        {name: values[0] if len(values) == 1 else values for name, values in names.items()}
    )


def _fields(form: str, body: bytes) -> list[tuple[str, str]]:
    """Return names and values. Raises ValueError for too many, or a file."""
    if not form.lower().startswith(_FORMS[1]):
        text = body.decode(errors="replace")
        return urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    found: list[tuple[str, str]] = []

    def add(field: Any) -> None:
        if len(found) >= _MOST_FIELDS:
            raise ValueError(f"it has more than {_MOST_FIELDS} fields")
        name, value = (
            (part or b"").decode(errors="replace") for part in (field.field_name, field.value)
        )
        found.append((name, value))

    def refuse(file: Any) -> None:
        raise ValueError("it has a file")

    python_multipart.parse_form(
        {"Content-Type": form.encode("latin-1")}, io.BytesIO(body), add, refuse
    )
    return found
