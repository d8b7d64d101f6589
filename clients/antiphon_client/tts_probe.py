"""``antiphon probe --protocol tts``: measures the delay and the speed of speech synthesis in many concurrent
sessions.

Each session sends its whole text and then the end of the text, like Kyutai's client. Audio is received as
``PcmMessagePack``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from antiphon.audio.wav import write_wav
from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai, kyutai_tts
from antiphon_client.arguments import ProbeOptions
from antiphon_client.encoding import SAMPLE_RATE
from antiphon_client.measures import Distribution, playback_gaps_s

SCHEMA = "antiphon.probe-tts/1"
TEXT = (
    "Hello, this is a test of a text to speech system. It says a few plain sentences, one after the other, "
    "so that there is something to be measured."
)
MAX_MESSAGE_BYTES = 1 << 20
STALL_S = 30.0
"""Seconds without a message after which a started session has failed."""


@dataclass(slots=True)
class TtsRecord:
    """Audio of one session with its times of arrival, on the client's clock."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    arrived_s: list[float] = field(default_factory=list)
    pieces: list[np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=list)
    words: list[kyutai_tts.Spoken] = field(default_factory=list)
    is_ready: bool = False
    error: str = ""

    def hear(self, message: kyutai_tts.ServerMessage, now_s: float) -> None:
        """Process one message of the server."""
        match message:
            case kyutai.Ready():
                self.is_ready = True
            case kyutai.Audio(pcm):
                self.arrived_s.append(now_s)
                self.pieces.append(pcm)
            case kyutai_tts.Spoken():
                self.words.append(message)
            case kyutai.Error(words):
                self.error = words

    @property
    def audio_s(self) -> float:
        """Seconds of the received speech."""
        return sum(piece.size for piece in self.pieces) / SAMPLE_RATE

    @property
    def first_audio_ms(self) -> float:
        """Milliseconds from the text to the first speech; NaN without speech."""
        return 1000 * (self.arrived_s[0] - self.sent_s) if self.arrived_s else float("nan")

    @property
    def real_time_factor(self) -> float:
        """Seconds of speech generated per second, from the text to the last piece; NaN without speech."""
        if not self.arrived_s:
            return float("nan")
        return self.audio_s / max(1e-9, self.arrived_s[-1] - self.sent_s)

    @property
    def gaps(self) -> int:
        """The number of underruns of a player that starts with 80 ms buffered."""
        samples = [piece.size for piece in self.pieces]
        return len(playback_gaps_s(self.arrived_s, samples, sample_rate=SAMPLE_RATE))


@dataclass(frozen=True, slots=True)
class TtsReport:
    """Statistics of all sessions; times are in ms, factors in seconds of speech per second."""

    sessions: int
    rejected: int
    failed: int
    audio_s: float
    first_audio_ms: Distribution | None
    real_time_factor: Distribution | None
    gaps: int
    words: int
    errors: tuple[str, ...]

    @classmethod
    def of(cls, speeches: list[TtsRecord]) -> TtsReport:
        """Summarise all sessions."""
        return cls(
            sessions=len(speeches),
            rejected=sum(not it.is_ready for it in speeches),
            failed=sum(it.is_ready and bool(it.error) for it in speeches),
            audio_s=round(sum(it.audio_s for it in speeches), 3),
            first_audio_ms=Distribution.of([it.first_audio_ms for it in speeches]),
            real_time_factor=Distribution.of([it.real_time_factor for it in speeches]),
            gaps=sum(it.gaps for it in speeches),
            words=sum(len(it.words) for it in speeches),
            errors=tuple(sorted({it.error for it in speeches if it.error})),
        )


