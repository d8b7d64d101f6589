"""The web client at ``/``: a folder of small files, revalidated by ETag, text compressed once."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from aiohttp import web

import antiphon
from antiphon.serve.security import page_headers

_COMPRESSIBLE = ("text/", "application/json", "application/manifest+json", "image/svg+xml")
_TYPES = {
    # Named here because the machine's own table may map scripts to text/plain, which browsers refuse.
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file in memory; ``gzipped`` is None where it gains nothing, ``version`` is (mtime, size)."""

    body: bytes
    gzipped: bytes | None
    content_type: str
    etag: str
    version: tuple[int, int]


def web_root() -> Path | None:
    """The folder of the web client: package data when installed, ``web/static`` in a checkout, or None."""
    packaged = Path(str(resources.files("antiphon"))) / "_web"
    checkout = Path(antiphon.__file__).resolve().parents[2] / "web" / "static"
    return next((root for root in (packaged, checkout) if (root / "index.html").is_file()), None)


class StaticFiles:
    """Serves the files under ``root``; a changed file is read again, so that a page can be worked on."""

    def __init__(self, root: Path) -> None:
        """Serve ``root``, a folder with an ``index.html``."""
        self._root = root.resolve()
        self._assets: dict[Path, Asset] = {}

    async def handle(self, request: web.Request) -> web.Response:
        """GET one file; the folder itself is ``index.html``.

        Raises:
            web.HTTPNotFound: no such file, or a path that leaves the folder.
        """
        asset = self.find(request.match_info.get("path") or "index.html")
        headers = page_headers(request.headers.get("Host"))
        headers |= {"ETag": asset.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
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

    def find(self, name: str) -> Asset:
        """The asset called ``name`` (a relative path with slashes).

        Raises:
            web.HTTPNotFound: no such file, or a path that leaves the folder.
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
    except OSError:  # a name longer than any file's
        return False


def load_asset(path: Path, version: tuple[int, int]) -> Asset:
    """Read, type, hash and compress one file."""
    body = path.read_bytes()
    guessed = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    compressed = gzip.compress(body, 9, mtime=0) if guessed.startswith(_COMPRESSIBLE) else None
    return Asset(
        body=body,
        gzipped=compressed if compressed is not None and len(compressed) < len(body) else None,
        content_type=guessed,
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        version=version,
    )
