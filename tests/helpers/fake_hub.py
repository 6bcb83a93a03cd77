"""Hugging Face Hub's HTTP API for create_repo, upload_folder and snapshot_download, in memory."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator

TOKEN = "hf_writer"


class FakeHub:
    """`repos`: {"USER/NAME": {"private": bool, "commits": {sha: {path: bytes}}}}.

    The last is main.
    """

    def __init__(self):
        self.repos, self.cards, self.requests = {}, [], []

    def commit(self, repo, files):
        commits = self.repos[repo]["commits"]
        before = commits[next(reversed(commits))] if commits else {}
        sha = hashlib.sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits[sha] = before | files
        return sha

    def find(self, repo, revision):
        commits = self.repos[repo]["commits"]
        sha = next(reversed(commits)) if revision in (None, "main") else revision
        return (sha, commits[sha]) if sha in commits else (None, None)


@contextlib.contextmanager
def serve() -> Iterator[tuple[FakeHub, str]]:
    """The Hub and its address."""
    hub = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, value, status=200, **headers):
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, status, error, code=None):
            self.answer({"error": error}, status, **({"X_Error_Code": code} if code else {}))

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.requests.append(("POST", self.path))
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if self.path.startswith("/api/validate-yaml"):
                hub.cards.append(json.loads(body)["content"])
                return self.answer({"errors": [], "warnings": []})
            if token != TOKEN:
                return self.refuse(401, "Invalid username or password.")
            if self.path == "/api/repos/create":
                values = json.loads(body)
                owner = values.get("organization") or "writer"
                if owner != "writer":
                    return self.refuse(
                        403,
                        f"You don't have the rights to create a model under the namespace {owner!r}",
                    )
                repo = f"{owner}/{values['name']}"
                if repo in hub.repos:
                    return self.answer(
                        {"error": "You already created this repo", "url": f"{address}/{repo}"}, 409
                    )
                hub.repos[repo] = {
                    "private": values.get("visibility") == "private"
                    or values.get("private") is True,
                    "commits": {},
                }
                hub.commit(repo, {".gitattributes": b""})
                return self.answer({"url": f"{address}/{repo}", "name": repo, "id": "1"})
            match = re.fullmatch(
                r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main(?:\?.*)?", self.path
            )
            if not match or match[1] not in hub.repos:
                return self.refuse(404, "Repository not found", "RepoNotFound")
            if match[2] == "preupload":
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                return self.answer({"files": files})
            lines = [json.loads(line) for line in body.splitlines()]
            files = {
                v["value"]["path"]: base64.b64decode(v["value"]["content"])
                for v in lines
                if v["key"] == "file"
            }
            sha = hub.commit(match[1], files)
            return self.answer(
                {
                    "commitUrl": f"{address}/{match[1]}/commit/{sha}",
                    "commitOid": sha,
                    "hookOutput": "",
                }
            )

        def do_GET(self):
            hub.requests.append((self.command, self.path))
            path = self.path.split("?")[0]
            match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            repo = (match or file or [None, None])[1]
            if repo not in hub.repos:
                return self.refuse(404, "Repository not found", "RepoNotFound")
            sha, files = hub.find(repo, (match[3] if match else file[2]))
            if sha is None:
                return self.refuse(404, "Invalid rev id", "RevisionNotFound")
            if file:
                data = files[file[3]]
                etag = f'"{hashlib.sha1(data).hexdigest()}"'
                return self.answer(data, ETag=etag, X_Repo_Commit=sha)
            oids = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            if match[2] == "tree":
                entries = [
                    {"type": "file", "path": n, "size": len(files[n]), "oid": oids[n]}
                    for n in files
                ]
                return self.answer(entries)
            siblings = [{"rfilename": name} for name in files]
            return self.answer(
                {
                    "_id": "1",
                    "id": repo,
                    "sha": sha,
                    "siblings": siblings,
                    "tags": [],
                    "private": False,
                }
            )

        do_HEAD = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub, address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