def run_tts_probe(options: ProbeOptions) -> int:
    """Run the probe, print and write its results; return 1 if a limit was exceeded, else 0."""
    speeches = asyncio.run(speak_all(options))
    report = TtsReport.of(speeches)
    text = sys.stderr if options.json == "-" else sys.stdout
    print(render(report), file=text)
    document = json.dumps({"schema": SCHEMA, "report": dataclasses.asdict(report)}, indent=2)
    if options.json == "-":
        print(document)  # noqa: T201
    elif options.json is not None:
        Path(options.json).write_text(document + "\n", encoding="utf-8")
    if options.out is not None:
        pieces = speeches[0].pieces or [np.zeros(0, np.float32)]
        write_wav(options.out, np.concatenate(pieces), SAMPLE_RATE)
    broken = broken_limits(options, report)
    for sentence in broken:
        print(f"antiphon probe: limit exceeded: {sentence}", file=sys.stderr)  # noqa: T201
    return 1 if broken else 0


def broken_limits(options: ProbeOptions, report: TtsReport) -> list[str]:
    """One sentence for each limit that was exceeded."""
    first = report.first_audio_ms.max if report.first_audio_ms is not None else float("nan")
    limits = options.limits
    found = (
        ("longest time to first audio", first, limits.first_audio_ms),
        ("playback underruns", report.gaps, limits.gaps),
        ("sessions not admitted", report.rejected, limits.rejected),
        ("sessions ended early", report.failed, limits.failed),
    )
    return [
        f"{what}: {value:g}, the limit is {limit:g}"
        for what, value, limit in found
        if limit is not None and not value <= limit
    ]


def render(report: TtsReport) -> str:
    """The report as text lines."""
    lines = [
        f"sessions   {report.sessions}, {report.rejected} not admitted, {report.failed} ended early",
        f"speech     {report.audio_s:.1f} s, {report.words} words received, {report.gaps} gaps",
    ]
    for name, what, unit in (
        ("first", report.first_audio_ms, "ms to first audio"),
        ("pace", report.real_time_factor, "s of speech a second"),
    ):
        if what is not None:
            lines.append(f"{name:<10} p50 {what.p50:.2f}, p99 {what.p99:.2f}, most {what.max:.2f} {unit}")
    return "\n".join([*lines, *(f"error      {error}" for error in report.errors)])


async def speak_all(options: ProbeOptions) -> list[TtsRecord]:
    """Run all sessions at once."""
    connector = aiohttp.TCPConnector(limit=0, ssl=options.verifies_tls)
    async with aiohttp.ClientSession(connector=connector, headers=options.api_key.headers) as http:
        sessions = [listen(http, options) for _ in range(options.sessions)]
        return list(await asyncio.gather(*sessions))


async def listen(http: aiohttp.ClientSession, options: ProbeOptions) -> TtsRecord:
    """Run one session: send the text and its end, and collect the speech."""
    model = {"model": options.model} if options.model is not None else {}
    wait = {"wait": f"{options.wait_s:g}"} if options.wait_s else {}
    url = options.address.tts({"format": "PcmMessagePack", **wait, **model, **options.query})
    speech = TtsRecord()
    try:
        async with http.ws_connect(url, compress=0, max_msg_size=MAX_MESSAGE_BYTES) as ws:
            await _hear(ws, speech, options.ready_timeout_s + options.wait_s, until_ready=True)
            speech.sent_s = time.monotonic()
            await ws.send_bytes(kyutai_tts.encode_client(kyutai_tts.Text(options.text or TEXT)))
            await ws.send_bytes(kyutai_tts.encode_client(kyutai_tts.Eos()))
            await _hear(ws, speech, STALL_S)
            if ws.close_code != 1000 and not speech.error:
                speech.error = f"closed with {ws.close_code}"
    except (aiohttp.ClientError, OSError, ProtocolError) as error:
        speech.error = speech.error or str(error) or type(error).__name__
    except TimeoutError:
        speech.error = speech.error or "the server stopped sending"
    speech.ended_s = time.monotonic()
    return speech


async def _hear(
    ws: aiohttp.ClientWebSocketResponse, speech: TtsRecord, silence_s: float, *, until_ready: bool = False
) -> None:
    """Receive until the end, or with ``until_ready`` until the server has admitted the session."""
    while not (until_ready and speech.is_ready):
        async with asyncio.timeout(silence_s):
            message = await ws.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        speech.hear(kyutai_tts.decode_server(message.data), time.monotonic())
