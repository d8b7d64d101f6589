"""All exceptions that Antiphon raises on purpose.

::

    AntiphonError
    ├── ConfigError                  an option, a key or a value is invalid
    ├── CheckpointError              a model's files are not usable
    │   ├── CheckpointNotFoundError  the files do not exist, or the hub cannot be reached
    │   └── CheckpointFormatError    a file has an unexpected format
    │       └── CheckpointDigestError    a file's digest differs from the manifest
    ├── BackendError                 a backend cannot be made, or failed
    │   ├── MissingExtraError        an optional dependency is not installed
    │   ├── UnsupportedError         the backend does not support the request
    │   ├── StepError                a step failed for some rows; the others are intact
    │   └── DeviceLostError          the state of all rows on the device is unreliable
    ├── DegradedError                a smaller model differs too much from the original
    ├── ProtocolError                the peer sent bytes that the protocol does not allow
    │   ├── FieldError               a field of a JSON event (carries its path, a code, the event's id)
    │   └── RetiredApiError          the client uses a retired form of an API
    ├── TextModelError               an agent's text model failed (``may_pass``: a retry may succeed)
    ├── AudioError                   audio cannot be decoded, or has the wrong shape
    │   └── RecordingTooLongError    a recording is longer than the limit
    └── SessionError                 a session could not start or continue
        ├── ServerFullError          no row is free (carries ``retry_after_s``)
        ├── DrainingError            the server is shutting down
        ├── UnknownModelError        no model has this name (carries the names of the served models)
        ├── UnknownSessionError      the key has no session of this name
        ├── SessionLimitError        the key or address has reached its limit of sessions
        │   └── UsageLimitError      the key has used its seconds of the day
        ├── KeyRevokedError          the key of a call is not valid, or no longer valid
        ├── SessionTimeoutError      the peer stopped sending, or never sent audio
        ├── PeerConnectionError      no connection by WebRTC: ICE or DTLS failed, or took too long
        ├── ReplacedError            the call continues on another connection
        ├── MovedError               the call continues at another worker (carries its name)
        ├── HandOverError            a call cannot move to another worker
        │   └── HandOverRefusedError     the other worker refuses the call for good
        ├── ResumeError              a call cannot be resumed (carries the ``reason`` in a word)
        └── SessionFailedError       the session ended because of a server fault

Messages contain the numbers of the fault and, if a command is the remedy, the command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from antiphon.install import install_command


class AntiphonError(Exception):
    """Base of all exceptions that Antiphon raises on purpose.

    ``retry_after_s``: seconds after which another attempt may succeed; None if unknown.
    """

    retry_after_s: int | None = None


class ConfigError(AntiphonError):
    """An option, a key or a value is invalid."""


class CheckpointError(AntiphonError):
    """A model's files are not usable."""


class CheckpointNotFoundError(CheckpointError):
    """The checkpoint does not exist, or the hub cannot be reached."""


class CheckpointFormatError(CheckpointError):
    """A file exists but does not have the expected format."""


class CheckpointDigestError(CheckpointFormatError):
    """A file's SHA-256 differs from the digest in the manifest. ``path`` is the file, ``found`` and
    ``promised`` are the digests.
    """

    def __init__(self, path: str, *, found: str, promised: str, remedy: str) -> None:
        self.path, self.found, self.promised = path, found, promised
        super().__init__(f"{path} has SHA-256 {found}, the manifest says {promised}; {remedy}")


class BackendError(AntiphonError):
    """The backend could not be made, or failed."""


class MissingExtraError(BackendError):
    """An optional dependency is missing; the message is the command that installs it."""

    def __init__(self, what: str, *, extra: str, module: str) -> None:
        self.extra = extra
        self.module = module
        super().__init__(
            f"{what} needs the Python module '{module}', which is not installed; "
            f"install it with: {install_command(extra)}"
        )


class UnsupportedError(BackendError):
    """This backend does not support the request."""


class StepError(BackendError):
    """A step failed and changed only ``rows``: their sessions end, the others continue."""

    def __init__(self, message: str, *, rows: Iterable[int]) -> None:
        self.rows = tuple(rows)
        super().__init__(message)


