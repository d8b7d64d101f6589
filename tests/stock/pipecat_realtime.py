"""A spoken exchange by pipecat's ``OpenAIRealtimeLLMService``, unchanged, in its environment; prints JSON.

python pipecat_realtime.py BASE_URL QUESTION.pcm MODEL [TOOL]      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

STEP_BYTES = 1920  # 40 ms
STEP_S = 0.04
PARAMS = PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=24000)


class Hearer(FrameProcessor):
    """Keeps what comes down the pipeline."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__()
        self._met = met

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            pcm = memoryview(frame.audio).cast("h")
            self._met["audio"].append(max(max(pcm), -min(pcm)))
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._met["answers"].append("")
        elif isinstance(frame, TTSTextFrame):
            self._met["answers"][-1] += frame.text
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._met["ended"] += 1
        self._met["frames"][type(frame).__name__] = self._met["frames"].get(type(frame).__name__, 0) + 1
        await self.push_frame(frame, direction)


def context_of(service: OpenAIRealtimeLLMService, tool: str, met: dict[str, Any]) -> LLMContext:
    """The conversation's begin, and a tool of this name, if any."""
    messages: Any = [{"role": "user", "content": "Hello."}]

    async def call(params: Any) -> None:
        met["calls"].append(params.arguments)
        await params.result_callback({"sky": "clear"})

    if not tool:
        return LLMContext(messages)
    service.register_function(tool, call)
    place = {"at": {"type": "string"}}
    schema = FunctionSchema(name=tool, description="How it is.", properties=place, required=["at"])
    return LLMContext(messages, tools=ToolsSchema(standard_tools=[schema]))


async def talk(url: str, question: bytes, model: str, tool: str = "") -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, and end."""
    met: dict[str, Any] = {"answers": [], "audio": [], "errors": [], "warnings": [], "ended": 0, "frames": {}}
    met["calls"] = []
    logger.remove()
    logger.add(lambda line: met["warnings"].append(str(line)), level="WARNING", format="{message}")
    service = OpenAIRealtimeLLMService(
        api_key="any key",
        base_url=url.replace("http", "ws", 1) + "/realtime",
        settings=OpenAIRealtimeLLMService.Settings(model=model),
    )
    context = context_of(service, tool, met)
    pair = LLMContextAggregatorPair(context)  # it asks for an answer to what a tool has said
    before, after = ([pair.user()], [pair.assistant()]) if tool else ([], [])
    pipeline = Pipeline([*before, service, Hearer(met), *after])
    worker = PipelineWorker(pipeline, params=PARAMS, cancel_on_idle_timeout=False)

    @worker.event_handler("on_pipeline_error")
    async def _error(_worker: Any, frame: ErrorFrame) -> None:
        met["errors"].append(frame.error)

    async def say(pcm: bytes, *, until_it_speaks: bool = False) -> None:
        before = len(met["audio"])
        for start in range(0, len(pcm), STEP_BYTES):
            await worker.queue_frame(
                InputAudioRawFrame(audio=pcm[start : start + STEP_BYTES], sample_rate=24000, num_channels=1)
            )
            await asyncio.sleep(STEP_S)
            if until_it_speaks and any(level > 1000 for level in met["audio"][before:]):
                return

    async def caller() -> None:
        await worker.queue_frame(LLMContextFrame(context))
        second = bytes(48_000)
        silence = 4 * second

        async def say_until(answers: int) -> None:
            """The question, and silence: four seconds, and more where the server is behind."""
            await say(question + silence)
            async with asyncio.timeout(120):
                while len([answer for answer in met["answers"] if answer]) < answers:
                    await say(second)

        await say(silence)
        await say_until(1)
        await say(question)
        await say(silence, until_it_speaks=True)
        await say_until(2)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.wait_for(asyncio.gather(runner.run(), caller()), 300)
    return met


if __name__ == "__main__":
    _, base_url, question_file, *names = sys.argv
    print(json.dumps(asyncio.run(talk(base_url, Path(question_file).read_bytes(), *names))))  # noqa: T201
