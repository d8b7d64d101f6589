"""Run a pipecat pipeline on OpenAI Live with a recording as the microphone; print the answer.

pip install "pipecat-ai[openai]"
python pipecat_agent.py question.wav ws://127.0.0.1:8998/v1      a WAV file of 24 kHz, mono, 16 bits
"""

import asyncio
import sys
import wave

from loguru import logger
from pipecat.frames.frames import EndFrame, InputAudioRawFrame, LLMContextFrame, TTSTextFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.workers.runner import WorkerRunner

STEP_BYTES = 1920  # 40 ms
LISTEN_S = 4


class Transcript(FrameProcessor):
    """Collects the text of the reply."""

    text = ""

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSTextFrame):
            self.text += frame.text
        await self.push_frame(frame, direction)


async def ask(recording, url):
    """Run one pipeline until the silence after the recording is over; return the text of the reply."""
    service = OpenAILiveLLMService(
        api_key="any key",
        base_url=f"{url}/live/sessions",
        settings=OpenAILiveLLMService.Settings(model="tiny"),
    )
    started = asyncio.Event()

    @service.event_handler("on_session_started")
    async def session_started(_service, _session):
        started.set()

    transcript = Transcript()
    worker = PipelineWorker(Pipeline([service, transcript]), cancel_on_idle_timeout=False)

    async def caller():
        await worker.queue_frame(LLMContextFrame(LLMContext()))
        await asyncio.wait_for(started.wait(), 60)
        audio = recording + bytes(48_000 * LISTEN_S)
        for start in range(0, len(audio), STEP_BYTES):
            step = audio[start : start + STEP_BYTES]
            await worker.queue_frame(InputAudioRawFrame(audio=step, sample_rate=24_000, num_channels=1))
            await asyncio.sleep(0.04)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), caller())
    return transcript.text.strip()


logger.remove()
logger.add(sys.stderr, level="WARNING")
try:
    path, url = sys.argv[1:]
    with wave.open(path) as file:
        form, question = file.getparams()[:3], file.readframes(file.getnframes())
    if form != (1, 2, 24_000):
        raise ValueError(f"{path} is not 24 kHz, mono, 16 bits")
except (OSError, EOFError, ValueError, wave.Error) as error:
    print(f"usage: python pipecat_agent.py QUESTION.wav ws://127.0.0.1:8998/v1\n{error}", file=sys.stderr)
    sys.exit(2)
print(asyncio.run(ask(question, url)))
