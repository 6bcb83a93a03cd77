"""The access log: a line of JSON for each request, and the ids by which requests are found in it."""

import json
import logging
import logging.handlers
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

from t2t_flax.errors import UserError

log = logging.getLogger("t2t_flax")
AccessLog = Callable[[dict[str, Any]], None]
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _File(logging.handlers.WatchedFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        raise


def open_access_log(name: str) -> AccessLog:
    """What writes entries to a file, or to standard error for "-". A file that is renamed, as for rotation, is opened anew.
    Entries that cannot be written are left out, with a warning. Raises UserError for a file that cannot be written at first.
    """
    logger = logging.Logger("access")  # of its own: nothing else comes into it
    try:
        logger.addHandler(logging.StreamHandler(sys.stderr) if name == "-" else _File(name, encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--access-log={name} cannot be written: {error.strerror}.") from None
    said: str | None = ""

    def write(entry: dict[str, Any]) -> None:
        nonlocal said
        try:
            logger.info("%s", json.dumps(entry, ensure_ascii=False))
            said = ""
        except OSError as error:
            if said != (said := error.strerror):
                log.warning("--access-log=%s cannot be written: %s: requests are not logged", name, said)

    return write


def request_id(given: str) -> str:
    """The id that the client or a proxy gave the request, if it is plain and short; else a new one."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex
