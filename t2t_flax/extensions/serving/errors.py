"""The one error that a wrong request raises."""

from collections.abc import Mapping


class RequestError(Exception):
    """Becomes the answer {"error": message} with this status."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})
