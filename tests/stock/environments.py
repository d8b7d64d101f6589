"""Environments of stock clients: each is made once, separate from the project's."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.support.uv import uv

REQUIREMENTS: Mapping[str, tuple[str, ...]] = {
    "openai": ("openai[realtime]==3.54.0",),
    "agents": ("openai-agents==0.24.0", "openai==3.54.0"),
    "pipecat": ("pipecat-ai[openai]==1.14.0",),
    "livekit": (
        "livekit-agents==1.8.9",
        "livekit-plugins-openai==1.8.9",
        "livekit-plugins-nvidia[personaplex]==1.8.9",
    ),
    "json speech": ("gradium==0.6.4",),
    "livekit json speech": ("livekit-plugins-gradium==1.8.9",),
    "wyoming": ("wyoming[http]==1.10.2",),
}
"""What is installed; nothing of ours is in these environments."""

NODE_PACKAGES = ("openai@7.57.0", "ws@8.23.0")
"""What is asked of npm."""

HERE = Path(__file__).parent
INSTALL_S = 500


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made if it is not there."""
    asked = REQUIREMENTS[name]
    version = hashlib.sha256("\n".join((sys.version, *asked)).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "stock" / f"{name.replace(' ', '-')}-{version}"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            venv = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder)]
            subprocess.run(venv, check=True, timeout=INSTALL_S)
            _install(folder / "bin" / "python", asked)
            (folder / "done").touch()
    return folder / "bin" / "python"


def _install(python: Path, asked: Sequence[str]) -> None:
    """By uv, in a tenth of pip's time; pip knows of indexes that uv is not given."""
    if uv("pip", "install", "--quiet", "--no-config", f"--python={python}", *asked).returncode == 0:
        return
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-compile", *asked]
    run = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert run.returncode == 0, run.stderr


def node_folder() -> Path:
    """A folder with what is asked of npm, made if it is not there."""
    version = hashlib.sha256("\n".join(NODE_PACKAGES).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "stock" / f"node-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            command = [
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(folder),
                *NODE_PACKAGES,
            ]
            run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            assert run.returncode == 0, run.stderr
            (folder / "done").touch()
    return folder


async def run_client(name: str, script: str, *arguments: str, timeout_s: float = 400.0) -> dict[str, Any]:
    """What a script beside this module prints last, as JSON, run in a client's environment."""
    python = await asyncio.to_thread(python_of, name)
    return _last(await printed(str(python), str(HERE / script), *arguments, timeout_s=timeout_s))


async def run_node(
    script: Path, *arguments: str, folder: Path | None = None, trusted: Path | None = None, code: int = 0
) -> str:
    """What a script for Node prints that ends with ``code``. It may trust one more certificate."""
    packages = await asyncio.to_thread(node_folder)
    with tempfile.TemporaryDirectory(dir=packages) as here:  # Node looks for packages above the script
        copy = await asyncio.to_thread(shutil.copy, script, here)
        return await printed("node", str(copy), *arguments, folder=folder, trusted=trusted, code=code)


async def run_node_client(script: str, *arguments: str, trusted: Path | None = None) -> dict[str, Any]:
    """The same of a script beside this module, whose last line is JSON."""
    return _last(await run_node(HERE / script, *arguments, trusted=trusted))


def _last(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


async def printed(
    *command: str,
    folder: Path | None = None,
    trusted: Path | None = None,
    timeout_s: float = 400.0,
    code: int = 0,
) -> str:
    """What a program prints that ends with ``code``, without variables of Python's or of OpenAI's: for
    another code than 0, its errors.
    """
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENAI"))}
    if trusted is not None:
        variables["NODE_EXTRA_CA_CERTS"] = str(trusted)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=variables
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == code, err.decode()
    return (err if code else out).decode()
