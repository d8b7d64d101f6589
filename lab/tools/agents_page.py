"""Talk to an agent through OpenAI's agents SDK in a page, by WebRTC, in Chromium.

Usage: npm install --prefix out/sdk @openai/agents-realtime
       python -m lab.tools.agents_page out/sdk/node_modules/@openai/agents-realtime

The page has an origin of its own. The agent has the built-in speech models and a text model with one answer.
Shows the events that the SDK received, its history, the sound, its errors and the page's warnings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from lab.tools.unmute_page import ANSWER, PAUSE_S, QUESTION
from tests.support.caller import SAMPLE_RATE
from tests.support.launch import ANTIPHON, free_port, running_server
from tests.support.node import browser_env, find_node
from tests.support.text_model import TextModelServer, says

SCRIPT: Final = Path(__file__).with_suffix(".js")
BUNDLE: Final = Path("dist") / "bundle" / "openai-realtime-agents.umd.js"


def main(argv: list[str]) -> int:
    """Start the server and the browser, speak, and show the results."""
    parser = argparse.ArgumentParser(description="Speak with an agent by OpenAI's agents SDK in a page.")
    parser.add_argument("package", type=Path, help="the folder of @openai/agents-realtime")
    package = parser.parse_args(argv).package
    with tempfile.TemporaryDirectory() as scratch:
        met = asyncio.run(speak(package / BUNDLE, Path(scratch)))
    version = json.loads((package / "package.json").read_text())["version"]
    for name, value in {"version": version, **met}.items():
        print(f"{name:<9} {json.dumps(value)}")
    return 0 if met["heard"]["plays"] and not met["errors"] else 1


async def speak(bundle: Path, scratch: Path) -> dict[str, Any]:
    """Run the page with a recorded question as microphone; returns the events and errors of the page."""
    clip = scratch / "clip.wav"
    write_wav(clip, np.pad(read_audio(QUESTION), (0, round(PAUSE_S * SAMPLE_RATE))), SAMPLE_RATE)
    async with TextModelServer(usual=says(ANSWER)).serve() as text:
        agent = ["--agent=assistant", f"--llm={text.url}", "--llm-model=scripted"]
        return await asyncio.to_thread(browse, agent, bundle, clip, scratch)


def browse(agent: list[str], bundle: Path, clip: Path, scratch: Path) -> dict[str, Any]:
    """Start the server, and let a browser call the agent."""
    port = free_port()
    speech = ["--model=tiny-stt", "--model=tiny-tts", "--slots=1", "--webrtc=1", "--allow-origin=*"]
    with running_server(
        [*ANTIPHON, "serve", f"--port={port}", *speech, *agent], port, scratch / "server.log"
    ):
        command = [find_node(), str(SCRIPT), f"http://127.0.0.1:{port}", str(bundle.resolve())]
        run = subprocess.run(command, env=browser_env(clip), stdout=subprocess.PIPE, text=True, check=True)
    met: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return met


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
