"""The table of events, and its builders."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.protocol import events, moshi
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
    events.heard("word"),
    events.tool("weather", "{}"),
    events.draining(1.5),
    events.error(1013, "full", 3),
    moshi.Event("set", {"parameters": PARAMETERS}),
    moshi.Event("flush"),
    events.bye(),
]
WRONG: tuple[object, ...] = (None, True, [])


@pytest.mark.parametrize("event", BUILT, ids=lambda event: event.type)
def test_a_built_event_has_all_its_fields_and_no_others(event: Event) -> None:
    kind = EVENT_KINDS[event.type]
    check_event(event, sender=kind.sender)
    assert event.fields.keys() == kind.required.keys() | kind.optional.keys()


def test_every_kind_of_event_is_tried() -> None:
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
            with pytest.raises(ProtocolError, match=f"'{kind}': {name} is .*, .* is needed$"):
                check_event(Event(kind, {**whole, name: wrong}), sender=table.sender)
    check_event(Event(kind, {**whole, "later": 1}), sender=table.sender)


@pytest.mark.parametrize("kind", [*EVENT_KINDS, "unheard"])
def test_nobody_may_send_the_others_events(kind: str) -> None:
    for sender in Sender:
        if kind not in EVENT_KINDS or EVENT_KINDS[kind].sender is not sender:
            with pytest.raises(ProtocolError, match=f"a {sender} sends no event '{kind}'"):
                check_event(Event(kind), sender=sender)
