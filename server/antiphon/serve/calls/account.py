"""Records the usage of a call on this connection, and its quality if its model is on trial."""

from __future__ import annotations

from typing import Any

from antiphon.errors import MovedError, ReplacedError
from antiphon.ipc.engine_client import CallSession
from antiphon.ipc.values import Resumption
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.usage import UsageRecord
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.participant import Participant
from antiphon.serve.hosting.observation import Observation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services


class Account:
    """The usage of one connection of a call, recorded once, at its end."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        model: ServedModel,
        participant: Participant[Any],
        dialect: Dialect[Any],
    ) -> None:
        """Start with no usage."""
        self.model = model
        self._services, self._caller = services, caller
        self._participant, self._dialect = participant, dialect
        # Earlier frames belong to other connections of the call, which have recorded them, if they could.
        self._first_frame = self._first_reply = self._unrecorded_out = 0
        self._observation: Observation | None = None

    def resume(self, session: CallSession, found: Resumption) -> None:
        """Count only the frames that earlier connections of a resumed call have not recorded."""
        self._first_frame = session.next_frame - found.unrecorded_in
        self._first_reply = session.stats().frames_out + found.replayed
        self._unrecorded_out = found.unrecorded_out

    def watch(self) -> None:
        """Watch the call, if its model is on trial."""
        desk, session = self._services.canary, self._participant.session
        if desk is not None and session is not None:
            self._observation = desk.observe(self.model, session)

    @property
    def used(self) -> UsageRecord:
        """The usage of this connection so far."""
        participant, spec = self._participant, self.model.engine.info.spec
        stats, session = participant.stats(), participant.session
        first_frame = self._first_frame + participant.lead_frames
        heard = max(0, stats.frames_in - first_frame) if spec.kind.takes_audio else 0
        voice = participant.voice_spec or spec
        said = max(0, stats.frames_out - self._first_reply) if voice.kind.gives_audio else 0
        found = None if session is None else session.resumption
        return UsageRecord(
            ended=self._services.access.usage.stamp(),
            session=participant.id if found is None else found.call,
            key=self._caller.name,
            model=participant.name or self.model.name,
            seconds_in=round(heard * spec.frame_ms / 1000, 2),
            seconds_out=round((said + self._unrecorded_out) * voice.frame_ms / 1000, 2),
            words=self._dialect.words + participant.words,
            tokens_in=participant.tokens_in,
            tokens_out=participant.tokens_out,
        )

    def close(self) -> None:
        """Record the usage of this connection, and the call's quality unless the call continues elsewhere."""
        if self._participant.id and (used := self.used).seconds:
            self._services.access.ended(used)
        desk, seen, session = self._services.canary, self._observation, self._participant.session
        if desk is not None and seen is not None and session is not None:
            continues_elsewhere = isinstance(session.error, ReplacedError | MovedError)
            desk.ended(self.model, self._caller, seen, session, continues_elsewhere=continues_elsewhere)
