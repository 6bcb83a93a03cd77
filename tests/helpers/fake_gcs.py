"""A bucket server with the part of the Cloud Storage JSON API that gcsfs and tensorstore need.

    with FakeGcs() as server:
        subprocess.run(..., env=os.environ | server.environment)

Uploads (media, multipart, resumable), downloads with ranges, listings with prefix, delimiter and
pages, rewriting, deletion, and generation preconditions. Buckets need not be made.
`server.failures` are status codes for the next requests whose method and path match.
"""

import http.server
import itertools
import json
import re
import sys
import threading
import urllib.parse

PAGE = 7
"""Names on a page of a listing: few, so that clients must ask for more."""


class FakeGcs:
    """The server, on a free port of this machine while the `with` block runs."""

    def __init__(self):
        self.objects: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str, int]] = []
        self.lock = threading.Lock()
        self.generations = itertools.count(1)
        self.uploads: dict[str, dict] = {}
        handler = type("Handler", (_Handler,), {"gcs": self})
        self._server = _Server(("127.0.0.1", 0), handler)

    def __enter__(self) -> "FakeGcs":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point gcsfs and tensorstore to this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "FSSPEC_GCS": json.dumps({"token": "anon", "use_listings_cache": False}),
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "TENSORSTORE_GCS_HTTP_VERSION": "1.1",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
        }

    def names(self, bucket: str = "bucket", prefix: str = "") -> list[str]:
        with self.lock:
            return sorted(
                name for where, name in self.objects if where == bucket and name.startswith(prefix)
            )

    def read(self, name: str, bucket: str = "bucket") -> bytes:
        return self.objects[bucket, name][1]

    def put(self, bucket: str, name: str, data: bytes, query: dict[str, str]) -> dict | int:
        """Stores an object; 412 if a precondition fails."""
        with self.lock:
            current = self.objects.get((bucket, name), (0, b""))[0]
            if not _holds(query, current):
                return 412
            self.objects[bucket, name] = next(self.generations), data
        return self.describe(bucket, name)

    def describe(self, bucket: str, name: str) -> dict:
        generation, data = self.objects[bucket, name]
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "size": str(len(data)),
            "generation": str(generation),
            "metageneration": "1",
            "updated": "2024-01-01T00:00:00.000Z",
            "timeCreated": "2024-01-01T00:00:00.000Z",
        }


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # clients that start at once

    def handle_error(self, request, address) -> None:
        # Clients drop requests whose answer they no longer need.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, address)


