"""A spoken exchange by a realtime agent of ``openai-agents``, unchanged, in its environment; prints JSON.

python agents_realtime.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz, with a loud end
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

STEP_BYTES = 4800  # 100 ms
STEP_S = 0.1
SLOW_S = 0.5
ANSWERS_WITH_TOOLS = 3
"""Responses to the first question: the calls, and one for the output of each."""


class Warnings(logging.Handler):
    """Keeps what the client warns of."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__(logging.WARNING)
        self._met = met

    def emit(self, record: logging.LogRecord) -> None:
        self._met["warnings"].append(record.getMessage())


def tools_of(met: dict[str, Any]) -> list[Any]:
    """Two tools, one of them slow."""

    @function_tool
    async def weather(at: str) -> str:
        """How the weather is."""
        met["calls"].append(["weather", at])
        return "clear"

    @function_tool
    async def slow() -> str:
        """What takes a while."""
        await asyncio.sleep(SLOW_S)
        met["calls"].append(["slow", ""])
        return "done"

    return [weather, slow]


class Talk:
    """One session: what came, and what is to be said."""

    def __init__(self, session: Any, question: bytes, met: dict[str, Any]) -> None:
        self.session, self.question, self.met = session, question, met
        self.pending, self.ended = question, 0
        self.is_over = asyncio.Event()

    async def speak(self) -> None:
        """What is to be said, else silence, at the pace of speech."""
        while not self.is_over.is_set():
            step, self.pending = self.pending[:STEP_BYTES].ljust(STEP_BYTES, b"\0"), self.pending[STEP_BYTES:]
            await self.session.send_audio(step)
            await asyncio.sleep(STEP_S)

    async def listen(self) -> None:
        """Ask again once the tools are answered, talk over that answer, and leave after the next."""
        may_interrupt = False
        async for event in self.session:
            if event.type == "error":
                self.met["errors"].append(str(event.error))
            elif event.type == "audio" and may_interrupt:
                may_interrupt, self.pending = False, self.question
            elif event.type == "audio_interrupted":
                self.met["interrupted"] += 1
            elif event.type == "history_updated":
                self.met["history"] = [shown(item) for item in event.history if item.type == "message"]
            elif event.type == "agent_end":
                self.ended += 1
                if self.ended == ANSWERS_WITH_TOOLS:
                    may_interrupt, self.pending = True, self.question
                if self.ended == ANSWERS_WITH_TOOLS + 2:
                    self.is_over.set()
                    return


def shown(item: Any) -> list[str]:
    """Who said what."""
    return [item.role, "".join(filter(None, (getattr(it, "transcript", None) for it in item.content)))]


async def talk(base_url: str, question: bytes, model: str) -> dict[str, Any]:
    met: dict[str, Any] = {"errors": [], "warnings": [], "calls": [], "history": [], "interrupted": 0}
    logging.getLogger().addHandler(Warnings(met))
    agent = RealtimeAgent(name="assistant", instructions="Be kind.", tools=tools_of(met))
    settings = {"model_name": model}
    runner = RealtimeRunner(agent, config={"tracing_disabled": True, "model_settings": settings})
    url = f"{base_url.replace('http', 'ws', 1)}/realtime?model={model}"
    async with await runner.run(model_config={"url": url, "api_key": "any key"}) as session:
        talking = Talk(session, question, met)
        speaking = asyncio.create_task(talking.speak())
        await asyncio.wait_for(talking.listen(), 300)
        await speaking
    return met


if __name__ == "__main__":
    _, url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
