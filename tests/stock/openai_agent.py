"""Calls of a voice agent by the ``openai`` package over Realtime, with two tools; prints JSON.

python openai_agent.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz, with a loud end
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
SLOW_S = 0.5
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "slow")]
EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


class Talk:
    """One session: what came, and what of it the package's own types do not allow."""

    def __init__(self, connection: Any, question: bytes) -> None:
        self.connection, self.question = connection, question
        self.met: dict[str, Any] = {
            "errors": [],
            "invalid": [],
            "statuses": [],
            "calls": [],
            "transcripts": [],
        }
        self.pending = b""
        self.said = ""
        self.has_sound, self.is_over = asyncio.Event(), asyncio.Event()

    async def speak(self) -> None:
        """What is to be said, else silence, at the pace of speech."""
        while not self.is_over.is_set():
            step, self.pending = self.pending[:STEP_BYTES].ljust(STEP_BYTES, b"\0"), self.pending[STEP_BYTES:]
            await self.connection.input_audio_buffer.append(audio=base64.b64encode(step).decode())
            await asyncio.sleep(STEP_S)

    async def answer(self, call: Any) -> None:
        """Run a tool, and bring its output."""
        await asyncio.sleep(SLOW_S if call.name == "slow" else 0)
        self.met["calls"].append([call.name, json.loads(call.arguments)])
        output = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
        await self.connection.conversation.item.create(item=output)

    async def listen(self) -> None:
        async for event in self.connection:
            try:
                EVENTS.validate_python(event.model_dump(mode="json", exclude_unset=True))
            except ValidationError as error:
                self.met["invalid"].append(f"{event.type}: {error}")
            if event.type == "error":
                self.met["errors"].append(event.error.message)
            elif event.type == "response.output_audio_transcript.delta":
                self.said += event.delta
            elif event.type == "response.output_audio.delta":
                self.has_sound.set()
            elif event.type == "response.done":
                await self.go_on(event.response)
                if self.is_over.is_set():
                    return

    async def go_on(self, response: Any) -> None:
        """Answer tools; then ask again, talk over that answer, and leave after the next."""
        reason = None if response.status_details is None else response.status_details.reason
        self.met["statuses"].append([response.status, reason])
        self.met["transcripts"].append(self.said)
        self.said = ""
        calls = [item for item in response.output if item.type == "function_call"]
        if calls:
            await asyncio.gather(*map(self.answer, calls))
            await self.connection.response.create()
        elif len(self.met["statuses"]) == 2:
            self.has_sound.clear()
            self.pending = self.question
            asyncio.get_running_loop().create_task(self.interrupt())
        elif response.status == "completed":
            self.is_over.set()

    async def interrupt(self) -> None:
        await self.has_sound.wait()
        self.pending = self.question


async def talk(base_url: str, question: bytes, model: str) -> dict[str, Any]:
    client = AsyncOpenAI(base_url=base_url, api_key="any key")
    async with client.realtime.connect(model=model) as connection:
        talking = Talk(connection, question)
        session = {"type": "realtime", "tools": TOOLS, "instructions": "Be kind."}
        await connection.session.update(session=session)
        talking.pending = question
        speaking = asyncio.create_task(talking.speak())
        await asyncio.wait_for(talking.listen(), 300)
        await speaking
    return talking.met


if __name__ == "__main__":
    _, url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
