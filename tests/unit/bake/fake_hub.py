"""A Hugging Face hub on loopback: one repository served from a folder, the requests kept for the test to look at."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"  # pragma: allowlist secret


class FakeHub(ThreadingHTTPServer):
    """Serves `folder` as repository `owner/tiny` at commit `COMMIT`."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fetched: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.server_port}"

    def files(self) -> dict[str, bytes]:
        """All files of the repository."""
        return {file.name: file.read_bytes() for file in sorted(self.folder.iterdir())}


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.tokens.add(self.headers.get("Authorization"))
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/owner/tiny/revision/no-such"):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/owner/tiny/tree/"):
            self._json([_entry(name, data) for name, data in self.server.files().items()])
        elif path.startswith("/api/models/owner/tiny"):
            siblings = [{"rfilename": name} for name in self.server.files()]
            self._json({"id": "owner/tiny", "modelId": "owner/tiny", "sha": COMMIT, "siblings": siblings})
        elif path.startswith("/api/models/owner/gated"):
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith(f"/owner/tiny/resolve/{COMMIT}/"):
            self._file(path.rsplit("/", 1)[-1])
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str) -> None:
        data = self.server.files()[name]
        if self.command == "GET":
            self.server.fetched.append(name)
        self._answer(200, data, {"ETag": f'"{_git_id(data)}"', "X-Repo-Commit": COMMIT})

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(data), "oid": _git_id(data)}


@contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Run the hub in a thread."""
    hub = FakeHub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
