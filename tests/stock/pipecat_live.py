"""A spoken exchange by pipecat's ``OpenAILiveLLMService``, unchanged, in its own environment; prints JSON.

python pipecat_live.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    SpeechOutputAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.workers.runner import WorkerRunner

STEP_BYTES = 1920  # 40 ms
STEP_S = 0.04


class Hearer(FrameProcessor):
    """Keeps what comes down the pipeline."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__()
        self._met = met

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, SpeechOutputAudioRawFrame):
            pcm = memoryview(frame.audio).cast("h")
            self._met["audio"].append(max(max(pcm), -min(pcm)))
        elif isinstance(frame, TTSTextFrame):
            self._met["transcript"] += frame.text
        await self.push_frame(frame, direction)


async def talk(url: str, question: bytes, model: str) -> dict[str, Any]:
    """Ask, hear the answer, ask again, talk over that answer, and end."""
    met: dict[str, Any] = {"transcript": "", "audio": [], "errors": [], "warnings": []}
    logger.remove()
    logger.add(lambda line: met["warnings"].append(str(line)), level="WARNING", format="{message}")
    service = OpenAILiveLLMService(
        api_key="any key",
        base_url=url.replace("http", "ws", 1) + "/live/sessions",
        settings=OpenAILiveLLMService.Settings(model=model),
    )
    started = asyncio.Event()

    @service.event_handler("on_session_started")
    async def _started(_service: Any, session: Any) -> None:
        met["session"] = session.id
        started.set()

    worker = PipelineWorker(Pipeline([service, Hearer(met)]), cancel_on_idle_timeout=False)

    @worker.event_handler("on_pipeline_error")
    async def _error(_worker: Any, frame: ErrorFrame) -> None:
        met["errors"].append(frame.error)

    async def say(pcm: bytes, *, until: str = "") -> None:
        heard, quiet_s = len(met["audio"]), 0.0
        for start in range(0, len(pcm), STEP_BYTES):
            await worker.queue_frame(
                InputAudioRawFrame(audio=pcm[start : start + STEP_BYTES], sample_rate=24000, num_channels=1)
            )
            await asyncio.sleep(STEP_S)
            new, heard = met["audio"][heard:], len(met["audio"])
            is_loud = any(level > 1000 for level in new)
            quiet_s = 0.0 if is_loud or not met["transcript"] else quiet_s + STEP_S
            if (until == "it speaks" and is_loud) or (until == "it has spoken" and quiet_s > 2):
                return

    async def caller() -> None:
        await worker.queue_frame(LLMContextFrame(LLMContext()))
        await asyncio.wait_for(started.wait(), 120)
        silence = bytes(48_000 * 60)
        await say(question)
        await say(silence, until="it has spoken")
        met["answer"] = met["transcript"]
        await say(question)
        await say(silence, until="it speaks")
        await say(question)
        await say(silence, until="it has spoken")
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.wait_for(asyncio.gather(runner.run(), caller()), 300)
    return met


if __name__ == "__main__":
    _, base_url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(talk(base_url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
