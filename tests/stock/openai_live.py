"""A spoken exchange by the ``openai`` package, unchanged, in its own environment; prints JSON.

python openai_live.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
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


async def talk(base_url: str, question: bytes, model: str) -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, and close."""
    met: dict[str, Any] = {"transcript": "", "heard": "", "audio": [], "errors": [], "types": []}
    client = AsyncOpenAI(base_url=base_url, api_key="any key")
    met["models"] = [it.id async for it in client.models.list()]
    async with client.live.connect() as connection:
        await connection.session.start(session={"model": model})
        started = asyncio.Event()
        closed = asyncio.Event()

        async def listen() -> None:
            async for event in connection:
                if event.type not in met["types"]:
                    met["types"].append(event.type)
                if event.type == "session.started":
                    met["session"] = event.session.model_dump(exclude_none=True)
                    started.set()
                elif event.type == "session.output_audio.delta":
                    pcm = memoryview(base64.b64decode(event.delta)).cast("h")
                    met["audio"].append(max(max(pcm), -min(pcm)))
                elif event.type == "session.output_transcript.delta":
                    met["transcript"] += event.delta
                elif event.type == "session.input_transcript.delta":
                    met["heard"] += event.delta
                elif event.type == "error":
                    met["errors"].append(event.error.message)
                elif event.type == "session.closed":
                    met["closed"] = {"reason": event.reason, "seconds": event.usage.seconds}
                    closed.set()

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(started.wait(), 120)

        async def say(pcm: bytes, *, until: str = "") -> None:
            heard, quiet_s = len(met["audio"]), 0.0
            for start in range(0, len(pcm), STEP_BYTES):
                audio = base64.b64encode(pcm[start : start + STEP_BYTES]).decode()
                await connection.session.input_audio.append(audio=audio)
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
        await connection.session.close()
        await asyncio.wait_for(closed.wait(), 120)
        await asyncio.wait_for(listening, 120)
    return met


if __name__ == "__main__":
    _, url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
