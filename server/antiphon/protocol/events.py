"""The events of the extension: one table of their kinds, and a builder for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from antiphon.errors import AntiphonError, MovedError, ProtocolError, ReplacedError, ResumeError
from antiphon.protocol.moshi import Event
from antiphon.protocol.wire_errors import wire_form
from antiphon.values import Types, ValueRule

_WHOLE = int
_NUMBER = float


class Sender(StrEnum):
    """The sender of an event."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class EventKind:
    """The required and the optional fields of an event, by JSON type; other fields are ignored."""

    sender: Sender
    required: Mapping[str, Types]
    optional: Mapping[str, Types]


EVENT_KINDS: Mapping[str, EventKind] = {
    "queued": EventKind(Sender.SERVER, {"position": _WHOLE, "ahead": _WHOLE, "retry_after_s": _WHOLE}, {}),
    "ready": EventKind(
        Sender.SERVER,
        {
            "session": str,
            "model": str,
            "sample_rate": _WHOLE,
            "frame_samples": _WHOLE,
            "slots": _WHOLE,
            "parameters": dict,
        },
        {"resume": dict},
    ),
    "resumed": EventKind(
        Sender.SERVER,
        {
            "session": str,
            "token": str,
            "input_frame": _WHOLE,
            "missed_frames": _WHOLE,
            "replay_from": _WHOLE,
        },
        {"worker": str},
    ),
    "moved": EventKind(Sender.SERVER, {"worker": str}, {}),
    "resume_failed": EventKind(Sender.SERVER, {"reason": str}, {}),
    "replaced": EventKind(Sender.SERVER, {}, {}),
    "interrupted": EventKind(Sender.SERVER, {"at_frame": _WHOLE}, {}),
    "stats": EventKind(
        Sender.SERVER,
        {
            "frames_in": _WHOLE,
            "frames_out": _WHOLE,
            "queue_frames": _WHOLE,
            "late": _WHOLE,
            "lost": _WHOLE,
            "dropped": _WHOLE,
            "dropped_out": _WHOLE,
            "step_ms_p50": _NUMBER,
            "step_ms_p99": _NUMBER,
        },
        {},
    ),
    "heard": EventKind(Sender.SERVER, {"text": str}, {}),
    "tool": EventKind(Sender.SERVER, {"name": str, "arguments": str}, {}),
    "draining": EventKind(Sender.SERVER, {"deadline_s": _NUMBER}, {}),
    "error": EventKind(Sender.SERVER, {"code": _WHOLE, "message": str}, {"retry_after_s": _WHOLE}),
    "set": EventKind(Sender.CLIENT, {"parameters": dict}, {}),
    "flush": EventKind(Sender.CLIENT, {}, {}),
    "bye": EventKind(Sender.CLIENT, {}, {}),
}


def check_event(event: Event, *, sender: Sender) -> None:
    """Check an event against the table of events.

    Raises:
        ProtocolError: an unknown type, the wrong sender, or a field that is missing or of the wrong type.
    """
    kind = EVENT_KINDS.get(event.type)
    if kind is None or kind.sender is not sender:
        known = ", ".join(name for name, kind in EVENT_KINDS.items() if kind.sender is sender)
        raise ProtocolError(f"a {sender} sends no event {event.type[:40]!r}, only {known}")
    missing = sorted(kind.required.keys() - event.fields.keys())
    if missing:
        raise ProtocolError(f"event {event.type!r} lacks {', '.join(missing)}")
    for name, needed in (*kind.required.items(), *kind.optional.items()):
        value = event.fields.get(name)
        if name in event.fields and (fault := ValueRule(needed).fault(value)):
            raise ProtocolError(f"event {event.type!r}: {name} {fault.words}")


def queued(*, position: int, ahead: int, retry_after_s: int) -> Event:
    """The call waits for a row: its position in the queue from 0, the number of callers ahead, and the
    estimated wait.
    """
    return Event("queued", {"position": position, "ahead": ahead, "retry_after_s": retry_after_s})


