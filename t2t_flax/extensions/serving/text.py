"""Text of requests: checked, cut into lines for the model, and put together again; the error that a wrong request raises."""

import re
from collections.abc import Mapping, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class RequestError(Exception):
    """Becomes the answer {"error": message} with this status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def check_text(
    field: str, texts: Sequence[str], max_length: int, max_lines: int, *, several_lines: bool = True
) -> None:
    """Raises RequestError for control characters other than newline and tab, for more than `max_length` characters or
    `max_lines` lines in all, empty ones included, or where only one line is allowed.
    """
    total = sum(map(len, texts))
    if total > max_length:
        raise RequestError(400, f"{field} has {total} characters: at most {max_length} are allowed.")
    total = sum(text.count("\n") + 1 for text in texts)
    if total > max_lines:
        raise RequestError(400, f"{field} has {total} lines: at most {max_lines} are allowed.")
    for text in texts:
        if control := _CONTROL.search("\n".join(split_lines(text))):
            code = f"U+{ord(control[0]):04X}"
            raise RequestError(400, f"{field} has the control character {code}: only newlines and tabs are allowed.")
        if not several_lines and "\n" in text:
            raise RequestError(400, f"{field} must be one line: send each line as an entry of its own.")


def split_lines(text: str) -> list[str]:
    """The lines of a text, without their LF or CR LF."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def join_lines(text: str, lines: Sequence[str]) -> str:
    """`lines` with the line ends of `text`."""
    ends = ["\r" if line.endswith("\r") else "" for line in text.split("\n")]
    return "\n".join(line + end for line, end in zip(lines, ends, strict=True))
