"""The web client at ``/``: a folder of small files, compressed once, cached without expiry under a version.

The ETag of ``index.html`` is checked at each visit. The files that it names are under the version of the
whole folder, such as ``v/0123456789ab/main.js``. A file below that path never changes, so browsers cache it
without requests, and a page never mixes files of two versions. Comments, a quarter of the page, are not sent.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from aiohttp import web

import antiphon
from antiphon.serve.access.security import page_headers

INDEX = "index.html"
REVALIDATED = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"

_COMPRESSIBLE = ("text/", "application/json", "application/manifest+json", "image/svg+xml")
_TYPES = {
    # Named here because the machine's table may map scripts to text/plain, which browsers reject.
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".json": "application/json",
    ".ogg": "audio/ogg",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}
_VERSIONED = re.compile(r"v/([0-9a-f]{12})/(.+)")
_COMMENT = re.compile(rb"^[ \t]*(?:/\*(?:[^*]|\*(?!/))*\*/|//.*)[ \t]*$", re.M)
_NAMED = re.compile(rb'((?:href|src)=")([\w./-]+\.(?:js|css|svg|png|ogg))(?=")')


@dataclass(frozen=True, slots=True)
class Asset:
    """One file in memory; ``gzipped`` is None if it would not be smaller, ``version`` is (mtime, size)."""

    body: bytes
    gzipped: bytes | None
    content_type: str
    etag: str
    version: tuple[int, int]


def web_root() -> Path | None:
    """The folder of the web client: package data when installed, ``web/static`` in a checkout, or None."""
    packaged = Path(str(resources.files("antiphon"))) / "_web"
    checkout = Path(antiphon.__file__).resolve().parents[2] / "web" / "static"
    return next((root for root in (packaged, checkout) if (root / INDEX).is_file()), None)


class StaticFiles:
    """Serves the files under ``root``; a changed file is read again, for developers of the page."""

    def __init__(self, root: Path) -> None:
        """Serve ``root``, a folder with an ``index.html``."""
        self._root = root.resolve()
        self._assets: dict[Path, Asset] = {}
        self._folder: tuple[tuple[tuple[str, int, int], ...], str] = ((), "")

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a GET of one file; the folder itself is ``index.html``.

        Raises:
            web.HTTPNotFound: the file does not exist, or its path leads out of the folder.
        """
        name, caching = request.match_info.get("path") or INDEX, REVALIDATED
        if versioned := _VERSIONED.fullmatch(name):
            name = versioned[2]
            # A page from before a change may still request the old version: it gets the current file.
            caching = IMMUTABLE if versioned[1] == self.version() else REVALIDATED
        asset = self.index() if name == INDEX else self.find(name)
        headers = page_headers(request.headers.get("Host"))
        headers |= {"ETag": asset.etag, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        known = {
            tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")
        }
        if asset.etag in known or "*" in known:
            return web.Response(status=304, headers=headers)
        body = asset.body
        if asset.gzipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = asset.gzipped
            headers["Content-Encoding"] = "gzip"
        charset = "utf-8" if asset.content_type.startswith("text/") else None
        return web.Response(body=body, content_type=asset.content_type, charset=charset, headers=headers)

    def version(self) -> str:
        """Twelve hexadecimal digits that change when any file of the folder does."""
        files = []
        for path in sorted(self._root.rglob("*")):
            if path.is_file():
                stat = path.stat()
                files.append((path.relative_to(self._root).as_posix(), stat.st_mtime_ns, stat.st_size))
        if self._folder[0] != tuple(files):
            names = [name for name, _, _ in files if (self._root / name).resolve().is_relative_to(self._root)]
            digest = hashlib.sha256("\n".join(f"{name} {self.find(name).etag}" for name in names).encode())
            self._folder = (tuple(files), digest.hexdigest()[:12])
        return self._folder[1]

    def index(self) -> Asset:
        """The page, in which the names of files begin with the folder's version.

        Raises:
            web.HTTPNotFound: the page no longer exists.
        """
        page = self.find(INDEX)
        prefix = f"v/{self.version()}/".encode()

        def under_version(match: re.Match[bytes]) -> bytes:
            is_ours = _is_file(self._root / match[2].decode())
            return match[1] + (prefix if is_ours else b"") + match[2]

        return make_asset(_NAMED.sub(under_version, page.body), page.content_type, page.version)

    def find(self, name: str) -> Asset:
        """The asset called ``name`` (a relative path with slashes).

        Raises:
            web.HTTPNotFound: the file does not exist, or its path leads out of the folder.
        """
        path = (self._root / name).resolve() if "\0" not in name else self._root
        if not path.is_relative_to(self._root) or not _is_file(path):
            raise web.HTTPNotFound(text="no such page\n")
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        asset = self._assets.get(path)
        if asset is None or asset.version != version:
            asset = self._assets[path] = load_asset(path, version)
        return asset


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is longer than a file name may be
        return False


def load_asset(path: Path, version: tuple[int, int]) -> Asset:
    """Read, type, hash and compress one file; comments on lines of their own become empty lines."""
    guessed = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    body = path.read_bytes()
    if path.suffix in (".js", ".css"):
        body = _COMMENT.sub(lambda match: b"\n" * match[0].count(b"\n"), body)
    return make_asset(body, guessed, version)


def make_asset(body: bytes, content_type: str, version: tuple[int, int]) -> Asset:
    """Hash a body, and compress it if that makes it smaller."""
    compressed = gzip.compress(body, 9, mtime=0) if content_type.startswith(_COMPRESSIBLE) else None
    return Asset(
        body=body,
        gzipped=compressed if compressed is not None and len(compressed) < len(body) else None,
        content_type=content_type,
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        version=version,
    )