def ready(
    *,
    session: str,
    model: str,
    sample_rate: int,
    frame_samples: int,
    slots: int,
    parameters: Mapping[str, Any],
    recorded: bool = False,
    resume: Mapping[str, Any] | None = None,
) -> Event:
    """The call is admitted: the server processes audio from now on.

    ``parameters`` is the result of :func:`chat.parameters_to_json`.

    ``recorded`` is present only in recorded calls, ``resume`` only in calls that can be resumed.
    """
    return Event(
        "ready",
        {
            "session": session,
            "model": model,
            "sample_rate": sample_rate,
            "frame_samples": frame_samples,
            "slots": slots,
            "parameters": dict(parameters),
            **({"recorded": True} if recorded else {}),
            **({} if resume is None else {"resume": dict(resume)}),
        },
    )


def resumed(
    *, session: str, token: str, input_frame: int, missed_frames: int, replay_from: int, worker: str = ""
) -> Event:
    """The call continues on this connection: ``input_frame`` is the first input frame that the server has not
    received.

    ``token`` resumes the call the next time. ``replay_from`` is the first frame whose audio may still arrive;
    ``missed_frames`` is the number of earlier frames that never reached the client. ``worker`` is the name of
    the worker that holds the call.
    """
    return Event(
        "resumed",
        {
            "session": session,
            "token": token,
            "input_frame": input_frame,
            "missed_frames": missed_frames,
            "replay_from": replay_from,
            **({"worker": worker} if worker else {}),
        },
    )


def resume_failed(reason: str) -> Event:
    """The call cannot be resumed; the reason is ``unknown``, ``expired``, ``replaced`` or ``draining``."""
    return Event("resume_failed", {"reason": reason})


def moved(worker: str) -> Event:
    """The call continues at the worker called ``worker``: resume it with ``worker=NAME`` in the query."""
    return Event("moved", {"worker": worker})


def replaced() -> Event:
    """The call continues on another connection."""
    return Event("replaced")


def interrupted(at_frame: int) -> Event:
    """Audio was discarded; ``at_frame`` is the first input frame whose reply may still arrive."""
    return Event("interrupted", {"at_frame": at_frame})


def stats(
    *,
    frames_in: int,
    frames_out: int,
    queue_frames: int,
    late: int,
    lost: int,
    dropped: int,
    dropped_out: int,
    step_ms_p50: float,
    step_ms_p99: float,
) -> Event:
    """Statistics, sent once a second: totals of this session, waiting input frames, and recent step times.

    ``dropped`` counts input frames, ``dropped_out`` replies, both dropped from full queues.
    """
    return Event(
        "stats",
        {
            "frames_in": frames_in,
            "frames_out": frames_out,
            "queue_frames": queue_frames,
            "late": late,
            "lost": lost,
            "dropped": dropped,
            "dropped_out": dropped_out,
            "step_ms_p50": step_ms_p50,
            "step_ms_p99": step_ms_p99,
        },
    )


def heard(text: str) -> Event:
    """A voice agent has understood a word of the caller."""
    return Event("heard", {"text": text})


def tool(name: str, arguments: str) -> Event:
    """The text model of a voice agent calls a tool; ``arguments`` is the model's text, unchanged."""
    return Event("tool", {"name": name, "arguments": arguments})


def draining(deadline_s: float) -> Event:
    """The server shuts down in ``deadline_s`` seconds."""
    return Event("draining", {"deadline_s": deadline_s})


def error(code: int, message: str, retry_after_s: int | None = None) -> Event:
    """The session ends: ``code`` is the close code that follows."""
    fields: dict[str, Any] = {"code": code, "message": message}
    if retry_after_s is not None:
        fields["retry_after_s"] = retry_after_s
    return Event("error", fields)


def bye() -> Event:
    """The client ends the session."""
    return Event("bye")


def error_of(reason: AntiphonError) -> Event:
    """The event for ``reason``: an ``error`` event has its close code and, if known, the seconds to wait."""
    match reason:
        case ReplacedError():
            return replaced()
        case MovedError():
            return moved(reason.worker)
        case ResumeError():
            return resume_failed(reason.reason)
        case _:
            return error(wire_form(reason).close, str(reason), reason.retry_after_s)
