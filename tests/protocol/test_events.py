"""The table of events, its builders, and what a client is told when a session ends."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import errors
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.protocol import events
from antiphon.protocol.events import EVENT_KINDS, Sender, check_event
from antiphon.protocol.moshi import Event

PARAMETERS = {"text_temperature": 0.7}
BUILT = [
    events.queued(position=0, ahead=1, retry_after_s=2),
    events.ready(
        session="s", model="m", sample_rate=1, frame_samples=2, slots=3, parameters=PARAMETERS, resume={}
    ),
    events.resumed(session="s", token="t", input_frame=1, missed_frames=2, replay_from=3, worker="b"),
    events.moved("b"),
    events.resume_failed("expired"),
    events.replaced(),
    events.interrupted(4),
    events.stats(
        frames_in=1,
        frames_out=2,
        queue_frames=3,
        late=4,
        lost=5,
        dropped=6,
        dropped_out=7,
        step_ms_p50=8.5,
        step_ms_p99=9.5,
    ),
    events.draining(1.5),
    events.error(1013, "full", 3),
    events.set_parameters(PARAMETERS),
    events.flush(),
    events.bye(),
]
WRONG: tuple[object, ...] = (None, True, [])
ERRORS = {
    "AntiphonError": 1011,
    "ConfigError": 1011,
    "CheckpointDigestError": 1011,
    "CheckpointError": 1011,
    "CheckpointNotFoundError": 1011,
    "CheckpointFormatError": 1011,
    "DegradedError": 1011,
    "BackendError": 1011,
    "MissingExtraError": 1011,
    "UnsupportedError": 1008,
    "StepError": 1011,
    "DeviceLostError": 1011,
    "ProtocolError": 1007,
    "FieldError": 1007,
    "AudioError": 1007,
    "RecordingTooLongError": 1007,
    "SessionError": 1011,
    "ServerFullError": 1013,
    "DrainingError": 1001,
    "UnknownModelError": 1008,
    "UnknownSessionError": 1008,
    "SessionLimitError": 1008,
    "UsageLimitError": 1008,
    "KeyRevokedError": 1008,
    "SessionTimeoutError": 1008,
    "SessionFailedError": 1011,
    "ReplacedError": 4409,
    "MovedError": 4307,
    "HandOverError": 1011,
    "HandOverRefusedError": 1011,
    "ResumeError": 4404,
}


@pytest.mark.parametrize("event", BUILT, ids=lambda event: event.type)
def test_a_built_event_has_all_its_fields_and_no_others(event: Event) -> None:
    kind = EVENT_KINDS[event.type]
    check_event(event, sender=kind.sender)
    assert event.fields.keys() == kind.required.keys() | kind.optional.keys()


def test_every_event_has_a_builder() -> None:
    assert {event.type for event in BUILT} == set(EVENT_KINDS)


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_a_missing_field_or_one_of_the_wrong_type_is_refused(kind: str) -> None:
    table = EVENT_KINDS[kind]
    whole = next(event.fields for event in BUILT if event.type == kind)
    for name in table.required:
        lacking = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(ProtocolError, match=f"'{kind}' lacks {name}"):
            check_event(Event(kind, lacking), sender=table.sender)
    for name in (*table.required, *table.optional):
        for wrong in WRONG:
            with pytest.raises(ProtocolError, match=f"'{kind}': {name} is a {type(wrong).__name__}"):
                check_event(Event(kind, {**whole, name: wrong}), sender=table.sender)
    check_event(Event(kind, {**whole, "later": 1}), sender=table.sender)


@pytest.mark.parametrize("kind", [*EVENT_KINDS, "unheard"])
def test_nobody_may_send_the_others_events(kind: str) -> None:
    for sender in Sender:
        if kind not in EVENT_KINDS or EVENT_KINDS[kind].sender is not sender:
            with pytest.raises(ProtocolError, match=f"a {sender} sends no event '{kind}'"):
                check_event(Event(kind), sender=sender)


RETRY_AFTER_S = {"ServerFullError": 7, "SessionLimitError": 10, "UsageLimitError": 99}


def make(name: str) -> AntiphonError:
    kind = getattr(errors, name)
    arguments: dict[str, dict[str, Any]] = {
        "MissingExtraError": {"extra": "x", "module": "x"},
        "CheckpointDigestError": {"found": "0a", "promised": "0b", "remedy": "fetch it again"},
        "StepError": {"rows": ()},
        "ServerFullError": {"retry_after_s": 7},
        "UnknownModelError": {"known": ()},
        "FieldError": {"param": "x", "code": "x"},
        "UsageLimitError": {"retry_after_s": 99},
    }
    error: AntiphonError = kind("why", **arguments.get(name, {}))
    return error


def test_every_error_is_considered() -> None:
    known = {name for name in vars(errors) if name.endswith("Error")}
    assert known == set(ERRORS)


@pytest.mark.parametrize(("name", "code"), ERRORS.items())
def test_an_error_tells_the_client_what_to_do(name: str, code: int) -> None:
    reason = make(name)
    event = events.error_of(reason)
    assert events.close_code(reason) == code
    assert event.fields["code"] == code
    assert event.fields["message"] == str(reason)
    assert event.fields.get("retry_after_s") == RETRY_AFTER_S.get(name)
    check_event(event, sender=Sender.SERVER)