def _holds(query: dict[str, str], generation: int) -> bool:
    match, no_match = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    return (match is None or int(match) == generation) and (
        no_match is None or int(no_match) != generation
    )


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gcs: FakeGcs

    def log_message(self, *args) -> None:
        pass

    def _route(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.gcs.requests.append((self.command, self.path))
        with self.gcs.lock:
            for failure in self.gcs.failures:
                if failure[0] == self.command and failure[1] in self.path:
                    self.gcs.failures.remove(failure)
                    return self._error(failure[2])
        path = url.path.replace("//", "/")
        for pattern, answer in _ROUTES:
            if match := re.fullmatch(pattern, path):
                return answer(self, *map(urllib.parse.unquote, match.groups()))
        self._error(501)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _route

    def _bucket(self, bucket: str) -> None:
        self._json(
            {
                "kind": "storage#bucket",
                "name": bucket,
                "location": "HERE",
                "storageClass": "STANDARD",
            }
        )

    def _objects(self, bucket: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        names, folders = [], set()
        for name in self.gcs.names(bucket, prefix):
            if (
                not self.query.get("startOffset", "")
                <= name
                < self.query.get("endOffset", "\U0010ffff")
            ):
                continue
            head, separator, _ = (
                name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            )
            folders.add(prefix + head + delimiter) if separator else names.append(name)
        all_names = sorted([*names, *folders])
        start = int(self.query.get("pageToken") or 0)
        page = all_names[start : start + PAGE]
        out = {"kind": "storage#objects", "prefixes": [name for name in page if name in folders]}
        with self.gcs.lock:
            stored = [
                name for name in page if name not in folders and (bucket, name) in self.gcs.objects
            ]
            out["items"] = [self.gcs.describe(bucket, name) for name in stored]
        if start + PAGE < len(all_names):
            out["nextPageToken"] = str(start + PAGE)
        self._json(out)

    def _object(self, bucket: str, name: str) -> None:
        stored = self.gcs.objects.get((bucket, name))
        if (
            stored is None
            or "generation" in self.query
            and int(self.query["generation"]) != stored[0]
        ):
            return self._error(404)
        if not _holds(self.query, stored[0]):
            return self._error(304 if "ifGenerationNotMatch" in self.query else 412)
        if self.command == "DELETE":
            with self.gcs.lock:
                self.gcs.objects.pop((bucket, name), None)
            return self._send(204, b"")
        if self.query.get("alt") != "media":
            return self._json(self.gcs.describe(bucket, name))
        generation, data = stored
        headers = {
            "x-goog-generation": str(generation),
            "x-goog-stored-content-length": str(len(data)),
        }
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self._send(200, data, headers)
        first = int(match[1]) if match[1] else max(0, len(data) - int(match[2]))
        last = min(int(match[2]) if match[1] and match[2] else len(data) - 1, len(data) - 1)
        if first >= len(data):
            return self._error(416)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], headers)

    def _upload(self, bucket: str) -> None:
        kind = self.query.get("uploadType")
        if kind == "media":
            return self._stored(self.gcs.put(bucket, self.query["name"], self.body, self.query))
        if kind == "multipart":
            mark = re.search('boundary="?([^";]+)', self.headers["Content-Type"])[1].encode()
            metadata, data = self.body.split(b"--" + mark)[1], b"--" + mark
            data = self.body[self.body.index(data, 2) + len(data) :]
            data = re.split(rb"\r?\n\r?\n", data, maxsplit=1)[1]
            data = re.sub(rb"\r?\n--" + re.escape(mark) + rb"--\s*\Z", b"", data)
            name = json.loads(re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[1])["name"]
            return self._stored(self.gcs.put(bucket, name, data, self.query))
        if "upload_id" not in self.query:
            name = self.query.get("name") or json.loads(self.body)["name"]
            number = str(next(self.gcs.generations))
            self.gcs.uploads[number] = {"data": bytearray(), "name": name, "query": self.query}
            at = f"{self.gcs.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            return self._send(200, b"", {"Location": at})
        upload = self.gcs.uploads[self.query["upload_id"]]
        if self.command == "DELETE":
            return self._send(204, b"")
        span, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if span != "*":
            assert int(span.split("-")[0]) == len(upload["data"]), "pieces must be contiguous"
            upload["data"] += self.body
        if total == "*" or int(total) != len(upload["data"]):
            return self._send(308, b"", {"Range": f"bytes=0-{len(upload['data']) - 1}"})
        self._stored(self.gcs.put(bucket, upload["name"], bytes(upload["data"]), upload["query"]))

    def _rewrite(self, bucket: str, name: str, to_bucket: str, to_name: str) -> None:
        if (bucket, name) not in self.gcs.objects:
            return self._error(404)
        result = self.gcs.put(to_bucket, to_name, self.gcs.read(name, bucket), self.query)
        self._stored(result if isinstance(result, int) else {"done": True, "resource": result})

    def _stored(self, result: dict | int) -> None:
        self._error(result) if isinstance(result, int) else self._json(result)

    def _json(self, content: dict) -> None:
        self._send(
            200, json.dumps(content).encode(), {"Content-Type": "application/json; charset=UTF-8"}
        )

    def _error(self, code: int) -> None:
        error = {"error": {"code": code, "message": f"stand-in: {code}"}}
        self._send(
            code,
            b"" if code == 304 else json.dumps(error).encode(),
            {"Content-Type": "application/json"},
        )

    def _send(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


_OBJECT = r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)"
_ROUTES = [
    (r"/storage/v1/b/([^/]+)", _Handler._bucket),
    (r"/storage/v1/b/([^/]+)/o/?", _Handler._objects),
    (r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o", _Handler._upload),
    (rf"{_OBJECT}/rewriteTo/b/([^/]+)/o/([^/]+)", _Handler._rewrite),
    (_OBJECT, _Handler._object),
]
