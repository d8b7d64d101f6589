"""The worst input that each decoder accepts from a caller, and its cost.

``python -m tests.support.worst_inputs`` prints them.
Costs are processor time of the calling thread, in milliseconds and in units of a fixed Python loop, which a
slower machine runs more slowly as well.
"""

from __future__ import annotations

import base64
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import msgpack

from antiphon.audio.codecs import make_decoder
from antiphon.audio.ogg import OggDecoder, OggOpusWriter
from antiphon.audio.wav import streamed_header
from antiphon.audio.wav_input import MAX_HEAD_BYTES, WavDecoder
from antiphon.errors import AntiphonError
from antiphon.limits import Limits
from antiphon.protocol import (
    asterisk,
    json_speech,
    kyutai,
    kyutai_tts,
    live,
    media_streams,
    moshi,
    realtime,
    speech_request,
    translation,
    unmute,
    wyoming,
)
from antiphon.protocol.event_text import MAX_EVENT_CHARS, MAX_PLAIN_CHARS
from antiphon.protocol.multipart import FormReader
from antiphon.protocol.payload import MAX_JSON_BYTES, MAX_STRUCTURE_BYTES, MAX_VALUES
from antiphon.serve.hosting.app import MAX_FORM_BYTES
from antiphon.serve.transport.frames import FRAGMENTS, FrameReader
from antiphon.serve.transport.socket import AHEAD_S, FRAGMENT_MESSAGES

UNIT_TURNS: Final = 50_000
RUNS: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One input of a decoder."""

    decoder: str
    shape: str
    decode: Callable[[Any], object]
    data: bytes | str

    def run(self) -> str:
        """Decode it; the name of the error where it is refused."""
        try:
            self.decode(self.data)
        except AntiphonError as error:
            return type(error).__name__
        return ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What decoding takes: the best of ``RUNS``, and the most memory beside the input."""

    milliseconds: float
    units: float
    peak_bytes: int


