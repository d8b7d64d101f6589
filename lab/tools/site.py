"""Build the documentation as a site in out/site, without a network: ``make docs``.

The pages link to each other and to files of the repository by relative paths. A copy of the pages, of their
pictures and of linked files keeps these paths, so the site has the links of a code host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "site"
PAGES = ("docs", "examples", "deploy")
_LINK = re.compile(r"\]\(([^)\s#:]+)\)|src=\"([^\":]+)\"")


def linked(page: Path) -> set[Path]:
    """Return the files that a page links to."""
    found = {match[1] or match[2] for match in _LINK.finditer(page.read_text(encoding="utf-8"))}
    return {path for name in found if (path := (page.parent / name).resolve()).is_file()}


def stage(folder: Path) -> None:
    """Copy the pages and the files that they link to, each to its path below ``folder``."""
    pages = {path for name in PAGES for path in (ROOT / name).rglob("*.md")} | set(ROOT.glob("*.md"))
    files = pages.union(*(linked(page) for page in pages))
    for path in sorted(files):
        if path.is_relative_to(ROOT):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    shutil.copyfile(ROOT / "site" / "index.md", folder / "index.md")


def main() -> int:
    """Build the site from scratch; returns Sphinx's exit code, which counts warnings as errors."""
    shutil.rmtree(OUT, ignore_errors=True)
    source = OUT / "source"
    stage(source)
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [*sphinx, "-c", str(ROOT / "site"), "-d", str(OUT / "doctrees"), str(source), str(OUT / "html")]
    code = subprocess.run(command, check=False).returncode
    print(f"{OUT / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
