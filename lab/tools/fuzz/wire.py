"""Readers of clients' data: messages, events, queries, forms, headers."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from urllib.parse import parse_qsl

from antiphon.audio.wav_input import WavDecoder
from antiphon.errors import AntiphonError, AudioError, FieldError, ProtocolError
from antiphon.limits import Limits
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol import (
    asterisk,
    audiosocket,
    json_speech,
    kyutai,
    kyutai_tts,
    live,
    live_events,
    media_streams,
    moshi,
    realtime,
    realtime_events,
    resume,
    translation,
    unmute,
    wyoming,
)
from antiphon.protocol.chat import parse_chat_query, parse_set
from antiphon.protocol.events import Sender, check_event
from antiphon.protocol.live_delegation import read_delegation
from antiphon.protocol.multipart import FormReader, Piece, boundary_of
from antiphon.protocol.realtime_session import RealtimeSession, SessionType
from antiphon.protocol.realtime_session import change as change_session
from antiphon.protocol.sdp import read_offer
from antiphon.protocol.speech_request import parse_speech_request
from antiphon.protocol.transcription_request import parse_form
from antiphon.serve.access.addresses import client_address, parse_networks
from antiphon.serve.access.ephemeral import EphemeralKeys
from antiphon.serve.access.keys import chosen_subprotocol, presented_key
from antiphon.serve.access.security import host_allowed, origin_allowed, page_headers
from antiphon.serve.dialects.media_stream import Chunks
from antiphon.serve.transport.frames import FrameError
from antiphon.serve.transport.stream import SizeOf, StreamReader
from lab.tools.fuzz.target import Target, require

DEFAULTS = SamplingParameters()
MAX_WAIT_S = Limits().max_wait_s


def read_chat(data: bytes) -> None:
    """Read a message of ``/api/chat``, write it, and require the same message when it is read again."""
    message = moshi.decode(data)
    require(moshi.decode(moshi.encode(message)) == message, f"{message!r:.200} is not read back")
    if isinstance(message, moshi.Event):
        check_event(message, sender=Sender.CLIENT)
        if message.type == "set":
            parse_set(message.fields, DEFAULTS)


def read_resume(data: bytes) -> None:
    """Read a resuming client's data, and a token as text."""
    payload = data[1:]
    match data[:1]:
        case b"\x12":
            resume.decode_ack(payload)
            resume.decode_numbered(payload)
        case b"\x13":
            claim = resume.decode_claim(data)
            require(resume.decode_claim(resume.encode_claim(claim)) == claim, "a claim is not read back")
        case _:
            token = resume.token_of(data.decode("latin-1"))
            require(resume.token_of(resume.token_text(token)) == token, "a token is not read back")


def read_query(data: bytes) -> None:
    """Read the queries of ``/api/chat`` and ``/api/tts_streaming``."""
    query = dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))
    request = parse_chat_query(query, defaults=DEFAULTS, max_wait_s=MAX_WAIT_S)
    parse_set({"parameters": asdict(request.parameters)}, DEFAULTS)
    kyutai_tts.parse_query(query, max_wait_s=MAX_WAIT_S)


def read_stt(data: bytes) -> None:
    """Read messages of ``/api/asr-streaming`` in both directions."""
    for decode in (kyutai.decode_client, kyutai.decode_server):
        try:
            message = decode(data)
        except ProtocolError as error:
            refusal = error
            continue
        kyutai.to_json(message)
        require(decode(kyutai.encode(message)) == message, f"{message!r:.200} is not read back")
        return
    raise refusal


def read_tts(data: bytes) -> None:
    """Read messages of ``/api/tts_streaming`` in both directions, and the body of a POST."""
    if data[:1] == b"{":
        kyutai_tts.parse_post(data)
        return
    try:
        message = kyutai_tts.decode_client(data)
    except ProtocolError:
        kyutai_tts.decode_server(data)
        return
    if isinstance(message, kyutai_tts.Voice):
        require(message.array().shape == message.shape, "a voice of another shape")


