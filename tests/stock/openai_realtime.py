"""A spoken exchange by the ``openai`` package over Realtime, unchanged, in its own environment; prints JSON.

python openai_realtime.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter, ValidationError

STEP_BYTES = 4800  # 100 ms
STEP_S = 0.1


EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


def check(event: Any, invalid: list[str]) -> None:
    """Read an event once more, strictly: the package itself reads leniently."""
    try:
        EVENTS.validate_python(event.model_dump(mode="json", exclude_unset=True))
    except ValidationError as error:
        invalid.append(f"{event.type}: {error}")


async def talk(base_url: str, question: bytes, model: str) -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, ask for an answer, and leave."""
    met: dict[str, Any] = {
        "answers": [],
        "audio": [],
        "errors": [],
        "events": [],
        "status": [],
        "invalid": [],
    }
    client = AsyncOpenAI(base_url=base_url, api_key="any key")
    async with client.realtime.connect(model=model) as connection:
        created = await connection.recv()
        check(created, met["invalid"])
        met["created"] = created.session.model_dump(mode="json", exclude_none=True)
        await connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        updated = asyncio.Event()

        async def listen() -> None:
            async for event in connection:
                check(event, met["invalid"])
                met["events"].append(event.type)
                if event.type == "session.updated":
                    updated.set()
                elif event.type == "response.output_audio.delta":
                    pcm = memoryview(base64.b64decode(event.delta)).cast("h")
                    met["audio"].append(max(max(pcm), -min(pcm)))
                elif event.type == "response.output_audio_transcript.done":
                    met["answers"].append(event.transcript)
                elif event.type == "response.done":
                    met["status"].append([event.response.status, event.response.metadata])
                elif event.type == "error":
                    met["errors"].append(event.error.message)

        listening = asyncio.create_task(listen())
        await asyncio.wait_for(updated.wait(), 120)

        async def say(pcm: bytes, *, until_it_speaks: bool = False) -> None:
            before = len(met["audio"])
            for start in range(0, len(pcm), STEP_BYTES):
                audio = base64.b64encode(pcm[start : start + STEP_BYTES]).decode()
                await connection.input_audio_buffer.append(audio=audio)
                await asyncio.sleep(STEP_S)
                if until_it_speaks and any(level > 1000 for level in met["audio"][before:]):
                    return

        second = bytes(48_000)
        silence = 4 * second

        async def say_until(count: int) -> None:
            """The question, and silence: four seconds, and more where the server is behind."""
            await say(question + silence)
            async with asyncio.timeout(120):
                while len(met["status"]) < count:
                    await say(second)

        await say_until(1)
        await connection.response.create(response={"metadata": {"topic": "names"}})
        await say(question)
        await say(silence, until_it_speaks=True)
        await say_until(2)
        await connection.close()
        await asyncio.wait_for(listening, 120)
    return met


if __name__ == "__main__":
    _, url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
