"""The time limits of a connection: liveness, first audio, and next audio."""

from __future__ import annotations

from typing import Final

from antiphon.errors import SessionTimeoutError
from antiphon.limits import Limits

PINGS_PER_TIMEOUT: Final = 3
"""Pings sent within one liveness timeout."""

AUDIO_CREDIT: Final = 10.0
"""Seconds without audio that one second of audio offsets. Speech in a tenth of the time is therefore enough.
"""

FIRST_AUDIO_S: Final = 0.02
"""Minimum seconds of audio that count as the start of audio: one packet of Opus."""


class LivenessRules:
    """The time limits of one connection.

    Seconds without audio are added up. Audio subtracts ``AUDIO_CREDIT`` times its own seconds from the sum;
    other messages do not change it. ``is_quiet`` is set while the client has announced silence; these seconds
    have a separate sum and limit.
    """

    def __init__(self, limits: Limits, awaits: str = "audio") -> None:
        """Start; no limit applies before :meth:`begin`. ``awaits`` names the expected input in error
        messages."""
        self._limits = limits
        self._awaits = awaits
        self._looked_s: float | None = None
        self._unheard_s = self._quiet_s = self._first_s = 0.0
        self._has_spoken = False
        self.is_quiet = False

    @property
    def period_s(self) -> float:
        """Seconds between checks."""
        return self._limits.liveness_timeout_s / (PINGS_PER_TIMEOUT + 1)

    def begin(self, now_s: float, *, has_spoken: bool = False) -> None:
        """Start the limits: the caller should now send audio; with ``has_spoken`` the limit of the next audio
        applies.

        A second call has no effect.
        """
        if self._looked_s is None:
            self._looked_s = now_s
            self._has_spoken = self._has_spoken or has_spoken

    def count_audio(self, now_s: float, seconds: float) -> None:
        """Count ``seconds`` seconds of audio that arrived since the last check; ``now_s`` is the time of the
        latest audio.
        """
        self._look(now_s)
        if not self._has_spoken:
            self._first_s += seconds
            if self._first_s < FIRST_AUDIO_S:
                return
            self._has_spoken, self._unheard_s = True, 0.0
        self._unheard_s = max(0.0, self._unheard_s - AUDIO_CREDIT * seconds)
        self._quiet_s = max(0.0, self._quiet_s - AUDIO_CREDIT * seconds)

    def excuse(self, now_s: float) -> None:
        """Exclude the time since the last check: the caller waited for the server."""
        if self._looked_s is not None:
            self._looked_s = max(self._looked_s, now_s)

    def wants_ping(self, silent_s: float) -> bool:
        """Whether to ping a peer that has been silent for ``silent_s``."""
        return silent_s > self._limits.liveness_timeout_s / PINGS_PER_TIMEOUT

    def check(self, now_s: float, silent_s: float) -> None:
        """Check the limits, ``silent_s`` seconds after the peer last sent anything.

        Raises:
            SessionTimeoutError: a limit is exceeded; the message has the reason.
        """
        limits = self._limits
        if silent_s > limits.liveness_timeout_s:
            raise SessionTimeoutError(
                f"no sign of life for {silent_s:.0f} s, the limit is {limits.liveness_timeout_s:g} s"
            )
        self._look(now_s)
        limit_s = limits.idle_timeout_s if self._has_spoken else limits.handshake_timeout_s
        what = "no" if self._has_spoken else "no first"
        for sum_s, most_s, kind in (
            (self._unheard_s, limit_s, ""),
            (self._quiet_s, limits.quiet_timeout_s, " of announced silence"),
        ):
            if sum_s > most_s:
                raise SessionTimeoutError(
                    f"{what} {self._awaits} for {sum_s:.0f} s{kind}, the limit is {most_s:g} s"
                )

    def _look(self, now_s: float) -> None:
        if self._looked_s is None:
            return
        passed_s = max(0.0, now_s - self._looked_s)
        self._looked_s += passed_s
        if self.is_quiet:
            self._quiet_s += passed_s
        else:
            self._unheard_s += passed_s
