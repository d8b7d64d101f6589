"""Refusals by the REST routes as the ``openai`` package reports them; prints JSON.

python openai_rest_refusals.py BASE_URL KEY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from openai import APIStatusError, OpenAI

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\1\0\0\0\2\0\0\0\2\0\x10\0data\0\0\0\0"
"""A header of 1 Hz."""


def said(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except APIStatusError as error:
        waits = error.response.headers.get("retry-after")
        end = "" if waits is None else f" (Retry-After: {waits})"
        words = dict(error.body)["message"]
        return f"{type(error).__name__} {error.status_code} {error.code}, {error.param}: {words}{end}"
    return "no error"


def main(base_url: str, key: str) -> dict[str, str]:
    client = OpenAI(base_url=base_url, api_key=key, max_retries=0)
    speak: dict[str, Any] = {"model": "tiny-tts", "voice": "alloy", "input": "hello"}
    hear: dict[str, Any] = {"model": "tiny-stt", "file": ("a.wav", b"RIFF")}
    speech, transcripts = client.audio.speech, client.audio.transcriptions
    return {
        "wrong key": said(lambda: OpenAI(base_url=base_url, api_key="no", max_retries=0).models.list()),
        "unknown model": said(lambda: speech.create(**speak | {"model": "tts-1"})),
        "model of another kind": said(lambda: transcripts.create(**hear | {"model": "tiny-tts"})),
        "model that is not there": said(lambda: client.models.retrieve("gpt-9")),
        "no words": said(lambda: speech.create(**speak | {"input": " "})),
        "no word that can be said": said(lambda: speech.create(**speak | {"input": "😀"})),
        "speed": said(lambda: speech.create(**speak | {"speed": 5})),
        "format": said(lambda: speech.create(**speak | {"response_format": "m4b"})),
        "no recording": said(lambda: transcripts.create(**hear)),
        "rate": said(lambda: transcripts.create(**hear | {"file": ("a.wav", WAV)})),
        "speakers": said(lambda: transcripts.create(**hear | {"response_format": "diarized_json"})),
        "words without times": said(lambda: transcripts.create(**hear, timestamp_granularities=["word"])),
        "translation": said(lambda: client.audio.translations.create(**hear)),
        "too large": said(lambda: transcripts.create(**hear | {"file": ("a.wav", bytes(300_000))})),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