def json_texts(size: int, kind: str) -> Iterator[tuple[str, str]]:
    """Events of ``size`` characters, each the worst for some way of reading JSON."""

    def filled(unit: str, most: int | None = None) -> str:
        head, tail = f'{{"type":"{kind}","a":[', "0]}"
        count = (size - len(head) - len(tail)) // (len(unit) + 1)
        return head + f"{unit}," * min(count, most or count) + tail

    def text(unit: str) -> str:
        head, tail = f'{{"type":"{kind}","audio":{{}},"a":"', '"}'
        return head + unit * ((size - len(head) - len(tail)) // len(unit.encode())) + tail

    for unit in ("[]", "{}", "1", "1.5", "-1.2345678901234567e-300", '""', "9" * 4000, "null"):
        yield f"all {unit[:24]}", filled(unit)
        yield f"{MAX_VALUES - 10} {unit[:24]}", filled(unit, MAX_VALUES - 10)
    keys = (f'"{number:x}":{number}' for number in range(MAX_VALUES - 10))
    yield "keys", f'{{"type":"{kind}",{",".join(keys)}}}'
    for unit in ("\\n", '\\"', "\\\\", "\\u4e00", "\\ud83d\\ude00", "\u4e00", "[", "hello, "):
        yield f"text of {unit!r}", text(unit)
    structure = '"",' * ((MAX_STRUCTURE_BYTES - 100) // 3)
    yield "many strings", f'{{"type":"{kind}","a":[{structure}0]}}'[:size]
    yield "a long number", f'{{"type":"{kind}","a":{"9" * (size - 100)}}}'
    yield "depth", f'{{"type":"{kind}","a":{"[" * (MAX_VALUES - 10)}'
    yield "spaces", f'{{"type":"{kind}"{" " * (size - 100)}}}'
    yield "a long fraction", f'{{"type":"{kind}","a":0.{"9" * (size - 100)}}}'


def audio_event(kind: str, **more: object) -> str:
    """The longest event with audio."""
    room = MAX_EVENT_CHARS - len(json.dumps({"type": kind, **more, "audio": ""}))
    return json.dumps({"type": kind, **more, "audio": base64.b64encode(bytes(room // 4 * 3)).decode()})


def cases() -> Iterator[Case]:
    """All of them."""
    events: tuple[tuple[str, Callable[[Any], object], str, str], ...] = (
        ("live", live.decode, "session.update", "session.input_audio.append"),
        ("realtime", realtime.decode, "conversation.item.create", "input_audio_buffer.append"),
        ("translation", translation.decode, "session.update", "session.input_audio_buffer.append"),
        ("unmute", unmute.decode, "session.update", "input_audio_buffer.append"),
    )
    for name, decode, kind, append in events:
        yield Case(name, "audio", decode, audio_event(append))
        for shape, text in json_texts(MAX_PLAIN_CHARS, kind):
            yield Case(name, shape, decode, text)
    for shape, text in json_texts(MAX_EVENT_CHARS, "input_audio_buffer.append"):
        yield Case(
            "realtime", f"{shape} beside audio", realtime.decode, text.replace('"a":', '"audio":"","a":', 1)
        )
    for shape, text in json_texts(MAX_JSON_BYTES - 10, "set"):
        yield Case("chat event", shape, moshi.decode, b"\x10" + text.encode()[:MAX_JSON_BYTES])
        yield Case(
            "speech request", shape, speech_request.parse_speech_request, text.encode()[:MAX_JSON_BYTES]
        )
    for shape, text in json_texts(media_streams.MAX_MESSAGE_BYTES, "x"):
        message = text.replace('"type":"x"', '"event":"media"', 1)[: media_streams.MAX_MESSAGE_BYTES]
        yield Case("media stream", shape, media_streams.decode, message)
    room = media_streams.MAX_MESSAGE_BYTES - 60
    payload = base64.b64encode(bytes(room // 4 * 3)).decode()
    yield Case(
        "media stream",
        "audio",
        media_streams.decode,
        f'{{"event":"media","media":{{"payload":"{payload}"}}}}',
    )
    size = asterisk.MAX_MESSAGE_BYTES
    for shape, text in json_texts(size, "x"):
        yield Case("asterisk", shape, asterisk.decode, text.replace("type", "event", 1)[:size])
    words = "MEDIA_START " + "a:b " * (size // 4 - 4)
    yield Case("asterisk", "words", asterisk.decode, words)
    for shape, text in json_texts(json_speech.MAX_MESSAGE_CHARS, "audio"):
        yield Case("json speech", shape, json_speech.decode, text[: json_speech.MAX_MESSAGE_CHARS])
    sound = base64.b64encode(bytes(json_speech.MAX_AUDIO_BYTES)).decode()
    yield Case("json speech", "audio", json_speech.decode, f'{{"type":"audio","audio":"{sound}"}}')
    for shape, text in json_texts(wyoming.MAX_JSON_BYTES, "x"):
        body = text.encode()[: wyoming.MAX_JSON_BYTES]
        line = f'{{"type":"synthesize-chunk","data_length":{len(body)}}}\n'.encode()
        yield Case("wyoming", shape, wyoming.decode, line + body)
    yield from _msgpack_cases()
    yield from _bytes_cases()
    yield from _form_cases()
    for codec, data in (
        ("pcm_f32le", bytes(Limits().max_message_bytes)),
        ("pcmu", bytes(Limits().max_message_bytes)),
        ("opus", b"\xe3\x30" + bytes(range(48)) * 1000),  # 48 frames of 2.5 ms, the longest packet
    ):
        yield Case("a message of audio", f"{codec}, {len(data):,} bytes", partial(_decode_audio, codec), data)
    for shape, unit in (("fields", b"a=b&"), ("escapes", b"%e4"), ("separators", b"&")):
        yield Case("a form for a key", shape, _read_key, unit * (MAX_FORM_BYTES // len(unit)))


def _decode_audio(codec: str, data: bytes) -> None:
    decoder = make_decoder(codec)
    try:
        decoder.put(data)
        while decoder.step() is not None:
            pass
    finally:
        decoder.close()


def _read_key(body: bytes) -> None:
    dict(parse_qsl(body.decode("utf-8", "replace")))


def _msgpack_cases() -> Iterator[Case]:
    size, voice_bytes = Limits().max_message_bytes, Limits().max_voice_bytes

    def audio(samples: list[Any], **more: object) -> bytes:
        return bytes(msgpack.packb({"type": "Audio", **more, "pcm": samples}, use_single_float=bool(more)))

    yield Case("kyutai stt", "float32", kyutai.decode_client, audio([0.5] * ((size - 40) // 5), x=0))
    yield Case("kyutai stt", "float64", kyutai.decode_client, audio([0.5] * ((size - 20) // 9)))
    yield Case("kyutai stt", "numbers of a byte", kyutai.decode_client, audio([1] * 24_500))
    yield Case("kyutai stt", "kinds mixed", kyutai.decode_client, audio([1, 0.5] * 12_250))
    yield Case("kyutai stt", "arrays", kyutai.decode_client, audio([[]] * 24_500))
    yield Case("kyutai stt", "too many", kyutai.decode_client, audio([1] * (size - 20)))
    voice = {"type": "Voice", "embeddings": [0.5] * 64_000, "shape": [1, 125, 512]}
    packed = bytes(msgpack.packb(voice, use_single_float=True))
    assert len(packed) <= voice_bytes
    yield Case("kyutai tts", "a voice", kyutai_tts.decode_client, packed)


def _bytes_cases() -> Iterator[Case]:
    size = Limits().max_message_bytes
    for shape, first, opcode in (
        ("fragments", b"\x01\x80\0\0\0\0", 0),
        ("pings", b"", 0x89),
        ("texts", b"", 0x81),
    ):
        one = bytes((opcode, 0x80)) + bytes(4)
        yield Case("a read of WebSocket frames", shape, _read_frames, first + one * (size // len(one)))
    for shape, packets in (
        ("empty pages", []),
        ("empty packets", [b""] * 255),
        ("packets of a byte", [b"\0"] * 255),
    ):
        yield Case("a step of Ogg", shape, _step_of_ogg, _ogg_of(packets))
    for shape, data in (("no page", b"O" * size), ("damaged pages", b"OggS\0" * (size // 5))):
        yield Case("a step of Ogg", shape, _step_of_ogg, data)
    sound = streamed_header(8_000) + bytes(json_speech.MAX_AUDIO_BYTES - 44)
    yield Case("a step of WAV", "8 kHz", _step_of_wav, sound)
    chunks = b"RIFF\0\0\0\0WAVE" + b"LIST\0\0\0\0" * (MAX_HEAD_BYTES // 32)
    yield Case("the head of a WAV", "empty chunks, then single bytes", _head_of_wav, chunks)


def _form_cases() -> Iterator[Case]:
    """64 KiB of forms, which a read of the network brings at most."""
    boundary = b"b" * 70
    part = b"--" + boundary + b"\r\nContent-Disposition: form-data"
    end = b'; name="file"\r\n\r\n\r\n'
    for shape, inner in (
        ("parameters", b"; a=b" * 1500),
        ("quotes", b'; a="\\"' * 900),
        ("names without a value", b"; a" * 2500),
        ("spaces", b"; " + b" " * 7900),
        ("headers", b"\r\na: b" * 1300),
    ):
        yield Case("a form", shape, partial(_read_form, boundary), (part + inner + end) * 8)
    yield Case(
        "a form",
        "data like a boundary",
        partial(_read_form, boundary),
        part + end[:-2] + (b"\r\n--" + boundary[1:]) * 880,
    )


def _read_form(boundary: bytes, data: bytes) -> None:
    for _ in FormReader(boundary).feed(data):
        pass


def _read_frames(data: bytes) -> None:
    """As a socket does: messages and steps of fragments until the peer is ahead of its rate."""
    reader, steps = FrameReader(Limits().max_message_bytes), 0.0
    reader.feed(data)
    while steps < AHEAD_S * Limits().max_messages_per_s and (found := reader.next()) is not None:
        steps += FRAGMENT_MESSAGES if found[0] == FRAGMENTS else 1


def _step_of_ogg(data: bytes) -> None:
    decoder = OggDecoder(24_000, 24_000)
    try:
        decoder.put(data)
        decoder.step()
    finally:
        decoder.close()


def _step_of_wav(data: bytes) -> None:
    decoder = WavDecoder(24_000)
    decoder.put(data)
    decoder.step()


def _head_of_wav(data: bytes) -> None:
    decoder = WavDecoder(24_000)
    for portion in (data, *(b"\0" for _ in range(50))):
        decoder.put(portion)
        while decoder.step() is not None:
            pass


def _ogg_of(packets: Sequence[bytes]) -> bytes:
    """A stream for one message: its headers, then pages of these packets."""
    writer = OggOpusWriter(1)
    data = bytearray(writer.headers())
    while len(data) < Limits().max_message_bytes - 1000:
        data += writer.page(packets, 0)
    return bytes(data)


def unit_ms() -> float:
    """How long the fixed loop takes here."""
    return min(_timed(lambda: [None for _ in range(UNIT_TURNS)]) for _ in range(RUNS)) * 1000


def cost_of(case: Case, unit: float) -> Cost:
    """Measure a case; ``unit`` is what :func:`unit_ms` gives."""
    milliseconds = min(_timed(case.run) for _ in range(RUNS)) * 1000
    tracemalloc.start()
    case.run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Cost(milliseconds, milliseconds / unit, peak)


def _timed(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def _rows(unit: float) -> Iterator[str]:
    """The cost of each input."""
    for case in cases():
        cost = cost_of(case, unit)
        size = len(case.data) if isinstance(case.data, bytes) else len(case.data.encode())
        measured = f"{cost.milliseconds:.1f} ms", f"{cost.peak_bytes // 1024} KiB"
        yield ", ".join((case.decoder, case.shape, f"{size:,} bytes", *measured))


if __name__ == "__main__":
    one_unit = unit_ms()
    print(f"one unit is {one_unit:.2f} ms", *_rows(one_unit), sep="\n")
