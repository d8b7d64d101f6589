"""A spoken exchange by LiveKit's ``GPTLiveModel``, unchanged, in its own environment; prints JSON.

python livekit_live.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
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
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins.openai.realtime import GPTLiveModel

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
    """Plays at once, and keeps how loud each segment was."""

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
            self._met["segments"].append(round(self._played_s, 2))
            self.on_playback_finished(playback_position=self._played_s, interrupted=False)
            self._played_s = 0.0

    def clear_buffer(self) -> None:
        self.flush()


class Warnings(logging.Handler):
    """Keeps what the client warns of."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(logging.WARNING)
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        self._met["warnings"].append(record.getMessage())


async def talk(url: str, question: bytes, model: str) -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, and end."""
    met: dict[str, Any] = {
        "transcript": "",
        "audio": [],
        "errors": [],
        "warnings": [],
        "segments": [],
        "items": [],
    }
    logging.getLogger().addHandler(Warnings(met))
    live = GPTLiveModel(base_url=url, api_key="any key", model=model, delegation="client")
    session: AgentSession[None] = AgentSession(llm=live)
    microphone = Microphone()
    session.input.audio = microphone
    session.output.audio = Speaker(met)
    session.on("error", lambda event: met["errors"].append(str(event.error)))

    def added(event: Any) -> None:
        if event.item.type == "message":
            met["items"].append([event.item.role, event.item.text_content])
            met["transcript"] += event.item.text_content or ""

    session.on("conversation_item_added", added)
    await session.start(Agent(instructions=""))

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
    await live.aclose()
    return met


if __name__ == "__main__":
    _, base_url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(base_url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
