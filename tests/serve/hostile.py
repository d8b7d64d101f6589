"""Messages of hostile clients for every protocol, and attacks on each route."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from antiphon.audio.ogg import OggOpusWriter
from antiphon.protocol import kyutai, kyutai_tts
from tests.serve.hostile_bodies import (
    FORM,
    bodies_of_sessions,
    bodies_of_sound,
    bodies_of_text,
    forms_of_sound,
    live_offers,
    offers,
    orders_of_speech,
)
from tests.serve.hostile_values import (
    DEEP_JSON,
    DEEP_MSGPACK,
    TEXTS,
    Random,
    broken_oggs,
    garbled,
    packed,
    random_value,
)

Message: TypeAlias = bytes | str


def chat_messages(random: Random) -> list[Message]:
    """``/api/chat``: a tag, and what does not belong behind it."""
    found: list[Message] = [b"\x01" + ogg for ogg in broken_oggs(random)]
    found += [bytes((tag,)) + random.bytes(int(random.integers(40))) for tag in (0, 1, 1, 3, 5, 6, 7, 9, 17)]
    for kind in ("set", "flush", "ready", "error", "", "interrupted"):
        event = {"type": kind, "parameters": random_value(random), "at_frame": random_value(random)}
        found.append(b"\x10" + json.dumps(event).encode())
    found += [b"\x10" + DEEP_JSON, b"\x04" + DEEP_JSON, b"\x10[]", b"\x10\xff", b"", b"\x02\xff\xfe", "text"]
    found += [b"\x01" + np.array([np.nan, 1e38, np.inf], "<f4").tobytes(), b"\x01" + bytes(7)]
    return found


def _kyutai(
    random: Random, kinds: Sequence[str], fields: Sequence[str], whole: Sequence[bytes]
) -> list[Message]:
    found: list[Message] = [packed(random_value(random)) for _ in range(6)]
    for kind in kinds:
        found += [packed({"type": kind, **{name: random_value(random) for name in fields}}) for _ in range(3)]
        found.append(packed({"type": kind})[:-1] + b"\xdd\xff\xff\xff\xff")
    found += [garbled(random, data) for data in whole for _ in range(3)]
    found += [random.bytes(int(random.integers(1, 80))) for _ in range(6)]
    found += [DEEP_MSGPACK, b"", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xd9\x05abc", b"\xc1"]
    return found


def listening_messages(random: Random) -> list[Message]:
    """``/api/asr-streaming``: maps of the wrong shape, Opus that is none, everything out of order."""
    whole = [
        kyutai.encode(kyutai.Audio(np.zeros(20, np.float32))),
        kyutai.encode(kyutai.Marker(3)),
        kyutai.encode(kyutai.OggOpus(OggOpusWriter(1).headers())),
    ]
    found = _kyutai(
        random,
        ("Init", "Audio", "OggOpus", "Marker", "Word", "Step", "Ready"),
        ("pcm", "data", "id", "text", "prs"),
        whole,
    )
    found += [kyutai.encode(kyutai.OggOpus(ogg)) for ogg in broken_oggs(random)]
    return [*found, "text", kyutai.encode(kyutai.Init()), *whole]


def speaking_messages(random: Random) -> list[Message]:
    """``/api/tts_streaming``: voices without shape, text after the end, what only a server says."""
    voice = kyutai_tts.Voice(np.zeros(12, np.float32), (1, 4, 3))
    whole = [
        kyutai_tts.encode_client(kyutai_tts.Text("ab")),
        kyutai_tts.encode_client(voice),
        kyutai_tts.encode_client(kyutai_tts.Eos()),
    ]
    found = _kyutai(
        random, ("Text", "Voice", "Eos", "Audio", "Ready"), ("text", "embeddings", "shape", "pcm"), whole
    )
    return [*found, *TEXTS, "x" * 5000, "<break" * 500, *whole, b"\0", b"\0\0"]


@dataclass(frozen=True)
class Upgraded:
    """A WebSocket route: its paths with queries, what is said to it, and what it surely refuses."""

    urls: tuple[str, ...]
    messages: Callable[[Random], list[Message]]
    last_straws: tuple[bytes, ...]


@dataclass(frozen=True)
class Asked:
    """A route that is asked once: bodies to post, with these headers, and without."""

    bodies: Callable[[Random], list[bytes]] = lambda random: []
    headers: Mapping[str, str] = field(default_factory=dict)


LIVE_TYPES = (
    "session.start",
    "session.update",
    "session.close",
    "session.input_audio.append",
    "session.input_audio.mute",
    "session.commentary.append",
    "response.create",
    "session.created",
)


def live_messages(random: Random) -> list[Message]:
    """Events that are none, or of wrong fields, and some that begin a session."""
    found: list[Message] = []
    for kind in LIVE_TYPES:
        for _ in range(3):
            event = {name: random_value(random) for name in ("session", "audio", "event_id", "content")}
            found.append(json.dumps({"type": kind, **event}))
        found.append(json.dumps({"type": kind})[: int(random.integers(1, 12))])
    started = json.dumps({"type": "session.start", "session": {"model": "null-echo"}})
    loud = json.dumps({"type": "session.input_audio.append", "audio": "f/8" * 9000 + "="})
    return [*found, *[started] * 6, loud, DEEP_JSON.decode(), "", "\0", b"", random.bytes(300), "null"]


REALTIME_TYPES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
    "session.input_audio_buffer.append",
    "output_audio_buffer.clear",
)


def telephone_messages(random: Random) -> list[Message]:
    """Events of wrong fields, in no order, among some that are right."""
    values: list[object] = [
        None,
        "",
        1,
        [],
        {},
        "x" * 5000,
        {"payload": "?"},
        {"payload": "AAAA", "chunk": -1},
    ]
    kinds = ("connected", "start", "media", "mark", "dtmf", "stop", "x")
    found: list[Message] = [
        json.dumps({"event": kind, kind: values[int(at)], "streamSid": "MZ1"})
        for kind in kinds
        for at in random.integers(0, len(values), size=3)
    ]
    return [*found, "", "[]", '{"event":' * 1000, "\x00", b"", b"\x01abc"]


def asterisk_messages(random: Random) -> list[Message]:
    """Control messages of wrong values, among some that are right, and audio of odd lengths."""
    values = ("", "slin24", "opus", "x" * 5000, "-1", "960", "99999999", "\x00", "{")
    picked = [values[int(at)] for at in random.integers(0, len(values), size=24)]
    found: list[Message] = [
        f"MEDIA_START channel:{one} format:{two} optimal_frame_size:{three}"
        for one, two, three in zip(picked[::3], picked[1::3], picked[2::3], strict=True)
    ]
    found += [json.dumps({"event": it, "format": it, "optimal_frame_size": it}) for it in picked[:6]]
    start = "MEDIA_START channel:a format:slin24 optimal_frame_size:960"
    return [
        *found,
        start,
        start,
        "MEDIA_MARK_PROCESSED x",
        "MEDIA_XOFF",
        "",
        "{}",
        "[",
        b"",
        b"a",
        b"\0" * 961,
    ]


def json_speech_messages(random: Random) -> list[Message]:
    """Messages of wrong fields, in no order, among some that are right."""
    values: list[object] = [None, "", "pcm", "opus", 1, [], {}, "x" * 5000, "AAAA", "?", -1, True]
    names = ("input_format", "output_format", "voice", "audio", "text", "flush_id", "client_req_id")
    kinds = ("setup", "audio", "text", "flush", "x", "")
    found: list[Message] = [
        json.dumps({"type": kind, **{name: values[int(random.integers(0, len(values)))] for name in names}})
        for kind in kinds
        for _ in range(4)
    ]
    found += [
        '{"type":"setup","input_format":"pcm","output_format":"pcm"}',
        '{"type":"audio","audio":"AAA="}',
    ]
    return [*found, "", "[]", '{"type":' * 1000, "\x00", b"", b"\x01abc"]


def realtime_messages(random: Random) -> list[Message]:
    """Events of wrong fields, in no order, among some that are right."""
    names = (
        "session",
        "audio",
        "event_id",
        "item",
        "item_id",
        "response",
        "audio_end_ms",
        "previous_item_id",
    )
    found: list[Message] = []
    for kind in REALTIME_TYPES:
        wrong = [{"type": kind, **{name: random_value(random) for name in names}} for _ in range(3)]
        found += map(json.dumps, wrong)
        found += [json.dumps({"type": kind}), json.dumps({"type": kind})[: int(random.integers(1, 12))]]
    for _ in range(8):
        heard = {name: random_value(random) for name in ("format", "turn_detection", "transcription")}
        session = {"audio": {"input": heard}, "tools": random_value(random), "instructions": "x" * 3000}
        found.append(json.dumps({"type": "session.update", "session": session}))
        item = {"id": "same", "type": "message", "content": random_value(random)}
        found.append(json.dumps({"type": "conversation.item.create", "item": item}))
    loud = json.dumps({"type": "input_audio_buffer.append", "audio": "f/8" * 9000 + "="})
    return [*found, loud, loud, DEEP_JSON.decode(), "", "\0", b"", random.bytes(300), "null"]


def unmute_messages(random: Random) -> list[Message]:
    """Events of wrong fields, and Ogg that is none, among some that are right."""
    found: list[Message] = []
    for kind in (
        "session.update",
        "input_audio_buffer.append",
        "unmute.input_audio_buffer.append_anonymized",
    ):
        for _ in range(3):
            wrong = {name: random_value(random) for name in ("session", "audio", "event_id")}
            found.append(json.dumps({"type": kind, **wrong}))
        found += [json.dumps({"type": kind}), json.dumps({"type": kind})[: int(random.integers(1, 12))]]
    for _ in range(6):
        session = {name: random_value(random) for name in ("instructions", "voice", "allow_recording")}
        found.append(json.dumps({"type": "session.update", "session": session}))
    for ogg in broken_oggs(random):
        audio = base64.b64encode(ogg).decode()
        found.append(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
    right = {"instructions": {"type": "constant", "text": "x" * 3000}, "voice": "none"}
    found.append(json.dumps({"type": "session.update", "session": right}))
    return [*found, DEEP_JSON.decode(), "", "\0", b"", random.bytes(300), "null"]


ATTACKS: Final[dict[str, Upgraded | Asked]] = {
    "GET /api/chat": Upgraded(
        (
            "/api/chat?",
            "/api/chat?ext=1&format=ogg",
            "/m/null-duplex/api/chat?ext=1&format=opus",
            "/api/chat?ext=1&format=pcm_s16le",
            "/api/chat?ext=1&format=pcm_f32le",
        ),
        chat_messages,
        (b"\x03\0", b"\x01" + bytes(140_001)),  # no Ogg page, even behind a half one; no whole samples
    ),
    "GET /api/asr-streaming": Upgraded(("/api/asr-streaming?",), listening_messages, (b"\xc1",)),
    "GET /api/tts_streaming": Upgraded(
        tuple(f"/api/tts_streaming?format={format_}" for format_ in kyutai_tts.SpeechFormat),
        speaking_messages,
        (b"\xc1",),
    ),
    # The last straw is a message larger than any may be, behind a start that was right.
    "GET /v1/live/sessions": Upgraded(
        ("/v1/live/sessions", "/m/null-echo/v1/live/sessions"), live_messages, (bytes(1_048_577),)
    ),
    "GET /v1/live/sessions/{id}/attach": Upgraded(("/v1/live/sessions/live_1/attach",), live_messages, ()),
    "GET /v1/realtime": Upgraded(
        ("/v1/realtime", "/v1/realtime?model=null-duplex", "/v1/realtime?intent=transcription"),
        realtime_messages,
        (bytes(1_048_577),),
    ),
    "GET /v1/realtime/translations": Upgraded(
        ("/v1/realtime/translations",), realtime_messages, (bytes(1_048_577),)
    ),
    "GET /twilio": Upgraded(("/twilio",), telephone_messages, (b"binary",)),
    "GET /asterisk": Upgraded(("/asterisk", "/m/null-echo/asterisk"), asterisk_messages, (bytes(16_385),)),
    "GET /api/speech/asr": Upgraded(("/api/speech/asr",), json_speech_messages, (b"binary",)),
    "GET /api/speech/tts": Upgraded(("/api/speech/tts",), json_speech_messages, (b"binary",)),
    "GET /telnyx": Upgraded(
        ("/telnyx", "/m/null-echo/telnyx", "/telnyx?model=assistant"), telephone_messages, (b"binary",)
    ),
    "GET /unmute/v1/realtime": Upgraded(
        ("/unmute/v1/realtime", "/m/assistant/unmute/v1/realtime"), unmute_messages, (bytes(1_048_577),)
    ),
    "POST /v1/realtime/client_secrets": Asked(bodies_of_sessions),
    "POST /v1/realtime/calls": Asked(offers, {"Content-Type": "application/sdp"}),
    "POST /api/chat": Asked(offers, {"Content-Type": "application/sdp"}),
    "POST /v1/live/sessions": Asked(live_offers),
    "POST /v1/realtime/calls/{id}/hangup": Asked(),
    "POST /v1/live/sessions/{id}/hangup": Asked(),
    "DELETE /v1/live/sessions/{id}": Asked(),
    "DELETE /v1/realtime/calls/{id}": Asked(),
    "DELETE /api/chat/{id}": Asked(),
    "GET /v1/realtime/calls": Asked(),
    "POST /api/asr-streaming": Asked(bodies_of_sound),
    "POST /api/tts_streaming": Asked(bodies_of_text),
    "POST /v1/audio/speech": Asked(orders_of_speech),
    "POST /v1/audio/transcriptions": Asked(forms_of_sound, {"Content-Type": FORM}),
    "GET /health": Asked(),
    "GET /healthz": Asked(),
    "GET /readyz": Asked(),
    "GET /metrics": Asked(),
    "GET /api/build_info": Asked(),
    "GET /api/modules_info": Asked(),
    "GET /api/models": Asked(),
    "GET /api/canary": Asked(),
    "GET /v1/models": Asked(),
    "GET /v1/models/{id}": Asked(),
    "GET /v1/audio/models": Asked(),
    "GET /v1/audio/speech/voices": Asked(),
    "GET /v1/audio/voices": Asked(),
    "GET /v1/voices": Asked(),
    "GET /unmute/v1/voices": Asked(),
    "GET /unmute/v1/health": Asked(),
    "GET /v1/audio/speech": Asked(),
    "GET /v1/audio/transcriptions": Asked(),
    "GET /v1/realtime/client_secrets": Asked(),
    "POST /": Asked(),
    "GET /{path:.*}": Asked(),
}
"""Every route of the application, ``/m/NAME`` before it or not."""
