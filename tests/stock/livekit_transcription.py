"""Transcription by LiveKit's ``STT`` over Realtime, unchanged, in its own environment; prints JSON.

python livekit_transcription.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents.stt import SpeechEventType
from livekit.agents.utils import http_context
from livekit.plugins.openai import STT

STEP_BYTES = 960  # 20 ms
STEP_S = 0.02


class Warnings(logging.Handler):
    """Keeps what the client warns of."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(logging.WARNING)
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        self._met["warnings"].append(record.getMessage())


async def listen(url: str, question: bytes, model: str) -> dict[str, Any]:
    """Say the question twice, and read."""
    met: dict[str, Any] = {"transcripts": [], "interim": [], "warnings": [], "speech": [], "errors": []}
    logging.getLogger().addHandler(Warnings(met))
    async with aiohttp.ClientSession():
        http_context._new_session_ctx()
        recogniser = STT(base_url=url, api_key="any key", model=model, use_realtime=True)
        stream = recogniser.stream()

        async def read() -> None:
            async for event in stream:
                if event.type == SpeechEventType.FINAL_TRANSCRIPT:
                    met["transcripts"].append(event.alternatives[0].text)
                elif event.type == SpeechEventType.INTERIM_TRANSCRIPT:
                    met["interim"].append(event.alternatives[0].text)
                elif event.type in (SpeechEventType.START_OF_SPEECH, SpeechEventType.END_OF_SPEECH):
                    met["speech"].append(event.type.value)

        reading = asyncio.create_task(read())

        async def say(pcm: bytes) -> None:
            for start in range(0, len(pcm), STEP_BYTES):
                data = pcm[start : start + STEP_BYTES].ljust(STEP_BYTES, b"\0")
                stream.push_frame(rtc.AudioFrame(data, 24000, 1, STEP_BYTES // 2))
                await asyncio.sleep(STEP_S)

        second = bytes(48_000)
        await say(second)
        for count in (1, 2):
            await say(question + 3 * second)
            async with asyncio.timeout(120):
                while len(met["transcripts"]) < count:  # of a server that is behind
                    await say(second)
        await stream.aclose()
        reading.cancel()
        await recogniser.aclose()
        await http_context._close_http_ctx()
    return met


if __name__ == "__main__":
    _, base_url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(listen(base_url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