def read_live(data: bytes) -> None:
    """Read an event of OpenAI Live, and encode the error that answers it."""
    try:
        event = live.decode(data.decode("utf-8", "replace"), has_text=True)
        if isinstance(event, live.Start | live.Update):
            read_delegation(event.session.delegation)
    except FieldError as error:
        live_events.encode(live_events.error_of(error), "event_1")
        raise
    if isinstance(event, live.Start | live.ResumeSession):
        live_events.encode(
            live_events.SessionStarted(event.session.shown(session_id="s", expires_at=0)), "event_1"
        )


def read_media_stream(data: bytes) -> None:
    """Read a message of a telephone's media stream, and the answers once the stream has begun."""
    event = media_streams.decode(data.decode("utf-8", "replace"))
    if isinstance(event, media_streams.StreamStart):
        media_streams.encode_media(event, b"\xff")
    if isinstance(event, media_streams.Media):
        Chunks().put(event)


def read_asterisk(data: bytes) -> None:
    """Read a control message of Asterisk's channel, and the answers once the channel has begun."""
    event = asterisk.decode(data.decode("utf-8", "replace"))
    if isinstance(event, asterisk.MediaStart):
        asterisk.encode(event, "MARK_MEDIA", "1 80")


def read_json_speech(data: bytes) -> None:
    """Read a message of the JSON speech dialect, and the WAV file in it."""
    message = json_speech.decode(data.decode("utf-8", "replace"))
    if isinstance(message, json_speech.SpeechAudio):
        decoder = WavDecoder(24_000)
        decoder.put(message.data)
        while decoder.step() is not None:
            pass


def read_wyoming(data: bytes) -> None:
    """Read events of Wyoming on a TCP connection."""
    for each in _messages_of(data, wyoming.size_of):
        wyoming.decode(each)


def read_audiosocket(data: bytes) -> None:
    """Read messages of AudioSocket on a TCP connection."""
    for each in _messages_of(data, audiosocket.size_of):
        audiosocket.decode(each)


def _messages_of(data: bytes, size_of: SizeOf) -> list[bytes]:
    """The messages of a connection, which do not depend on how their bytes arrive."""
    found: list[list[bytes]] = []
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        reader, messages = StreamReader(size_of), list[bytes]()
        with contextlib.suppress(FrameError):
            for piece in pieces:
                reader.feed(piece)
                while (message := reader.next()) is not None:
                    messages.append(message[1])
        found.append(messages)
    require(found[0] == found[1], "the messages depend on how they come")
    if data:
        size_of(bytearray(data))
    return found[0]


def read_realtime(data: bytes) -> None:
    """Read an event of OpenAI Realtime, the session after it, and the error that answers it."""
    text = data.decode("utf-8", "replace")
    try:
        event = realtime.decode(text)
        for kind in SessionType:
            if isinstance(event, realtime.Update):
                session = change_session(RealtimeSession("model", kind), event.session)
                json.dumps(session.shown(session_id="s", expires_at=0), allow_nan=False)
    except ProtocolError as error:
        live_events.encode(live_events.error_of(error), "event_1")
        raise


def read_translation(data: bytes) -> None:
    """Read an event of OpenAI's translation sessions, and the session after it."""
    event = translation.decode(data.decode("utf-8", "replace"))
    if isinstance(event, realtime.Update):
        session = translation.change(translation.TranslationSession("model"), event.session)
        json.dumps(session.shown(session_id="s", expires_at=0), allow_nan=False)


def read_unmute(data: bytes) -> None:
    """Read an event of Unmute, the session after it, and the error that answers it."""
    try:
        event = unmute.decode(data.decode("utf-8", "replace"))
    except FieldError as error:
        realtime_events.encode(unmute.error_event(error), "event_1")
        raise
    if isinstance(event, unmute.Update):
        realtime_events.encode(unmute.session_updated(event.session), "event_1")
    if isinstance(event, unmute.AppendAudio):
        unmute.begins_stream(event.audio)


def read_rest_json(data: bytes) -> None:
    """Read the body of ``POST /v1/audio/speech``."""
    order = parse_speech_request(data)
    require(bool(order.text.strip()), "a text without words")


