"""The table of errors: docs/errors.md shows every row, and every protocol uses its columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import errors
from antiphon.errors import AntiphonError, FieldError, MovedError, ReplacedError, ResumeError
from antiphon.protocol import events, live_events, realtime_events
from antiphon.protocol.events import Sender, check_event
from antiphon.protocol.moshi import Event
from antiphon.protocol.wire_errors import WIRE_FORMS, wire_form
from tests.repo.tracked import ROOT

ARGUMENTS: dict[str, dict[str, Any]] = {
    "MissingExtraError": {"extra": "x", "module": "x"},
    "CheckpointDigestError": {"found": "0a", "promised": "0b", "remedy": "fetch it again"},
    "StepError": {"rows": ()},
    "ServerFullError": {"retry_after_s": 7},
    "UnknownModelError": {"known": ()},
    "FieldError": {"param": "x", "code": "x"},
    "UsageLimitError": {"retry_after_s": 99},
}
RESUMING: dict[type[AntiphonError], Event] = {
    ReplacedError: events.replaced(),
    MovedError: events.moved("b"),
    ResumeError: events.resume_failed("b"),
}


def of_tree(kind: type[AntiphonError]) -> Iterator[type[AntiphonError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from of_tree(inner)


KINDS = [kind for kind in of_tree(AntiphonError) if kind.__module__ == errors.__name__]


def made(kind: type[AntiphonError]) -> AntiphonError:
    return kind("b: why", **ARGUMENTS.get(kind.__name__, {}))


def shown(kind: type[AntiphonError]) -> str:
    form = wire_form(made(kind))
    code = "its own" if issubclass(kind, FieldError) else f"`{form.code}`"
    code += f", in events `{form.event[1]}`" if form.event else ""
    statuses = (form.status, form.openai_status)
    meaning = (kind.__doc__ or "").splitlines()[0].replace("``", "`")
    cells = (f"`{kind.__name__}`", form.close, form.openai_close, *statuses, code, meaning)
    return f"| {' | '.join(map(str, cells))} |"


def test_the_reference_shows_every_class_with_a_row_of_its_own() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = [shown(kind) for kind in KINDS if kind in WIRE_FORMS or kind is FieldError]
    assert [line for line in text.splitlines() if line.startswith("| `")] == rows


def test_a_class_without_a_row_has_that_of_its_nearest_base() -> None:
    class LaterError(errors.UsageLimitError):
        pass

    assert wire_form(LaterError("no", retry_after_s=3)) is WIRE_FORMS[errors.UsageLimitError]
    assert wire_form(errors.StepError("no", rows=(1,))) is WIRE_FORMS[AntiphonError]


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_of_an_error_says_what_the_table_says(kind: type[AntiphonError]) -> None:
    reason = made(kind)
    form, event, live = wire_form(reason), events.error_of(reason), live_events.error_of(reason)
    check_event(event, sender=Sender.SERVER)
    wait = {} if reason.retry_after_s is None else {"retry_after_s": reason.retry_after_s}
    assert event == RESUMING.get(kind, Event("error", {"code": form.close, "message": str(reason), **wait}))
    kind_and_code = form.in_events if kind is not FieldError else (form.type, "x")
    assert ((live.type, live.code), live.message) == (kind_and_code, str(reason))
    told = json.loads(realtime_events.encode(realtime_events.error_event(reason), "event_1"))["error"]
    assert (told["type"], told["code"], told["param"]) == (live.type, live.code, live.param)


def test_an_error_of_a_field_names_it_and_its_event() -> None:
    error = live_events.error_of(FieldError("no", param="type", code="unknown_event", event_id="c"))
    assert error == live_events.Error("no", "unknown_event", param="type", client_event_id="c")
    unknown = live_events.error_of(errors.UnknownModelError("no", known=()))
    assert unknown.param == "session.model"