class DeviceLostError(BackendError):
    """The device's state is unreliable: every session ends and the process exits."""


class DegradedError(AntiphonError):
    """A smaller model differs more from its original than its recipe allows."""


class ProtocolError(AntiphonError):
    """The peer sent bytes that are invalid in this protocol."""


class FieldError(ProtocolError):
    """A field of a JSON event is missing or invalid.

    ``param`` is its path, such as "session.audio.format.rate"; ``code`` is a machine-readable name of the
    fault; ``event_id`` is the sender's id of the event, if any.
    """

    def __init__(self, message: str, *, param: str | None, code: str, event_id: str | None = None) -> None:
        self.param = param
        self.code = code
        self.event_id = event_id
        super().__init__(message)


class RetiredApiError(ProtocolError):
    """A client uses a retired form of an API."""


class TextModelError(AntiphonError):
    """An agent's text model cannot be reached, or returns an invalid answer.

    ``may_pass``: the same request may succeed at once. ``retry_after_s``: seconds for which its server is
    full.
    """

    def __init__(self, message: str, *, may_pass: bool = False, retry_after_s: int | None = None) -> None:
        self.may_pass, self.retry_after_s = may_pass, retry_after_s
        super().__init__(message)


class AudioError(AntiphonError):
    """Audio cannot be decoded, or has the wrong shape."""


class RecordingTooLongError(AudioError):
    """A recording is longer than the limit."""


class SessionError(AntiphonError):
    """A session could not start or continue."""


class ServerFullError(SessionError):
    """No row is free, or another resource that the request needs; a later attempt may succeed."""

    retry_after_s: int

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class DrainingError(SessionError):
    """The server is draining: it admits no new session."""


class UnknownModelError(SessionError):
    """There is no model of that name, or of the kind that a route needs.

    ``known`` lists the names of the served models.
    """

    def __init__(self, message: str, *, known: Iterable[str]) -> None:
        self.known = tuple(known)
        super().__init__(message)


class UnknownSessionError(SessionError):
    """This key has no session of that name in this process."""


class SessionLimitError(SessionError):
    """The key or address has reached its limit of sessions."""

    retry_after_s: int = 10
    """The end of a running session is unknown: clients should wait this number of seconds."""


class UsageLimitError(SessionLimitError):
    """The key has used its seconds of the day."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class KeyRevokedError(SessionError):
    """The key of a call is not in the file, or was removed from it."""


class SessionTimeoutError(SessionError):
    """The peer stopped sending, or never sent audio."""


class PeerConnectionError(SessionError):
    """No connection to a peer by WebRTC: ICE or DTLS has failed, or took too long."""


class ReplacedError(SessionError):
    """The call was resumed on another connection, and continues there."""


class MovedError(SessionError):
    """The call can be resumed at another worker.

    The message begins with the worker's name, which may be empty, and a colon.
    """

    @property
    def worker(self) -> str:
        """The worker's name."""
        return str(self).partition(":")[0]


class HandOverError(SessionError):
    """A call cannot be handed over to another worker; the message has the reason."""


class HandOverRefusedError(HandOverError):
    """Another worker refuses a call because of its content; a retry does not help."""


class ResumeError(SessionError):
    """A call cannot be resumed; the message begins with the ``reason``, a word and a colon."""

    @property
    def reason(self) -> str:
        """The first word of the message: ``unknown``, ``expired``, ``replaced`` or ``draining``."""
        return str(self).partition(":")[0]


class SessionFailedError(SessionError):
    """The session ended because of a server fault."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint about an unknown name: the nearest known name, or all known names."""
    known = sorted(names)
    close = _closest(name, known)
    return f"did you mean '{close}'?" if close else f"there are: {', '.join(known) or 'none'}"


def hint(name: str, names: Iterable[str]) -> str:
    """The hint ``" (did you mean 'x'?)"`` for the inside of a sentence, or "" if no known name is near."""
    close = _closest(name, sorted(names))
    return f" (did you mean '{close}'?)" if close else ""


def _closest(name: str, known: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.5)), None)
