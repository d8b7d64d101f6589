"""Calls an agent through the real front end of Kyutai's Unmute, in a browser, through HAProxy.

Usage: git clone https://github.com/kyutai-labs/unmute out/unmute
       cd out/unmute/frontend && npm install && NEXT_PUBLIC_IN_DOCKER=true npx next build
       python -m lab.tools.unmute_page out/unmute/frontend

The agent has the built-in speech models and a text model with one answer. Shows the events that the page
received, the words of both sides on it, the sound that it played, and its warnings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import create_subprocess_exec as create
from pathlib import Path
from typing import Any, Final

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from tests.support.caller import SAMPLE_RATE
from tests.support.launch import ANTIPHON, free_port, running_server
from tests.support.node import ROOT, browser_env, find_node
from tests.support.stack.process import find_program
from tests.support.text_model import TextModelServer, says

SCRIPT: Final = Path(__file__).with_suffix(".js")
QUESTION: Final = ROOT / "clients" / "antiphon_client" / "clips" / "question-colour.ogg"
ANSWER: Final = "hello nice to meet you"
PAUSE_S: Final = 8.0
"""Seconds after the question, which the microphone repeats: the agent is not always interrupted."""

BALANCER: Final = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout tunnel 60s
frontend both
    bind 127.0.0.1:{port}
    http-request set-path %[path,regsub(^/api/v1/,/unmute/v1/)] if {{ path_beg /api/v1/ }}
    use_backend antiphon if {{ path_beg /unmute/v1/ }}
    default_backend page
backend antiphon
    server antiphon 127.0.0.1:{antiphon}
backend page
    server page 127.0.0.1:{page}
"""


def main(argv: list[str]) -> int:
    """Start all servers and the browser, speak, and show the results."""
    parser = argparse.ArgumentParser(description="Speak with an agent by the front end of Kyutai's Unmute.")
    parser.add_argument("frontend", type=Path, help="folder of the built front end")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        met = asyncio.run(speak(options.frontend.resolve(), Path(scratch)))
    for name, value in met.items():
        print(f"{name:<9} {json.dumps(value)}")
    return 0 if met["heard"]["peak"] > 0.05 else 1


async def speak(frontend: Path, scratch: Path) -> dict[str, Any]:
    """Run the page with a recorded question as microphone; returns the events of the page."""
    port, antiphon, page = free_port(), free_port(), free_port()
    clip, config = scratch / "clip.wav", scratch / "haproxy.cfg"
    write_wav(clip, np.pad(read_audio(QUESTION), (0, round(PAUSE_S * SAMPLE_RATE))), SAMPLE_RATE)
    config.write_text(BALANCER.format(port=port, antiphon=antiphon, page=page))
    built = frontend / ".next"
    shutil.copytree(built / "static", built / "standalone" / ".next" / "static", dirs_exist_ok=True)
    shutil.copytree(frontend / "public", built / "standalone" / "public", dirs_exist_ok=True)
    speech = ["--model=tiny-stt", "--model=tiny-tts", "--slots=1", f"--port={antiphon}"]
    async with TextModelServer(usual=says(ANSWER)).serve() as text:
        agent = ["--agent=assistant", f"--llm={text.url}", "--llm-model=scripted"]
        environment = {**os.environ, "PORT": str(page), "HOSTNAME": "127.0.0.1"}
        pages = await create(
            find_node(), str(built / "standalone" / "server.js"), env=environment, stdout=DEVNULL
        )
        balancer = await create(find_program("haproxy"), "-db", "-f", str(config))
        try:
            return await asyncio.to_thread(browse, [*speech, *agent], antiphon, port, clip, scratch)
        finally:
            for program in (balancer, pages):
                program.terminate()
                await program.wait()


def browse(options: list[str], antiphon: int, port: int, clip: Path, scratch: Path) -> dict[str, Any]:
    """Start the server, and let a browser call the agent."""
    with running_server([*ANTIPHON, "serve", *options], antiphon, scratch / "server.log"):
        command = [find_node(), str(SCRIPT), f"http://127.0.0.1:{port}"]
        run = subprocess.run(command, env=browser_env(clip), stdout=subprocess.PIPE, text=True, check=True)
    met: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return met


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
