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

AccessLog = Callable[[dict[str, Any]], None]
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def open_access_log(name: str) -> AccessLog:
    """What writes entries to a file, or to standard error for "-". A file that is renamed, as for rotation, is opened anew.
    Raises UserError for one that cannot be written.
    """
    logger = logging.Logger("access")  # of its own: nothing else comes into it
    try:
        logger.addHandler(
            logging.StreamHandler(sys.stderr) if name == "-" else logging.handlers.WatchedFileHandler(name)
        )
    except OSError as error:
        raise UserError(f"--access-log={name} cannot be written: {error.strerror}.") from None
    return lambda entry: logger.info("%s", json.dumps(entry, ensure_ascii=False))


def request_id(given: str) -> str:
    """The id that the client or a proxy gave the request, if it is plain and short; else a new one."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex
