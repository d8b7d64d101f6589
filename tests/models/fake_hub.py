"""A small fake hub: repositories from a folder over HTTP, for the real client."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Serves ``root/owner/repo/file`` as commit ``COMMIT``, which is also branch main.

    ``fetched`` collects "owner/repo/file" for every file that was downloaded.
    """

    root: Path
    gated: frozenset[str] = frozenset()
    fetched: list[str] = field(default_factory=list)
    url: str = ""


def digest(path: Path) -> str:
    """What the hub calls a file's content."""
    return hashlib.sha1(path.read_bytes()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), *parts[4:6])
        else:
            self._file("/".join(parts[:2]), "/".join(parts[4:]), with_body)

    def _describe(self, repo: str, what: str = "revision", revision: str = "main") -> None:
        folder = self.hub.root / repo
        if not folder.is_dir():
            self._refuse(404, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            files = sorted(folder.iterdir())
            tree = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": digest(file)}
                for file in files
            ]
            about = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files]}
            self._send(json.dumps(tree if what == "tree" else about).encode(), {}, with_body=True)

    def _file(self, repo: str, name: str, with_body: bool) -> None:
        path = self.hub.root / repo / name
        if repo in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif not path.is_file():
            self._refuse(404, "EntryNotFound")
        else:
            content = path.read_bytes()
            if with_body:
                self.hub.fetched.append(f"{repo}/{name}")
            headers = {"ETag": f'"{digest(path)}"', "X-Repo-Commit": COMMIT}
            self._send(content, headers, with_body=with_body)

    def _send(self, content: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on a free port of this machine; ``hub.url`` is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
