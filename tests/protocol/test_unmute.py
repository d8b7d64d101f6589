"""Unmute's events: those of its clients, refusals, and those for its clients."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.ogg import OggOpusWriter
from antiphon.errors import FieldError, ServerFullError
from antiphon.protocol import unmute
from antiphon.protocol.realtime_events import Event, encode, event
from antiphon.protocol.unmute import (
    MAX_LOG_CHARS,
    AppendAudio,
    ChatLog,
    Passed,
    Update,
    begins_stream,
    decode,
)

SESSION = '"voice":"unmute-prod-website/p329_022.wav","allow_recording":false'

VECTORS = {
    '{"type":"input_audio_buffer.append","audio":"T2dnUwAC"}': AppendAudio(b"OggS\0\2"),
    '{"type":"input_audio_buffer.append","event_id":"event_BJhGUIswO2u7vA2Cxw3Jy","audio":"T2dnUwAC"}': (
        AppendAudio(b"OggS\0\2")
    ),
    '{"type":"session.update","session":{"instructions":{"type":"smalltalk","language":"en/fr"},'
    + SESSION
    + "}}": Update(
        {
            "instructions": {"type": "smalltalk", "language": "en/fr"},
            "voice": "unmute-prod-website/p329_022.wav",
            "allow_recording": False,
        },
        "",
        "unmute-prod-website/p329_022.wav",
    ),
    '{"type":"session.update","event_id":"event_1","session":{"instructions":{"type":"constant",'
    '"text":"Be kind.","language":null},"voice":null,"allow_recording":true}}': Update(
        {"instructions": {"type": "constant", "text": "Be kind."}, "voice": None, "allow_recording": True},
        "Be kind.",
    ),
    '{"type":"session.update","session":{"allow_recording":false}}': Update(
        {"instructions": None, "voice": None, "allow_recording": False}
    ),
    '{"type":"unmute.input_audio_buffer.append_anonymized","number_of_samples":960}': Passed(),
}


@pytest.mark.parametrize("text", VECTORS)
def test_events_of_its_clients_are_read(text: str) -> None:
    assert decode(text) == VECTORS[text]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "type is missing"),
        ('{"type":"input_audio_buffer.commit"}', "type is 'input_audio_buffer.commit', which no client"),
        ('{"type":"session.update"}', "session is missing"),
        (
            '{"type":"session.update","session":{"instructions":"Be kind."}}',
            "session.instructions is 'Be kind.'",
        ),
        ('{"type":"session.update","session":{"voice":1}}', "session.voice is 1"),
        ('{"type":"input_audio_buffer.append","audio":"?"}', "audio is not base64"),
        ('{"type":"input_audio_buffer.append"}', "audio is missing"),
    ],
)
def test_other_events_are_refused(text: str, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        decode(text)


def test_a_stream_begins_with_its_first_page() -> None:
    writer = OggOpusWriter(1)
    head = writer.headers()
    assert begins_stream(head)
    assert not any(map(begins_stream, (b"", head[:5], b"OggS", writer.page([b"a"], 960), b"\2" * 30)))


def written(it: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(it, "event_1"))
    assert found.pop("event_id") == "event_1"
    return found


def test_events_are_written_as_its_clients_read_them() -> None:
    log = ChatLog()
    log.add("user", "hello")
    log.add("user", "there")
    log.add("assistant", "hi")
    history = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
    assert written(unmute.heard("hello", 1234)) == {
        "type": "conversation.item.input_audio_transcription.delta",
        "delta": "hello",
        "start_time": 1.234,
    }
    response = {
        "object": "realtime.response",
        "status": "in_progress",
        "voice": "alba",
        "chat_history": history,
    }
    assert written(unmute.response_created("alba", log)) == {"type": "response.created", "response": response}
    args = {"chat_history": history, "debug_dict": {}, "debug_plot_data": []}
    assert written(unmute.outputs(log)) == {"type": "unmute.additional_outputs", "args": args}
    sound = written(event("response.audio.delta", delta=b"OggS"))
    assert base64.b64decode(sound["delta"]) == b"OggS"
    told = {"type": "fatal", "code": "rate_limit_exceeded", "message": "full", "param": None, "details": None}
    error = unmute.error_event(ServerFullError("full", retry_after_s=1), is_fatal=True)
    assert written(error) == {"type": "error", "error": told}


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.integers(1, 3000), st.booleans())))
def test_the_conversation_that_is_repeated_is_bounded(said: list[tuple[str, int, bool]]) -> None:
    log = ChatLog()
    for role, size, is_new in said:
        log.add(role, "a" * size, is_new=is_new)
        assert sum(len(it["content"]) for it in log.shown) <= MAX_LOG_CHARS
        assert log.shown[-1]["role"] == role
        assert log.shown[-1]["content"].endswith("a" * size)
