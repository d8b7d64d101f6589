"""Every event of OpenAI Live that a server sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.protocol import live_events


def encoded(event: live_events.ServerEvent) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(live_events.encode(event, "ev_1"))
    return value


SHOWN = {"id": "live_1"}


@pytest.mark.parametrize(
    ("event", "wire"),
    [
        (
            live_events.SessionStarted(SHOWN, "c"),
            {"type": "session.started", "event_id": "ev_1", "session": SHOWN, "client_event_id": "c"},
        ),
        (
            live_events.SessionUpdated(SHOWN),
            {"type": "session.updated", "event_id": "ev_1", "session": SHOWN},
        ),
        (live_events.InputAudioMuted(), {"type": "session.input_audio.muted", "event_id": "ev_1"}),
        (live_events.InputAudioUnmuted(), {"type": "session.input_audio.unmuted", "event_id": "ev_1"}),
        (live_events.OutputAudio(b"abc"), {"type": "session.output_audio.delta", "delta": "YWJj"}),
        (
            live_events.OutputAudio(b"abc", 80, 160),
            {
                "type": "session.output_audio.delta",
                "event_id": "ev_1",
                "delta": "YWJj",
                "start_ms": 80,
                "end_ms": 160,
            },
        ),
        (
            live_events.InputAudio(b"abc"),
            {"type": "session.input_audio.append", "event_id": "ev_1", "audio": "YWJj"},
        ),
        (
            live_events.OutputTranscript(" hi", 0, 80),
            {
                "type": "session.output_transcript.delta",
                "event_id": "ev_1",
                "delta": " hi",
                "start_ms": 0,
                "end_ms": 80,
            },
        ),
        (
            live_events.InputTranscript("hi", 0, 80),
            {
                "type": "session.input_transcript.delta",
                "event_id": "ev_1",
                "delta": "hi",
                "start_ms": 0,
                "end_ms": 80,
            },
        ),
        (
            live_events.UsageUpdated(9.6, 0.5),
            {
                "type": "session.usage.updated",
                "event_id": "ev_1",
                "usage": {"seconds": 9.6},
                "context_window": {"usage_ratio": 0.5},
            },
        ),
        (
            live_events.UsageUpdated(1.0),
            {"type": "session.usage.updated", "event_id": "ev_1", "usage": {"seconds": 1.0}},
        ),
        (
            live_events.SessionClosed(live_events.CloseReason.EXPIRED, SHOWN, 3.2),
            {
                "type": "session.closed",
                "event_id": "ev_1",
                "reason": "expired",
                "session": SHOWN,
                "usage": {"seconds": 3.2},
            },
        ),
        (
            live_events.Error("no", "invalid_value", param="type", client_event_id="c"),
            {
                "type": "error",
                "event_id": "ev_1",
                "error": {
                    "type": "invalid_request_error",
                    "code": "invalid_value",
                    "message": "no",
                    "param": "type",
                    "client_event_id": "c",
                },
            },
        ),
        (
            live_events.Info("voice_ignored", "no voices", "c"),
            {
                "type": "info",
                "event_id": "ev_1",
                "code": "voice_ignored",
                "message": "no voices",
                "client_event_id": "c",
            },
        ),
    ],
)
def test_server_events_on_the_wire(event: live_events.ServerEvent, wire: dict[str, Any]) -> None:
    assert encoded(event) == wire


def test_events_of_a_session_that_can_be_resumed_have_numbers() -> None:
    audio = live_events.encode(live_events.OutputAudio(b"\x01\x02", frame=7), "ev_1")
    assert json.loads(audio) == {"type": "session.output_audio.delta", "frame": 7, "delta": "AQI="}
    text = live_events.encode(live_events.OutputTranscript(" a", 80, 160), "ev_2", seq=3)
    assert json.loads(text)["seq"] == 3


def test_every_server_event_has_a_type_of_its_own() -> None:
    assert len(set(live_events.TYPES.values())) == len(live_events.TYPES) == 16


def test_events_of_delegation_on_the_wire() -> None:
    told = {"id": "d", "type": "delegation", "target": "client"}
    assert encoded(live_events.DelegationCreated(80, told)) == {
        "type": "session.delegation.created",
        "event_id": "ev_1",
        "offset_ms": 80,
        "delegation": told,
    }
    inner = {"type": "response.created", "sequence_number": 0}
    assert encoded(live_events.ResponseEvent(inner, "d")) == {
        "type": "response.event",
        "event_id": "ev_1",
        "event": inner,
        "delegation_id": "d",
    }
    assert encoded(live_events.TextAppended("thinking", 80, 80, "c")) == {
        "type": "session.thinking.appended",
        "event_id": "ev_1",
        "start_ms": 80,
        "end_ms": 80,
        "client_event_id": "c",
    }
