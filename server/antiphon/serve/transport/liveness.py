"""The time limits of a connection: signs of life, first audio, and the next audio."""

from __future__ import annotations

from antiphon.config import Limits
from antiphon.errors import SessionTimeoutError

PINGS_PER_TIMEOUT = 3
"""Pings that are sent within one liveness timeout."""


AUDIO_CREDIT = 10.0
"""Seconds that a second of audio keeps a call: a caller that speaks a tenth of the time goes on for ever."""

FIRST_AUDIO_S = 0.02
"""Less is no beginning: one packet of Opus."""


class LivenessRules:
    """The limits of one connection, computed from the times of its last sign of life and last audio."""

    def __init__(self, limits: Limits, awaits: str = "audio") -> None:
        """No limit runs before :meth:`begin`. ``awaits`` names the expected input in error messages."""
        self._limits = limits
        self._awaits = awaits
        self._heard_s: float | None = None
        self._has_spoken = False
        self._first_s = 0.0

    @property
    def period_s(self) -> float:
        """How often to look."""
        return self._limits.liveness_timeout_s / (PINGS_PER_TIMEOUT + 1)

    def begin(self, now_s: float) -> None:
        """From now on the caller is expected to speak."""
        self._heard_s = now_s

    def heard(self, now_s: float, seconds: float | None = None) -> None:
        """The caller sent ``seconds`` of audio, None for something that counts as much as need be.

        A second keeps a call for ``AUDIO_CREDIT`` of them: three bytes now and then hold no row.
        """
        if seconds is None or self._heard_s is None:
            self._heard_s, self._has_spoken = now_s, True
            return
        if not self._has_spoken:
            self._first_s += seconds
            if self._first_s >= FIRST_AUDIO_S:
                self._heard_s, self._has_spoken = now_s, True
            return
        self._heard_s = min(now_s, self._heard_s + AUDIO_CREDIT * seconds)

    def wants_ping(self, silent_s: float) -> bool:
        """Whether a peer that has been silent for so long should be asked for a sign of life."""
        return silent_s > self._limits.liveness_timeout_s / PINGS_PER_TIMEOUT

    def check(self, now_s: float, silent_s: float) -> None:
        """Look, ``silent_s`` after the last sign of life.

        Raises:
            SessionTimeoutError: it is over, and why.
        """
        limits = self._limits
        if silent_s > limits.liveness_timeout_s:
            raise SessionTimeoutError(
                f"no sign of life for {silent_s:.0f} s, the limit is {limits.liveness_timeout_s:g} s"
            )
        if self._heard_s is None:
            return
        unheard_s = now_s - self._heard_s
        limit_s = limits.idle_timeout_s if self._has_spoken else limits.handshake_timeout_s
        if unheard_s > limit_s:
            what = "no" if self._has_spoken else "no first"
            raise SessionTimeoutError(
                f"{what} {self._awaits} for {unheard_s:.0f} s, the limit is {limit_s:g} s"
            )
