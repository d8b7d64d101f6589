"""A caller of a voice agent over OpenAI Realtime, which sends and plays audio in real time and records times.

Its player plays received audio at once, and drops the rest when the server reports speech, as stock clients
do. Times are seconds of ``time.monotonic``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.files import read_audio
from antiphon.audio.vad import BLOCK_MS, Loudness
from antiphon_client.clip import default_clips
from tests.support.ask import QUESTIONS
from tests.support.caller import loud_at

RATE: Final = 24_000
STEP: Final = RATE * 40 // 1000
"""Samples of one audio event of the caller: 40 ms."""

BLOCK: Final = RATE * BLOCK_MS // 1000
LEVEL_DBFS: Final = -45.0
"""Level above which audio is speech, for the server and for the measurements."""


class CallError(Exception):
    """A call cannot continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question: its words, and its sound from the first loud block to the last, float32 ``[samples]``."""

    words: str
    pcm: FloatArray


def loud_blocks(pcm: FloatArray) -> list[bool]:
    """Return for each block of 10 ms whether it is loud enough to be speech."""
    return Loudness(RATE).feed(pcm, LEVEL_DBFS)


def questions() -> list[Question]:
    """Return the clips of the client package as questions, without the silence around them."""
    files = {Path(clip.name).stem: Path(str(clip)) for clip in default_clips()}
    found = []
    for name, (words, _) in QUESTIONS.items():
        pcm = read_audio(files[name])
        loud = np.flatnonzero(loud_blocks(pcm))
        found.append(Question(words, pcm[loud[0] * BLOCK : (loud[-1] + 1) * BLOCK]))
    return found


def with_pause(pcm: FloatArray, pause_ms: int) -> FloatArray:
    """Return the speech with its longest quiet stretch, in the middle third, lengthened to at least
    ``pause_ms``."""
    loud = np.array(loud_blocks(pcm))
    first, last = loud.size // 3, 2 * loud.size // 3
    starts = [at for at in range(first, last) if not loud[at] and loud[at - 1]]
    lengths = [int(np.argmax(loud[at:])) for at in starts]
    at, blocks = max(zip(starts, lengths, strict=True), key=lambda it: it[1], default=(loud.size // 2, 0))
    missing = max(0, pause_ms // BLOCK_MS - blocks) * BLOCK
    return np.insert(pcm, at * BLOCK, np.zeros(missing, np.float32))


@dataclass
class HeardReply:
    """One reply as the caller receives and plays it.

    ``words`` have the sample of the reply after which the server reported each: their ends. ``stopped_s`` is
    when the rest was dropped.
    """

    words: list[tuple[str, int]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    samples: int = 0
    first_s: float = math.nan
    last_s: float = math.nan
    end_s: float = math.nan
    stopped_s: float = math.inf
    status: str = ""

    def take(self, data: bytes, now_s: float) -> None:
        """Add sound, 16-bit samples. It is played at once, or after the sound that is playing."""
        if not self.samples:
            self.first_s = now_s
        self.pieces.append(data)
        self.samples += len(data) // 2
        begin_s = now_s if not now_s < self.end_s else self.end_s
        self.last_s, self.end_s = now_s, begin_s + len(data) / 2 / RATE

    def stop(self, now_s: float) -> None:
        """Stop playback, since the caller speaks: the rest of the reply is not played."""
        if now_s < self.end_s:
            self.stopped_s = min(self.stopped_s, now_s)

    @property
    def played_to_s(self) -> float:
        """The time at which the last sample of the reply that was played ends."""
        return min(self.end_s, self.stopped_s)

    @property
    def played(self) -> int:
        """The number of samples of the reply that were played."""
        return self.samples - max(0, math.ceil((self.end_s - self.played_to_s) * RATE))

    @property
    def heard_words(self) -> list[str]:
        """The words of the reply that were played to their ends."""
        return [word for word, end in self.words if end <= self.played]

    @property
    def text(self) -> str:
        """The transcript of the reply."""
        return " ".join(word for word, _ in self.words)

    @property
    def pcm(self) -> FloatArray:
        """The sound of the reply, float32 ``[samples]``."""
        return np.frombuffer(b"".join(self.pieces), "<i2").astype(np.float32) / np.float32(32768)

    @property
    def audible_s(self) -> float:
        """The time at which the first audible sound of the reply was played; NaN if there is none."""
        loud = loud_at(self.pcm)
        return self.first_s + int(loud[0]) / RATE if loud.size else math.nan


class AgentCaller:
    """One call of a voice agent. ``replies`` are all replies that began; ``stopped_s`` is when the server
    reported the end of the caller's turn."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, name: str) -> None:
        """Speak over ``ws``; the text model gets ``name`` as its instructions."""
        self.ws, self.name = ws, name
        self.replies: list[HeardReply] = []
        self.stopped_s: list[float] = []
        self.written: list[str] = []  # turns of this caller
        self.errors: list[str] = []
        self._start_s, self._sent = time.monotonic(), 0
        self._to_say: FloatArray = np.zeros(0, np.float32)
        self._news = asyncio.Event()
        self._has_settings = self._is_over = False

    def say(self, pcm: FloatArray) -> float:
        """Queue this sound to be sent next; returns the time at which its first sample is sent."""
        begin_s = self._start_s + (self._sent + self._to_say.size) / RATE
        self._to_say = np.concatenate([self._to_say, pcm])
        return begin_s

    async def send(self, kind: str, **fields: Any) -> None:
        """Send one event of OpenAI Realtime to the server."""
        await self.ws.send_str(json.dumps({"type": kind, **fields}))

    async def until(self, is_met: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; returns whether it became true within ``seconds``.

        Raises:
            CallError: the call is over.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_met():
                    if self._is_over:
                        raise CallError(f"closed with {self.ws.close_code} after {self.errors[-1:]}")
                    self._news.clear()
                    await self._news.wait()
        return is_met()

    async def settled(self) -> None:
        """Wait until the last reply is complete and played."""
        last = self.replies[-1]
        await self.until(lambda: bool(last.status), 30.0)
        await asyncio.sleep(max(0.0, last.played_to_s - time.monotonic()) if last.samples else 0.0)

    async def configure(self, stt: str) -> None:
        """Make this caller's name the text model's instructions, and request transcripts by ``stt``.

        Raises:
            CallError: the server does not accept the settings.
        """
        audio = {"input": {"transcription": {"model": stt}}}
        session = {"type": "realtime", "instructions": self.name, "audio": audio}
        await self.send("session.update", session=session)
        if not await self.until(lambda: self._has_settings, 30.0):
            raise CallError(f"the server took no settings: {self.errors}")

    async def speak(self) -> None:
        """Send the queued speech, or silence, in real time."""
        self._start_s = time.monotonic()
        while True:
            due_s = self._start_s + (self._sent + STEP) / RATE
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            step, self._to_say = self._to_say[:STEP], self._to_say[STEP:]
            self._sent += STEP
            data = np.rint(np.pad(step, (0, STEP - step.size)).clip(-1, 1) * 32767).astype("<i2").tobytes()
            await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    async def listen(self) -> None:
        """Process the server's events until the call is over."""
        async for message in self.ws:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._follow(json.loads(message.data), time.monotonic())
                self._news.set()
        self._is_over = True
        self._news.set()

    def _follow(self, event: dict[str, Any], now_s: float) -> None:
        match event["type"]:
            case "session.updated":
                self._has_settings = True
            case "input_audio_buffer.speech_started":
                for reply in self.replies[-2:]:
                    reply.stop(now_s)
            case "input_audio_buffer.speech_stopped":
                self.stopped_s.append(now_s)
            case "conversation.item.input_audio_transcription.completed":
                self.written.append(event["transcript"])
            case "response.created":
                self.replies.append(HeardReply())
            case "response.output_audio_transcript.delta":
                self.replies[-1].words.append((event["delta"].strip(), self.replies[-1].samples))
            case "response.output_audio.delta":
                self.replies[-1].take(base64.b64decode(event["delta"]), now_s)
            case "response.done":
                self.replies[-1].status = event["response"]["status"]
            case "error":
                self.errors.append(event["error"]["message"])


@asynccontextmanager
async def calling(
    http: aiohttp.ClientSession, url: str, name: str, *, agent: str = "assistant", stt: str = "tiny-stt"
) -> AsyncIterator[AgentCaller]:
    """Open a call to an agent with the recogniser ``stt``; the caller sends silence while no speech is
    queued.

    Raises:
        aiohttp.ClientError: the server refuses it.
        CallError: it ended at once.
    """
    async with http.ws_connect(f"{url}/v1/realtime?model={agent}", max_msg_size=0) as ws:
        caller = AgentCaller(ws, name)
        tasks = [asyncio.ensure_future(caller.listen())]
        try:
            await caller.configure(stt)
            tasks.append(asyncio.ensure_future(caller.speak()))
            yield caller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def at_any_phase(chance: random.Random, pcm: FloatArray) -> FloatArray:
    """Return the speech after a random silence, shorter than the audio of an event, so that it starts at a
    random phase of the server's frames."""
    return np.concatenate([np.zeros(chance.randrange(STEP), np.float32), pcm])
