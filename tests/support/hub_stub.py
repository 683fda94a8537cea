"""A Hub in a thread: the part of the Hub's HTTP protocol that pushing and pulling a model needs, over loopback.

It is strict where a client could go wrong: uploads must have the size and SHA-256 that were announced, writing needs
the token, an unknown route is refused and remembered, and nothing is published but by a commit, all of it at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_token-of-the-tests"
LFS_SUFFIXES = (".safetensors", ".bin")


class Refused(Exception):
    """A request that the Hub does not accept.

    Args:
        status: HTTP status.
        message: What is wrong with it.
        code: The Hub's own name of the error, for clients that look at it.
        url: What the client asked about, where it may be content with that.
    """

    def __init__(self, status: int, message: str, code: str = "", url: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.url = url


class ConnectionBroken(Exception):
    """The connection ends without an answer."""


class HubStub:
    """The Hub. Use as a context manager: it answers inside the block.

    Args:
        breaks: For each push in turn, the step at which every connection breaks half-way: "upload", "commit" or None.
    """

    def __init__(self, breaks: Sequence[str | None] = ()) -> None:
        self.breaks = breaks
        self.before: list[dict[str, bytes]] = []  # what was published when each push began
        self.history: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.announced: dict[str, int] = {}
        self.unknown: list[str] = []
        self.broken: list[str] = []
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))

    def __enter__(self) -> HubStub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def endpoint(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def environment(self, home: Path) -> dict[str, str]:
        """What a process needs in its environment to take this for the Hub, with nothing cached in `home` yet."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def tree(self, repo: str) -> dict[str, bytes]:
        """What is published: path -> content; empty before the first commit."""
        commits = self.history[repo]
        return commits[-1] if commits else {}

    def routes(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        repo, revision = r"(?P<repo>[^/]+/[^/]+)", r"(?P<revision>[^/]+)"
        yield "POST", "/api/repos/create", self.create
        yield "POST", "/api/validate-yaml", self.validate
        yield "POST", f"/api/models/{repo}/preupload/{revision}", self.preupload
        yield "POST", rf"/{repo}\.git/info/lfs/objects/batch", self.batch
        yield "PUT", "/lfs/(?P<oid>[0-9a-f]{64})", self.upload
        yield "POST", "/lfs/verify", self.verify
        yield "POST", f"/api/models/{repo}/commit/{revision}", self.commit
        yield "GET", f"/api/models/{repo}(/revision/{revision})?", self.info
        yield "GET", f"/api/models/{repo}/tree/{revision}(?P<folder>/.*)?", self.list_folder
        yield "GET", f"/{repo}/resolve/{revision}/(?P<path>.+)", self.resolve

    def create(self, body: bytes) -> dict[str, str]:
        """Make a repository; every push begins with that."""
        asked = json.loads(body)
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self.before.append(dict(self.tree(repo)) if repo in self.history else {})
        if repo in self.history:
            raise Refused(409, f"{repo} exists already", url=f"{self.endpoint}/{repo}")
        self.history[repo] = []
        if asked.get("private") or asked.get("visibility") == "private":
            self.private.add(repo)
        return {"url": f"{self.endpoint}/{repo}"}

    def validate(self, body: bytes) -> dict[str, list[Any]]:
        """Look at the head of a model card."""
        return {"errors": [], "warnings": []} if json.loads(body)["content"] else {"errors": ["empty"], "warnings": []}

    def preupload(self, body: bytes, repo: str, revision: str) -> dict[str, Any]:
        """Say which files go through large file storage, and which are published already."""
        published = self._commit_of(repo, revision)
        files = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            self.announced[path] = file["size"]
            mode = "lfs" if path.endswith(LFS_SUFFIXES) else "regular"
            old = published.get(path)
            oid = None if old is None else _lfs_oid(old) if mode == "lfs" else _git_oid(old)
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def batch(self, body: bytes, repo: str) -> dict[str, Any]:
        """Say where large files are to be put; nowhere if they are there already."""
        self._commit_of(repo, "main")
        objects = []
        for item in json.loads(body)["objects"]:
            oid = item["oid"]
            self.announced[oid] = item["size"]
            answer = {"oid": oid, "size": item["size"]}
            if oid not in self.objects:
                verify = {"href": f"{self.endpoint}/lfs/verify"}
                answer["actions"] = {"upload": {"href": f"{self.endpoint}/lfs/{oid}"}, "verify": verify}
            objects.append(answer)
        return {"transfer": "basic", "objects": objects}

    def upload(self, body: bytes, oid: str) -> dict[str, Any]:
        """Store a large file."""
        if oid not in self.announced:
            raise Refused(403, f"{oid} was not announced")
        if len(body) != self.announced[oid]:
            raise Refused(400, f"{oid} was announced with {self.announced[oid]} bytes, but has {len(body)}")
        if _lfs_oid(body) != oid:
            raise Refused(400, f"the content of {oid} has another SHA-256")
        self.objects[oid] = body
        return {}

    def verify(self, body: bytes) -> dict[str, Any]:
        """Confirm that a large file is stored."""
        asked = json.loads(body)
        if len(self.objects.get(asked["oid"], b"")) != asked["size"]:
            raise Refused(404, f"{asked['oid']} is not stored whole")
        return {}

    def commit(self, body: bytes, repo: str, revision: str) -> dict[str, Any]:
        """Publish files, all of them at once."""
        tree = dict(self._commit_of(repo, revision))
        first, *operations = [json.loads(line) for line in body.splitlines()]
        if first["key"] != "header" or not first["value"]["summary"]:
            raise Refused(400, "a commit begins with a header that has a summary")
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                content = _decode(value["content"])
                if len(content) != self.announced.get(value["path"]):
                    raise Refused(400, f"{value['path']} has not the size that was announced")
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refused(400, f"{value['path']} was not uploaded")
                content = self.objects[value["oid"]]
            else:
                raise Refused(400, f"unknown operation {operation['key']}")
            tree[value["path"]] = content
        self.history[repo].append(tree)
        sha = self._sha(repo, len(self.history[repo]))
        return {"success": True, "commitOid": sha, "commitUrl": f"{self.endpoint}/{repo}/commit/{sha}"}

    def info(self, body: bytes, repo: str, revision: str | None) -> dict[str, Any]:
        """Describe a repository."""
        tree = self._commit_of(repo, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(tree)]
        return {"id": repo, "sha": self._sha(repo, len(self.history[repo])), "siblings": siblings, "tags": []}

    def list_folder(self, body: bytes, repo: str, revision: str, folder: str | None) -> list[dict[str, Any]]:
        """List a folder with everything below it."""
        tree = self._commit_of(repo, revision)
        top = f"{folder.strip('/')}/" if folder else ""
        found = [
            {"type": "file", "path": p, "size": len(c), "oid": _git_oid(c)}
            for p, c in tree.items()
            if p.startswith(top)
        ]
        if not found:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        return found

    def resolve(self, body: bytes, repo: str, revision: str, path: str) -> tuple[bytes, dict[str, str]]:
        """Give a published file."""
        tree = self._commit_of(repo, revision)
        sha = self._sha(repo, self.history[repo].index(tree) + 1) if tree else "0" * 40
        if path not in tree:
            raise Refused(404, f"{path} does not exist", "EntryNotFound")
        return tree[path], {"ETag": f'"{_git_oid(tree[path])}"', "X-Repo-Commit": sha}

    def _sha(self, repo: str, number: int) -> str:
        return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()

    def _commit_of(self, repo: str, revision: str) -> dict[str, bytes]:
        if repo not in self.history:
            raise Refused(404, f"{repo} does not exist", "RepoNotFound")
        if revision == "main":
            return self.tree(repo)
        for number, tree in enumerate(self.history[repo], 1):
            if revision == self._sha(repo, number):
                return tree
        raise Refused(404, f"{repo} has no revision {revision}", "RevisionNotFound")


def _lfs_oid(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Refused(400, f"no base64: {error}") from error


class _Handler(BaseHTTPRequestHandler):
    hub: HubStub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer("GET")

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def answer(self, method: str) -> None:
        """Find the route, let the Hub do it, and send what it says."""
        headers: dict[str, str] = {}
        try:
            with self.hub.lock:
                result = self.route(method)
            content, headers = result if isinstance(result, tuple) else (json.dumps(result).encode(), {})
            status = 200
        except Refused as refused:
            content, status = json.dumps({"error": str(refused), "url": refused.url}).encode(), refused.status
            headers = {"X-Error-Message": str(refused), "X-Error-Code": refused.code}
        except ConnectionBroken:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def route(self, method: str) -> Any:
        path = unquote(urlsplit(self.path).path)
        for kind, pattern, action in self.hub.routes():
            if kind == method and (match := re.fullmatch(pattern, path)):
                step = action.__name__
                if method != "GET" and step != "upload" and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    raise Refused(401, "this needs the token")
                breaks = dict(enumerate(self.hub.breaks, 1)).get(len(self.hub.before)) == step
                body = self.body(half=breaks)
                if breaks:
                    self.hub.broken.append(step)
                    raise ConnectionBroken
                return action(body, **match.groupdict())
        self.body()
        self.hub.unknown.append(f"{self.command} {self.path}")
        raise Refused(501, f"unknown route: {self.command} {self.path}")

    def body(self, half: bool = False) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            raise Refused(411, "give a Content-Length")
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length // 2 if half else length)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""
