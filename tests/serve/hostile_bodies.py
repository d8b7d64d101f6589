"""Bodies of hostile requests: JSON, recordings, forms and offers of WebRTC."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from antiphon.audio.wav import encode_wav
from tests.serve.hostile_values import (
    DEEP_JSON,
    Random,
    broken_oggs,
    garbled,
    random_value,
)
from tests.support.offers import OFFER


def bodies_of_sessions(random: Random) -> list[bytes]:
    """Sessions that are none, for ``POST /v1/realtime/client_secrets``."""
    names = ("session", "expires_after", "type", "model")
    values = [{name: random_value(random) for name in names} for _ in range(12)]
    sessions = [
        {"session": {name: random_value(random) for name in ("type", "model", "audio")}} for _ in range(12)
    ]
    found = [json.dumps(value).encode() for value in [*values, *sessions]]
    return [*found, DEEP_JSON, b"", b"\xff\xfe", b'{"session": "\\ud800"}', b" " * 70_000]


def bodies_of_text(random: Random) -> list[bytes]:
    """JSON that is none, or says something else, for ``POST /api/tts_streaming``."""
    values = [{"text": random_value(random), "voice": random_value(random)} for _ in range(8)]
    found = [json.dumps(value).encode() for value in [*values, random_value(random), {"text": "a" * 5000}]]
    return [
        *found,
        DEEP_JSON,
        b"",
        b"\xff\xfe",
        b'{"text": "\\ud800"}',
        b'{"text":' + b"9" * 5000,
        b" " * 70_000,
    ]


def bodies_of_sound(random: Random) -> list[bytes]:
    """Recordings that are none, or lie about their length, for ``POST /api/asr-streaming``."""
    wav = encode_wav(np.zeros(4000, np.float32), 24_000)
    giant = wav[:4] + b"\xff\xff\xff\xff" + wav[8:40] + b"\xff\xff\xff\xff" + wav[44:]
    rates = [wav[:24] + rate.to_bytes(4, "little") + wav[28:] for rate in (0, 1, 2**32 - 1)]
    channels = wav[:22] + b"\xff\xff" + wav[24:]
    magic = [head + random.bytes(400) for head in (b"RIFF\0\0\0\0WAVE", b"fLaC", b"ID3\4", b"\xff\xfb\x90")]
    return [giant, *rates, channels, *magic, *broken_oggs(random), b"", wav[:20], garbled(random, wav)]


def orders_of_speech(random: Random) -> list[bytes]:
    """JSON that is none, or orders nothing, for ``POST /v1/audio/speech``."""
    names = ("input", "model", "voice", "response_format", "speed", "stream_format", "instructions")
    values: list[Any] = [{name: random_value(random) for name in names} for _ in range(8)]
    values += [{"input": "a", name: random_value(random)} for name in names]
    values += [{"input": "a", "speed": speed} for speed in (0, -1, 5, True, 1e308)]
    values += [{"input": " "}, {"input": "a" * 5000}, {"input": "a", "voice": {"id": []}}]
    return [*(json.dumps(value).encode() for value in values), DEEP_JSON, b"", b" " * 70_000]


BOUNDARY: Final = "antiphon"


FORM: Final = f"multipart/form-data; boundary={BOUNDARY}"


def form_of(**fields: bytes) -> bytes:
    """A form with these fields; ``file`` is a file."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        + (b'; filename="a.wav"' if name == "file" else b"")
        + b"\r\n\r\n"
        + value
        + b"\r\n"
        for name, value in fields.items()
    ]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def forms_of_sound(random: Random) -> list[bytes]:
    """Forms that are none, and recordings that are none in forms that are."""
    whole = form_of(model=b"scribe", file=encode_wav(np.zeros(4000, np.float32), 24_000))
    fields = [
        form_of(file=b"RIFF", **{name: value})
        for name in ("response_format", "stream", "timestamp_granularities[]", "language", "model")
        for value in (b"nonsense", b"\xff\xfe", b"x" * 70_000)
    ]
    head = f"--{BOUNDARY}\r\n".encode()
    return [
        *(form_of(file=recording) for recording in bodies_of_sound(random)),
        *fields,
        *(whole[: int(end)] for end in random.integers(1, len(whole), size=8)),
        *(garbled(random, whole) for _ in range(4)),
        head + b"x" * 20_000,
        head + b"Content-Disposition: form-data\r\n\r\nabc\r\n" + head,
        b"\n" * 100_000,
        (head + b'Content-Disposition: form-data; name="a"\r\n\r\n\r\n') * 200,
        b"",
    ]


def offers(random: Random) -> list[bytes]:
    """Offers of WebRTC that are none, or that aiortc cannot read behind our own checks."""
    lines = OFFER.decode().split("\r\n")
    cut = ["\r\n".join(lines[: int(end)]).encode() for end in random.integers(1, len(lines), size=6)]
    mixed = ["\r\n".join(lines[int(it)] for it in random.permutation(len(lines))).encode() for _ in range(3)]
    forms = [
        form_of(sdp=OFFER, session=json.dumps(random_value(random)).encode()),
        form_of(sdp=b"v=0"),
        form_of(session=b"{}"),
        form_of(sdp=OFFER, session=DEEP_JSON),
    ]
    told = [
        OFFER.replace(b"sha-256 ", b"sha-999 "),
        OFFER.replace(b"a=setup:actpass", b"a=setup:holdconn"),
        OFFER.replace(b"a=mid:1", b"a=mid:0"),
        OFFER.replace(b"BUNDLE 0 1", b"BUNDLE 7"),
        OFFER.replace(b"a=sctp-port:5000", b"a=sctp-port:99999999"),
        OFFER.replace(b"192.0.2.7 40001 typ", b"0.0.0.0 0 typ"),
        OFFER.replace(b"minptime=10", b"minptime"),
        OFFER.replace(b"UDP/DTLS/SCTP webrtc", b"DTLS/SCTP x"),
    ]
    return [
        *(garbled(random, OFFER) for _ in range(6)),
        *cut,
        *mixed,
        *forms,
        *told,
        b"",
        DEEP_JSON,
        b"v=0\n" * 9000,
    ]


def live_offers(random: Random) -> list[bytes]:
    """Offers within a session of OpenAI Live."""
    session: dict[str, Any] = {"model": "null-echo"}
    values = [random_value(random) for _ in range(6)]
    transports: list[Any] = [{"type": "webrtc", "sdp": value} for value in (*values, OFFER.decode(), "v=0")]
    transports += [{"type": value} for value in values[:2]]
    found: list[Any] = [{"session": session, "transport": it} for it in transports]
    found += [{"session": it, "transport": {"type": "webrtc", "sdp": OFFER.decode()}} for it in values]
    return [*(json.dumps(it).encode() for it in found), DEEP_JSON, b"", b"[]"]
