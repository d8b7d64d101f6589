"""uv in tests, with the index and certificates of pip's configuration.

It leaves out local folders and further indexes, which other machines lack.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def uv(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``uv``, and wait for its end."""
    program = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert program is not None
    index, certificates = map(_pip_settings().get, ("index-url", "cert"))
    more = {"UV_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL"}
    env = {name: value for name, value in os.environ.items() if name not in more}
    env |= {"UV_PYTHON_DOWNLOADS": "never", "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    env |= {"UV_DEFAULT_INDEX": index} if index else {}
    env |= {"SSL_CERT_FILE": certificates} if certificates else {}
    return subprocess.run(
        [program, *words], env=env, capture_output=True, text=True, timeout=500, check=False
    )


@cache
def _pip_settings() -> Mapping[str, str]:
    """Pip's options from its files and, before those, from the environment; asked once, of half a second."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    pairs = sorted(line.partition("=")[::2] for line in run.stdout.splitlines())
    return {key.rpartition(".")[2]: value.strip("'\"") for key, value in reversed(pairs)}
