"""A spoken exchange by LiveKit's PersonaPlex client, unchanged, on ``/api/chat``; prints JSON.

python personaplex_chat.py BASE_URL QUESTION.pcm [PERSONA]      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.utils import http_context
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities, TextOutput
from livekit.plugins.nvidia.experimental.realtime import RealtimeModel

STEP_BYTES = 960  # 20 ms
STEP_S = 0.02


class Microphone(AudioInput):
    """Audio that is put in."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self.frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def __anext__(self) -> rtc.AudioFrame:
        return await self.frames.get()


class Speaker(AudioOutput):
    """Plays at once, and keeps how loud each frame was."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(label="speaker", capabilities=AudioOutputCapabilities(pause=True))
        self._met = met
        self._played_s = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        pcm = memoryview(frame.data).cast("B").cast("h")
        self._met["audio"].append(max(max(pcm), -min(pcm)))
        self._played_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._played_s:
            self.on_playback_finished(playback_position=self._played_s, interrupted=False)
            self._played_s = 0.0

    def clear_buffer(self) -> None:
        self.flush()


class Subtitles(TextOutput):
    """Keeps the model's words as they come."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(label="subtitles", next_in_chain=None)
        self._met = met

    async def capture_text(self, text: str) -> None:
        self._met["transcript"] += text

    def flush(self) -> None:
        """There is nothing to wait for."""


class Warnings(logging.Handler):
    """Keeps what the client warns of."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(logging.WARNING)
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        self._met["warnings"].append(self.format(record))


async def talk(address: str, question: bytes, persona: str) -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, and end."""
    met: dict[str, Any] = {"transcript": "", "audio": [], "errors": [], "warnings": []}
    logging.getLogger().addHandler(Warnings(met))
    model = RealtimeModel(base_url=address, voice="NATF2", text_prompt=persona)
    session: AgentSession[None] = AgentSession(llm=model, turn_handling={"turn_detection": "manual"})
    microphone = Microphone()
    session.input.audio = microphone
    session.output.audio = Speaker(met)
    session.output.transcription = Subtitles(met)
    session.on("error", lambda event: met["errors"].append(str(event.error)))
    # Instructions other than the model's would open a second connection.
    await session.start(Agent(instructions=persona))

    async def say(pcm: bytes, *, until: str = "") -> None:
        heard, quiet_s = len(met["audio"]), 0.0
        for start in range(0, len(pcm), STEP_BYTES):
            data = pcm[start : start + STEP_BYTES].ljust(STEP_BYTES, b"\0")
            microphone.frames.put_nowait(rtc.AudioFrame(data, 24000, 1, STEP_BYTES // 2))
            await asyncio.sleep(STEP_S)
            new, heard = met["audio"][heard:], len(met["audio"])
            is_loud = any(level > 1000 for level in new)
            quiet_s = 0.0 if is_loud or not met["transcript"] else quiet_s + STEP_S
            if (until == "it speaks" and is_loud) or (until == "it has spoken" and quiet_s > 2):
                return

    silence = bytes(48_000 * 60)
    await say(question)
    await say(silence, until="it has spoken")
    met["answer"] = met["transcript"]
    await say(question)
    await say(silence, until="it speaks")
    await say(question)
    await say(silence, until="it has spoken")
    await session.aclose()
    return met


async def main(address: str, question: bytes, persona: str) -> dict[str, Any]:
    """A conversation, with the HTTP session that LiveKit's worker would have opened."""
    async with http_context.open():
        return await talk(address, question, persona)


if __name__ == "__main__":
    _, base_url, question_file, *rest = sys.argv
    pcm = Path(question_file).read_bytes()
    print(json.dumps(asyncio.run(main(base_url, pcm, *(rest or ["You are a friend."])))))  # noqa: T201
