"""Speech, transcripts, models and voices by the ``openai`` package, unchanged; prints JSON.

python openai_rest.py BASE_URL RECORDING
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
TEXT = "what is your name"


def speak(client: OpenAI, folder: Path) -> dict[str, Any]:
    """The same text in every format, streamed to files; then at another speed, and in events."""
    met: dict[str, Any] = {}
    for name in FORMATS:
        with client.audio.speech.with_streaming_response.create(
            model="tiny-tts", voice="alloy", input=TEXT, response_format=name
        ) as speech:
            speech.stream_to_file(folder / f"speech.{name}")
            met[name] = {"type": speech.headers["content-type"], "path": str(folder / f"speech.{name}")}
    slow = client.audio.speech.create(
        model="tiny-tts", voice="alloy", input=TEXT, response_format="pcm", speed=0.5, instructions="Whisper."
    )
    met["slow"] = {"bytes": len(slow.content), "ignored": slow.response.headers["antiphon-ignored"]}
    with client.audio.speech.with_streaming_response.create(
        model="tiny-tts", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse"
    ) as events:
        met["events"] = [json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line]
    return met


def write_down(client: OpenAI, recording: Path) -> dict[str, Any]:
    """The same recording in every format, and as a stream."""
    met: dict[str, Any] = {}
    with recording.open("rb") as file:
        transcript = client.audio.transcriptions.create(model="tiny-stt", file=file)
    met["json"] = transcript.to_dict()
    for name in ("text", "srt", "vtt"):
        met[name] = client.audio.transcriptions.create(model="tiny-stt", file=recording, response_format=name)
    verbose = client.audio.transcriptions.create(
        model="tiny-stt",
        file=recording,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="en",
        prompt="A question.",
    )
    met["verbose_json"] = verbose.to_dict()
    stream = client.audio.transcriptions.create(model="tiny-stt", file=recording, stream=True)
    met["stream"] = [event.to_dict() for event in stream]
    return met


def main(base_url: str, recording: Path) -> dict[str, Any]:
    """All of it."""
    client = OpenAI(base_url=base_url, api_key="any key")
    met = {"models": [model.id for model in client.models.list()]}
    return met | {
        "model": client.models.retrieve("tiny-tts").to_dict(),
        "voices": client.get("/audio/voices", cast_to=dict[str, Any]),
        "speech": speak(client, recording.parent),
        "transcripts": write_down(client, recording),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))  # noqa: T201