def read_form(data: bytes) -> None:
    """Read a form of ``POST /v1/audio/transcriptions``: its first line is the Content-Type, the rest its
    body.

    The parts do not depend on how a body is cut into pieces.
    """
    head, _, body = data.partition(b"\n")
    boundary = boundary_of(head.decode("latin-1"))
    whole = _parts(boundary, [body])
    half = len(body) // 2
    for pieces in ([body[:half], body[half:]], [body[at : at + 1] for at in range(len(body))]):
        require(_parts(boundary, pieces) == whole, "a form's parts depend on how it comes")
    if isinstance(whole, str):
        raise ProtocolError(whole)
    values: dict[str, list[str]] = {}
    for name, _, content in whole:
        values.setdefault(name, []).append(content.decode("utf-8", "replace"))
    parse_form(values, has_file=any(is_file for _, is_file, _ in whole))


def _parts(boundary: bytes, pieces: list[bytes]) -> list[tuple[str, bool, bytes]] | str:
    """The parts of a form, or the reason why it is none."""
    reader = FormReader(boundary)
    found: list[tuple[str, bool, bytes]] = []
    try:
        for piece in pieces:
            for each in reader.feed(piece):
                _add(found, each)
    except ProtocolError as error:
        return str(error)
    return found


def _add(found: list[tuple[str, bool, bytes]], piece: Piece) -> None:
    if piece.is_first:
        found.append((piece.name, piece.is_file, b""))
    else:
        name, is_file, content = found[-1]
        require((name, is_file) == (piece.name, piece.is_file), "a piece of another part")
        found[-1] = (name, is_file, content + piece.data)


def read_sdp(data: bytes) -> None:
    """Read a WebRTC offer, write the parts that are kept, and require the same offer when they are read
    again."""
    offer = read_offer(data)
    require(read_offer(offer.text.encode()) == offer, "what is kept of an offer is another one")


def read_headers(data: bytes) -> None:
    """Read the headers that decide who may connect, one ``Name: value`` a line."""
    lines = [line.partition(":") for line in data.decode("latin-1").split("\n")]
    headers = {name.strip().title(): value.strip() for name, _, value in lines}
    host, origin = headers.get("Host"), headers.get("Origin")
    require(origin_allowed(origin, host, ("*",)), "an origin is refused where all are allowed")
    origin_allowed(origin, host, ("https://a.example",))
    host_allowed(host, {"a.example"})
    policy, own = (page_headers(it)["Content-Security-Policy"] for it in (host, None))
    require(
        "\n" not in policy and policy.count(";") == own.count(";"),
        f"a host that adds to the policy: {policy}",
    )
    proxies = parse_networks(["10.0.0.0/8", "fd00::/8"])
    client_address(headers.get("Peer"), headers.get("X-Forwarded-For", "").split(","), proxies)
    found = presented_key(headers, headers)
    chosen_subprotocol(headers)
    if found is not None:
        require(EphemeralKeys(b"secret" * 6).read(found) is None, "a key that was never made is good")


TARGETS = {
    "chat": Target(read_chat, (ProtocolError,)),
    "resume": Target(read_resume, (ProtocolError,), max_bytes=128),
    "query": Target(read_query, (ProtocolError,)),
    "stt": Target(read_stt, (ProtocolError,)),
    "tts": Target(read_tts, (ProtocolError,)),
    "live": Target(read_live, (FieldError,)),
    "media_stream": Target(read_media_stream, (ProtocolError,)),
    "asterisk": Target(read_asterisk, (ProtocolError,)),
    "audiosocket": Target(read_audiosocket, (ProtocolError,)),
    "json_speech": Target(read_json_speech, (ProtocolError, AudioError)),
    "wyoming": Target(read_wyoming, (ProtocolError,)),
    "realtime": Target(read_realtime, (ProtocolError,)),
    "translation": Target(read_translation, (FieldError,)),
    "unmute": Target(read_unmute, (FieldError,)),
    "rest_json": Target(read_rest_json, (FieldError,)),
    "form": Target(read_form, (ProtocolError,)),
    "sdp": Target(read_sdp, (ProtocolError,), max_bytes=4096),
    "headers": Target(read_headers, (AntiphonError,), max_bytes=512),
}
