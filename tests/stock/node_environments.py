"""Environments of stock clients of Node.js: each is made by npm alone, once, and kept beside our own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.stock.environments import HERE, INSTALL_S

PACKAGES: Mapping[str, tuple[str, ...]] = {"openai": ("openai@7.57.0",)}
"""What is asked of npm."""


def folder_of(name: str) -> Path:
    """The folder with an environment's node_modules, which is made if it is not there."""
    asked = PACKAGES[name]
    version = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "stock" / f"node-{name}-{version}"
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
                *asked,
            ]
            run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            assert run.returncode == 0, run.stderr
            (folder / "done").touch()
    return folder


async def run_node(name: str, script: str, *arguments: str, timeout_s: float = 400.0) -> dict[str, Any]:
    """What a script beside this module prints last, as JSON, run in a client's environment."""
    folder = await asyncio.to_thread(folder_of, name)
    placed = folder / script  # imports are looked for beside the script
    shutil.copyfile(HERE / script, placed)
    process = await asyncio.create_subprocess_exec(
        "node", str(placed), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return found
