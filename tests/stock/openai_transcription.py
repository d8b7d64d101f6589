"""Transcription by the ``openai`` package over Realtime, unchanged, in its own environment; prints JSON.

python openai_transcription.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

STEP_BYTES = 4800  # 100 ms
STEP_S = 0.1


async def listen(base_url: str, question: bytes, model: str) -> dict[str, Any]:
    """Say the question twice: turns by the server's detection, then by a commit."""
    met: dict[str, Any] = {"transcripts": [], "deltas": "", "errors": [], "types": []}
    client = AsyncOpenAI(base_url=base_url, api_key="any key")
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        heard: dict[str, Any] = {"transcription": {"model": model}}
        await connection.session.update(session={"type": "transcription", "audio": {"input": heard}})

        async def read() -> None:
            async for event in connection:
                met["types"].append(event.type)
                if event.type == "session.updated":
                    met["session"] = event.session.model_dump(mode="json")
                elif event.type == "conversation.item.input_audio_transcription.delta":
                    met["deltas"] += event.delta
                elif event.type == "conversation.item.input_audio_transcription.completed":
                    met["transcripts"].append([event.transcript, event.usage.seconds])
                elif event.type == "error":
                    met["errors"].append(event.error.message)

        async def say(pcm: bytes) -> None:
            for start in range(0, len(pcm), STEP_BYTES):
                audio = base64.b64encode(pcm[start : start + STEP_BYTES]).decode()
                await connection.input_audio_buffer.append(audio=audio)
                await asyncio.sleep(STEP_S)

        reading = asyncio.create_task(read())
        second = bytes(48_000)
        await say(question + 3 * second)
        async with asyncio.timeout(120):
            while not met["transcripts"]:  # of a server that is behind
                await say(second)
        heard["turn_detection"] = None
        await connection.session.update(session={"type": "transcription", "audio": {"input": heard}})
        await say(question)
        await connection.input_audio_buffer.commit()
        async with asyncio.timeout(120):
            while len(met["transcripts"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(STEP_S)
        await connection.close()
        await asyncio.wait_for(reading, 120)
    return met


if __name__ == "__main__":
    _, url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(listen(url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
