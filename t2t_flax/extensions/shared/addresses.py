"""Addresses of databases and servers."""

import re

_ACCOUNT = re.compile(r"[^:/]*(:[^@]*)?@")
"""User and password as SQLAlchemy reads them.

A password may have any characters but "@".
"""


def without_credentials(url: str) -> str:
    """Return an address without user, password and query.

    It may be stored and printed.
    """
    scheme, mark, rest = url.partition("://")
    account = _ACCOUNT.match(rest)
    rest = rest[account.end() if account else 0 :].partition("?")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else url
