"""Who may ask, and how much: keys, clients, and what each has left of its requests and characters of a minute."""

import dataclasses
import hashlib
import ipaddress
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from t2t_flax.errors import UserError, first_line
from t2t_flax.extensions.serving.text import RequestError

log = logging.getLogger("t2t_flax")
_MINUTE = 60.0


class Keys:
    """The keys that clients may have, each with a name for the log. Raises UserError for a file that is wrong.

    given: keys. file: with a key, and perhaps a name after a space, in each line that does not begin with "#"; read again when it
    has changed.
    """

    def __init__(self, given: Sequence[str] = (), file: str | None = None):
        if not all(map(_is_key, given)):
            raise UserError(f"--api-key: {_EXPECTED}.")
        self._given = {_digest(key): f"key {number}" for number, key in enumerate(given, 1)}
        self._path = Path(file) if file else None
        self._seen: tuple[int, int, int] | None = None
        self._of_file: dict[bytes, str] = {}
        self._refresh(strict=True)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._given or self._path)

    def name(self, key: str) -> str | None:
        """The name of a key; None for one that is not known. Compares digests, so that the time tells nothing of the keys."""
        self._refresh()
        digest = _digest(key)
        return self._of_file.get(digest) or self._given.get(digest)

    def _refresh(self, *, strict: bool = False) -> None:
        if not self._path:
            return
        try:
            state = os.stat(self._path)
            if (seen := (state.st_mtime_ns, state.st_size, state.st_ino)) != self._seen:
                self._of_file, self._seen = _read_keys(self._path), seen
        except (OSError, UserError) as error:
            message = error.strerror if isinstance(error, OSError) else first_line(error)
            if strict:
                raise UserError(f"--api-keys={self._path}: {message}.") from None
            if self._seen is not None:
                log.warning("--api-keys=%s: %s: the keys of before count", self._path, message)
            self._seen = None


def _read_keys(path: Path) -> dict[bytes, str]:
    names: dict[bytes, str] = {}
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, *name = line.split(None, 1)
        if not _is_key(key):
            raise UserError(f"line {number}: {_EXPECTED}")
        if names.setdefault(_digest(key), named := "".join(name).strip() or f"key of line {number}") != named:
            raise UserError(f"line {number} repeats the key of an earlier one")
    if not names:
        raise UserError("it has no key: write one in a line, perhaps with a name after a space")
    return names


_EXPECTED = "a key has letters without accents, digits and signs, no spaces, because headers carry it"


def _is_key(key: str) -> bool:
    return key.isascii() and key.isprintable() and bool(key) and " " not in key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


@dataclasses.dataclass(frozen=True)
class Allowance:
    """What each client may send in a minute; 0 = any number."""

    requests: int = 0
    characters: int = 0


@dataclasses.dataclass
class _Account:
    requests: float
    characters: float
    at: float


class Access:
    """Admits requests. Each client, a key or else an address, has an account of requests and characters that a minute fills.

    clock: seconds.
    """

    def __init__(
        self, keys: Keys | None = None, allowance: Allowance | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.keys, self._allowance, self._clock = keys or Keys(), allowance or Allowance(), clock
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.Lock()

    def client(self, address: str, key: str | None) -> str:
        """The name of the client with this key, or of this address. Raises RequestError for a key that is missing or unknown."""
        if not self.keys.required:
            return network_of(address)
        if not key:
            raise RequestError(403, 'an API key is needed: send it as "api_key", or as "Authorization: Bearer KEY".')
        name = self.keys.name(key)
        if name is None:
            raise RequestError(403, "the API key is not known here.")
        return name

    def take(self, client: str, characters: int) -> None:
        """Takes a request with so many characters from the client's account. Raises RequestError where it has too little, and
        takes nothing.
        """
        limit = self._allowance
        if not limit.requests and not limit.characters:
            return
        if limit.characters and characters > limit.characters:
            raise RequestError(
                400, f"the request has {characters} characters: at most {limit.characters} may be sent in a minute."
            )
        with self._lock:
            now = self._clock()
            account = self._account(client, now)
            lacks = [
                (1 - account.requests) * _MINUTE / limit.requests if limit.requests else 0.0,
                (characters - account.characters) * _MINUTE / limit.characters if limit.characters else 0.0,
            ]
            if (wait := max(lacks)) > 1e-6:
                what = f"{limit.requests} requests" if lacks[0] >= lacks[1] else f"{limit.characters} characters"
                seconds = math.ceil(wait)
                raise RequestError(
                    429, f"more than {what} in a minute: try again in {seconds} s.", {"Retry-After": str(seconds)}
                )
            account.requests -= 1
            account.characters -= characters

    def _account(self, client: str, now: float) -> _Account:
        """The client's account, filled up to now. Those that are full again are forgotten, so that the number of clients a minute
        bounds the memory.
        """
        limit = self._allowance
        while self._accounts and now - (oldest := next(iter(self._accounts.items())))[1].at >= _MINUTE:
            del self._accounts[oldest[0]]
        account = self._accounts.pop(client, None) or _Account(limit.requests, limit.characters, now)
        passed = (now - account.at) / _MINUTE
        account.requests = min(limit.requests, account.requests + passed * limit.requests)
        account.characters = min(limit.characters, account.characters + passed * limit.characters)
        account.at = now
        self._accounts[client] = account
        return account


def network_of(address: str) -> str:
    """The address of a client; of IPv6 its network of 64 bits, of which one client has all addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
