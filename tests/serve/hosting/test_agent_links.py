"""Agents' calls that resume through any front end of a server of processes, over TLS."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.protocol import moshi
from antiphon_client.thread import CallThread
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, cut
from tests.serve.live_client import LiveClient
from tests.serve.process import ROOM, START_S, run
from tests.support.calm import SERVE
from tests.support.text_model import TextModelServer, says

pytestmark = [pytest.mark.product, TLS_GOODBYE]

REPLY = "one two three four five six"


class Process:
    """A server of an engine and two front ends, over TLS."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def question(self) -> Sequence[FloatArray]:
        """A spoken question, and the silence after it, in frames."""
        asked = {"model": "tiny-tts", "input": "what day comes after july", "response_format": "pcm"}
        async with self.http.post(f"{self.url}/v1/audio/speech", json=asked) as response:
            pcm = np.frombuffer(await response.read(), "<i2").astype(np.float32) / np.float32(32768)
        frames = -(-pcm.size // FRAME_SAMPLES) + 12
        padded = np.zeros(frames * FRAME_SAMPLES, np.float32)
        padded[: pcm.size] = pcm
        return list(padded.reshape(frames, FRAME_SAMPLES))


@asynccontextmanager
async def two_front_ends(text: TextModelServer) -> AsyncIterator[Process]:
    """The server, with the agent ``assistant``; it ends by a signal, without an error in its log."""
    certificate = ("--tls-cert", str(TLS / "test-cert.pem"), "--tls-key", str(TLS / "test-key.pem"))
    models = ("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "4", *ROOM)
    agent = ("--agent", "assistant", "--llm", text.url, "--llm-model", "scripted")
    server = await run(*SERVE, "--port", "0", "--front-ends", "2", *certificate, *models, *agent)
    try:
        assert server.stdout is not None
        found = None
        async with asyncio.timeout(START_S):
            while found is None:
                line = (await server.stdout.readline()).decode()
                assert line
                found = re.search(r"https://\S+", line)
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Process(found[0], http)
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            _, log = await server.communicate()
        assert "Traceback" not in log.decode()
        assert log.decode().count("connection was passed on") > 1
    finally:
        if server.returncode is None:
            server.kill()
            await server.communicate()


class ChatCall:
    """One caller over ``/api/chat``, connection by connection."""

    def __init__(self, server: Process, question: Sequence[FloatArray]) -> None:
        self._server, self._question, self._thread = server, question, CallThread()
        self._url = f"{server.url}/api/chat?ext=1&format=pcm_f32le&model=assistant&resume=1"
        self.heard, self.said = list[str](), list[str]()

    async def connect(self, words: int) -> None:
        """Ask, or resume; cut off when so many words of the reply have come."""
        is_again = self._thread.is_resumable
        url = self._thread.resuming_url(self._url) if is_again else self._url
        async with self._server.http.ws_connect(url, max_msg_size=0) as ws:
            if is_again:
                await ws.send_bytes(self._thread.claim(0))
            while len(self.said) < words:
                match moshi.decode(self._thread.unwrap(await ws.receive_bytes()) or b"\x00"):
                    case moshi.Event("ready"):
                        for frame in self._question:
                            await ws.send_bytes(moshi.encode(moshi.Audio(frame.astype("<f4").tobytes())))
                    case moshi.Event("heard", fields):
                        self.heard.append(fields["text"])
                    case moshi.Text(word):
                        self.said.append(word.strip())
            cut(ws)


class LiveCall:
    """The same over OpenAI Live."""

    def __init__(self, server: Process, question: Sequence[FloatArray]) -> None:
        self._server, self._question = server, question
        self._token = self._worker = ""
        self._seq = self._frame = -1
        self.heard, self.said = list[str](), list[str]()

    async def connect(self, words: int) -> None:
        """Ask, or resume; cut off when so many words of the reply have come."""
        session = {"model": "assistant"}
        query = f"again&worker={self._worker}" if self._token else "1"
        url = f"{self._server.url}/v1/live/sessions?resume={query}"
        async with self._server.http.ws_connect(url, max_msg_size=0) as ws:
            client = LiveClient(ws)
            if self._token:
                numbers = {"seq": self._seq, "frame": self._frame, "input_frame": 0}
                await client.send("session.resume", session=session, token=self._token, **numbers)
            else:
                await client.send("session.start", session=session)
            while len(self.said) < words:
                event = await client.until(lambda _: True)
                self._seq = event.get("seq", self._seq)
                match event:
                    case {"type": "session.started" | "session.resumed", "resume": terms}:
                        if not self._token:
                            for frame in self._question:
                                await client.speak(frame)
                        self._token, self._worker = terms["token"], terms["worker"]
                    case {"type": "session.input_transcript.delta", "delta": word}:
                        self.heard.append(word.strip())
                    case {"type": "session.output_transcript.delta", "delta": word}:
                        self.said.append(word.strip())
                    case {"type": "session.output_audio.delta", "frame": frame}:
                        self._frame = frame
            cut(ws)


async def test_an_agents_call_goes_on_through_any_front_end() -> None:
    """Two callers are cut three times each; the first to connect gets the other one's front end."""
    async with TextModelServer(usual=says(REPLY)).serve() as text, two_front_ends(text) as server:
        question = await server.question()
        callers: list[ChatCall | LiveCall] = [ChatCall(server, question), LiveCall(server, question)]
        async with asyncio.timeout(PATIENCE_S):
            for words in (1, 2, 4, len(REPLY.split())):
                await asyncio.gather(*(it.connect(words) for it in callers))
                callers.reverse()
    for caller in callers:
        assert caller.said == REPLY.split()
        assert caller.heard
        assert [{"role": "user", "content": " ".join(caller.heard)}] in [
            it["messages"] for it in text.requests
        ]
