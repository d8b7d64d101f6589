"""The client of the ``wyoming`` package and its HTTP servers, unchanged, in their own environment; JSON.

python wyoming_clients.py PORT QUESTION.wav speech     what is served, a recording and texts
python wyoming_clients.py PORT QUESTION.wav words      an agent's answer
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
import time
import urllib.request
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop, wav_to_chunks
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.handle import Handled
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

TEXT = "five plus four is nine"
PATIENCE_S = 120.0


async def events(client: AsyncTcpClient, last: str) -> list[Event]:
    """What comes until an event of this type."""
    found: list[Event] = []
    while not found or found[-1].type != last:
        event = await asyncio.wait_for(client.read_event(), PATIENCE_S)
        assert event is not None, [it.type for it in found]
        assert event.type != "error", event.data
        found.append(event)
    return found


def seconds_of(found: list[Event]) -> float:
    """How long the audio of some events is."""
    first = AudioStart.from_event(found[0])
    chunks = [AudioChunk.from_event(it) for it in found if AudioChunk.is_type(it.type)]
    return float(sum(len(it.audio) for it in chunks) / (first.rate * first.width * first.channels))


async def speech(port: int, question: Path) -> dict[str, Any]:
    """What is served, a recording written down, and a text spoken, whole and in pieces."""
    met: dict[str, Any] = {}
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Describe().event())
        info = Info.from_event((await events(client, "info"))[-1])
        met["models"] = [model.name for program in info.asr for model in program.models]
        met["voices"] = [voice.name for program in info.tts for voice in program.voices]
        await client.write_event(Transcribe(language="en").event())
        with wave.open(str(question), "rb") as file:
            for chunk in wav_to_chunks(file, 1024, start_event=True, stop_event=True):
                await client.write_event(chunk.event())
        found = await events(client, "transcript-stop")
        met["chunks"] = "".join(it.data["text"] for it in found if it.type == "transcript-chunk")
        met["text"] = next(Transcript.from_event(it).text for it in found if Transcript.is_type(it.type))
    async with AsyncTcpClient("127.0.0.1", port) as client:
        voice = SynthesizeVoice(name=met["voices"][-1])
        await client.write_event(Synthesize(text=TEXT, voice=voice).event())
        met["whole_s"] = seconds_of(await events(client, "audio-stop"))
        await client.write_event(SynthesizeStart(voice=voice).event())
        for piece in ("five pl", "us four ", "is nine"):
            await client.write_event(SynthesizeChunk(text=piece).event())
        await client.write_event(Synthesize(text=TEXT, voice=voice).event())
        await client.write_event(SynthesizeStop().event())
        found = await events(client, "synthesize-stopped")
        assert AudioStop.is_type(found[-2].type)
        met["pieces_s"] = seconds_of(found)
    return met


async def words(port: int) -> dict[str, Any]:
    """What an agent answers."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Transcript(text="what time is it", language="en").event())
        found = await events(client, "handled-stop")
        return {"answer": Handled.from_event(found[-2]).text, "chunks": len(found) - 3}


@contextmanager
def bridge(kind: str, port: int) -> Iterator[str]:
    """One of the package's HTTP servers in front of the port, by its address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        own = one.getsockname()[1]
    words = ("--host", "127.0.0.1", "--port", str(own), "--uri", f"tcp://127.0.0.1:{port}")
    with subprocess.Popen(
        [sys.executable, "-m", f"wyoming.http.{kind}_server", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until_s = time.monotonic() + PATIENCE_S
            while True:
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", own)) == 0:
                        break
                assert process.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.1)
            yield f"http://127.0.0.1:{own}/api"
        finally:
            process.terminate()


def posted(url: str, data: bytes, content_type: str) -> bytes:
    """The answer to a POST."""
    request = urllib.request.Request(url, data, {"Content-Type": content_type}, method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return bytes(response.read())


def over_http(port: int, question: Path, kind: str) -> dict[str, Any]:
    """The same over HTTP."""
    if kind == "words":
        with bridge("intent", port) as url:
            answer = json.loads(posted(f"{url}/recognize-intent", b"what time is it", "text/plain"))
        return {"http_answer": answer["result"]["text"]}
    with bridge("asr", port) as url:
        text = json.loads(posted(f"{url}/speech-to-text", question.read_bytes(), "audio/wav"))["text"]
    with bridge("tts", port) as url:
        data = posted(f"{url}/text-to-speech", TEXT.encode(), "text/plain")
    with wave.open(io.BytesIO(data)) as file:
        return {"http_text": text, "http_s": file.getnframes() / file.getframerate()}


if __name__ == "__main__":
    own_port, wav, what = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    answers = asyncio.run(speech(own_port, wav) if what == "speech" else words(own_port))
    print(json.dumps({**answers, **over_http(own_port, wav, what)}))  # noqa: T201
