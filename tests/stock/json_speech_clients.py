"""Clients of the JSON speech dialect, unchanged, in their own environments; prints JSON.

python json_speech_clients.py CLIENT HOST:PORT QUESTION.wav     CLIENT: sdk, pipecat or livekit
"""

from __future__ import annotations

import asyncio
import json
import sys
import wave
from pathlib import Path
from typing import Any

TEXT = "five plus four is nine"
PATIENCE_S = 120.0


def samples_of(question: Path) -> bytes:
    """The question at 24 kHz."""
    with wave.open(str(question), "rb") as file:
        assert file.getframerate() == 24_000
        return file.readframes(file.getnframes())


async def sdk(host: str, question: Path) -> dict[str, Any]:
    """The SDK: a recording, a text, and both again as they come."""
    import gradium

    client = gradium.client.GradiumClient(base_url=f"{host}/api/", api_key="any key")
    heard = await client.stt(
        {"model_name": "default", "input_format": "wav"}, await asyncio.to_thread(question.read_bytes)
    )
    spoken = await client.tts({"model_name": "default", "output_format": "pcm"}, TEXT)
    met: dict[str, Any] = {
        "text": heard.text,
        "rate": spoken.sample_rate,
        "whole_s": len(spoken.raw_data) / 2 / (spoken.sample_rate or 1),
        "words": [it.text for it in spoken.text_with_timestamps],
        "flushed": [],
        "vad": 0,
    }
    pcm, words = samples_of(question), []
    async with client.stt_realtime(model_name="default", input_format="pcm") as stt:
        for at in range(0, len(pcm), 3840):
            await stt.send_audio(pcm[at : at + 3840])
        await stt.send_flush(7)
        async for message in stt:
            if message["type"] == "text":
                words.append(message["text"])
            elif message["type"] == "step":
                met["vad"] = max(met["vad"], len(message["vad"]))
            elif message["type"] == "flushed":
                met["flushed"].append(message["flush_id"])
                await stt.send_eos()
    met["live"] = " ".join(words)
    size = 0
    async with client.tts_realtime(model_name="default", output_format="pcm_24000") as tts:
        for word in TEXT.split():
            await tts.send_text(word)
        await tts.send_eos()
        async for message in tts:
            size += len(message["audio"]) if message["type"] == "audio" else 0
    met["live_s"] = size / 2 / 24_000
    return met


async def pipecat(host: str, question: Path) -> dict[str, Any]:
    """pipecat's two services in one pipeline: the question is written down, and two texts are spoken."""
    from pipecat.frames.frames import (
        EndFrame,
        ErrorFrame,
        Frame,
        InputAudioRawFrame,
        TranscriptionFrame,
        TTSAudioRawFrame,
        TTSSpeakFrame,
        TTSStoppedFrame,
        VADUserStoppedSpeakingFrame,
    )
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineParams, PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.gradium.stt import GradiumSTTService
    from pipecat.services.gradium.tts import GradiumTTSService
    from pipecat.workers.runner import WorkerRunner

    met: dict[str, Any] = {"transcripts": [], "bytes": 0, "stops": 0, "errors": []}

    class Reader(FrameProcessor):
        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            if isinstance(frame, TranscriptionFrame):
                met["transcripts"].append(frame.text)
            elif isinstance(frame, TTSAudioRawFrame):
                met["bytes"] += len(frame.audio)
            elif isinstance(frame, TTSStoppedFrame):
                met["stops"] += 1
            elif isinstance(frame, ErrorFrame):
                met["errors"].append(str(frame.error))
            await self.push_frame(frame, direction)

    stt = GradiumSTTService(api_key="x", api_endpoint_base_url=f"ws://{host}/api/speech/asr")
    tts = GradiumTTSService(api_key="x", url=f"ws://{host}/api/speech/tts")
    params = PipelineParams(audio_in_sample_rate=24000, audio_out_sample_rate=48000)
    worker = PipelineWorker(Pipeline([stt, tts, Reader()]), params=params, cancel_on_idle_timeout=False)

    async def caller() -> None:
        pcm = samples_of(question)
        for at in range(0, len(pcm), 3840):
            frame = InputAudioRawFrame(audio=pcm[at : at + 3840], sample_rate=24000, num_channels=1)
            await worker.queue_frame(frame)
            await asyncio.sleep(0.02)
        await worker.queue_frame(VADUserStoppedSpeakingFrame())
        for count in (1, 2):
            await worker.queue_frame(TTSSpeakFrame(TEXT))
            async with asyncio.timeout(PATIENCE_S):
                while met["stops"] < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE_S):
            while not met["transcripts"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.wait_for(asyncio.gather(runner.run(), caller()), 300)
    return met


async def livekit(host: str, question: Path) -> dict[str, Any]:
    """LiveKit's plugin: the question is written down, and a text is spoken."""
    import aiohttp
    from livekit import rtc
    from livekit.plugins import gradium

    met: dict[str, Any] = {"interim": [], "seconds": 0.0}
    async with aiohttp.ClientSession() as http:
        stt = gradium.STT(api_key="x", model_endpoint=f"ws://{host}/api/speech/asr", http_session=http)
        stream = stt.stream()
        pcm = samples_of(question)
        for at in range(0, len(pcm), 3840):
            piece = pcm[at : at + 3840]
            stream.push_frame(rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2))
        async with asyncio.timeout(PATIENCE_S):
            async for event in stream:
                if event.type == "interim_transcript":
                    met["interim"].append(event.alternatives[0].text)
                if len(met["interim"]) == 4:
                    break
        await stream.aclose()
        tts = gradium.TTS(api_key="x", model_endpoint=f"ws://{host}/api/speech/tts", http_session=http)
        async for audio in tts.synthesize(TEXT):
            met["seconds"] += audio.frame.duration
        await tts.aclose()
    return met


if __name__ == "__main__":
    which, address, wav = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    print(json.dumps(asyncio.run({"sdk": sdk, "pipecat": pipecat, "livekit": livekit}[which](address, wav))))  # noqa: T201
