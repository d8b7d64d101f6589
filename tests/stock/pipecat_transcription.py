"""Transcription by pipecat's ``OpenAIRealtimeSTTService``, unchanged, in its own environment; prints JSON.

python pipecat_transcription.py BASE_URL QUESTION.pcm MODEL      the question as PCM of 24 kHz
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
    InterimTranscriptionFrame,
    TranscriptionFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.workers.runner import WorkerRunner

STEP_BYTES = 1920  # 40 ms
STEP_S = 0.04
PARAMS = PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=24000)


class Reader(FrameProcessor):
    """Keeps what comes down the pipeline."""

    def __init__(self, met: dict[str, Any]) -> None:
        super().__init__()
        self._met = met

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterimTranscriptionFrame):
            self._met["deltas"] += frame.text
        elif isinstance(frame, TranscriptionFrame):
            self._met["transcripts"].append(frame.text)
        await self.push_frame(frame, direction)


async def listen(url: str, question: bytes, model: str) -> dict[str, Any]:
    """Say the question twice, and read."""
    met: dict[str, Any] = {"transcripts": [], "deltas": "", "errors": [], "warnings": []}
    logger.remove()
    logger.add(lambda line: met["warnings"].append(str(line)), level="WARNING", format="{message}")
    service = OpenAIRealtimeSTTService(
        api_key="any key",
        base_url=url.replace("http", "ws", 1) + "/realtime",
        settings=OpenAIRealtimeSTTService.Settings(model=model),
        turn_detection={"type": "server_vad"},
    )
    worker = PipelineWorker(Pipeline([service, Reader(met)]), params=PARAMS, cancel_on_idle_timeout=False)

    @worker.event_handler("on_pipeline_error")
    async def _error(_worker: Any, frame: ErrorFrame) -> None:
        met["errors"].append(frame.error)

    async def say(pcm: bytes) -> None:
        for start in range(0, len(pcm), STEP_BYTES):
            await worker.queue_frame(
                InputAudioRawFrame(audio=pcm[start : start + STEP_BYTES], sample_rate=24000, num_channels=1)
            )
            await asyncio.sleep(STEP_S)

    async def caller() -> None:
        second = bytes(48_000)
        await say(second)
        for count in (1, 2):
            await say(question + 3 * second)
            async with asyncio.timeout(120):
                while len(met["transcripts"]) < count:  # of a server that is behind
                    await say(second)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.wait_for(asyncio.gather(runner.run(), caller()), 300)
    return met


if __name__ == "__main__":
    _, base_url, question_file, model_name = sys.argv
    print(json.dumps(asyncio.run(listen(base_url, Path(question_file).read_bytes(), model_name))))  # noqa: T201
