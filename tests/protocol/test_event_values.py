"""Numbers outside JSON, numbers of any length, and duplicate keys."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import FieldError
from antiphon.protocol import live, realtime, translation
from antiphon.protocol.event_text import HEAD_CHARS
from antiphon.protocol.speech_request import parse_speech_request

Decode = Callable[[str], Any]
READERS: dict[str, tuple[Decode, str]] = {
    "live": (live.decode, '{"type":"session.close","later":%s}'),
    "realtime": (realtime.decode, '{"type":"input_audio_buffer.commit","later":%s}'),
    "translation": (translation.decode, '{"type":"session.close","later":%s}'),
    "rest": (lambda text: parse_speech_request(text.encode()), '{"input":"a","later":%s}'),
}
APPENDS: dict[str, tuple[Decode, str]] = {
    "live": (live.decode, "session.input_audio.append"),
    "realtime": (realtime.decode, "input_audio_buffer.append"),
    "translation": (translation.decode, "session.input_audio_buffer.append"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e400", "[0, NaN]", "1" * 65])
def test_a_number_that_json_does_not_have_is_no_json(reader: str, value: str) -> None:
    decode, text = READERS[reader]
    decode(text % "1")
    with pytest.raises(FieldError) as caught:
        decode(text % value)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("value", [10**30, -(10**30), 1e300])
def test_a_number_too_large_for_its_field_is_refused_with_its_path(value: float) -> None:
    audio = {"format": {"type": "audio/pcm", "rate": value}}
    with pytest.raises(FieldError) as caught:
        live.decode(json.dumps({"type": "session.start", "session": {"model": "a", "audio": audio}}))
    assert caught.value.param == "session.audio.format.rate"
    with pytest.raises(FieldError, match="speed is "):
        parse_speech_request(json.dumps({"input": "a", "speed": value}).encode())


@pytest.mark.parametrize("reader", APPENDS)
@given(sounds=st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=4), last=st.booleans())
def test_of_keys_that_come_twice_the_last_counts_however_it_is_read(
    reader: str, sounds: list[bytes], last: bool
) -> None:
    decode, kind = APPENDS[reader]
    audio = ",".join(f'"audio":"{base64.b64encode(sound).decode()}"' for sound in sounds)
    kinds = f'"type":"session.none","type":"{kind}"'
    fields = f"{audio},{kinds}" if last else f"{kinds},{audio}"
    padding = f'"later":"{"x" * HEAD_CHARS}",'
    short, long = decode(f"{{{fields}}}"), decode(f"{{{padding}{fields}}}")
    assert short == long
    assert short.audio == sounds[-1]


@pytest.mark.parametrize("reader", APPENDS)
@pytest.mark.parametrize("bytes_", [50_000, 780_000])
def test_audio_of_any_length_is_what_was_sent_or_no_base64(reader: str, bytes_: int) -> None:
    decode, kind = APPENDS[reader]
    sound = random.Random(bytes_).randbytes(bytes_ // 3 * 3)
    event: Any = decode(json.dumps({"type": kind, "audio": base64.b64encode(sound).decode()}))
    assert event.audio == sound
    for wrong in ("*AAA", "AA=A"):
        text = json.dumps({"type": kind, "event_id": "e", "audio": base64.b64encode(sound).decode() + wrong})
        with pytest.raises(FieldError, match=r"^audio is not base64: ") as refused:
            decode(text)
        assert (refused.value.param, refused.value.event_id) == ("audio", "e")
