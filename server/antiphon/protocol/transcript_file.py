"""Writes a transcript in the formats of OpenAI's clients: a file in one of five formats, or events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from antiphon.protocol.captions import Segment, TimedWord, as_srt, as_vtt, segments_of, text_of
from antiphon.protocol.payload import encode_object
from antiphon.protocol.speech_request import sse
from antiphon.protocol.transcription_request import TranscriptionRequest

CONTENT_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "json": "application/json",
        "verbose_json": "application/json",
        "text": "text/plain",
        "srt": "application/x-subrip",
        "vtt": "text/vtt",
    }
)

UNKNOWN_LANGUAGE: Final = "und"
"""ISO 639 code for an undetermined language. No supported model detects the language."""

_UNMEASURED: Final[Mapping[str, Any]] = MappingProxyType(
    {"tokens": (), "temperature": 0.0, "avg_logprob": 0.0, "compression_ratio": 1.0, "no_speech_prob": 0.0}
)
"""Fields of a segment that clients require. Their constant values pass every filter for bad segments."""


@dataclass(frozen=True, slots=True)
class Written:
    """All words of a recording, which is ``seconds`` long."""

    words: Sequence[TimedWord]
    seconds: float


def encode_transcript(order: TranscriptionRequest, written: Written) -> bytes:
    """The transcript as a file in the requested format."""
    segments = segments_of(written.words)
    match order.format:
        case "text":
            return f"{text_of(written.words)}\n".encode()
        case "srt":
            return as_srt(segments).encode()
        case "vtt":
            return as_vtt(segments).encode()
        case "verbose_json":
            return encode_object(_verbose(order, written, segments), "a transcript")
        case _:
            answer = {"text": text_of(written.words), "usage": _usage(written)}
            return encode_object(answer, "a transcript")


def text_delta(word: str, *, is_first: bool) -> bytes:
    """The event for one more word."""
    return sse({"type": "transcript.text.delta", "delta": word if is_first else f" {word}"})


def text_done(order: TranscriptionRequest, written: Written) -> bytes:
    """The end event, with the text and the fields of ``verbose_json``."""
    rest: dict[str, Any] = {"text": text_of(written.words), "usage": _usage(written)}
    if order.format == "verbose_json":
        rest = _verbose(order, written, segments_of(written.words))
    return sse({"type": "transcript.text.done", **rest})


def _usage(written: Written) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(written.seconds, 2)}


def _verbose(order: TranscriptionRequest, written: Written, segments: Sequence[Segment]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": order.language or UNKNOWN_LANGUAGE,
        "duration": round(written.seconds, 2),
        "text": text_of(written.words),
        "usage": _usage(written),
    }
    if "segment" in order.granularities:
        answer["segments"] = [
            {"id": index, "seek": 0, "start": it.start_s, "end": it.stop_s, "text": it.text, **_UNMEASURED}
            for index, it in enumerate(segments)
        ]
    if "word" in order.granularities:
        answer["words"] = [
            {"word": it.text.strip(), "start": it.start_s, "end": it.stop_s} for it in written.words
        ]
    return answer
